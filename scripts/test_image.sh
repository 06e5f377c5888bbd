#!/usr/bin/env bash
# Builds the container image and starts it: scripts/test_image.sh [--base IMAGE] [Dockerfile]
# With docker, podman or buildah, whichever is here; buildah needs no daemon and no privileges beyond root's. IMAGE
# stands in for the base image where no registry can be reached. Exit status 77: none of the three is here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

file=$ROOT/packaging/Dockerfile base=()
while (($#)); do
  case $1 in
    --base) base=(--build-arg "BASE=${2:?--base needs an image}") && shift ;;
    -*) fail 2 "usage: scripts/test_image.sh [--base IMAGE] [Dockerfile]" ;;
    *) file=$1 ;;
  esac
  shift
done
name=localhost/sluice-test
version=$(sed -n 's/^project(sluice VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
model=$ROOT/tests/golden/models/llama.gguf

if have docker || have podman; then
  engine=$(have docker && echo docker || echo podman)
  "$engine" build -q "${base[@]}" -f "$file" -t "$name" "$ROOT" >/dev/null
  in_image() { "$engine" run --rm --read-only -v "$model:/model.gguf:ro" "$name" "$@"; }
  user() { "$engine" run --rm --entrypoint id "$name" -u; }
elif have buildah; then
  buildah build --isolation chroot --format docker "${base[@]}" -f "$file" -t "$name" "$ROOT" >&2
  container=$(buildah from --pull-never "$name")
  trap 'buildah rm "$container" >/dev/null' EXIT
  in_image() { buildah run --isolation chroot -v "$model:/model.gguf:ro" "$container" -- sluice "$@"; }
  user() { buildah run --isolation chroot "$container" -- id -u; }
else
  echo "skipped: neither docker nor podman nor buildah is here" >&2
  exit 77
fi

[[ $(in_image --version) == "$version" ]] || fail 1 "the image's program is not version $version"
[[ $(user) == 1000 ]] || fail 1 "the image runs as user $(user)"
[[ -n $(in_image run /model.gguf -p "once upon a time" -m 8 -q) ]] || fail 1 "the image's program gives no text"
say "$(basename "$file"): built and run"

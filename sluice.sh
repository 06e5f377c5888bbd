#!/usr/bin/env bash
# From a fresh clone to an answer: ./sluice.sh run "Why is the sky blue?"
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
source "$ROOT/scripts/packages.sh"
source "$ROOT/scripts/build.sh"
source "$ROOT/scripts/cuda.sh"

BINARY=$BUILD/release/sluice

usage() {
  cat <<'HELP'
usage: ./sluice.sh COMMAND [ARGUMENTS]

  setup             install what a build needs and is missing: packages (Debian, Ubuntu); with an
                    NVIDIA driver and no nvcc, the CUDA compiler from PyPI (0.7 GB, into build/)
  build             build the program into build/release and print its path
  model             get the default model (SmolLM2-135M-Instruct, 94 MB) and print its path
  run TEXT          answer TEXT with the default model; other arguments go to `sluice run smollm2`
  serve [ARGS...]   serve the default model: `sluice serve smollm2 ARGS`
  test [--full]     run all tests; --full adds those that take long
  bench [ARGS...]   measure: `sluice bench ARGS`
  clean             remove build/
  help              show this

Each does first what it needs, and is quick when that is already done.

  SLUICE_CACHE      where models are kept (default: ~/.cache/sluice)
  SLUICE_CUDA       the GPU part: auto (default: where nvcc or an NVIDIA driver is), on or off
  SLUICE_JOBS       compile jobs at a time (default: one per core)
  NO_COLOR          no colours
HELP
}

cmd_setup() {
  setup_build || fail 1 "could not install the packages"
  setup_cuda
  say "packages: all there; to be built: $CUDA_PART"
}

cmd_build() {
  setup_build || fail 1 "could not install the packages"
  setup_cuda
  say "building build/release: $CUDA_PART"
  configure_and_build release sluice ${CUDA_NVCC:+sluice_cuda} -- "${RELEASE_ARGS[@]}" "${CUDA_ARGS[@]}" ||
    fail 1 "the build failed"
}

cmd_run() {
  cmd_build
  "$ROOT/scripts/get_model.sh" >/dev/null
  if (($# == 1)) && [[ $1 != -* ]]; then
    exec "$BINARY" run smollm2 --chat -p "$1"
  fi
  exec "$BINARY" run smollm2 "$@"
}

cmd_serve() {
  cmd_build
  "$ROOT/scripts/get_model.sh" >/dev/null
  exec "$BINARY" serve smollm2 "$@"
}

cmd_bench() {
  cmd_build
  local arg
  for arg in "$@"; do
    if [[ $arg == smollm2 ]]; then "$ROOT/scripts/get_model.sh" >/dev/null; fi
  done
  exec "$BINARY" bench "$@"
}

cmd_clean() {
  say "removing build/"
  rm -rf "$BUILD"
}

command=${1:-help}
(($#)) && shift
case $command in
  setup) cmd_setup ;;
  build) cmd_build && echo "$BINARY" ;;
  model) "$ROOT/scripts/get_model.sh" ;;
  run) cmd_run "$@" ;;
  serve) cmd_serve "$@" ;;
  test) exec "$ROOT/scripts/run_tests.sh" "$@" ;;
  bench) cmd_bench "$@" ;;
  clean) cmd_clean ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    fail 2 "no command '$command'"
    ;;
esac

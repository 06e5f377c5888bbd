#!/usr/bin/env bash
# What sluice quantize writes, read by the PyPI package gguf: scripts/test_quantize.sh BINARY VENV
# The virtual environment is made once, from PyPI. Exit status 77: it cannot be made here.
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: $0 BINARY VENV" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$2
want='gguf>=0.17,<1'

if [[ $(cat "$venv/.installed" 2>/dev/null) != "$want" ]]; then
  rm -rf "$venv"
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 \
    --timeout 15 "$want"; then
    echo "skipped: no virtual environment with $want (offline?)" >&2
    exit 77
  fi
  printf '%s' "$want" >"$venv/.installed"
fi
PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" "$root/tests/quantize_test.py" "$binary" -v IndependentReader

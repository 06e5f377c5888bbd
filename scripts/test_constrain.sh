#!/usr/bin/env bash
# JSON schemas judged by sluice and by the PyPI package jsonschema, whose source archive carries the official
# JSON-Schema-Test-Suite: scripts/test_constrain.sh BINARY VENV
# The virtual environment and the suite are fetched once, from PyPI. Exit status 77: they cannot be had here.
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: $0 BINARY VENV" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$2
want='jsonschema==4.23.0'

if [[ $(cat "$venv/.installed" 2>/dev/null) != "$want" ]]; then
  rm -rf "$venv"
  pip=("$venv/bin/pip" -q --disable-pip-version-check --retries 1 --timeout 15)
  if ! python3 -m venv "$venv" || ! "${pip[@]}" install "$want" ||
    ! "${pip[@]}" download --no-deps --no-binary jsonschema -d "$venv/sdist" "$want" ||
    ! mkdir -p "$venv/suite" || ! tar xzf "$venv"/sdist/jsonschema-*.tar.gz -C "$venv/suite" --strip-components=1; then
    echo "skipped: no virtual environment with $want and its source archive (offline?)" >&2
    exit 77
  fi
  printf '%s' "$want" >"$venv/.installed"
fi
PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" "$root/tests/constrain/constrain_test.py" "$binary" \
  "$venv/suite/json/tests/draft2020-12" -v

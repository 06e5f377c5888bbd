#!/usr/bin/env bash
# JSON schemas judged by sluice and by the PyPI package jsonschema, whose source archive carries the official
# JSON-Schema-Test-Suite, then by llguidance and xgrammar too: scripts/test_constrain.sh BINARY VENV
# The virtual environment and the suite are fetched once, from PyPI. Exit status 77: they cannot be had here.
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: $0 BINARY VENV" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$2
want='jsonschema==4.23.0'
others=(llguidance==1.9.1 apache-tvm-ffi==0.1.15.post2 numpy==2.4.6 pydantic==2.14.3)
xgrammar='xgrammar==0.2.8'  # without torch and transformers, which judging texts does not need

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
export PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" "$root/tests/constrain/constrain_test.py" "$binary" "$venv/suite/json/tests/draft2020-12" -v

if [[ $(cat "$venv/.others" 2>/dev/null) != "${others[*]} $xgrammar" ]]; then
  pip=("$venv/bin/pip" -q --disable-pip-version-check --retries 1 --timeout 15)
  if ! "${pip[@]}" install "${others[@]}" || ! "${pip[@]}" install --no-deps "$xgrammar"; then
    echo "not compared with others: no ${others[*]} $xgrammar here (offline?)" >&2
    exit 0
  fi
  printf '%s' "${others[*]} $xgrammar" >"$venv/.others"
fi
exec "$venv/bin/python" "$root/tests/constrain/oracles_test.py" "$binary" -v

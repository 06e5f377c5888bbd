#!/usr/bin/env bash
# The files of packaging/ against the program: scripts/test_packaging.sh BINARY VENV
# The virtual environment (a YAML reader, the schemas of Kubernetes) is made once, from PyPI. Exit status 77: it cannot
# be made here.
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: $0 BINARY VENV" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$2
want='PyYAML==6.0.3 kubernetes-validate==1.37.0'

if [[ $(cat "$venv/.installed" 2>/dev/null) != "$want" ]]; then
  rm -rf "$venv"
  # shellcheck disable=SC2086
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 \
    --timeout 15 $want; then
    echo "skipped: no virtual environment with $want (offline?)" >&2
    exit 77
  fi
  printf '%s' "$want" >"$venv/.installed"
fi
SLUICE=$binary PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" "$root/tests/packaging/packaging_test.py" -v

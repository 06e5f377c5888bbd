#!/usr/bin/env bash
# The server's tests with real clients (openai, anthropic, ollama): scripts/test_server.sh BINARY VENV
# The virtual environment is made once, from PyPI. Exit status 77: it cannot be made here.
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: $0 BINARY VENV" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$2
want=('openai>=2,<4' 'anthropic>=0.70,<1' 'ollama>=0.6,<1' 'jsonschema>=4.18,<5' 'pyyaml>=6,<7'
  'pyzmq>=26,<28' 'msgpack>=1,<2' 'grpcio>=1.60,<2' 'grpcio-tools>=1.60,<2')

if [[ $(cat "$venv/.installed" 2>/dev/null) != "${want[*]}" ]]; then
  rm -rf "$venv"
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 \
    --timeout 15 "${want[@]}"; then
    echo "skipped: no virtual environment with ${want[*]} (offline?)" >&2
    exit 77
  fi
  printf '%s' "${want[*]}" >"$venv/.installed"
fi
cd "$root/tests/server"
PYTHONDONTWRITEBYTECODE=1 SLUICE=$binary exec "$venv/bin/python" ../sliced.py -v test_api test_behaviour test_fields \
  test_schema test_embeddings test_kv_events test_grpc test_tools.Tools.test_openai_client test_messages.Messages.test_anthropics_client test_responses.Responses.test_openais_client test_ollama.Ollama.test_ollamas_client test_batches.OpenAiClient test_tls.Tls.test_openai_client test_tls.Tls.test_a_client_that_leaves_its_stream

#!/usr/bin/env bash
# The server's tests with clients of other people: scripts/test_clients.sh BINARY VENV [TEST...]
# The virtual environment (1.1 GB) is made once, from PyPI. Exit status 77: it cannot be made here.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: $0 BINARY VENV [TEST...]" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$(realpath -m "$2")
shift 2
want=('openai>=2,<4' 'anthropic>=0.70,<1' 'langchain-openai>=1,<2' 'litellm[mcp]>=1.80,<2' 'lm_eval[api]>=0.4.11,<0.5'
  'schemathesis>=4,<5' 'llm-comply==0.5.0' 'jsonschema>=4.18,<5' 'transformers>=4.50,<6')  # only its tokenizers; no torch

if [[ $(cat "$venv/.installed" 2>/dev/null) != "${want[*]}" ]]; then
  rm -rf "$venv"
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 \
    --timeout 15 --prefer-binary "${want[@]}"; then
    echo "skipped: no virtual environment with ${want[*]} (offline?)" >&2
    exit 77
  fi
  printf '%s' "${want[*]}" >"$venv/.installed"
fi
"$venv/bin/pip" list --disable-pip-version-check --format freeze |
  grep -E '^(openai|anthropic|langchain-openai|litellm|lm_eval|schemathesis|llm-comply|transformers)=='
[[ $# -gt 0 ]] || set -- test_openai test_langchain test_litellm test_lm_eval test_schemathesis test_tools \
  test_comply test_agent
cd "$root/tests/server/clients"
# No client may look for a hub, a cost map or a place to report to.
export PYTHONDONTWRITEBYTECODE=1 SLUICE=$binary PYTHONPATH=$root/tests/server PATH="$venv/bin:$PATH"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True LANGCHAIN_TRACING_V2=false
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 TQDM_DISABLE=1
exec "$venv/bin/python" -m unittest -v "$@"

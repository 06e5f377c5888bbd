#!/usr/bin/env bash
# Routers of other people in front of two servers: scripts/test_routers.sh BINARY VENV [TEST...]
# The virtual environment is made once, from PyPI; a router without a wheel for this machine is left out, and its tests
# are skipped. Exit status 77: there is none of them here. SLUICE_TEST_FULL=1 sends more requests, and adds LiteLLM's
# proxy (0.8 GB) and Dynamo (0.3 GB).
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: $0 BINARY VENV [TEST...]" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") venv=$(realpath -m "$2")
shift 2
want=('sglang-router==0.3.2' 'vllm-router==0.1.16')
[[ ${SLUICE_TEST_FULL:-} != 1 ]] || want+=('litellm[proxy]>=1.80,<2' 'ai-dynamo==1.6.1')
# What Dynamo's frontend and sidecar import. Its own list is longer, and names what PyPI does not have for every machine.
dynamo=('ai-dynamo-runtime==1.6.1' 'aiohttp<4' 'msgspec' 'packaging' 'prometheus-client<1' 'pydantic<=2.13.5'
  'pyyaml' 'pyzmq' 'typing-extensions' 'uvloop' 'zstandard<1')
install() {  # install PACKAGE...
  "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 --timeout 15 --only-binary :all: "$@"
}

if [[ $(cat "$venv/.installed" 2>/dev/null) != "${want[*]}"* ]]; then  # one with more will do
  rm -rf "$venv"
  python3 -m venv "$venv" || exit 77
  got=0
  for package in "${want[@]}"; do
    more=()
    [[ $package != ai-dynamo=* ]] || more=(--no-deps)
    if install "${more[@]}" "$package" && { [[ $package != ai-dynamo=* ]] || install "${dynamo[@]}"; }; then
      got=$((got + 1))
    else
      echo "no wheel of $package here (offline?)" >&2
    fi
  done
  [[ $got -gt 0 ]] || { echo "skipped: no virtual environment with any of ${want[*]} (offline?)" >&2; exit 77; }
  [[ $got -lt ${#want[@]} ]] || printf '%s' "${want[*]}" >"$venv/.installed"
fi
"$venv/bin/pip" list --disable-pip-version-check --format freeze | grep -E '^(sglang-router|vllm-router|litellm|ai-dynamo)=='
[[ $# -gt 0 ]] || set -- test_routers test_dynamo
cd "$root/tests/server/clients"
# None of them may look for a hub, a cost map or a place to report to.
export PYTHONDONTWRITEBYTECODE=1 SLUICE=$binary PYTHONPATH=$root/tests/server PATH="$venv/bin:$PATH"
export HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
exec "$venv/bin/python" -m unittest -v "$@"

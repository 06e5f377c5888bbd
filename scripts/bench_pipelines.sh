#!/usr/bin/env bash
# What each --pipeline does to throughput and to the time between a request's tokens: nine budgets, requests of 256
# tokens in and 16 out, all there from the start. One table on stdout; on a GPU also without graphs, at three budgets.
#   scripts/bench_pipelines.sh [MODEL [FLAG...]]    default random:qwen2.5-0.5b; flags are those of bench throughput
# SLUICE names the program (default build/gpu/sluice), BUDGETS, PLAIN (those without graphs) and REQUESTS what is run.
# Under 200 s on an H200. Both ratios are to sync; their product is the number of steps that share the requests out.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
sluice=${SLUICE:-build/gpu/sluice}
model=${1:-random:qwen2.5-0.5b}
shift || true

field() { grep -o "\"$1\":[0-9.eE+-]*" <<<"$2" | head -n 1 | cut -d : -f 2; }
mean() { grep -o "\"$1\":{\"mean\":[0-9.eE+-]*" <<<"$2" | cut -d : -f 3; }

# row BUDGET GRAPHS PIPELINE FLAG...
row() {
  local budget=$1 graphs=$2 pipeline=$3 requests=${REQUESTS:-} json
  shift 3
  # As many as keep every run short: 90 steps and more.
  [[ $requests ]] || requests=$((budget < 96 ? 96 : budget < 500 ? budget : 500))
  json=$("$sluice" bench throughput "$model" --budget "$budget" --max-seqs "$budget" --pipeline "$pipeline" --ctx 512 \
    --no-prefix-cache --requests "$requests" --input 256 --output 16 --repeat 1 -q --json "$@") || exit 1
  local rate gap
  rate=$(field output_tokens_per_s "$json") gap=$(mean itl_s "$json")
  [[ $pipeline != sync ]] || sync_rate=$rate sync_gap=$gap
  awk -v b="$budget" -v g="$graphs" -v p="$pipeline" -v q="$(field requests_per_s "$json")" -v r="$rate" -v step="$(mean step_s "$json")" \
    -v gap="$gap" -v r0="$sync_rate" -v g0="$sync_gap" 'BEGIN { printf "%6d %-6s %-13s %10.1f %10.2f %9.3f %11.3f %10.3f %7.3f %8.2f\n",
      b, g, p, r, q, step * 1e3, gap * 1e3, r / r0, gap / g0, r / r0 * gap / g0 }'
}

echo "$model $*"
printf '%6s %-6s %-13s %10s %10s %9s %11s %10s %7s %8s\n' budget graphs pipeline tokens/s requests/s 'step ms' 'between ms' throughput latency product
for budget in ${BUDGETS-1536 1024 768 512 384 256 128 64 32}; do
  for pipeline in sync simple-async interleave double-buffer overlap; do row "$budget" yes $pipeline "$@"; done
done
for budget in ${PLAIN-1536 256 32}; do
  for pipeline in sync simple-async interleave double-buffer overlap; do row "$budget" no $pipeline --no-graphs "$@"; done
done

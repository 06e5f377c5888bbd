#!/usr/bin/env bash
# Speed on a GPU: builds, runs sluice bench gpu over shapes and types, prints the tables.
#   scripts/bench_gpu.sh [BUILD DIR]      default build/gpu; some five minutes on 16 cores. JSON beside it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=${1:-build/gpu}
mkdir -p "$dir"
{ cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON && cmake --build "$dir" --target sluice sluice_cuda; } >"$dir/bench-build.log" 2>&1 ||
  { tail -n 20 "$dir/bench-build.log"; exit 1; }
bench() { echo "== $*"; "$dir/sluice" bench gpu "$@" -q; echo; }
bench random:qwen2.5-0.5b --contexts 192
# Deterministic is the default of this model; of the others it is not.
bench random:qwen2.5-7b --contexts 1024 --no-workload --fast-products
bench random:qwen2.5-7b --contexts 1024 --no-workload --quantize fp8 --kv f8
bench random:qwen2.5-7b --contexts 1024 --no-workload --quantize w8a8 --fast-products
bench random:qwen2.5-7b --contexts 1024 --no-workload --deterministic
for mode in --fast-products --deterministic; do bench random:qwen2.5-7b --contexts 8192 --batches 1,8,32 --no-workload $mode; done
bench random:qwen2.5-7b --contexts 1024 --no-workload --no-graphs --batches 1,32 --fast-products
bench random:qwen3-0.6b --batches 1,256
bench random:qwen3-14b --batches 1,256
echo "== 256 requests of 1024 in, 1024 out"
"$dir/sluice" bench throughput random:qwen3-8b --format bf16 --device cuda --requests 256 --input 1024 --output 1024 --repeat 1 -q

#!/usr/bin/env bash
# Everything that needs a GPU: builds, runs all checks, prints a short table last.
#   scripts/test_gpu.sh [BUILD DIR [CHECK...]]      default build/gpu; some seven minutes on 16 cores
# With CHECKs (patterns such as attention or 'racecheck-*') only those run, of what is built already:
#   scripts/test_gpu.sh build/gpu memcheck-int8 racecheck-int8 racecheck-packed
# For an architecture other than Hopper's (docs/development.md, "Other GPUs"), on any later GPU:
#   SLUICE_CUDA_ARCHS=80-virtual SLUICE_CUDA_SHARED=99 scripts/test_gpu.sh build/gpu-80
# Where compute-sanitizer is on the PATH, every op runs in bf16 under memcheck, racecheck and initcheck too.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=${1:-build/gpu}
wanted=("${@:2}")
logs=$dir/gpu-log
mkdir -p "$logs"
table=() failed=0 ran=0

is_wanted() {
  ((${#wanted[@]} == 0)) && return
  local pattern
  # shellcheck disable=SC2053  # patterns
  for pattern in "${wanted[@]}"; do [[ $1 == $pattern ]] && return; done
  return 1
}

# check NAME SECONDS COMMAND...
check() {
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  is_wanted "$name" || return 0
  ran=$((ran + 1))
  timeout "$limit" "$@" >"$logs/$name.log" 2>&1 || status=$?
  local result=passed
  if ((status != 0)); then
    result=FAILED failed=1
    echo "-- $name (rc $status), all of it in $logs/$name.log"
    { grep -nE -A4 'Failure|FAIL|rror:|ERROR|mismatch' "$logs/$name.log" || tail -n 15 "$logs/$name.log"; } | head -n 30
  elif grep -q 'no GPU' "$logs/$name.log"; then
    result='skipped: no GPU' failed=1
  fi
  table+=("$(printf '%-22s %-16s %4d s' "$name" "$result" "$((SECONDS - start))")")
}

check configure 60 cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON \
  "-DSLUICE_CUDA_ARCHS=${SLUICE_CUDA_ARCHS:-90a}"
check build 400 cmake --build "$dir" --target cuda_tests cuda_ops_test cuda_model_test cuda_prefix_test engine_property_test
check ops 300 "$dir/tests/cuda_ops_test" --gtest_brief=1  # the first to run: PTX is compiled here
check attention 200 "$dir/cuda_attention_test"
check products 120 "$dir/cuda_product_test"
check packed 120 "$dir/cuda_packed_test"
check stack 120 "$dir/cuda_stack_test"
check sampling 120 "$dir/cuda_sampling_test"
check prefixes 120 "$dir/tests/cuda_prefix_test" --gtest_brief=1
check models 120 "$dir/tests/cuda_model_test" --gtest_brief=1
check property 180 env SLUICE_TEST_DEVICE=cuda "$dir/tests/engine_property_test" --gtest_brief=1
if command -v compute-sanitizer >/dev/null; then
  # cuBLAS's own kernels (nvjet) synchronise in ways that racecheck does not know.
  sanitize() { check "$1-$2" 200 compute-sanitizer --tool "$1" --error-exitcode 9 --kernel-name-exclude kns=nvjet "${@:3}"; }
  for tool in memcheck racecheck initcheck; do
    for kv in bf16 f16 f32 f8; do sanitize $tool attention-$kv "$dir/cuda_attention_test" --small --kv $kv; done
    sanitize $tool int8 "$dir/cuda_attention_test" --small --kv int8
    sanitize $tool prefixes "$dir/cuda_attention_test" --prefixes --small --kv bf16
    sanitize $tool int8-ops "$dir/tests/cuda_ops_test" --gtest_filter='*Codes*/f16'
    sanitize $tool sampling "$dir/cuda_sampling_test" --quick
    # Racecheck of all small products would take an hour: one check in 60, others by SLUICE_TEST_SEED.
    one_in=1
    if [[ $tool == racecheck ]]; then one_in=60; fi
    SLUICE_TEST_SLICE=$one_in sanitize $tool products "$dir/cuda_product_test" --small
    sanitize $tool packed "$dir/cuda_packed_test" --small
    sanitize $tool stack "$dir/cuda_stack_test" --small
    sanitize $tool ops "$dir/tests/cuda_ops_test" --gtest_filter='*/bf16'
  done
fi
echo
if ((ran == 0)); then
  echo "no such check (or no compute-sanitizer on the PATH): ${wanted[*]}" >&2
  exit 2
fi
printf '%s\n' "${table[@]}"
exit $failed

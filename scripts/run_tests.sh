#!/usr/bin/env bash
# All stages of ./sluice.sh test [--full]. A stage that fails does not stop the others.
# Output of each goes to build/log. A ctest label `full` keeps a test for --full, `release` keeps it out of
# the sanitizer builds; with --full the environment has SLUICE_TEST_FULL=1.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/scripts/build.sh"
source "$ROOT/scripts/packages.sh"
source "$ROOT/scripts/cuda.sh"

full=0
for arg in "$@"; do
  case $arg in
    --full) full=1 ;;
    *) fail 2 "usage: ./sluice.sh test [--full] (not '$arg')" ;;
  esac
done
if ((full)); then export SLUICE_TEST_FULL=1; fi
cd "$ROOT"
mkdir -p "$LOGS"
export SHOW_BUILD=1  # into the log of the stage

table=()          # "name|result|seconds|note"
passed=0 failed=0
skip_note=''      # set by a stage that cannot run here

skip() { skip_note=$*; }

# stage NAME FUNCTION: runs it in this shell, times it, counts it. `counted` holds what it counted itself.
stage() {
  local name=$1 log=$LOGS/$1.log start=$SECONDS status=0 colour=$GREEN result=passed
  skip_note='' counted=() note=''
  printf 'sluice: %-16s ' "$name" >&2
  "$2" >"$log" 2>&1 </dev/null || status=$?
  local took=$((SECONDS - start))
  if [[ -n $skip_note ]]; then
    result=skipped colour=$YELLOW note=$skip_note
  elif ((${#counted[@]})); then
    passed=$((passed + counted[0])) failed=$((failed + counted[1]))
    note="${counted[0]} passed, ${counted[1]} failed, ${counted[2]} skipped"
    ((counted[1] == 0 && status != 0)) && failed=$((failed + 1))
  elif ((status == 0)); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
  ((status == 0)) || result=FAILED colour=$RED
  printf '%s%s%s %d s%s\n' "$colour" "$result" "$PLAIN" "$took" "${note:+  ($note)}" >&2
  if ((status != 0)); then
    { grep -nE -A6 'error:|ERROR: |runtime error|\[  FAILED  \]|: Failure|^FAILED:' "$log" ||
      tail -n 25 "$log"; } | head -n 40 >&2 || true
    printf '  -- all of it: build/log/%s.log\n' "$1" >&2
  fi
  table+=("$name|$result|$took|$note")
}

build_release() { configure_and_build release all -- -DCMAKE_BUILD_TYPE=Release "${CUDA_ARGS[@]}"; }

# Clang, so that both compilers see all of the code; Debug, so that DCHECK is on.
build_sanitized() {  # build_sanitized DIR SANITIZERS TARGET...
  configure_and_build "$1" "${@:3}" -- -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++ \
    "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1 -D_GLIBCXX_ASSERTIONS" "-DSLUICE_SANITIZE=$2"
}
build_asan() { build_sanitized asan address,undefined all; }
# The parts that have threads; all of the program with --full.
build_tsan() {
  local targets=(base_test core_test engine_test net_test server_test)
  ((full)) && targets=(all)
  build_sanitized tsan thread "${targets[@]}"
}

# count_tests LOG: sets `counted` from the summaries that GoogleTest printed; a test of another kind is one.
count_tests() {
  read -ra counted < <(awk '
    /^[0-9]+\/[0-9]+ Test: /    { if (seen) { p += own; f += bad }; seen = 1; own = 1; bad = 0; gtest = 0 }
    /^\[  PASSED  \] [0-9]+ test/  { if (!gtest) { own = 0; gtest = 1 }; own += $4 }
    /^\[  SKIPPED \] [0-9]+ test/  { s += $4 }
    /^\[  FAILED  \] .*\([0-9]+ ms\)$/ { if (!gtest) { own = 0; gtest = 1 }; bad++ }
    /^Test Failed\./ { if (!bad) { bad = 1; if (!gtest) own = 0 } }
    END { if (seen) { p += own; f += bad }; print p + 0, f + 0, s + 0 }' "$1")
}

# run_ctest DIR JOBS [CTEST ARGS...]
run_ctest() {
  local dir=$BUILD/$1 jobs=$2 status=0
  shift 2
  [[ -f $dir/CTestTestfile.cmake ]] || { echo "error: $dir is not built"; return 1; }
  rm -f "$dir/Testing/Temporary/LastTest.log"
  (cd "$dir" && ctest -j "$jobs" --timeout 900 --output-on-failure --no-tests=error "$@") || status=$?
  count_tests "$dir/Testing/Temporary/LastTest.log"
  return "$status"
}
without() { if ((full)); then echo "${1:-^$}"; else echo "${1:+$1|}full"; fi; }

tests_release() { run_ctest release "$JOBS" -LE "$(without)"; }
tests_asan() {
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    run_ctest asan "$JOBS" -LE "$(without release)"
}
tests_tsan() {
  local which='^(base|core|engine|net|server)$'
  ((full)) && which='^(base|core|engine|exec|net|server)'
  TSAN_OPTIONS=halt_on_error=1 SLUICE_IO_THREADS=3 run_ctest tsan "$JOBS" -R "$which" -LE release
}

harnesses() { find fuzz -name 'fuzz_*.cc' -printf '%f\n' 2>/dev/null | sed 's/\.cc$//' | sort; }

build_fuzz() {
  [[ -n $(harnesses) ]] || { skip "no harness in fuzz/"; return 0; }
  local targets
  mapfile -t targets < <(harnesses)
  configure_and_build fuzz "${targets[@]}" -- -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ \
    -DSLUICE_TESTS=OFF -DSLUICE_FUZZ=ON -DSLUICE_SANITIZE=address,undefined
}

# Half a minute each (ten with --full), three at a time. What a run finds stays in build/corpus for
# the next. Seeds: fuzz/corpus/NAME.
run_fuzz() {
  local names name each=30 status=0
  ((full)) && each=600
  mapfile -t names < <(harnesses)
  ((${#names[@]})) || { skip "no harness in fuzz/"; return 0; }
  mkdir -p "$BUILD/fuzz/findings"
  export -f fuzz_one
  export BUILD each
  printf '%s\n' "${names[@]}" | xargs -P 3 -I{} bash -c 'fuzz_one {}' || status=1
  for name in "${names[@]}"; do cat "$BUILD/fuzz/$name.log"; done
  return "$status"
}

fuzz_one() {  # fuzz_one fuzz_NAME
  local short=${1#fuzz_} binary=$BUILD/fuzz/fuzz/$1 log=$BUILD/fuzz/$1.log
  [[ -x $binary ]] || { echo "error: $1 is not built" >"$log"; return 1; }
  mkdir -p "$BUILD/corpus/$short"
  local args=(-max_total_time="$each" -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=2048
    -print_final_stats=1 -artifact_prefix="$BUILD/fuzz/findings/$short-" "$BUILD/corpus/$short")
  [[ ! -d fuzz/corpus/$short ]] || args+=("fuzz/corpus/$short")
  [[ ! -f fuzz/$short.dict ]] || args+=("-dict=fuzz/$short.dict")
  echo "== $1, $each s" >"$log"
  "$binary" "${args[@]}" >>"$log" 2>&1 || { echo "error: $1 found something" >>"$log"; return 1; }
}

includes() { python3 scripts/check_includes.py --self-test && python3 scripts/check_includes.py; }
headers() { python3 scripts/check_headers.py --self-test && python3 scripts/check_headers.py --jobs "$JOBS"; }

format() {
  local tool=clang-format-14
  have "$tool" || { skip "no clang-format-14"; return 0; }
  find src tests bench fuzz \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 -r -P "$JOBS" -n 16 "$tool" --dry-run -Werror
}

tidy() {
  have clang-tidy || { skip "no clang-tidy"; return 0; }
  find src -name '*.cc' ! -path '*/backend/cuda/*' ! -name '*_neon.cc' ! -name '*_i8mm.cc' ! -name '*_bfmmla.cc' -print0 |
    xargs -0 -r -P "$JOBS" -n 1 clang-tidy -p "$BUILD/release" --quiet
}

aarch64() {
  local status=0
  scripts/test_aarch64.sh || status=$?
  if ((status == 77)); then
    skip "no cross compiler or qemu-aarch64, or this is not x86-64"
    return 0
  fi
  return "$status"
}

setup() { (setup_test); }  # a subshell: its `fail` must not end the run

plan_cuda
say "testing: $CUDA_PART"
stage setup setup
stage model scripts/get_model.sh
stage includes includes
stage format format
stage headers headers
stage build-release build_release
stage tests-release tests_release
stage build-asan build_asan
stage tests-asan tests_asan
stage build-tsan build_tsan
stage tests-tsan tests_tsan
stage build-fuzz build_fuzz
stage fuzz run_fuzz
if ((full)); then
  stage tidy tidy
  stage aarch64 aarch64
fi

echo
for row in "${table[@]}"; do
  IFS='|' read -r name result took note <<<"$row"
  printf '%-14s %-8s %5d s  %s\n' "$name" "$result" "$took" "$note"
done
printf '%-14s %-8s %5d s\n' total '' "$SECONDS"
echo "$passed passed, $failed failed"
((failed == 0))

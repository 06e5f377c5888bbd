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
quick=0  # .ci/run: it has 25 minutes on two cores
if [[ -n ${SLUICE_QUICK:-} ]] && ((!full)); then quick=1; fi
if ((full)); then export SLUICE_TEST_FULL=1; fi
cd "$ROOT"
mkdir -p "$LOGS"
export SHOW_BUILD=1  # into the log of the stage

table=()          # "name|result|seconds|cpu seconds|note"
passed=0 failed=0
skip_note=''      # set by a stage that cannot run here
remarks=()        # "program: N skipped: reason", "program: passed only at the second try"
declare -A started=()  # stage in the background -> its process group
stop_started() {
  local group
  for group in "${started[@]}"; do kill -- "-$group" 2>/dev/null || true; done
}
trap stop_started EXIT

skip() { skip_note=$*; }

# cpu_seconds: sets `cpu` to what this shell and the processes it waited for have used.
cpu_seconds() {
  local file=$LOGS/.times.$BASHPID  # not a pipe: a subshell has times of its own
  times >"$file"
  cpu=$(awk '{ for (i = 1; i <= NF; i++) { split($i, t, "[ms]"); sum += 60 * t[1] + t[2] } } END { print int(sum) }' \
    "$file")
  rm "$file"
}

# stage NAME FUNCTION: runs it in this shell. `counted` holds passed, failed and skipped tests where it counts them.
stage() {
  local start=$SECONDS status=0 before
  skip_note='' counted=()
  printf 'sluice: %-16s ' "$1" >&2
  cpu_seconds
  before=$cpu
  "$2" >"$LOGS/$1.log" 2>&1 </dev/null || status=$?
  cpu_seconds
  report "$1" "$status" $((SECONDS - start)) $((cpu - before))
}

# start NAME FUNCTION: a stage in the background, for the time in which the tests of the stage before wait for
# something: it has the lowest priority. `finish NAME` waits for it.
start() {
  set -m  # a process group of its own
  (
    set +m
    renice -n 19 "$BASHPID" >/dev/null
    status=0 begin=$SECONDS
    "$2" >"$LOGS/$1.log" 2>&1 </dev/null || status=$?
    cpu_seconds
    echo "$status $((SECONDS - begin)) $cpu" >"$LOGS/.$1.end"
  ) &
  set +m
  started[$1]=$!
}

finish() {
  local status took used
  skip_note='' counted=()
  printf 'sluice: %-16s ' "$1" >&2
  wait "${started[$1]}" || true
  unset "started[$1]"
  read -r status took used <"$LOGS/.$1.end" || status=1 took=0 used=0
  report "$1" "$status" "$took" "$used"
}

report() {  # report NAME STATUS SECONDS CPU_SECONDS
  local name=$1 status=$2 colour=$GREEN result=passed note=''
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
  printf '%s%s%s %d s%s\n' "$colour" "$result" "$PLAIN" "$3" "${note:+  ($note)}" >&2
  if ((status != 0)); then
    { grep -nE -A6 'error:|ERROR: |^finding: |runtime error|\[  FAILED  \]|: Failure|^FAILED:' "$LOGS/$name.log" ||
      tail -n 25 "$LOGS/$name.log"; } | head -n 40 >&2 || true
    printf '  -- all of it: build/log/%s.log\n' "$name" >&2
  fi
  table+=("$name|$result|$3|$4|$note")
}

# With precompiled headers g++'s warnings are no errors (cmake/flags.cmake): those about our files fail here.
build_release() {
  local warnings args=("${RELEASE_ARGS[@]}" "${CUDA_ARGS[@]}")
  if ((quick)); then args+=(-DSLUICE_QUICK=ON); fi
  configure_and_build release all -- "${args[@]}" || return
  if ((!quick)) && slow_kernels "$LOGS/build-release.log"; then  # a quick build's kernels are not those that users run
    echo "error: ptxas found kernels that are slower than they need be"
    return 1
  fi
  warnings=$(grep -E '^([^ ]*/)?(src|tests|bench|fuzz)/[^ ]*: warning:' "$LOGS/build-release.log") || return 0
  echo "error: warnings in our files"
  echo "$warnings"
  return 1
}

# Clang, so that both compilers see all of the code; Debug, so that DCHECK is on.
build_sanitized() {  # build_sanitized DIR SANITIZERS FOCUS FUZZ TARGET...
  local all=OFF stand_ins=OFF
  ((full)) && all=ON
  [[ $turn != kernels ]] || ! lacks_amx || stand_ins=ON  # slow: not for whole models
  configure_and_build "$1" "${@:5}" -- -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++ -DSLUICE_BATCH=16 \
    "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1 -D_GLIBCXX_ASSERTIONS" "-DSLUICE_SANITIZE=$2" "-DSLUICE_SANITIZE_ALL=$all" \
    "-DSLUICE_SANITIZE_FOCUS=$3" "-DSLUICE_FUZZ=$4" "-DSLUICE_STAND_INS=$stand_ins"
}
# Whether this CPU can stand in for others (SLUICE_STAND_INS).
lacks_amx() { grep -qw avx512_vnni /proc/cpuinfo && ! grep -qw amx_tile /proc/cpuinfo; }

# What of AddressSanitizer's tests .ci/run has time for in one run: the tests of these libraries, and more.
declare -A part=([readers]='base|core|tensor|text|constrain|dialect|load|net|hub|dist' [kernels]='backend'
  [engine]='model|exec|engine|runtime' [server]='server' [tools]='tools')
across_folders() {  # tests/*_test.cc
  find tests -maxdepth 1 -name '*_test.cc' ! -name 'cuda_*' ! -name 'soak_*' -printf '%f\n' | sed 's/\.cc$//'
}
build_asan() {
  local libraries=${part[${turn:-all}]:-.*} targets=(all) more=() fuzz=OFF
  if [[ -n $turn ]]; then
    IFS='|' read -ra targets <<<"$libraries"
    targets=("${targets[@]/%/_test}")
    libraries+='|text'  # a template has a time limit
  fi
  case $turn in
    readers) mapfile -t more < <(harnesses) ;;
    engine) mapfile -t more < <(across_folders) ;;
    server) more=(sluice alloc_test) ;;
    tools) more=(sluice) ;;
  esac
  if [[ -z $turn || $turn == readers ]]; then fuzz=ON; fi
  build_sanitized asan address,undefined "$libraries" "$fuzz" "${targets[@]}" "${more[@]}"
}
# The tests that have threads (core/ has none); all of the program with --full.
build_tsan() {
  local targets=(base_test dist_test engine_test net_test server_test)
  ((full)) && targets=(all)
  build_sanitized tsan thread 'base|exec|engine|runtime|net|hub|dist|server' OFF "${targets[@]}"
}

# run_ctest DIR JOBS [CTEST ARGS...]: sets `counted`, and adds to `remarks`. Tests of several processes (label
# `processes`) that failed run once more, alone: a busy machine can upset them. The report names those. A program that
# crashed, or that a sanitizer complained about, gets no second try.
run_ctest() {
  local dir=$BUILD/$1 jobs=$2 status=0 lines results names
  shift 2
  [[ -f $dir/CTestTestfile.cmake ]] || { echo "error: $dir is not built"; return 1; }
  rm -f "$dir"/tests*.xml
  one_ctest "$dir" tests.xml -j "$jobs" "$@" || status=$?
  if ((status != 0)) && ! grep -qE 'Sanitizer|runtime error:|the server ended with' \
    "$dir/Testing/Temporary/LastTest.log"; then
    names=$(cut -d: -f2 "$dir/Testing/Temporary/LastTestsFailed.log" | paste -sd'|')
    one_ctest "$dir" tests-again.xml -L '^processes$' -R "^($names)\$" || true
  fi
  results=("$dir"/tests.xml "$dir"/tests-again.xml)
  [[ -f ${results[1]} ]] || unset 'results[1]'
  mapfile -t lines < <(python3 scripts/test_report.py "${results[@]}")
  read -ra counted <<<"${lines[0]:-0 1 0}"
  remarks+=("${lines[@]:1}")
  ((counted[1] == 0))
}
one_ctest() {  # one_ctest DIR JUNIT_FILE ARGS...
  (cd "$1" && ctest --timeout 900 --output-on-failure --no-tests=error --output-junit "$2" \
    --test-output-size-passed 10000000 --test-output-size-failed 10000000 "${@:3}")
}
without() { if ((full)); then echo "${1:-^$}"; else echo "${1:+$1|}full"; fi; }

commit_number() { git rev-list --count HEAD 2>/dev/null || echo 0; }

# Of tests that take more than half a minute .ci/run has a fifth (scripts/long_test.sh).
tests_release() {
  if ((quick)); then
    local -x SLUICE_TEST_LONG_SLICE=5 SLUICE_TEST_SEED
    SLUICE_TEST_SEED=$(commit_number)
  fi
  run_ctest release "$JOBS" -LE "$(without)"
}
# A seventh of the cases of tests that take long, another one after each commit (base/test_slice.h); all with --full. (An odd
# number: cases often take turns in powers of two.)
slice_tests() {
  local slice=7 seed
  ((full)) && slice=1
  seed=$(commit_number)
  echo "SLUICE_TEST_SLICE=$slice SLUICE_TEST_SEED=$seed"
  export SLUICE_TEST_SLICE=$slice SLUICE_TEST_SEED=$seed
}
tests_asan() {
  local more='' which=()
  case $turn in
    engine) more=$(across_folders | sed 's/^/|/' | tr -d '\n') ;;
    server) more='|server_.*|alloc_test' ;;
    tools) more='|cli|quantize|chat|models' ;;
  esac
  if [[ -n $turn ]]; then which=(-R "^(${part[$turn]}$more)\$"); fi
  slice_tests
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    run_ctest asan "$JOBS" -LE "$(without release)" "${which[@]}"
}
tests_tsan() {
  local which='^(base|dist|engine|net|server)$'
  ((full)) && which='^(base|core|dist|engine|exec|models$|net|server)'  # models: the hub's threads download
  slice_tests
  TSAN_OPTIONS=halt_on_error=1 SLUICE_IO_THREADS=3 run_ctest tsan "$JOBS" -R "$which" -LE release
}

harnesses() { find fuzz -name 'fuzz_*.cc' -printf '%f\n' 2>/dev/null | sed 's/\.cc$//' | sort; }

# Three seconds each (ten minutes with --full), two at a time. What a run finds stays in build/corpus for
# the next. Seeds: fuzz/corpus/NAME. Random numbers: those of the commit; new ones in every run with --full.
run_fuzz() {
  local names name each=3 seed status=0
  ((full)) && each=600
  mapfile -t names < <(harnesses)
  ((${#names[@]})) || { skip "no harness in fuzz/"; return 0; }
  mkdir -p "$BUILD/asan/fuzz/findings"
  export -f fuzz_one
  seed=0
  ((full)) || seed=$(git rev-list --count HEAD 2>/dev/null || echo 1)
  export BUILD each seed
  printf '%s\n' "${names[@]}" | xargs -P 2 -I{} bash -c 'fuzz_one {}' || status=1
  for name in "${names[@]}"; do cat "$BUILD/asan/fuzz/$name.log"; done
  return "$status"
}

fuzz_one() {  # fuzz_one fuzz_NAME
  local short=${1#fuzz_} binary=$BUILD/asan/fuzz/$1 log=$BUILD/asan/fuzz/$1.log
  [[ -x $binary ]] || { echo "error: $1 is not built" >"$log"; return 1; }
  mkdir -p "$BUILD/corpus/$short"
  local args=(-max_total_time="$each" -seed="$seed" -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=2048
    -print_final_stats=1 -artifact_prefix="$BUILD/asan/fuzz/findings/$short-" "$BUILD/corpus/$short")
  [[ ! -d fuzz/corpus/$short ]] || args+=("fuzz/corpus/$short")
  [[ ! -f fuzz/$short.dict ]] || args+=("-dict=fuzz/$short.dict")
  echo "== $1, $each s" >"$log"
  "$binary" "${args[@]}" >>"$log" 2>&1 || { echo "error: $1 found something" >>"$log"; return 1; }
}

includes() { python3 scripts/check_includes.py --self-test && python3 scripts/check_includes.py; }
headers() {
  python3 scripts/check_headers.py --self-test && (slice_tests && python3 scripts/check_headers.py --jobs "$JOBS")
}

format() {
  local tool=clang-format-14
  have "$tool" || { skip "no clang-format-14"; return 0; }
  find src tests bench fuzz \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 -r -P "$JOBS" -n 16 "$tool" --dry-run -Werror
}

tidy() {
  have clang-tidy || { skip "no clang-tidy"; return 0; }
  cmake -S . -B "$BUILD/tidy" -G Ninja -DSLUICE_CUDA=OFF -DSLUICE_PCH=OFF  # it cannot read g++'s precompiled headers
  find src -name '*.cc' ! -path '*/backend/cuda/*' ! -name '*_neon.cc' ! -name '*_i8mm.cc' ! -name '*_bfmmla.cc' -print0 |
    xargs -0 -r -P "$JOBS" -n 1 clang-tidy -p "$BUILD/tidy" --quiet
}

# Kernels for AMX and AVX-VNNI on a CPU that has AVX-512 VNNI and no AMX.
stand_ins() {
  lacks_amx || { skip "this CPU has AMX, or no AVX-512 VNNI"; return 0; }
  configure_and_build stand-ins backend_test -- -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=OFF -DSLUICE_STAND_INS=ON &&
    "$BUILD/stand-ins/backend_test" --gtest_brief=1 --gtest_filter='*avxvnni*:*amx*:Features*'
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

setup() {
  (setup_test) || return  # a subshell: its `fail` must not end the run
  [[ $CUDA_NVCC == wheels ]] || return 0
  install_cuda_kit && return
  CUDA_ARGS=(-DSLUICE_CUDA=OFF)
  [[ ${SLUICE_CUDA:-auto} != [oO][nN] ]]
}

sanitizers=(asan tsan) turn=''
if ((quick)); then  # one of these
  turns=(tsan readers kernels engine server tools)
  turn=${SLUICE_TEST_TURN:-${turns[$(commit_number) % ${#turns[@]}]}}
  [[ " ${turns[*]} " == *" $turn "* ]] || fail 2 "SLUICE_TEST_TURN is one of ${turns[*]} (not '$turn')"
  if [[ $turn == tsan ]]; then sanitizers=(tsan); else sanitizers=(asan); fi
fi
plan_cuda
say "testing: $CUDA_PART"
stage setup setup
stage model scripts/get_model.sh
SLUICE_TEST_MODEL=$(scripts/get_model.sh 2>/dev/null || true)  # src/load/vocab_test.cc
export SLUICE_TEST_MODEL
stage includes includes
stage format format
stage headers headers
stage build-release build_release
[[ -z $turn ]] || say "sanitizers: $turn"
before=tests-release run=tests_release
for name in "${sanitizers[@]}"; do
  start "build-$name" "build_$name"
  stage "$before" "$run"
  finish "build-$name"
  before=tests-$name run=tests_$name
done
stage "$before" "$run"
if [[ -z $turn || $turn == readers ]]; then stage fuzz run_fuzz; fi
if ((full)); then
  stage tidy tidy
  stage stand-ins stand_ins
  stage aarch64 aarch64
fi

if ((${#remarks[@]})); then
  echo
  echo "tests that were skipped, or passed only at the second try:"
  printf '  %s\n' "${remarks[@]}" | sort -u
fi
echo
printf '%-14s %-8s %7s %7s\n' stage result time cpu
for row in "${table[@]}"; do
  IFS='|' read -r name result took used note <<<"$row"
  printf '%-14s %-8s %5d s %5d s  %s\n' "$name" "$result" "$took" "$used" "$note"
done
printf '%-14s %-8s %5d s\n' total '' "$SECONDS"
echo "$passed passed, $failed failed"
((failed == 0))

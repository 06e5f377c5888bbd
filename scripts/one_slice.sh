#!/usr/bin/env bash
# one_slice.sh [--whole] PROGRAM ARGS...: runs a GoogleTest program of which a slice may be enough. With SLUICE_TEST_SLICE=N
# one test in N runs, another one for each SLUICE_TEST_SEED (base/test_slice.h does the same for the cases of one test); with
# --whole all of them. Looking for leaks takes three seconds a program on 64-bit ARM: there one program in N does.
whole=0
[[ $1 != --whole ]] || { whole=1; shift; }
slices=${SLUICE_TEST_SLICE:-1} seed=${SLUICE_TEST_SEED:-0}
if ((slices > 1)); then
  # A test runs at every Nth seed: its cases are chosen by seed / N, or it would run the same ones each time.
  ((whole)) || export GTEST_TOTAL_SHARDS=$slices GTEST_SHARD_INDEX=$((seed % slices)) \
    SLUICE_TEST_SEED=$((seed / slices))
  number=$(basename "$1" | cksum | cut -d' ' -f1)
  if [[ $(uname -m) == aarch64 ]] && (((number + seed) % slices != 0)); then
    export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
  fi
fi
exec "$@"

#!/usr/bin/env bash
# one_slice.sh PROGRAM ARGS...: a GoogleTest program whose tests take long. With SLUICE_TEST_SLICE=N one test in N runs,
# another one for each SLUICE_TEST_SEED (base/test_slice.h does the same for the cases of one test).
if ((${SLUICE_TEST_SLICE:-1} > 1)); then
  export GTEST_TOTAL_SHARDS=$SLUICE_TEST_SLICE GTEST_SHARD_INDEX=$((${SLUICE_TEST_SEED:-0} % SLUICE_TEST_SLICE))
fi
exec "$@"

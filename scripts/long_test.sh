#!/usr/bin/env bash
# long_test.sh COMMAND...: runs a test that takes more than half a minute. With SLUICE_TEST_LONG_SLICE=N, as in .ci/run, one
# in N of what it tests (tests/sliced.py, base/test_slice.h, one_slice.sh).
[[ -z ${SLUICE_TEST_LONG_SLICE:-} ]] || export SLUICE_TEST_SLICE=${SLUICE_TEST_SLICE:-$SLUICE_TEST_LONG_SLICE}
exec "$@"

#!/usr/bin/env bash
# Process start to first token, CPU time and peak resident memory, with the page cache warm.
#   scripts/measure_start.sh [SLUICE [RUNS]]      default build/release/sluice, 10 runs
# A run asks for one token and ends: its wall time bounds the time to the first token from above.
# "beyond weights" is the peak less the weights once; what a run touches of the KV pool is in it.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
sluice=${1:-$BUILD/release/sluice}
runs=${2:-10}
[[ -x $sluice ]] || fail 2 "$sluice is not there: ./sluice.sh build, or name the binary"
have python3 || fail 2 "python3 is needed to read a child's peak memory"

exec python3 - "$sluice" "$runs" <<'PY'
import os, re, statistics, subprocess, sys, time

sluice, runs = sys.argv[1], int(sys.argv[2])
UNIT = {"B": 1 / 2**20, "KB": 1 / 2**10, "MB": 1, "GB": 2**10}
CASES = [
    ("smollm2", ["run", "smollm2", "-p", "Hello", "-m", "1"]),
    ("random:qwen2.5-0.5b q8_0", ["bench", "latency", "random:qwen2.5-0.5b", "--format", "q8_0",
                                  "--input", "8", "--output", "1", "--repeat", "1"]),
]

def once(args):
    begin = time.monotonic()
    child = subprocess.Popen([sluice, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"sluice {' '.join(args)} failed: {said.strip()}")
    weights = re.search(r"weights ([0-9.]+) ([KMG]?B)", said)
    return (time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024,
            float(weights[1]) * UNIT[weights[2]] if weights else 0.0)

print(f"{'model':26} {'best s':>8} {'median s':>9} {'CPU s':>7} {'peak MB':>8} {'weights MB':>11} "
      f"{'beyond weights MB':>18}")
for name, args in CASES:
    once(args)  # warms the page cache
    walls, cpus, peaks, weights = zip(*(once(args) for _ in range(runs)))
    print(f"{name:26} {min(walls):8.2f} {statistics.median(walls):9.2f} {min(cpus):7.2f} "
          f"{max(peaks):8.0f} {weights[0]:11.0f} {max(peaks) - weights[0]:18.0f}")
PY

# shellcheck shell=bash disable=SC2034
# Sourced by sluice.sh and the other scripts: where things are, what to say, how to run something quietly.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$ROOT/build
LOGS=$BUILD/log
JOBS=${SLUICE_JOBS:-$(nproc 2>/dev/null || echo 2)}

if [[ -t 2 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' YELLOW=$'\e[33m' PLAIN=$'\e[0m'
else
  BOLD='' RED='' GREEN='' YELLOW='' PLAIN=''
fi

say() { printf '%ssluice:%s %s\n' "$BOLD" "$PLAIN" "$*" >&2; }
fail() {  # fail CODE MESSAGE...
  local code=$1
  shift
  printf '%ssluice: %s%s\n' "$RED" "$*" "$PLAIN" >&2
  exit "$code"
}
have() { command -v "$1" >/dev/null 2>&1; }

# quiet NAME COMMAND...: output to build/log/NAME.log; its end is shown only when the command fails.
quiet() {
  local log=$LOGS/$1.log status=0
  shift
  mkdir -p "$LOGS"
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if ((status != 0)); then
    tail -n 40 "$log" >&2
    say "failed with status $status: $* (all of it: $log)"
  fi
  return "$status"
}

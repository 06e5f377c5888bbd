# shellcheck shell=bash
# Sourced by sluice.sh and run_tests.sh: CMake and ninja, with progress off a terminal too.

# The same for ./sluice.sh build and test, which share a directory. Files are compiled sixteen at a time, unless a compiler
# cache does better with single ones.
RELEASE_ARGS=(-DCMAKE_BUILD_TYPE=Release -DSLUICE_QUICK=OFF)
[[ -n ${CMAKE_CXX_COMPILER_LAUNCHER:-} ]] || RELEASE_ARGS+=(-DSLUICE_BATCH=16)

# configure_and_build DIR TARGET... -- CMAKE_ARGS...: into build/DIR; configures only the first time, and
# again when the arguments change.
configure_and_build() {
  local dir=$BUILD/$1 name=$1 targets=()
  shift
  while (($#)) && [[ $1 != -- ]]; do
    targets+=("$1")
    shift
  done
  shift || true
  mkdir -p "$dir"
  if [[ ! -f $dir/build.ninja || $(cat "$dir/.configured" 2>/dev/null) != "$*" ]]; then
    rm -f "$dir/CMakeCache.txt"
    quiet "configure-$name" cmake -S "$ROOT" -B "$dir" -G Ninja "$@" || return
    printf '%s' "$*" >"$dir/.configured"
  fi
  if [[ -t 2 || -n ${SHOW_BUILD:-} ]]; then
    ninja -C "$dir" -j "$JOBS" "${targets[@]}" >&2
  else
    mkdir -p "$LOGS"
    watched_ninja "$LOGS/build-$name.log" -C "$dir" -j "$JOBS" "${targets[@]}"
  fi
}

# slow_kernels LOG: what ptxas says of kernels whose matrix instructions wait for each other (C7514, C7515), or that
# do not get the registers they ask for (C7508). Fails where it says nothing. LOG may be where output goes, which grep
# by itself refuses.
slow_kernels() {
  local said
  said=$(grep -E '\(C75(08|14|15)\)' "$1") && echo "$said"
}

# watched_ninja LOG ARGS...: output to LOG. Says how far it is every 5 % and at least every ten seconds; shows
# the end of the log when it fails.
watched_ninja() {
  local log=$1 line done=0 total=0 next=5 said=$SECONDS status=0 waited
  shift
  coproc { NINJA_STATUS='[%f/%t] ' ninja "$@" 2>&1 </dev/null; }
  local pid=$COPROC_PID output
  exec {output}<&"${COPROC[0]}"
  : >"$log"
  while true; do
    waited=0
    IFS= read -rt 10 -u "$output" line || waited=$?
    if ((waited == 0)); then
      printf '%s\n' "$line" >>"$log"
      [[ $line != *"Re-checking globbed"* && $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
      done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    elif ((waited <= 128)); then
      break  # the end of its output; above 128: ten seconds without a line
    fi
    if ((total > 0)) && ((done * 100 / total >= next || SECONDS - said >= 10)); then
      say "built $done of $total ($((done * 100 / total)) %)"
      next=$((done * 100 / total / 5 * 5 + 5)) said=$SECONDS
    fi
  done
  exec {output}<&-
  wait "$pid" || status=$?
  if ((status != 0)); then
    tail -n 40 "$log" >&2
    say "the build failed with status $status (all of it: $log)"
  fi
  return "$status"
}

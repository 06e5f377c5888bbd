# shellcheck shell=bash disable=SC2034
# Sourced by sluice.sh and run_tests.sh: whether the GPU part (libsluice_cuda.so) is built, and with which nvcc.
#   SLUICE_CUDA=auto   (default) where there is an nvcc, or an NVIDIA driver: then nvcc comes from PyPI
#   SLUICE_CUDA=on     always; from PyPI where there is no nvcc
#   SLUICE_CUDA=off    never
# SLUICE_CUDA_ARCHS says which GPUs it is for ('86;90a'); by default those that are here, or Hopper.
# For tests: SLUICE_DRIVER replaces the driver's version (empty: no driver), CUDA_HOME the default toolkit.

CUDA_MIN_NVCC=12.9     # C++20, and scales per row and column in cuBLASLt
CUDA_MIN_DRIVER=580    # the first driver that runs what CUDA 13 compiles
CUDA_MIN_GPU=8.0       # Ampere: bf16 in the tensor cores, asynchronous copies
# The newest 12.x packages have no nvcc, only ptxas. 13.0 asks for the oldest driver of the rest.
CUDA_WHEELS=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-runtime==13.0.96 nvidia-cublas==13.0.2.14)
CUDA_KIT=$BUILD/cuda

at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -1) == "$2" ]]; }  # at_least VERSION MINIMUM

nvcc_version() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'; }

# Prints the path of the system's nvcc, or nothing.
system_nvcc() {
  local found
  for found in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    if [[ -n $found && -x $found ]]; then
      echo "$found"
      return
    fi
  done
}

# Prints the version of the NVIDIA driver, `unknown`, or nothing where there is no driver.
driver_version() {
  if [[ -v SLUICE_DRIVER ]]; then
    echo "$SLUICE_DRIVER"
    return
  fi
  local version
  version=$(sed -n 's/^NVRM version:.* \([0-9]\+\.[0-9.]\+\) .*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
  if [[ -z $version ]] && have nvidia-smi; then
    version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1 || true)
    [[ $version =~ ^[0-9.]+$ ]] || version=''
  fi
  if [[ -z $version ]] && { ldconfig -p 2>/dev/null || true; } | grep 'libcuda\.so\.1 ' >/dev/null; then
    version=unknown
  fi
  echo "$version"
}

# Prints the compute capabilities of the GPUs here, the lowest first, or nothing where nvidia-smi does not tell.
gpu_capabilities() {
  have nvidia-smi || return 0
  { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } |
    grep -E '^[0-9]+\.[0-9]+$' | sort -uV || true
}

# gpu_archs CAPABILITY...: SLUICE_CUDA_ARCHS for those that kernels run on.
gpu_archs() {
  local capability archs=()
  for capability; do
    at_least "$capability" "$CUDA_MIN_GPU" || continue
    [[ $capability != 9.0 ]] || capability+=a
    archs+=("${capability/./}")
  done
  (IFS=';' && echo "${archs[*]}")
}

# plan_cuda: sets CUDA_PART (one phrase for the user), CUDA_NVCC (empty: no GPU part; `wheels`: to be installed)
# and CUDA_ARGS (for cmake). Looks only; installs nothing.
plan_cuda() {
  local mode=${SLUICE_CUDA:-auto} nvcc version='' driver capabilities='' best archs
  CUDA_NVCC='' CUDA_ARGS=(-DSLUICE_CUDA=OFF)
  case ${mode,,} in
    off) CUDA_PART="CPU part only (SLUICE_CUDA=off)" && return ;;
    on | auto) mode=${mode,,} ;;
    *) fail 2 "SLUICE_CUDA=$mode: must be on, off or auto" ;;
  esac
  nvcc=$(system_nvcc)
  [[ -z $nvcc ]] || version=$(nvcc_version "$nvcc")
  driver=$(driver_version)
  [[ -z $driver ]] || capabilities=$(gpu_capabilities)
  best=${capabilities##*$'\n'}
  if [[ $mode == auto && -n $best ]] && ! at_least "$best" "$CUDA_MIN_GPU"; then
    CUDA_PART="CPU part only (the GPU has compute capability $best; the GPU part needs $CUDA_MIN_GPU)"
  elif [[ -n $version ]] && at_least "$version" "$CUDA_MIN_NVCC"; then
    CUDA_PART="CPU and GPU parts (nvcc $version)" CUDA_NVCC=$nvcc
  elif [[ $mode == on ]]; then
    CUDA_PART="CPU and GPU parts (nvcc from PyPI)" CUDA_NVCC=wheels
  elif [[ -z $driver ]]; then
    CUDA_PART="CPU part only (no NVIDIA driver${version:+, and nvcc $version is older than $CUDA_MIN_NVCC})"
  elif [[ $driver != unknown ]] && ! at_least "$driver" "$CUDA_MIN_DRIVER"; then
    CUDA_PART="CPU part only (NVIDIA driver $driver is older than $CUDA_MIN_DRIVER: update it, or install nvcc $CUDA_MIN_NVCC)"
  else
    CUDA_PART="CPU and GPU parts (driver $driver, nvcc from PyPI)" CUDA_NVCC=wheels
  fi
  [[ -n $CUDA_NVCC ]] || return 0
  [[ $CUDA_NVCC != wheels ]] || nvcc=$CUDA_KIT/bin/nvcc
  CUDA_ARGS=(-DSLUICE_CUDA=ON "-DSLUICE_NVCC=$nvcc")
  # shellcheck disable=SC2086
  archs=${SLUICE_CUDA_ARCHS:-$(gpu_archs $capabilities)}
  CUDA_ARGS+=("-DSLUICE_CUDA_ARCHS=${archs:-90a}")  # always: CMake would keep an earlier one
}

# Compiler, headers and cuBLAS from PyPI into build/cuda, laid out as CMake expects a toolkit.
install_cuda_kit() {
  [[ $(cat "$CUDA_KIT/.installed" 2>/dev/null) != "${CUDA_WHEELS[*]}" ]] || return 0
  local venv=$BUILD/cuda-venv root name
  say "getting the CUDA compiler and cuBLAS from PyPI: 0.5 to 0.7 GB to download, 0.9 GB in build/cuda-venv"
  rm -rf "$CUDA_KIT" "$venv"
  quiet cuda-venv python3 -m venv "$venv" || return
  if [[ -t 2 ]]; then
    "$venv/bin/pip" install --disable-pip-version-check --no-deps --no-cache-dir "${CUDA_WHEELS[@]}" >&2 || return
  else
    mkdir -p "$venv/tmp"
    TMPDIR=$venv/tmp ticking "$venv" quiet cuda-install "$venv/bin/pip" install --disable-pip-version-check \
      --no-deps --no-cache-dir "${CUDA_WHEELS[@]}" || return
  fi
  root=$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13)
  [[ -x $root/bin/nvcc ]] || { say "the packages have no nvcc in $root/bin"; return 1; }
  ln -sfn lib "$root/lib64"
  for name in cublasLt cudart; do ln -sf "lib$name.so.13" "$root/lib/lib$name.so"; done
  ln -sfn "$root" "$CUDA_KIT"
  printf '%s' "${CUDA_WHEELS[*]}" >"$CUDA_KIT/.installed"
}

# ticking FOLDER COMMAND...: says every ten seconds how large the folder has become.
ticking() {
  local folder=$1 status=0 ticker
  shift
  while sleep 10 &>/dev/null; do say "$(du -sm "$folder" 2>/dev/null | cut -f1) MB so far"; done &
  ticker=$!
  "$@" || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  return "$status"
}

# Decides, and installs what is missing. Where PyPI cannot be reached, `auto` goes on with the CPU part.
setup_cuda() {
  plan_cuda
  [[ $CUDA_NVCC == wheels ]] || return 0
  if ! install_cuda_kit; then
    [[ ${SLUICE_CUDA:-auto} != [oO][nN] ]] || fail 1 "SLUICE_CUDA=on: could not get nvcc from PyPI"
    CUDA_PART="CPU part only (could not get nvcc from PyPI)" CUDA_NVCC='' CUDA_ARGS=(-DSLUICE_CUDA=OFF)
  fi
}

# shellcheck shell=bash disable=SC2034
# Sourced by sluice.sh: the distribution's packages, and installing those that are missing.

# What a build and a run need. Debian 12's libboost-dev is too old (1.74, no Boost.JSON).
packages_to_build() {
  local boost=libboost-dev
  if [[ $(. /etc/os-release 2>/dev/null && echo "${ID:-}${VERSION_ID:-}") == debian12 ]]; then
    boost=libboost1.81-dev
  fi
  echo g++ cmake ninja-build git python3 python3-venv pkg-config libcli11-dev \
    libyaml-cpp-dev libpcre2-dev libssl-dev libzmq3-dev libgtest-dev libbenchmark-dev "$boost"
}

# What the tests need on top: clang for sanitizers and fuzzing, with its runtime of the same version, and a
# browser for the page (Ubuntu has it only as a snap), ip and tc for namespaces, UCX as another transport. Only clang-format 14 gives the format of this repository.
packages_to_test() {
  local version='' browser=chromium
  [[ $(. /etc/os-release 2>/dev/null && echo "${ID:-}") != ubuntu ]] || browser=''
  if have clang; then
    version=$(clang -dumpversion)
  elif have apt-cache; then
    version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -1)
  fi
  version=${version%%.*}
  echo clang "libclang-rt-${version:-14}-dev" clang-format-14 lld openssl curl dpkg-dev file etcd-server iproute2 libucx-dev libgrpc++-dev $browser
}

missing_packages() {  # missing_packages NAME...
  local name
  for name in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null) == ii* ]] || echo "$name"
  done
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif have sudo; then
    sudo "$@"
  else
    fail 2 "this needs root, and there is no sudo; as root: $*"
  fi
}

need_packages() {  # need_packages NAME...
  if ! have apt-get || ! have dpkg-query; then
    local tool absent=()
    for tool in g++ cmake ninja python3; do have "$tool" || absent+=("$tool"); done
    ((${#absent[@]} == 0)) && return
    fail 2 "there is no apt-get here, so install these by hand (names as in Debian): $*" \
      "(not found: ${absent[*]})"
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) && return
  say "installing ${missing[*]}"
  quiet apt-update as_root apt-get update -q || return
  quiet apt-install as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}

setup_build() {
  local list
  read -ra list < <(packages_to_build)
  need_packages "${list[@]}"
}

# The list names clang's version only after apt knows the packages, so a bare system is updated first.
setup_test() {
  setup_build || return
  local list
  if have apt-get && ! have clang && ! apt-cache show clang >/dev/null 2>&1; then
    quiet apt-update as_root apt-get update -q || return
  fi
  read -ra list < <(packages_to_test)
  need_packages "${list[@]}"
}

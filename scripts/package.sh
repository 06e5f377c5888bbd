#!/usr/bin/env bash
# Builds packages into build/packages and tests each: scripts/package.sh [deb|tar|wheel|all] [--from BUILD]
#   deb    for this distribution: linked with its libraries, which dpkg then asks for; where libgrpc++-dev is, a second
#          package, sluice-grpc, has the shared object for `serve --grpc-port`
#   tar    runs from any folder of any Linux with a glibc as new as this one's
#   wheel  the same binaries for pip, with the platform tag they need
# Where nvcc is, all of them carry libsluice_cuda.so (SLUICE_CUDA=OFF leaves it out). Both kinds of program come
# from one build folder, build/package, in which only the link differs. --from BUILD takes a deb's program from a
# folder that is built already.
set -euo pipefail  # so no `| grep -q`: it leaves early, and what writes to it then fails
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: scripts/package.sh [deb|tar|wheel|all] [--from BUILD]"
kinds=() from=''
while (($#)); do
  case $1 in
    deb | tar | wheel) kinds+=("$1") ;;
    all) kinds=(deb tar wheel) ;;
    --from) from=$(realpath "${2:?$usage}") && shift ;;
    -h | --help) echo "$usage" && exit 0 ;;
    *) fail 2 "$usage (not '$1')" ;;
  esac
  shift
done
((${#kinds[@]})) || kinds=(deb tar wheel)
[[ -z $from || ${kinds[*]} == deb ]] || fail 2 "--from takes a program that is linked for this distribution: deb only"

OUT=${SLUICE_PACKAGES:-$BUILD/packages}
MODEL=$ROOT/tests/golden/models/llama.gguf
VERSION=$(sed -n 's/^project(sluice VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
mkdir -p "$OUT"
scratch=$(mktemp -d)
server=''
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT

build() {  # build PORTABLE: sets `tree`, a build folder whose program is linked so
  local cuda=${SLUICE_CUDA:-AUTO}
  tree=$BUILD/package
  quiet configure-package cmake -S "$ROOT" -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_TESTS=OFF \
    "-DSLUICE_PORTABLE=$1" "-DSLUICE_CUDA=${cuda^^}" "-DSLUICE_CUDA_ARCHS=${SLUICE_CUDA_ARCHS:-90a}" ||
    fail 1 "the configuration failed"
  quiet build-package cmake --build "$tree" -j "$JOBS" || fail 1 "the build failed"
}

pack() {  # pack SUFFIX: runs CPack in $tree, sets `package` and, of a second one, `grpc`
  local file
  rm -rf "$tree/cpack"
  quiet "cpack-$1" cpack --config "$tree/CPackConfig.cmake" -B "$tree/cpack" || fail 1 "CPack failed"
  grpc=''
  for file in "$tree"/cpack/*"$1"; do
    mv -f "$file" "$OUT"
    file=$OUT/$(basename "$file")
    if [[ $file == */sluice-grpc_* ]]; then grpc=$file; else package=$file; fi
  done
}

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
generate() { env -i HOME="$scratch" "$1" run "$MODEL" -p "once upon a time" -m 12 --temperature 0 -q 2>"$scratch/errors"; }

# check PREFIX KIND [COMMAND]: what every package holds to, of the tree installed at PREFIX; COMMAND starts it.
check() {
  local prefix=$1 kind=$2 program=${3:-$1/bin/sluice} text file name
  [[ $("$program" --version) == "$VERSION" ]] || fail 1 "$kind: --version is not $VERSION"
  text=$(generate "$program") || fail 1 "$kind: no text: $(cat "$scratch/errors")"
  [[ -n $text && $text == "$(generate "$tree/sluice")" ]] || fail 1 "$kind: other text than the build's program"
  for file in LICENSE THIRD_PARTY.md README.md licences/cli11.txt; do
    [[ -s $prefix/share/doc/sluice/$file ]] || fail 1 "$kind: no share/doc/sluice/$file"
  done
  for file in man/man1/sluice.1.gz bash-completion/completions/sluice zsh/vendor-completions/_sluice \
    fish/vendor_completions.d/sluice.fish; do
    [[ -s $prefix/share/$file ]] || fail 1 "$kind: no share/$file"
  done
  if readelf -d "$prefix/bin/sluice" | grep -E '(RPATH|RUNPATH)'; then fail 1 "$kind: the program has a search path"; fi
  if readelf -S "$prefix/bin/sluice" | grep '\.debug_info' >/dev/null; then
    fail 1 "$kind: the program is not stripped"
  fi
  if [[ $kind != deb ]]; then
    for file in yaml-cpp pcre2 openssl gcc; do
      [[ -s $prefix/share/doc/sluice/licences/$file.txt ]] || fail 1 "$kind: no licence of $file"
    done
    for name in $(needed "$prefix/bin/sluice"); do
      case $name in
        libc.so.6 | libm.so.6 | ld-linux-*) ;;
        libstdc++.so.6 | libgcc_s.so.1) [[ -e $tree/libsluice_cuda.so ]] || fail 1 "$kind: needs $name" ;;
        *) fail 1 "$kind: needs $name, which another distribution may not have" ;;
      esac
    done
  fi
  if [[ -e $tree/libsluice_cuda.so ]]; then
    check_cuda "$prefix" "$kind" "$program"
  fi
}

# The shared object is there and loads; a machine without a GPU says so and nothing else.
check_cuda() {
  local said
  [[ -e $1/lib/sluice/libsluice_cuda.so ]] || fail 1 "$2: no lib/sluice/libsluice_cuda.so"
  if readelf -d "$1/lib/sluice/libsluice_cuda.so" | grep -E '(RPATH|RUNPATH)' | grep -F "$BUILD" >/dev/null; then
    fail 1 "$2: libsluice_cuda.so has a search path of the build folder"
  fi
  said=$("$3" run "$MODEL" -p x -m 1 --device cuda 2>&1) || [[ $said == *"no NVIDIA GPU"* ]] ||
    fail 1 "$2: --device cuda: $said"
}

# serve PROGRAM OPTION...: its lines in $scratch/server and its process in `server`, for two minutes at most
serve() {
  timeout 120 env -i HOME="$scratch" "$1" serve "$MODEL" --port 0 "${@:2}" >"$scratch/server" 2>&1 &
  server=$!
}

# check_refusal PROGRAM KIND TEXT OPTION...: the server ends with one line that has the text.
check_refusal() {
  serve "$1" "${@:4}"
  if wait "$server"; then fail 1 "$2: ${*:4} is taken"; fi
  server=''
  [[ $(wc -l <"$scratch/server") == 1 && $(<"$scratch/server") == *"$3"* ]] ||
    fail 1 "$2: ${*:4} is refused with: $(<"$scratch/server")"
}

# check_optional PREFIX KIND: what is in other packages is asked for in one line that names them.
check_optional() {
  check_refusal "$1/bin/sluice" "$2" "install the package sluice-grpc" --grpc-port 0
  if ! /sbin/ldconfig -p | grep -F libucp.so.0 >/dev/null; then
    check_refusal "$1/bin/sluice" "$2" "libucx" --role decode --kv-transport ucx
  fi
}

# check_grpc PREFIX: a call of gRPC's health service is answered, with the message {status: SERVING}.
check_grpc() {
  local port='' answer k
  have curl || fail 2 "the check of sluice-grpc needs curl"
  serve "$1/bin/sluice" --grpc-port 0
  for ((k = 0; k < 600; k++)); do
    [[ -z $port ]] && kill -0 "$server" 2>/dev/null || break
    port=$(sed -n 's/.*gRPC: .* port \([0-9]*\).*/\1/p' "$scratch/server")
    sleep 0.1
  done
  [[ -n $port ]] || fail 1 "sluice-grpc: the server names no port: $(<"$scratch/server")"
  answer=$(printf '\0\0\0\0\0' | curl -sS --max-time 60 --http2-prior-knowledge -H 'content-type: application/grpc' \
    -H 'te: trailers' --data-binary @- "http://127.0.0.1:$port/grpc.health.v1.Health/Check" | od -An -tx1)
  kill "$server"
  wait "$server" || fail 1 "sluice-grpc: the server ended with status $?: $(<"$scratch/server")"
  server=''
  [[ $answer == " 00 00 00 00 02 08 01" ]] || fail 1 "sluice-grpc: health is '$answer'"
}

# The second package, installed on top of the first at $scratch/deb.
check_grpc_deb() {
  local depends
  depends=$(dpkg-deb -f "$grpc" Depends)
  [[ $depends == *"sluice (= $VERSION)"* ]] || fail 1 "sluice-grpc: does not depend on this sluice: '$depends'"
  [[ $depends == *libgrpc++* ]] || fail 1 "sluice-grpc: does not depend on libgrpc++: '$depends'"
  dpkg-deb -x "$grpc" "$scratch/deb"
  [[ -s $scratch/deb/usr/share/doc/sluice-grpc/copyright ]] || fail 1 "sluice-grpc: no copyright file"
  check_grpc "$scratch/deb/usr"
}

make_deb() {
  have dpkg-shlibdeps && have file || fail 2 "a deb needs the packages dpkg-dev and file"
  if [[ -n $from ]]; then tree=$from; else build OFF; fi
  pack .deb
  local root=$scratch/deb depends name
  dpkg-deb -x "$package" "$root"
  depends=$(dpkg-deb -f "$package" Depends)
  [[ $(dpkg-deb -f "$package" Version) == "$VERSION" ]] || fail 1 "deb: not version $VERSION"
  [[ $(dpkg-deb -f "$package" Maintainer) == [!\ ]*" <"*@*">" ]] || fail 1 "deb: no maintainer with an address"
  [[ $depends == *"libc6 (>= "* ]] || fail 1 "deb: does not depend on libc6: '$depends'"
  for name in $(needed "$root/usr/bin/sluice"); do  # each library comes from a package that is asked for
    local owner owners  # several where other architectures' libraries are installed too
    owners=$(dpkg-query -S "*/$name" 2>/dev/null | cut -d: -f1 | sort -u || true)
    for owner in $owners; do
      if [[ $depends == *"$owner"* ]]; then owners=''; fi
    done
    [[ -z $owners ]] || fail 1 "deb: needs $name but does not depend on ${owners//$'\n'/ or }"
  done
  [[ -s $root/usr/share/doc/sluice/copyright ]] || fail 1 "deb: no copyright file"
  [[ -s $root/usr/lib/systemd/system/sluice.service ]] || fail 1 "deb: no systemd unit"
  check "$root/usr" deb
  check_optional "$root/usr" deb
  if [[ -e $tree/libsluice_grpc.so ]]; then
    [[ -n $grpc ]] || fail 1 "deb: no package sluice-grpc"
    check_grpc_deb
  fi
}

make_tar() {
  build ON
  pack .tar.gz
  local place="$scratch/a folder"  # another one than it was made in, and with a space
  mkdir -p "$place"
  tar -xzf "$package" -C "$place"
  mv "$place"/sluice-* "$place/moved"
  check "$place/moved" tar
  check_optional "$place/moved" tar
  ln -s "$place/moved/bin/sluice" "$scratch/link"
  check "$place/moved" tar "$scratch/link"
}

make_wheel() {
  build ON
  local venv=$scratch/venv
  rm -rf "$tree/wheel"
  quiet install-wheel cmake --install "$tree" --prefix "$tree/wheel" --strip || fail 1 "the installation failed"
  package=$(python3 "$ROOT/scripts/make_wheel.py" "$tree/wheel" "$OUT")
  python3 -m venv "$venv"
  quiet pip-wheel "$venv/bin/pip" install --no-index --no-deps --disable-pip-version-check "$package" ||
    fail 1 "pip does not install $package"
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  check "$site/sluice" wheel "$venv/bin/sluice"
  [[ $("$venv/bin/python" -m sluice --version) == "$VERSION" ]] || fail 1 "wheel: python -m sluice does not start"
  quiet pip-remove "$venv/bin/pip" uninstall -y sluice || fail 1 "pip does not remove the wheel"
  [[ ! -e $site/sluice && ! -e $venv/bin/sluice ]] || fail 1 "wheel: files stay after pip uninstall"
}

for kind in "${kinds[@]}"; do
  "make_$kind"
  say "$kind: built, installed and run"
  echo "$package"
  if [[ $kind == deb && -n $grpc ]]; then echo "$grpc"; fi
done

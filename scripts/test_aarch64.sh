#!/usr/bin/env bash
# Unit tests of the folders with arithmetic or text in them, cross-built for 64-bit ARM and run under qemu
# with every feature of the instruction set that it knows (dot product, i8mm and bf16 among them); the kernels once
# more on a CPU that has only the first.
# Arguments go to ctest. Exit status 77: the tools are not here.
#   apt-get install g++-aarch64-linux-gnu qemu-user
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/scripts/build.sh"

folders=(base tensor backend core text model exec)

[[ $(uname -m) == x86_64 ]] || { say "not an x86-64 machine: run ./sluice.sh test here instead"; exit 77; }
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  have "$tool" || { say "no $tool (packages g++-aarch64-linux-gnu qemu-user)"; exit 77; }
done
[[ -d /usr/src/googletest ]] || { say "no /usr/src/googletest (package libgtest-dev)"; exit 77; }

# A folder without tests has no test program.
targets=()
for folder in "${folders[@]}"; do
  [[ -z $(find "$ROOT/src/$folder" -name '*_test.cc' -print -quit) ]] || targets+=("${folder}_test")
done
say "cross-building ${targets[*]}"
configure_and_build aarch64 "${targets[@]}" -- -DCMAKE_BUILD_TYPE=Release \
  "-DCMAKE_TOOLCHAIN_FILE=$ROOT/scripts/aarch64/toolchain.cmake"
say "running them under qemu-aarch64"
names=$(IFS='|' && echo "${folders[*]}")
cd "$BUILD/aarch64"
ctest --output-on-failure --timeout 1800 -R "^($names)\$" "$@"
say "kernels on a CPU without i8mm and bf16"
qemu-aarch64 -cpu neoverse-n1 -L /usr/aarch64-linux-gnu ./backend_test --gtest_brief=1 \
  --gtest_filter='MatmulQuads*:*MatmulKernel.GivesTheBits*:Matmul.Fused*:Features*'

#!/usr/bin/env python3
"""How near the inner loops of the matrix-instruction kernels for 64-bit ARM come to that instruction's peak, by
LLVM's model of a Neoverse-N2 (two SMMLA or BFMMLA a cycle). An estimate for machines that are not at hand: caches are
perfect, and nothing but the loop is counted.

    apt-get install g++-aarch64-linux-gnu llvm-16
    scripts/aarch64/estimate_kernels.py
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = {"matmul_w8a8_i8mm": "i8mm", "matmul_i8mm": "i8mm", "matmul_super_i8mm": "i8mm",
         "matmul_low_bits_i8mm": "i8mm", "matmul_bf16_bfmmla": "bf16"}
FORMATS = re.findall(r"\w+", re.search(r"enum class Format : uint8_t \{(.*?)\}", (ROOT / "src/tensor/tensor.h").read_text(), re.S)[1])
MATRIX = re.compile(r"\s+(smmla|bfmmla)\b")
CONDITION = "eq|ne|gt|lt|ge|le|hi|ls|cc|cs|hs|lo|mi|pl"
BACK = re.compile(rf"\s+(?:b\.?(?:{CONDITION})|cbn?z\s+\w+,)\s*(\.L\w+)")
JUMP = re.compile(rf"\s+(b|b\.\w+|b(?:{CONDITION})|cbn?z|tbn?z|bl|ret)\s")


def assembly(name: str, feature: str) -> list[str]:
    flags = ["-std=c++20", "-O3", "-ffp-contract=off", f"-march=armv8.2-a+fp16+dotprod+{feature}", f"-I{ROOT}/src"]
    command = ["aarch64-linux-gnu-g++", *flags, "-S", "-o", "-", f"{ROOT}/src/backend/cpu/matmul/{name}.cc"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")


def loops(lines: list[str]):
    """(function, instructions) of innermost loops with matrix instructions."""
    labels, function = {}, ""
    for i, line in enumerate(lines):
        if m := re.match(r"(_Z\w+):", line):
            function = m[1]
        elif m := re.match(r"(\.L\w+):", line):
            labels[m[1]] = i
        m = BACK.match(line)
        if not m or m[1] not in labels:
            continue
        body = lines[labels[m[1]] + 1 : i + 1]
        code = [x for x in body if x.startswith("\t") and not x.startswith("\t.")]
        if not any(re.match(r"\.L\w+:", x) for x in body) and sum(map(bool, map(MATRIX.match, code))) >= 4:
            yield function, code


def cycles(mca: str, code: list[str]) -> float:
    text = "\n".join(x for x in code if not JUMP.match(x))
    command = [mca, "-mtriple=aarch64", "-mcpu=neoverse-n2", "-iterations=200"]
    out = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", out)[1]) / 200


def main() -> int:
    names = (f"llvm-mca-{v}" for v in range(30, 15, -1))  # older ones have no model of it
    mca = next((found for n in names if (found := shutil.which(n))), None)
    if not mca or not shutil.which("aarch64-linux-gnu-g++"):
        print("needs llvm-mca 16 or newer and aarch64-linux-gnu-g++", file=sys.stderr)
        return 77
    print(f"{'of peak':>8} {'cycles':>7} {'matrix':>7} {'loads':>6} {'spills':>7}  tile")
    for name, feature in FILES.items():
        for function, code in loops(assembly(name, feature)):
            num = sum(map(bool, map(MATRIX.match, code)))
            loads = sum(bool(re.match(r"\s+ld", x)) for x in code)
            spills = sum(bool(re.match(r"\s+(ld|st)\w+\s.*\[sp", x)) for x in code)
            took = cycles(mca, code)
            plain = subprocess.run(["c++filt", function], check=True, capture_output=True, text=True).stdout
            plain = re.sub(r"sluice::|cpu::|\(anonymous namespace\)::|void ", "", plain)
            plain = re.sub(r"\(Format\)(\d+)", lambda m: FORMATS[int(m[1])], plain).split("(")[0]
            print(f"{num / 2 / took:8.1%} {took:7.1f} {num:7} {loads:6} {spills:7}  {name}: {plain}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

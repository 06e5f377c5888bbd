#!/usr/bin/env python3
"""Checks what the linker left of the hardening flags in a program: scripts/check_hardening.py BINARY"""

import re
import subprocess
import sys

ENDBR64, PACIASP = b"\xf3\x0f\x1e\xfa", b"\x3f\x23\x03\xd5"


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], check=True, capture_output=True, text=True).stdout


def main(path):
    header, segments = readelf("-h", path), readelf("-l", path)
    dynamic, symbols = readelf("-d", path), readelf("--dyn-syms", path)
    checked = sorted(set(re.findall(r"\b(__\w+_chk)\b", symbols)) - {"__longjmp_chk"})
    stack = re.search(r"GNU_STACK\s.*?\s([RWE ]{3})\s+0x", segments)
    arch = "x86" if "X86-64" in header else "arm64" if "AArch64" in header else ""
    facts = {
        "position-independent (PIE)": bool(re.search(r"Type:\s+DYN", header)) and "INTERP" in segments,
        "relocations read-only (RELRO)": "GNU_RELRO" in segments,
        "bound at start (BIND_NOW)": "BIND_NOW" in dynamic or bool(re.search(r"FLAGS_1.*\bNOW\b", dynamic)),
        "stack not executable": bool(stack) and "E" not in stack[1],
        "no segment both writable and executable": not re.search(r"LOAD\s.*RWE\s", segments),
        "stack protector": "__stack_chk_fail" in symbols,
        f"FORTIFY: {len(checked)} checked functions": len(checked) >= 3,
    }
    # The linker's note needs a C runtime with it too, so what counts is the code: landing pads, signed returns.
    with open(path, "rb") as file:
        code = file.read()
    if arch == "x86":
        facts[f"CET: {code.count(ENDBR64)} landing pads"] = code.count(ENDBR64) > 1000
    if arch == "arm64":
        facts[f"PAC and BTI: {code.count(PACIASP)} signed returns"] = code.count(PACIASP) > 1000
    for fact, holds in facts.items():
        print(f"{'ok  ' if holds else 'FAIL'} {fact}")
    return 0 if all(facts.values()) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))

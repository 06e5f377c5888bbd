#!/usr/bin/env python3
"""Compiles every header of src/ alone: one that leans on its includer's includes fails. A header that its own
source file includes first is compiled alone by the build already, and is left to it.

A header for one instruction set, named *_<isa>.h or marked by a line `// check-headers: isa <isa>`, is
compiled with that set's flags (SLUICE_ISA_FLAGS_<isa> in cmake/flags.cmake) where the machine has that
architecture and skipped elsewhere.

With SLUICE_TEST_SLICE=N one header in N is compiled, another one for each SLUICE_TEST_SEED, and those that the last
twenty commits changed.

    scripts/check_headers.py [--jobs N] [--compiler clang++] [HEADER...]
    scripts/check_headers.py --self-test
"""

import argparse
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ARCHITECTURE_OF = {"avx2": "x86_64", "avxvnni": "x86_64", "avx512f": "x86_64", "avx512": "x86_64", "amx": "x86_64",
                   "neon": "aarch64", "i8mm": "aarch64", "bfmmla": "aarch64", "sve": "aarch64"}
FLAGS = ["-std=c++20", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", "-Wshadow", "-Wpedantic",
         "-Wnon-virtual-dtor", "-Werror"]
MARKER = re.compile(r"^// check-headers: isa (\w+)\s*$", re.M)


def isa_flags(root):
    """isa -> its machine flags; what else stands there (warnings of one compiler) does not matter here."""
    text = (root / "cmake/flags.cmake").read_text()
    found = re.findall(r"set\(SLUICE_ISA_FLAGS_(\w+)\s+([^)]*)\)", text)
    return {name: [flag for flag in flags.split() if flag.startswith("-m")] for name, flags in found}


def isa_of(header):
    match = MARKER.search(header.read_text(errors="replace"))
    if match:
        return match[1]
    suffix = header.stem.rsplit("_", 1)[-1]
    return suffix if suffix in ARCHITECTURE_OF else None


def machine():
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())


def compile_alone(root, header, compiler, flags):
    """The compiler's complaint, or an empty string. Goes through a file of one include, since a compiler
    treats `#pragma once` in the main file as a mistake."""
    source = f'#include "{header.relative_to(root / "src").as_posix()}"\n'
    command = [compiler, *FLAGS, *flags, "-I", str(root / "src"), "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def comes_first(root, header):
    """Whether the header's own source file begins with it."""
    source = header.with_suffix(".cc")
    if not source.exists():
        return False
    first = re.search(r'^\s*#\s*include\s*["<]([^">]+)[">]', source.read_text(errors="replace"), re.M)
    return bool(first) and first[1] == header.relative_to(root / "src").as_posix()


def sliced(root, headers):
    """Those that SLUICE_TEST_SLICE leaves, and new ones."""
    num_slices = max(1, int(os.environ.get("SLUICE_TEST_SLICE") or 1))
    if num_slices == 1:
        return headers
    chosen = set(headers[int(os.environ.get("SLUICE_TEST_SEED") or 0) % num_slices::num_slices])
    diff = subprocess.run(["git", "-C", str(root), "diff", "--name-only", "HEAD~20"], capture_output=True, text=True)
    chosen.update(root / name for name in diff.stdout.split())
    return [h for h in headers if h in chosen]


def check(root, headers, compiler, jobs):
    """Returns (failures as (header, text), number skipped)."""
    flags_of, todo, skipped, failures = isa_flags(root), [], 0, []
    for header in headers:
        isa = isa_of(header)
        if isa is None:
            todo.append((header, []))
        elif isa not in ARCHITECTURE_OF or isa not in flags_of:
            failures.append((header, f"error: isa {isa} has no flags in cmake/flags.cmake\n"))
        elif ARCHITECTURE_OF[isa] == machine():
            todo.append((header, flags_of[isa]))
        else:
            skipped += 1
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        texts = pool.map(lambda item: compile_alone(root, item[0], compiler, item[1]), todo)
        failures += [(header, text) for (header, _), text in zip(todo, texts) if text]
    return failures, skipped


def self_test(compiler):
    foreign = "neon" if machine() == "x86_64" else "avx2"
    files = {
        "src/a/good.h": "#pragma once\n#include <vector>\ninline std::vector<int> f() { return {}; }\n",
        "src/a/leans.h": "#pragma once\ninline std::vector<int> g() { return {}; }\n",
        f"src/a/x_{foreign}.h": "#pragma once\n#error for the other architecture\n",
        "src/a/marked.h": f"// check-headers: isa {foreign}\n#pragma once\n#error as above\n",
        "src/a/own.h": "#pragma once\n#error compiled with own.cc\n",
        "src/a/own.cc": '// first\n#include "a/own.h"\n',
        "src/a/leans.cc": '#include <vector>\n#include "a/leans.h"\n',
        "cmake/flags.cmake": "".join(f"set(SLUICE_ISA_FLAGS_{i} -Wno-such -march=none)\n" for i in ARCHITECTURE_OF),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        every = sorted((root / "src").rglob("*.h"))
        failures, skipped = check(root, [h for h in every if not comes_first(root, h)], compiler, 2)
    names = [header.name for header, _ in failures]
    ok = names == ["leans.h"] and skipped == 2
    print("self-test: a header that leans on others is found" if ok
          else f"self-test failed: found {names}, skipped {skipped}")
    return ok


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="every header compiles alone")
    parser.add_argument("headers", nargs="*", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--compiler", default=shutil.which("clang++") or "g++")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(0 if self_test(args.compiler) else 1)
    every = sorted((root / "src").rglob("*.h"))
    headers = [h.resolve() for h in args.headers] or sliced(root, [h for h in every if not comes_first(root, h)])
    failures, skipped = check(root, headers, args.compiler, args.jobs)
    for header, text in failures:
        print(f"{header.relative_to(root)} does not compile alone:\n{text}")
    print(f"{len(headers) - skipped} headers compiled, {len(failures)} failed, "
          f"{skipped} skipped (another architecture)")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Rules of the source tree that a compiler does not check. Each violation is printed as file:line: reason.

1. A folder of src/ includes only itself and the folders it stands on (DEPS below, with what those stand
   on). Includes of ours are written from the root of src/: "core/scheduler.h". CMake's DEPS agree.
2. Platform conditionals only in src/backend, which holds the kernels, and in the thread pool.
3. src/core reads no clock and no source of randomness.
4. Every header has #pragma once.
5. No tracked file names an absolute path of somebody's machine.

    scripts/check_includes.py [--root DIR]      exit status 1 when something is violated
    scripts/check_includes.py --self-test       shows that each rule can fail
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

# folder of src/ -> what it stands on directly. ANY: may include everything.
ANY = None
DEPS = {
    "base": [],
    "core": ["base"],
    "tensor": ["base"],
    "backend": ["tensor"],
    "model": ["backend"],
    "exec": ["core", "model"],
    "text": ["base"],
    "constrain": ["base"],
    "dialect": ["constrain"],
    "load": ["model", "text"],
    "engine": ["core", "constrain"],
    "runtime": ["load", "exec", "engine", "constrain"],
    "net": ["base"],
    "grpc": ["net"],
    "hub": ["load", "net"],
    "server": ["runtime", "net", "dialect", "dist"],
    "sim": ["core", "engine"],
    "dist": ["engine", "exec", "net"],
    "tools": ANY,
}

PLATFORM_FREE_EXCEPT = ("src/backend/", "src/base/thread_pool.cc")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
PLATFORM = re.compile(
    r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b("
    r"__x86_64__|__i386__|__amd64__|__aarch64__|__arm__|__ARM_\w+|__AVX\w*|__SSE\w*|__FMA__|__F16C__|"
    r"__linux__|__APPLE__|_WIN32|__CUDACC__|__CUDA_ARCH__)\b")
IMPURE = re.compile(r"\b(steady_clock|system_clock|high_resolution_clock|clock_gettime|gettimeofday|"
                    r"random_device|mt19937(?:_64)?|s?rand(?=\s*\())\b")
# Written in pieces so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/" + r"(?:home|Users|root|work|tmp)/" + r"[\w.$-]")
CMAKE_LIBRARY = re.compile(r"^\s*sluice_library\(\s*(\w+)\s+DEPS([^)]*)\)")


def closure(folder):
    """All folders that `folder` may include, itself among them; None for all."""
    if DEPS[folder] is ANY:
        return None
    seen = {folder}
    for dep in DEPS[folder]:
        seen |= closure(dep)
    return seen


def lines_of(path):
    return enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)


def sources(root, *folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh", ".inc"):
                yield path, path.relative_to(root).as_posix()


def check_direction(root):
    known = ", ".join(DEPS)
    for path, name in sources(root, "src"):
        folder = name.split("/")[1]
        if folder not in DEPS:
            yield name, 1, f"src/{folder} is not in the table of scripts/check_includes.py"
            continue
        allowed = closure(folder)
        for number, line in lines_of(path):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match[2].split("/")[0]
            ours = target in DEPS and (root / "src" / match[2]).exists()
            if match[1] == '"' and target not in DEPS:
                yield name, number, f'"{match[2]}" is not written from the root of src/ ({known})'
            elif match[1] == "<" and ours:
                yield name, number, f'<{match[2]}> is ours: write it as "{match[2]}"'
            elif match[1] == '"' and allowed is not None and target not in allowed:
                may = ", ".join(sorted(allowed - {folder})) or "the standard library only"
                yield name, number, f'{folder} may not include "{match[2]}" (it may include: {may})'


def check_cmake(root):
    path = root / "CMakeLists.txt"
    if not path.exists():
        return
    for number, line in lines_of(path):
        match = CMAKE_LIBRARY.match(line)
        if not match:
            continue
        folder = match[1]
        deps = re.split(r"\b[A-Z_]{4,}\b", match[2])[0].split()
        if folder not in DEPS:
            yield path.name, number, f"{folder} is not in the table of scripts/check_includes.py"
            continue
        allowed = closure(folder)
        for dep in deps:
            if allowed is not None and dep not in allowed:
                yield path.name, number, f"{folder} may not depend on {dep}"


def check_platform(root):
    for path, name in sources(root, "src", "tests", "bench", "fuzz"):
        if name.startswith(PLATFORM_FREE_EXCEPT):
            continue
        for number, line in lines_of(path):
            match = PLATFORM.match(line)
            if match:
                yield name, number, f"platform conditional {match[1]} outside src/backend"


def check_pure_core(root):
    for path, name in sources(root, "src/core"):
        if name.endswith(("_test.cc", "_bench.cc")):
            continue
        for number, line in lines_of(path):
            match = IMPURE.search(line.split("//")[0])
            if match:
                yield name, number, f"core uses {match[1]}: time and randomness are arguments there"


def check_pragma_once(root):
    for path, name in sources(root, "src", "tests", "bench", "fuzz"):
        if path.suffix in (".h", ".cuh") and not re.search(r"^#pragma once$", path.read_text(), re.M):
            yield name, 1, "no #pragma once"


def check_type_names(root):
    """Two types of one name in two headers share the code of templates made for them: one of them is then wrong."""
    first = {}
    for path, name in sources(root, "src"):
        if path.suffix != ".h":
            continue
        for number, line in lines_of(path):
            match = re.match(r"(?:struct|class|enum class) ([A-Z]\w*)(?: final)?(?: :[^;{]*)? ?\{", line)
            if match and first.setdefault(match[1], name) != name:
                yield name, number, f"{match[1]} is also a type of {first[match[1]]}: rename one"


def tracked_files(root):
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True).stdout
        return [root / name for name in out.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # a source archive
        return [p for p in root.rglob("*") if not p.relative_to(root).parts[0].startswith(("build", ".git"))]


def check_paths(root):
    for path in tracked_files(root):
        if not path.is_file() or b"\0" in path.read_bytes()[:8192]:
            continue
        for number, line in lines_of(path):
            match = MACHINE_PATH.search(line)
            if match:
                yield path.relative_to(root).as_posix(), number, f"path of a machine: {match[0]}..."


CHECKS = [check_direction, check_cmake, check_platform, check_pure_core, check_pragma_once, check_type_names, check_paths]


def violations(root):
    return [v for check in CHECKS for v in check(root)]


def self_test():
    once = "#pragma once\n"
    good = {
        "src/base/a.h": once + "#include <vector>\nstruct A {\n",
        "src/base/thread_pool.cc": '#include "base/a.h"\n#if defined(__x86_64__)\n#endif\n',
        "src/core/c.cc": '#include "base/a.h"\n// a steady_clock: never here\n',
        "src/core/c_test.cc": "#include <random>\nstd::mt19937 rng(1);\n",
        "src/backend/k.cc": "#include \"base/a.h\"\n#ifdef __AVX2__\n#endif\n",
        "src/tools/main.cc": '#include "core/c.h"\n#include "backend/k.h"\n',
        "CMakeLists.txt": "sluice_library(exec DEPS core model base PRIVATE_LIBS x::x)\n",
        "notes.md": "see https://example.org" + "/home/" + "page\n",
    }
    bad = {
        "upward include": ("src/core/c.cc", '#include "base/a.h"\n#include "backend/k.h"\n', 2),
        "sideways include": ("src/text/t.cc", '#include "core/c.h"\n', 1),
        "base includes core": ("src/base/b.cc", '\n\n#include "core/c.h"\n', 3),
        "not from the root": ("src/base/b.cc", '#include "a.h"\n', 1),
        "ours in angle brackets": ("src/core/d.cc", "#include <base/a.h>\n", 1),
        "unknown folder": ("src/misc/m.cc", "", 1),
        "cmake": ("CMakeLists.txt", "\nsluice_library(core DEPS base tensor)\n", 2),
        "platform": ("src/core/p.cc", "#if defined(__x86_64__) && 1\n#endif\n", 1),
        "platform elif": ("tests/p.cc", "#if 0\n#elif defined(__ARM_NEON)\n#endif\n", 2),
        "clock in core": ("src/core/t.cc", "auto t = std::chrono::steady_clock::now();\n", 1),
        "generator in core": ("src/core/t.cc", "std::mt19937 rng(1);\n", 1),
        "randomness in core": ("src/core/t.cc", "int rand;\nint i = rand();\n", 2),
        "no pragma once": ("src/base/n.h", "int x;\n", 1),
        "a name twice": ("src/core/a.h", once + "class A final : public B {\n", 2),
        "machine path": ("docs/x.md", "ok\nrun " + "/home/" + "me/sluice\n", 2),
    }
    failures = []
    for title, (name, text, line) in {"": ("", "", 0), **bad}.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file, content in {**good, **({name: text} if name else {})}.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content)
            found = violations(root)
            if not title and found:
                failures.append(f"a clean tree is refused: {found}")
            if title and [(f, n) for f, n, _ in found] != [(name, line)]:
                failures.append(f"{title}: expected {name}:{line}, found {found}")
    print("\n".join(failures) or f"self-test: {len(bad)} kinds of violation found, a clean tree accepted")
    return not failures


def main():
    parser = argparse.ArgumentParser(description="include direction and other rules of the tree")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(0 if self_test() else 1)
    found = violations(args.root)
    for name, line, reason in found:
        print(f"{name}:{line}: error: {reason}")
    print(f"{len(found)} violations")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Lists functions of src/ that are long or take many parameters: more than 80 lines, signature included, or 8 parameters.
Kernels and tables may (folders and names below). Reads text, not a compiler's tree: a guide for readers, no gate.

    scripts/long_functions.py [--lines 80] [--parameters 8] [FILE...]
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = re.compile(r"backend/cuda/.*\.cuh?$|backend/cpu/.*_(inl|avx2|avxvnni|avx512f?|amx|neon|i8mm|bfmmla)\.(h|cc)$|"
                     r"backend/cpu/matmul/matmul_(panels|tile|strips)\w*\.h$|_(test|bench|cases)\.\w+$|_tables?\.\w+$")
NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum|concept|requires)\b[^()]*$|^\s*(if|for|while|switch|catch|do|else|try)\b|=\s*$")


def without_text(source):
    """The source with comments, strings and characters blanked, lines kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*'
    return re.sub(pattern, lambda m: '""' * m[0].startswith(("\"", "R\"")) + "\n" * m[0].count("\n"), source,
                  flags=re.S | re.M)


def parameters(header):
    """How many parameters the last list in front of the body has, that of the function's name."""
    start = header.find("(")
    depth, count, empty = 0, 1, True
    for c in header[start:]:
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
            if depth == 0:
                break
        elif c == "," and depth == 1:
            count += 1
        if depth and not c.isspace() and c != "(":
            empty = False
    return 0 if empty else count


def functions(source):
    """(line, name, lines, parameters) of every function with a body that is not inside another."""
    text = without_text(source)
    scopes, header_at, found = [], 0, []
    for i, c in enumerate(text):
        if c == "{":
            header = text[header_at:i]
            outside = all(kind == "scope" for kind, _ in scopes)
            stripped = header.rstrip()
            member_value = "(" in header and re.search(r"\)[^()]*:[^:]", header) and re.search(r"[\w>]$", stripped) and \
                not re.search(r"\b(const|noexcept|override|final|try)$", stripped)
            if outside and re.search(r"\b(namespace|class|struct|union|enum)\b[^()=]*$", header) or not stripped and outside:
                scopes.append(("scope", None))
                header_at = i + 1
            elif outside and "(" in header and not NOT_A_FUNCTION.search(stripped) and not member_value:
                scopes.append(("function", header_at + len(header) - len(header.lstrip())))
            else:
                scopes.append(("value", None))
        elif c == "}" and scopes:
            kind, begin = scopes.pop()
            if kind == "function":
                header = text[begin:text.index("{", begin)]
                name = re.search(r"([\w:~]+|operator\S+)\s*\(", header)
                lines = text.count("\n", begin, i) + 1
                found.append((text.count("\n", 0, begin) + 1, name[1] if name else "?", lines, parameters(header)))
            if kind != "value":
                header_at = i + 1
        elif c == ";" and all(kind == "scope" for kind, _ in scopes):
            header_at = i + 1
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--lines", type=int, default=80)
    parser.add_argument("--parameters", type=int, default=8)
    args = parser.parse_args()
    files = args.files or [p for p in sorted((ROOT / "src").rglob("*"))
                           if p.suffix in (".h", ".cc", ".cu", ".cuh") and not KERNELS.search(p.as_posix())]
    num = over = 0
    for path in files:
        for line, name, lines, count in functions(path.read_text()):
            num += 1
            if lines > args.lines or count > args.parameters:
                over += 1
                print(f"{path}:{line}: {name}: {lines} lines, {count} parameters")
    print(f"{over} of {num} functions in {len(files)} files", file=sys.stderr)
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()

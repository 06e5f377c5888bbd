#!/usr/bin/env python3
"""Writes src/text/jinja/casing.inc: characters whose upper or title case is special.

  python3 scripts/make_casing_table.py src/text/jinja/casing.inc
"""

import pathlib
import sys

HEAD = """// {character, in upper case, in title case}: where either is not the one character that towupper()
// gives. From Python's str.upper() and str.title(): scripts/make_casing_table.py.
// clang-format off
"""


def literal(text):
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


def main():
    rows = []
    for code in range(0x110000):
        if 0xD800 <= code <= 0xDFFF:
            continue
        upper, title = chr(code).upper(), chr(code).title()
        if len(upper) > 1 or upper != title:
            rows.append(f"{{0x{code:04X}, {literal(upper)}, {literal(title)}}},\n")
    pathlib.Path(sys.argv[1]).write_text(HEAD + "".join(rows) + "// clang-format on\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Every technique has one line in docs/techniques.md, and every experiment it names exists.

    scripts/check_techniques.py
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = {"A": 11, "B": 19, "C": 8, "D": 12, "E": 12, "F": 13, "G": 16, "H": 11}


def main():
    text = (ROOT / "docs/techniques.md").read_text()
    code = (ROOT / "src/tools/lab/experiments.cc").read_text()
    found = re.findall(r"^\| ([A-H]\d+) \|", text, re.M)
    wanted = [f"{letter}{i}" for letter, n in ROWS.items() for i in range(1, n + 1)]
    problems = [f"docs/techniques.md: {id} has {found.count(id)} lines, not one" for id in wanted if found.count(id) != 1]
    problems += [f"docs/techniques.md: {id} is no technique" for id in sorted(set(found) - set(wanted))]
    experiments = set(re.findall(r'^ {4}\{"([a-z0-9-]+)",', code, re.M))
    for line in text.splitlines():
        for names in re.findall(r"`ablate ([a-z0-9-]+)`((?:, `[a-z0-9-]+`)*)", line):
            for name in [names[0], *re.findall(r"`([a-z0-9-]+)`", names[1])]:
                if name not in experiments:
                    problems.append(f"docs/techniques.md: no experiment is called {name}")
    rows = set(re.findall(r'^ {4}\{"[a-z0-9-]+",\s+"([A-Z]\d+)"', code, re.M))
    problems += [f"experiments.cc: {id} is no technique" for id in sorted(rows - set(wanted))]
    print("\n".join(problems) or f"{len(wanted)} techniques, {len(experiments)} experiments")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

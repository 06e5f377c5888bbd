#!/usr/bin/env python3
"""Counts the tests of a ctest run, and says which were skipped and why.

    scripts/test_report.py JUNIT_FILE...   (ctest --output-junit JUNIT_FILE --test-output-size-passed 10000000)

Prints `PASSED FAILED SKIPPED` in single tests, as GoogleTest and unittest count them (a program of another kind is
one test), then one line per program and reason for a skip: `PROGRAM: N skipped: REASON`. A later file holds second
tries: its programs count instead of the first tries, and each that passed gets a line
`PROGRAM: passed only at the second try`.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

GTEST_PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.M)
GTEST_FAILED = re.compile(r"^\[  FAILED  \] (\d+) tests?, listed below", re.M)
GTEST_SKIP = re.compile(r"^(\S+?):\d+: Skipped\n(.*)", re.M)
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.M)
UNITTEST_FAILED = re.compile(r"^FAILED \((.*)\)$", re.M)
UNITTEST_SKIP = re.compile(r"\.\.\. skipped (['\"])(.*)\1$", re.M)
OWN_SKIP = re.compile(r"^skipped: (.*)", re.M)


def count(status, text):
    """(passed, failed, reasons of skips) of one program: how it ended (`run`: well), and what it printed."""
    reasons = []
    passed = failed = 0
    if GTEST_PASSED.search(text):
        passed = sum(map(int, GTEST_PASSED.findall(text)))
        failed = sum(map(int, GTEST_FAILED.findall(text)))
        reasons = [reason.strip() for _, reason in GTEST_SKIP.findall(text)]
    elif UNITTEST_RAN.search(text):
        reasons = [reason for _, reason in UNITTEST_SKIP.findall(text)]
        for words in UNITTEST_FAILED.findall(text):
            failed += sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", words))
        passed = max(0, sum(map(int, UNITTEST_RAN.findall(text))) - failed - len(reasons))
    elif status == "skipped":
        reason = OWN_SKIP.search(text)
        reasons = [reason[1] if reason else "it gives no reason"]
    elif status == "run":
        passed = 1
    if status not in ("run", "skipped"):
        failed = max(failed, 1)
    return passed, failed, reasons


def report(*roots):
    passed = failed = 0
    skipped = collections.Counter()
    cases = {case.get("name"): case for root in roots for case in root.iter("testcase")}
    for case in cases.values():
        status, skip = case.get("status"), case.find("skipped")
        if skip is not None and skip.get("message", "").startswith("SKIP_"):
            status = "skipped"  # else: no such program
        p, f, reasons = count(status, case.findtext("system-out") or "")
        passed, failed = passed + p, failed + f
        skipped.update((case.get("name"), reason) for reason in reasons)
    lines = [f"{passed} {failed} {sum(skipped.values())}"]
    again = [case.get("name") for root in roots[1:] for case in root.iter("testcase") if case.get("status") == "run"]
    lines += [f"{name}: passed only at the second try" for name in again]
    return lines + [f"{name}: {n} skipped: {reason}" for (name, reason), n in skipped.items()]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("\n".join(report(*(ElementTree.parse(file).getroot() for file in sys.argv[1:]))))

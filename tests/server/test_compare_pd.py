"""scripts/compare_pd.py: both ways answer every request, and blocks move over its link.

    SLUICE=build/release/sluice python3 tests/server/test_compare_pd.py
"""

import json
import subprocess
import sys
import unittest

from harness import PATIENCE, ROOT, SLUICE


def compare(*args):
    return subprocess.run([sys.executable, ROOT / "scripts/compare_pd.py", SLUICE, *args], capture_output=True, text=True,
                          timeout=60 * PATIENCE, check=False)


class ComparePd(unittest.TestCase):
    def test_both_ways(self):
        done = compare("--mix", "256:4:40", "--requests", "8", "--slow", "1", "--policy", "round-robin", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        colocated, apart = report["runs"]
        self.assertEqual((colocated["way"], apart["way"]), ("colocated", "P/D"))
        for r in (colocated, apart):
            self.assertEqual((r["requests"], r["answered"]), (8, 8), r)
            self.assertTrue(0 <= r["good"] <= 1 and r["ttft_p50_ms"] > 0, r)
        self.assertEqual((colocated["split"], colocated["moved_tokens"]), (0, 0))
        # Round robin splits every prompt, of 128 tokens at least; a prompt's last block is not moved. A busy machine may
        # have some fall back.
        self.assertGreaterEqual(apart["split"], 4, apart)
        self.assertGreaterEqual(apart["moved_tokens"], 4 * 112, apart)

    def test_bad_input_is_one_line(self):
        for args in (("--mix", "256:4"), ("--mix", "8000:400:1"), ("--mix", "0:4:1"), ("--slo", "ttft=x"), ("--slow", "0")):
            done = compare(*args)
            self.assertEqual((done.returncode, done.stdout), (1, ""), args)
            self.assertRegex(done.stderr, r"^error: [^\n]+\n$", args)


if __name__ == "__main__":
    unittest.main()

"""`python3 sliced.py -v MODULE` runs a module's tests as `python3 -m unittest -v MODULE` does, but with SLUICE_TEST_SLICE=N
only one in N, another one for each SLUICE_TEST_SEED. For tests that take long under a sanitizer. Where all are skipped it
ends with 77, which is a skipped test for ctest."""

import os
import sys
import unittest


class SlicedLoader(unittest.TestLoader):
    def __init__(self):
        super().__init__()
        self.num_slices = max(1, int(os.environ.get("SLUICE_TEST_SLICE") or 1))
        self.next = int(os.environ.get("SLUICE_TEST_SEED") or 0)

    def getTestCaseNames(self, case):
        names = []
        for name in super().getTestCaseNames(case):
            if self.next % self.num_slices == 0:
                names.append(name)
            self.next += 1
        return names


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # as `-m unittest` does
    result = unittest.main(module=None, testLoader=SlicedLoader(), exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.skipped and len(result.skipped) >= result.testsRun else 0)

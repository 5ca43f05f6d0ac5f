"""mypy finds nothing in the packages, and callers get their types."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

#: A wrong use of each package: proof that the types reach callers.
WRONG = """
import floe
report: floe.Report = floe.check("a", threads="two")
inode: str = report.findings[0].inode
"""


@unittest.skipIf(importlib.util.find_spec("mypy") is None, "mypy is not installed")
class Types(unittest.TestCase):
    def mypy(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, *arguments]
        return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)

    @unittest.skipIf(importlib.util.find_spec("pyspark") is None, "PySpark is not installed")
    def test_the_packages_are_typed(self) -> None:
        done = self.mypy()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_callers_get_types(self) -> None:
        with tempfile.TemporaryDirectory(prefix="floe-types-") as folder:
            path = os.path.join(folder, "wrong.py")
            with open(path, "w", encoding="ascii") as file:
                file.write(WRONG)
            done = self.mypy(path)
        self.assertEqual(done.stdout.count("error:"), 2, done.stdout + done.stderr)
        self.assertIn('Argument "threads"', done.stdout)


if __name__ == "__main__":
    unittest.main()

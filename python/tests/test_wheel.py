"""The wheel: both packages and the program, installed where no other floe is."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import images

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
#: Where maturin may be: beside this Python, or on PATH.
PLACES = os.path.dirname(sys.executable) + ":" + os.environ.get("PATH", "")
MATURIN = shutil.which("maturin", path=PLACES)

#: A program of a user, who has installed the wheel.
USER = """
import os, sys
import floe
from floe._program import program

report: floe.Report = floe.check(sys.argv[1])
codes: list[str] = [finding.code for finding in report.findings]
print(report.verdict, len(codes), os.path.realpath(program()))
"""


def run(*command: str, **more: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


@unittest.skipIf(MATURIN is None, "maturin is not installed")
@unittest.skipIf(shutil.which("cargo") is None, "cargo is not installed")
class Wheel(unittest.TestCase):
    def test_it_is_enough(self) -> None:
        images.need_tools()
        folder = tempfile.TemporaryDirectory(prefix="floe-wheel-")
        self.addCleanup(folder.cleanup)
        at = lambda name: os.path.join(os.path.realpath(folder.name), name)
        # The profile of the tests, whose dependencies are built.
        run(MATURIN or "", "build", "--profile", "dev", "--out", at("wheels"), cwd=PACKAGE)
        (wheel,) = glob.glob(at("wheels/*.whl"))
        self.assertIn("floe_fs-", wheel)
        self.assertIn("-py3-none-", wheel)
        with zipfile.ZipFile(wheel) as file:
            names = set(file.namelist())
        for name in ("floe/py.typed", "floe_spark/py.typed", "floe/_run.py", "floe_spark/_fleet.py"):
            self.assertIn(name, names)

        run(sys.executable, "-m", "venv", at("venv"))
        python = at("venv/bin/python")
        run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
        env = {"PATH": "/usr/bin:/bin", "HOME": at("home")}
        self.assertIsNone(shutil.which("floe", path=env["PATH"]))
        image = images.make(at("image"), damaged=True)
        with open(at("user.py"), "w", encoding="ascii") as script:
            script.write(USER)
        said = run(python, at("user.py"), image, env=env, cwd="/")
        verdict, count, program = said.split()
        self.assertEqual((verdict, program), ("damaged", at("venv/bin/floe")))
        self.assertGreater(int(count), 1)
        versions = {
            run(python, "-m", "floe", "--version", env=env, cwd="/"),
            run(at("venv/bin/floe"), "--version", env=env, cwd="/"),
        }
        self.assertEqual(len(versions), 1)
        # Another program on PATH is not asked.
        os.mkdir(at("other"))
        with open(at("other/floe"), "w", encoding="ascii") as script:
            script.write("#!/bin/sh\nexit 9\n")
        os.chmod(at("other/floe"), 0o700)
        env["PATH"] = at("other") + ":" + env["PATH"]
        self.assertEqual(run(python, at("user.py"), image, env=env, cwd="/"), said)
        if importlib.util.find_spec("mypy") is not None:
            mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python]
            run(*mypy, "--cache-dir", at("cache"), at("user.py"), cwd=at(""))


if __name__ == "__main__":
    unittest.main()

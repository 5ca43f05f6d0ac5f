"""Images for the tests, made by mke2fs and damaged by debugfs."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest

FLOE = os.environ.get("FLOE") or shutil.which("floe")


def need_tools() -> None:
    """Skips a test by the name of the tool that is missing."""
    if FLOE is None:
        raise unittest.SkipTest("floe is not installed, and FLOE does not name it")
    for tool in ("mke2fs", "debugfs", "e2fsck"):
        if _tool(tool) is None:
            raise unittest.SkipTest(f"{tool} is not installed")


def _tool(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def make(path: str, *, damaged: bool = False, groups: int = 1) -> str:
    """Makes an ext4 image with some directories; a damaged one has wrong link counts."""
    tree = path + ".tree"
    for at in range(8):
        os.makedirs(f"{tree}/{at}/inside")
        with open(f"{tree}/{at}/file", "w", encoding="ascii") as file:
            file.write(str(at))
    size = f"{max(2, groups)}M"
    more = ["-b", "1024", "-g", "1024"] if groups > 1 else []
    run("mke2fs", "-q", "-F", "-t", "ext4", *more, "-d", tree, path, size)
    shutil.rmtree(tree)
    if damaged:
        for at in (1, 5):
            run("debugfs", "-w", "-R", f"sif /{at}/file links_count 9", path)
    return path


def is_damaged(path: str) -> bool:
    """Whether e2fsck calls an image damaged."""
    command = [_tool("e2fsck"), "-fn", path]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode & 4 != 0


def run(name: str, *arguments: str) -> None:
    """Runs one of the tools quietly."""
    command = [_tool(name), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

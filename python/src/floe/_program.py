"""Starts the program `floe`."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
from typing import Sequence


class FloeError(Exception):
    """The program could not do what it was asked. Damage of a file system is not an error.

    `exit_code` has the bits of e2fsck: 8 failed, 16 wrong arguments or parts, 32 interrupted;
    `None` if the program could not be started, or was killed by a signal.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type, tuple[str, int | None]]:
        # Engines send exceptions of their workers to the driver.
        return (type(self), (str(self), self.exit_code))


class FloeKilled(FloeError):
    """A signal ended the program: somebody's, or the kernel's for lack of memory."""


def program() -> str:
    """The program that is used unless a call names another: $FLOE, that of the wheel, or `floe` on PATH."""
    return os.environ.get("FLOE") or _of_the_wheel() or "floe"


@functools.lru_cache(maxsize=None)
def _of_the_wheel() -> str | None:
    """The program that was installed with this package; `None` if the package is used from its sources."""
    try:
        files = importlib.metadata.files("floe-fs") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    # Other files of the wheel lie in packages; this one was installed among scripts.
    found = [str(file.locate()) for file in files if file.name == "floe"]
    return next((path for path in found if os.access(path, os.X_OK)), None)


def run(named: str | None, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Runs a program to its end, with its output captured: that which is `named`, or `program()`.

    Raises `FloeError` if it cannot be started, and `FloeKilled` if a signal ended it.
    """
    command = [named or program(), *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except (OSError, ValueError) as error:
        raise FloeError(f"cannot start {command[0]}: {error}") from error
    if done.returncode < 0:
        raise FloeKilled(f"{command[0]} was killed by signal {-done.returncode}")
    return done


def message_of(done: subprocess.CompletedProcess[bytes]) -> str:
    """The program's own error message, or the exit code if it wrote none."""
    text = done.stderr.decode("utf-8", "replace").strip()
    return text or f"floe ended with exit code {done.returncode}"

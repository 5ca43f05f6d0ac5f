"""Starts the program `floe`."""

from __future__ import annotations

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


def run(program: str | None, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Runs a program to its end, with its output captured: by default $FLOE, or `floe` on PATH.

    Raises `FloeError` if it cannot be started, and `FloeKilled` if a signal ended it.
    """
    command = [program or os.environ.get("FLOE") or "floe", *arguments]
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

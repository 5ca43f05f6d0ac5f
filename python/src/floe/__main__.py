"""`python -m floe ...` runs the program `floe` that this package uses."""

from __future__ import annotations

import os
import sys

from ._program import program


def main() -> None:
    """Becomes the program."""
    command = program()
    try:
        os.execvp(command, [command, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"cannot start {command}: {error}")


if __name__ == "__main__":
    main()

"""`python -m floe to-json-lines IMAGES...`: results in Parquet, as lines of JSON.

`floe report --fleet` reads these. IMAGES is a Parquet file with one row for each image, or a folder
of such files: `images` in the folder of `floe_spark.check`.
"""

from __future__ import annotations

import sys
from typing import Sequence

from ._arrow import documents_of


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    if len(arguments) < 2 or arguments[0] != "to-json-lines" or arguments[1].startswith("-"):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 0 if arguments[:1] in (["--help"], ["-h"]) else 16
    for parquet in arguments[1:]:
        try:
            for document in documents_of(parquet):
                print(document)
        except (ImportError, OSError, ValueError) as error:
            print(f"cannot read the results in {parquet}: {error}", file=sys.stderr)
            return 8
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Check ext4 file systems with the program `floe`.

    import floe
    report = floe.check("/images/a.img")
    for finding in report.findings:
        print(finding.code, finding.path, finding.message)

The program is the one that the argument `program` or the environment variable FLOE names; otherwise
that of the wheel from which this package was installed, or `floe` on PATH. Nothing here writes to a device.
"""

from ._arrow import Tables, to_arrow
from ._program import FloeError, FloeKilled
from ._report import Finding, Report
from ._run import check, check_document, merge, new_key, refine, shard

__all__ = [
    "FloeError",
    "FloeKilled",
    "Finding",
    "Report",
    "Tables",
    "check",
    "check_document",
    "merge",
    "new_key",
    "refine",
    "shard",
    "to_arrow",
]

"""Reports of checks: the documents of `floe check --json` (docs/json-schema.md), with types."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Finding:
    """One finding. Codes and ids are permanent."""

    code: str
    id: str
    #: "cosmetic", "metadata", "data-risk" or "fatal".
    severity: str
    #: "remark" (needs no repair), "damage" or "fatal".
    weight: str
    #: The kind of structure, such as "inode".
    object: str
    inode: int | None
    #: A path of that inode, if one was found.
    path: str | None
    message: str
    meaning: str
    repair: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The result of one check."""

    device: str
    #: "clean", "damaged" or "incomplete".
    verdict: str
    #: Bits as of e2fsck: 4 damage, 8 failed.
    exit_code: int
    findings: tuple[Finding, ...]
    #: Why nothing could be examined; `None` if something was.
    error: str | None
    #: The whole document, including file system, totals and cost.
    document: Mapping[str, Any]

    @property
    def clean(self) -> bool:
        """Whether nothing needs repair."""
        return self.verdict == "clean"

    def to_arrow(self) -> pyarrow.Table:
        """The findings as an Arrow table, one row each. `floe.to_arrow` takes several reports.

        Raises `ImportError` if pyarrow is not installed.
        """
        from ._arrow import to_arrow

        return to_arrow([self]).findings

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Reads a document. Raises `ValueError` if it is not the report of a check."""
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("schema") != "floe-check":
            raise ValueError("this is not a report of floe check --json")
        if document.get("version") != 1:
            raise ValueError(f"this report has version {document.get('version')}, not 1")
        names = Finding.__dataclass_fields__
        return cls(
            device=document["device"],
            verdict=document["verdict"],
            exit_code=document["exit_code"],
            findings=tuple(
                # New members may appear without a new version.
                Finding(**{name: found[name] for name in names if name in found})
                for found in document["findings"]
            ),
            error=document.get("error"),
            document=document,
        )

"""Results as rows: one for each image and one for each finding, for tables of any kind."""

from __future__ import annotations

import json
from typing import Any, Mapping

#: Columns of an image, and what they hold: "text", "integer", "real".
IMAGE_COLUMNS: Mapping[str, str] = {
    "path": "text",
    "verdict": "text",
    "exit_code": "integer",
    "error": "text",
    "label": "text",
    "uuid": "text",
    "bytes": "integer",
    "seconds": "real",
    "bytes_read": "integer",
    "document": "text",
}

#: Columns of a finding: `path` is that of the image, `file` a path inside it.
FINDING_COLUMNS: Mapping[str, str] = {
    "path": "text",
    "code": "text",
    "id": "text",
    "severity": "text",
    "weight": "text",
    "object": "text",
    # Numbers of inodes have 32 bits without a sign.
    "inode": "integer",
    "file": "text",
    "message": "text",
    "repair": "text",
    "evidence": "text",
}


def image_row(document: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an image, from the document of its check."""
    system, cost = document.get("filesystem") or {}, document.get("cost") or {}
    return {
        "path": document["device"],
        "verdict": document["verdict"],
        "exit_code": document["exit_code"],
        "error": document.get("error"),
        "label": system.get("label"),
        "uuid": system.get("uuid"),
        "bytes": system.get("blocks", 0) * system.get("block_size", 0),
        "seconds": cost.get("seconds"),
        "bytes_read": cost.get("bytes_read"),
        # One line, for floe report --fleet.
        "document": json.dumps(document),
    }


def finding_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the findings of an image, in their order."""
    return [_finding_row(document["device"], found) for found in document["findings"]]


def _finding_row(device: str, found: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: found.get(name) for name in FINDING_COLUMNS}
    row["path"], row["file"] = device, found.get("path")
    row["evidence"] = json.dumps(found.get("evidence") or {})
    return row

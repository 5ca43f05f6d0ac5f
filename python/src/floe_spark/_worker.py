"""Work of one task on a worker."""

from __future__ import annotations

import json
import os
import tempfile

import floe


def document_of(path: str, program: str | None, threads: int, options: tuple[str, ...]) -> str:
    """Checks one image: the document of `floe check --json`.

    An image that cannot be examined, or whose check was killed, has a document, too, with an
    error. Raises `floe.FloeError` if the program cannot be started or its arguments are wrong,
    which ends the job: no image would be checked.
    """
    try:
        return floe.check_document(path, program=program, threads=threads, options=options)
    except floe.FloeKilled as error:
        # One image that takes too much memory must not end the checks of all others.
        document = {"schema": "floe-check", "version": 1, "device": path, "findings": []}
        failed = {"verdict": "incomplete", "exit_code": 8, "error": str(error)}
        return json.dumps({**document, **failed})


def part_of(
    device: str,
    share: tuple[int, int],
    key: bytes,
    how: tuple[str | None, int, tuple[str, ...]],
) -> bytes:
    """Checks one shard of a device: the bytes of its part. Raises `floe.FloeError`."""
    program, threads, options = how
    with tempfile.TemporaryDirectory(prefix="floe-shard-") as folder:
        key_path, out = os.path.join(folder, "key"), os.path.join(folder, "part")
        with open(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        floe.shard(
            device, *share, out, key=key_path, program=program, threads=threads, options=options
        )
        with open(out, "rb") as file:
            return file.read()


def row_of(document: str) -> tuple:
    """The row of an image, in the order of `_fleet.IMAGES`."""
    report = json.loads(document)
    system, cost = report.get("filesystem") or {}, report.get("cost") or {}
    size = system.get("blocks", 0) * system.get("block_size", 0)
    findings = [
        tuple(found.get(name) for name in FINDING_NAMES)
        + (json.dumps(found.get("evidence") or {}),)
        for found in report["findings"]
    ]
    return (
        report["verdict"],
        report["exit_code"],
        report.get("error"),
        system.get("label"),
        system.get("uuid"),
        size,
        cost.get("seconds"),
        cost.get("bytes_read"),
        findings,
        document,
    )


#: Members of a finding that become columns as they are.
FINDING_NAMES = ("code", "id", "severity", "weight", "object", "inode", "path", "message", "repair")

"""Work of one task on a worker."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Sequence

import floe
from floe import _run
from floe._rows import FINDING_COLUMNS, IMAGE_COLUMNS, finding_rows, image_row

#: Bytes that are compared with zeros at once.
_PIECE = 1 << 20

#: Hadoop's names for schemes of URLs that others call otherwise.
_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True)
class How:
    """The way to run the program on a worker."""

    program: str | None
    threads: int
    options: tuple[str, ...]
    #: Folder for images that are fetched and for parts; `None`: the usual one.
    scratch: str | None = None


def document_of(path: str, how: How) -> str:
    """Checks one image: the document of `floe check --json`.

    An image that cannot be examined, or whose check was killed, has a document, too, with an
    error. Raises `floe.FloeError` if the program cannot be started or its arguments are wrong,
    which ends the job: no image would be checked.
    """
    try:
        return floe.check_document(
            path, program=how.program, threads=how.threads, options=how.options
        )
    except floe.FloeKilled as error:
        # One image that takes too much memory must not end the checks of all others.
        return incomplete(_run.shown(path), str(error))


def document_of_row(file: bytes | bytearray | None, how: How) -> str:
    """Checks the image whose path has these bytes."""
    if file is None:
        return incomplete("", "this row has no path")
    return document_of(os.fsdecode(bytes(file)), how)


def incomplete(path: str, error: str) -> str:
    """The document of an image that could not be checked."""
    return json.dumps(_run.incomplete(path, error))


def document_of_fetched(path: str | None, fetch: Callable[[str, str], object], how: How) -> str:
    """Checks an image that is first fetched into a file, which is removed afterwards.

    `fetch(path, file)` writes the file. If it raises an exception, the image has a document with
    that as its error.
    """
    if path is None:
        return incomplete("", "this row has no path")
    with tempfile.TemporaryDirectory(prefix="floe-image-", dir=how.scratch) as folder:
        file = os.path.join(folder, "image")
        try:
            fetch(path, file)
        except Exception as error:  # Whatever a client of object storage may raise.
            return incomplete(path, f"cannot fetch {path}: {error!r}")
        document = json.loads(document_of(file, how))
    document["device"] = path
    if document.get("error"):
        document["error"] = document["error"].replace(file, path)
    return json.dumps(document)


def document_of_content(path: str | None, content: bytes | bytearray | None, how: How) -> str:
    """Checks an image whose bytes are at hand."""
    if content is None:
        return incomplete(path or "", f"{path} has no content")
    pieces = (content[start : start + _PIECE] for start in range(0, len(content), _PIECE))
    return document_of_fetched(path, lambda _, file: write_sparse(file, pieces), how)


def fetch_url(url: str, file: str) -> None:
    """Fetches what a URL names into the new file `file`: for `floe_spark.check(..., fetch=floe_spark.fetch_url)`.

    Reads with pyarrow, which knows `file`, `s3`, `gs`, `abfs` and `hdfs`, with the credentials that these find in
    the environment of the worker. URLs are as Spark writes them: `s3a://` and `file:/images/a.img` are known, and
    nothing in them is escaped.
    """
    from pyarrow import fs

    store, path = fs.LocalFileSystem(), url
    if named := re.fullmatch("([a-z][a-z0-9+.-]*):(?://([^/]*))?/(.*)", url, re.DOTALL):
        scheme = _HADOOP_SCHEMES.get(named[1], named[1])
        store, root = fs.FileSystem.from_uri(f"{scheme}://{named[2] or ''}/")
        path = f"{root.rstrip('/')}/{named[3]}"
    with store.open_input_stream(path) as stream:
        write_sparse(file, iter(lambda: stream.read(_PIECE), b""))


def write_sparse(path: str, pieces: Iterable[bytes | bytearray]) -> None:
    """Writes a new file of these pieces, with holes where there are only zeros."""
    zeros, length = bytes(_PIECE), 0
    with open(path, "xb") as file:
        for piece in pieces:
            if piece != zeros[: len(piece)]:
                file.seek(length)
                file.write(piece)
            length += len(piece)
        file.truncate(length)


def part_of(device: str, share: tuple[int, int], key: bytes, how: How) -> bytes:
    """Checks one shard of a device: the bytes of its part. Raises `floe.FloeError`."""
    with tempfile.TemporaryDirectory(prefix="floe-shard-", dir=how.scratch) as folder:
        key_path, out = os.path.join(folder, "key"), os.path.join(folder, "part")
        write_own(key_path, key)
        floe.shard(
            device,
            *share,
            out,
            key=key_path,
            program=how.program,
            threads=how.threads,
            options=how.options,
        )
        with open(out, "rb") as file:
            return file.read()


def refined(device: str, share: tuple[int, int], parts: Sequence[bytes], how: How) -> bytes:
    """Examines one share of the groups that parts leave unproved: the bytes of its part."""
    with tempfile.TemporaryDirectory(prefix="floe-refine-", dir=how.scratch) as folder:
        paths = write_parts(folder, parts)
        out = os.path.join(folder, "out")
        floe.refine(
            device,
            paths,
            *share,
            out,
            program=how.program,
            threads=how.threads,
            options=how.options,
        )
        with open(out, "rb") as file:
            return file.read()


def write_parts(folder: str, parts: Sequence[bytes]) -> list[str]:
    """Writes parts to files in a folder; returns their paths."""
    paths = [os.path.join(folder, f"part-{at}") for at in range(len(parts))]
    for path, part in zip(paths, parts):
        write_own(path, part)
    return paths


def write_own(path: str, content: bytes) -> None:
    """Writes a new file that only its owner can read: parts and keys are secret."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def row_of(path: str | None, document: str) -> tuple[Any, ...]:
    """The row of an image, with its findings behind it, in the order of `_fleet.CHECKED`."""
    parsed = json.loads(document)
    # The program may have been given another way to write the path.
    image = {**image_row(parsed), "path": path}
    rows = ({**row, "path": path} for row in finding_rows(parsed))
    findings = [tuple(row[name] for name in FINDING_COLUMNS) for row in rows]
    return (*(image[name] for name in IMAGE_COLUMNS), findings)

"""Checks, and the shards and the merge of one check by many machines (docs/fleet.md)."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any, Sequence

from ._program import FloeError, message_of, run
from ._report import Report


#: Bit of the exit code, as of e2fsck.
WRONG_ARGUMENTS = 16


def _options(threads: int | None, options: Sequence[str]) -> list[str]:
    counted = [] if threads is None else ["--threads", str(threads)]
    return ["check", "--progress", "never", *counted, *options]


def _operand(path: str | os.PathLike[str]) -> str:
    """A path that begins with a dash must not be taken for an option."""
    text = os.fsdecode(path)
    return f"./{text}" if text.startswith("-") else text


def shown(path: str | os.PathLike[str]) -> str:
    """A path as text: bytes of it that are not UTF-8 are told as numbers, as in reports."""
    text = os.fsdecode(path)
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def incomplete(device: str, error: str) -> dict[str, Any]:
    """The document of an image that could not be checked."""
    document = {"schema": "floe-check", "version": 1, "device": device, "findings": []}
    return {**document, "verdict": "incomplete", "exit_code": 8, "error": error}


def _why_no_file(path: str | os.PathLike[str]) -> str | None:
    """Why no file can have this path, so that the program could not even be asked."""
    text = os.fsdecode(path)
    try:
        length = len(os.fsencode(text))
    except UnicodeEncodeError:
        return "the path cannot be written in the encoding of file names"
    if length == 0:
        return "the path is empty"
    if "\0" in text:
        return "the path has a zero byte"
    # PATH_MAX of Linux.
    return "the path is too long" if length > 4095 else None


def check(
    device: str | os.PathLike[str],
    *,
    program: str | None = None,
    threads: int | None = None,
    options: Sequence[str] = (),
) -> Report:
    """Checks an image or a device, which is only read.

    `options` are further options of `floe check`, such as `["--ignore-journal"]`. Raises
    `FloeError` if the program cannot run, or refuses its arguments. An image that cannot be
    examined is no exception: its report has the verdict "incomplete" and an `error`, also if no file
    can have such a name.
    """
    if why := _why_no_file(device):
        return Report.from_json(json.dumps(incomplete(shown(device), why)))
    return _report(program, [*_options(threads, options), "--json", _operand(device)])


def check_document(
    device: str | os.PathLike[str],
    *,
    program: str | None = None,
    threads: int | None = None,
    options: Sequence[str] = (),
) -> str:
    """As `check`, but returns the JSON document, on one line for `floe report --fleet`."""
    report = check(device, program=program, threads=threads, options=options)
    return json.dumps(report.document)


def new_key(path: str | os.PathLike[str]) -> None:
    """Writes the key that all shards of one check share to a new file, readable only by its owner.

    Needed only where the shards have no common folder: otherwise the first of them creates it.
    Raises `FileExistsError` if the file exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"floe-shards-key 1 {secrets.token_hex(16)} {int(time.time())}\n")


def shard(
    device: str | os.PathLike[str],
    index: int,
    count: int,
    out: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    program: str | None = None,
    threads: int | None = None,
    options: Sequence[str] = (),
) -> None:
    """Checks shard `index` (from 0) of `count`, and writes its part to `out`, whole or not at all.

    `key` is the file with the key of all shards; by default `floe-shards.key` beside `out`, which
    the first shard creates. A shard may run again: its part is replaced. Raises `FloeError`.
    """
    keyed = [] if key is None else ["--shard-key", _operand(key)]
    share = ["--shard", f"{index}/{count}", "--out", _operand(out), *keyed]
    _done(program, [*_options(threads, options), *share, _operand(device)])


def refine(
    device: str | os.PathLike[str],
    parts: Sequence[str | os.PathLike[str]],
    index: int,
    count: int,
    out: str | os.PathLike[str],
    *,
    program: str | None = None,
    threads: int | None = None,
    options: Sequence[str] = (),
) -> None:
    """Examines share `index` of `count` of the groups that `parts` leave unproved; writes to `out`.

    `parts` are those of all shards, and in the second round those of the first one. Raises
    `FloeError`.
    """
    share = ["--refine", f"{index}/{count}", "--out", _operand(out), _operand(device)]
    _done(program, [*_options(threads, options), *share, "--merge", *_operands(parts)])


def merge(
    device: str | os.PathLike[str],
    parts: Sequence[str | os.PathLike[str]],
    *,
    program: str | None = None,
    threads: int | None = None,
    options: Sequence[str] = (),
) -> Report:
    """The report of the whole file system from the parts of all shards, in any order.

    Raises `FloeError` if a part is missing, repeated, damaged or of another check.
    """
    arguments = [*_options(threads, options), "--json", _operand(device), "--merge"]
    report = _report(program, [*arguments, *_operands(parts)])
    if report.error is not None:
        raise FloeError(report.error, report.exit_code)
    return report


def _operands(parts: Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(parts, (str, bytes, os.PathLike)):
        raise TypeError("parts are a list of paths, not one path")
    if not parts:
        raise ValueError("there are no parts")
    return [_operand(part) for part in parts]


def _report(program: str | None, arguments: Sequence[str]) -> Report:
    done = run(program, arguments)
    if not done.stdout.strip():
        raise FloeError(message_of(done), done.returncode)
    try:
        report = Report.from_json(done.stdout)
    except (ValueError, KeyError, TypeError) as error:
        raise FloeError(f"floe wrote no report: {error}", done.returncode) from error
    if report.error is not None and report.exit_code & WRONG_ARGUMENTS:
        raise FloeError(report.error, report.exit_code)
    return report


def _done(program: str | None, arguments: Sequence[str]) -> None:
    done = run(program, arguments)
    if done.returncode != 0:
        raise FloeError(message_of(done), done.returncode)

"""One device, checked by many workers at once (docs/fleet.md)."""

from __future__ import annotations

import os
import tempfile
from typing import Callable, Sequence

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import floe

from ._worker import How, part_of, refined, write_parts


def check_device(
    spark: SparkSession,
    device: str,
    shards: int,
    *,
    refine: int = 0,
    program: str | None = None,
    threads: int = 1,
    options: Sequence[str] = (),
) -> floe.Report:
    """Checks one file system in `shards` tasks, and merges their parts on the driver.

    All workers and the driver must reach the device under this path. Nobody may write to it
    meanwhile. The parts travel through Spark, so no common folder is needed. With `refine`, so many
    tasks examine what the parts leave unproved, in two rounds, before the merge; all parts are sent
    to each worker for that. Raises `floe.FloeError` if the parts cannot be merged; what a shard
    raises ends the job as Spark's own exception, after Spark's retries. `program` names the program
    on workers and driver.
    """
    if shards < 1:
        raise ValueError("there must be one shard at least")
    how = How(program, threads, tuple(options))
    with tempfile.TemporaryDirectory(prefix="floe-parts-") as folder:
        key_path = os.path.join(folder, "key")
        floe.new_key(key_path)
        with open(key_path, "rb") as file:
            key = file.read()
        parts = _run(spark, shards, lambda index: part_of(device, (index, shards), key, how))
        for _ in range(2 if refine > 0 else 0):
            parts += _round(spark, device, refine, parts, how)
        paths = write_parts(folder, parts)
        return floe.merge(device, paths, program=program, threads=threads, options=options)


def _round(
    spark: SparkSession, device: str, count: int, parts: list[bytes], how: How
) -> list[bytes]:
    """A round of refinement."""
    known = spark.sparkContext.broadcast(list(parts))
    try:
        return _run(spark, count, lambda index: refined(device, (index, count), known.value, how))
    finally:
        known.unpersist()


def _run(spark: SparkSession, count: int, work: Callable[[int], bytes]) -> list[bytes]:
    """Runs `work` for each number below `count`, a task each; returns what it returned."""
    result = F.udf(work, T.BinaryType()).asNondeterministic()
    rows = spark.range(0, count, 1, count).select("id", result("id").alias("part"))
    # The driver fetches one part after another; all of them are made at once before.
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        rows.count()
        return [bytes(row["part"]) for row in rows.toLocalIterator()]
    finally:
        rows.unpersist()

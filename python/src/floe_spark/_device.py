"""One device, checked by many workers at once (docs/fleet.md)."""

from __future__ import annotations

import os
import tempfile
from typing import Sequence

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import floe

from ._worker import part_of


def check_device(
    spark: SparkSession,
    device: str,
    shards: int,
    *,
    program: str | None = None,
    threads: int = 1,
    options: Sequence[str] = (),
) -> floe.Report:
    """Checks one file system in `shards` tasks, and merges their parts on the driver.

    All workers and the driver must reach the device under this path. Nobody may write to it
    meanwhile. The parts travel through Spark, so no common folder is needed. Raises
    `floe.FloeError` if the parts cannot be merged; what a shard raises ends the job as Spark's own
    exception, after Spark's retries. `program` names the program on workers and driver.
    """
    if shards < 1:
        raise ValueError("there must be one shard at least")
    with tempfile.TemporaryDirectory(prefix="floe-parts-") as folder:
        key_path = os.path.join(folder, "key")
        floe.new_key(key_path)
        with open(key_path, "rb") as file:
            key = file.read()
        how = (program, threads, tuple(options))
        part = F.udf(lambda index: part_of(device, (index, shards), key, how), T.BinaryType())
        rows = spark.range(0, shards, 1, shards).select(
            "id", part.asNondeterministic()("id").alias("part")
        )
        # The driver fetches one part after another; all of them are made at once before.
        rows = rows.persist(StorageLevel.DISK_ONLY)
        try:
            rows.count()
            paths = []
            for row in rows.toLocalIterator():
                path = os.path.join(folder, f"part-{row['id']}")
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(row["part"])
                paths.append(path)
        finally:
            rows.unpersist()
        return floe.merge(device, paths, program=program, threads=threads, options=options)

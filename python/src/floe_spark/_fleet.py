"""Checks of many images: one row for each image, and one for each finding."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ._worker import FINDING_NAMES, document_of, row_of


def _field(name: str) -> T.StructField:
    # Inode numbers have 32 bits without a sign.
    return T.StructField(name, T.LongType() if name == "inode" else T.StringType())


FINDING = T.StructType([_field(name) for name in (*FINDING_NAMES, "evidence")])

#: Columns of an image besides its path.
IMAGES = T.StructType(
    [
        T.StructField("verdict", T.StringType()),
        T.StructField("exit_code", T.IntegerType()),
        T.StructField("error", T.StringType()),
        T.StructField("label", T.StringType()),
        T.StructField("uuid", T.StringType()),
        T.StructField("bytes", T.LongType()),
        T.StructField("seconds", T.DoubleType()),
        T.StructField("bytes_read", T.LongType()),
        T.StructField("findings", T.ArrayType(FINDING)),
        T.StructField("document", T.StringType()),
    ]
)


@dataclass(frozen=True)
class Fleet:
    """The results of one run over a fleet."""

    #: One row for each image: path, verdict, exit_code, error, label, uuid, bytes, seconds,
    #: bytes_read, and the whole document as JSON.
    images: DataFrame
    #: One row for each finding: path of the image, and code, id, severity, weight, object, inode,
    #: file (a path inside the image), message, repair, evidence (JSON).
    findings: DataFrame

    def write_json_lines(self, path: str) -> None:
        """Writes the documents to one local file, which `floe report --fleet` reads."""
        with open(path, "w", encoding="utf-8") as file:
            for row in self.images.select("document").toLocalIterator():
                file.write(row["document"] + "\n")


def check(
    spark: SparkSession,
    images: Iterable[str | os.PathLike[str]] | DataFrame,
    *,
    folder: str | None = None,
    program: str | None = None,
    threads: int = 1,
    options: Sequence[str] = (),
    slices: int | None = None,
) -> Fleet:
    """Checks images, each in one process of `floe check` on a worker.

    `images` are paths, or a DataFrame with a column `path`. With `folder` the results are written
    there as Parquet (`images`, `findings`), and read back from there; it must not exist. Without it
    Spark keeps them on the disks of its workers, and checks again what is lost with a worker.
    `threads` are those of each check. `slices`: number of Spark tasks; by default four for each
    core, so that slow images do not make the others wait.
    """
    if isinstance(images, DataFrame):
        paths = images.select(F.col("path").cast("string"))
    else:
        rows = [(os.fspath(path),) for path in images]
        paths = spark.createDataFrame(rows, "path string")
    arguments = (program, threads, tuple(options))
    checked = F.udf(lambda path: row_of(document_of(path, *arguments)), IMAGES)
    # Otherwise Spark may call the function once for each column that is used.
    checked = checked.asNondeterministic()
    tasks = slices or 4 * spark.sparkContext.defaultParallelism
    rows = paths.repartition(tasks).select("path", checked("path").alias("checked"))
    rows = rows.select("path", "checked.*")
    if folder is None:
        rows = rows.persist()
        return Fleet(rows.drop("findings"), _exploded(rows))
    whole = f"{folder}/images"
    rows.write.parquet(whole)
    rows = spark.read.parquet(whole)
    _exploded(rows).write.parquet(f"{folder}/findings")
    return Fleet(rows.drop("findings"), spark.read.parquet(f"{folder}/findings"))


def _exploded(rows: DataFrame) -> DataFrame:
    found = rows.select(F.col("path").alias("image"), F.explode("findings").alias("found"))
    columns = [F.col(f"found.{name}").alias(_column(name)) for name in FINDING.names]
    return found.select(F.col("image").alias("path"), *columns)


def _column(name: str) -> str:
    return "file" if name == "path" else name

"""Checks of many images: one row for each image, and one for each finding."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from floe._rows import FINDING_COLUMNS, IMAGE_COLUMNS
from floe._run import shown

from ._worker import How, document_of_content, document_of_fetched, document_of_row, row_of

_TYPES = {"text": T.StringType(), "integer": T.LongType(), "real": T.DoubleType()}

FINDING = T.StructType([T.StructField(name, _TYPES[of]) for name, of in FINDING_COLUMNS.items()])

#: Columns of an image, and its findings.
CHECKED = T.StructType(
    [
        *(T.StructField(name, _TYPES[of]) for name, of in IMAGE_COLUMNS.items()),
        T.StructField("findings", T.ArrayType(FINDING)),
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
    fetch: Callable[[str, str], object] | None = None,
    folder: str | None = None,
    program: str | None = None,
    threads: int = 1,
    options: Sequence[str] = (),
    slices: int | None = None,
    scratch: str | None = None,
) -> Fleet:
    """Checks images, each in one process of `floe check` on a worker.

    `images` are paths, or a DataFrame with a column `path`. If it also has a column `content`, as
    that of `spark.read.format("binaryFile")` does, the image is what that holds (2 GiB at most).
    Otherwise the path is one of the worker, or `fetch(path, file)` is called there, which writes
    the image that `path` names (a URL, an object's key) to the new file `file`; if it raises an
    exception, the image has the verdict "incomplete". Copies lie in the folder `scratch` of the
    worker while they are checked.

    With `folder` the results are written there as Parquet (`images`, `findings`), and read back from
    there; it must not exist. Without it Spark keeps them on the disks of its workers, and checks
    again what is lost with a worker. `threads` are those of each check. `slices`: number of Spark
    tasks; by default four for each core, so that slow images do not make the others wait. (The
    tasks of a DataFrame with contents are its own: they are too large to be dealt anew.)
    """
    if isinstance(images, (str, bytes, os.PathLike)):
        raise TypeError("images are a list of paths or a DataFrame, not one path")
    how = How(program, threads, tuple(options), scratch)
    path = F.col("path").cast("string")
    tasks = slices or 4 * spark.sparkContext.defaultParallelism
    if isinstance(images, DataFrame) and "content" in images.columns:
        source, columns = images.select(path.alias("path"), "content"), ["path", "content"]
        checked = _udf(lambda name, content: row_of(name, document_of_content(name, content, how)))
    else:
        if isinstance(images, DataFrame):
            source = images.select(path.alias("path"), path.cast("binary").alias("file"))
        else:
            # Spark's texts are Unicode; names of files need not be.
            names = [(shown(name), bytearray(os.fsencode(name))) for name in images]
            source = spark.createDataFrame(names, "path string, file binary")
        source = source.repartition(tasks)
        if fetch is None:
            columns = ["path", "file"]
            checked = _udf(lambda name, file: row_of(name, document_of_row(file, how)))
        else:
            columns = ["path"]
            checked = _udf(lambda name: row_of(name, document_of_fetched(name, fetch, how)))
    rows = source.select(checked(*columns).alias("checked")).select("checked.*")
    if folder is None:
        rows = rows.persist()
        return Fleet(rows.drop("findings"), _exploded(rows))
    whole = f"{folder}/images"
    rows.write.parquet(whole)
    rows = spark.read.parquet(whole)
    _exploded(rows).write.parquet(f"{folder}/findings")
    return Fleet(rows.drop("findings"), spark.read.parquet(f"{folder}/findings"))


def _udf(function: Callable[..., tuple[Any, ...]]) -> Callable[..., Column]:
    # Otherwise Spark may call the function once for each column that is used.
    return F.udf(function, CHECKED).asNondeterministic()


def _exploded(rows: DataFrame) -> DataFrame:
    return rows.select(F.explode("findings").alias("found")).select("found.*")

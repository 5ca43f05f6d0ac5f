"""Checks a fleet of small images by Spark, by one `floe check` after another, and by e2fsck in a shell loop.

    FLOE=target/release/floe PYTHONPATH=src:tests python bench/fleet.py --images 2000

A quarter of the images is damaged, each in another way, and e2fsck says so. Fails unless Spark finds what single checks
find, and damage in these images alone. Prints images for each second of processor time, of all processes together (so that a
busy machine changes little), and for each second of wall time.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from pyspark.sql import SparkSession

import floe
import floe_spark
import images

WORKERS = 2
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")

#: What may be wrong with an image, as commands of debugfs; the numbers are drawn.
DAMAGE = (
    "sif /{dir}/file links_count {number}",
    "sif /{dir}/file block[2] 99{number}",
    "sif /{dir}/file mode {number}",
    "sif /{dir}/inside size {number}",
    "clri /{dir}/inside",
    "clri /{dir}",
    "unlink /{dir}/file",
    "freeb 3{number} {dir}0",
    "ssv free_inodes_count {number}",
    "set_bg 0 free_blocks_count {number}",
    "set_bg 0 inode_table 1{number}",
)
#: Bytes from the start of an image in which most of its metadata lie.
METADATA_BYTES = 96 << 10


def damage(sound: str, path: str, draw: random.Random) -> None:
    """Makes a copy of a sound image that e2fsck calls damaged: by debugfs, or by some random bytes."""
    while True:
        subprocess.run(["cp", "--sparse=always", sound, path], check=True)
        if draw.random() < 0.5:
            numbers = {"dir": draw.randrange(8), "number": draw.randrange(10, 100)}
            images.run("debugfs", "-w", "-R", draw.choice(DAMAGE).format(**numbers), path)
        else:
            with open(path, "r+b") as file:
                file.seek(draw.randrange(1024, METADATA_BYTES))
                file.write(draw.randbytes(draw.randrange(1, 64)))
        if images.is_damaged(path):
            return


def fleet(folder: str, count: int) -> tuple[list[str], set[str]]:
    """The paths of `count` images, and those that are damaged: every fourth."""
    sound = images.make(os.path.join(folder, "sound"))
    if images.is_damaged(sound):
        raise RuntimeError("e2fsck calls the sound image damaged")
    paths, damaged, draw = [], set(), random.Random(25)
    for at in range(count):
        paths.append(os.path.join(folder, f"{at:05}.img"))
        if at % 4 == 3:
            damage(sound, paths[-1], draw)
            damaged.add(paths[-1])
        else:
            subprocess.run(["cp", "--sparse=always", sound, paths[-1]], check=True)
    return paths, damaged


def session(folder: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local-cluster[{WORKERS},1,1024]").appName("floe fleet")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": SOURCES,
        "spark.executor.memory": "512m",
        "spark.local.dir": folder,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def processor_seconds() -> float:
    """Processor time of all processes below this one, and of those that ended."""
    ticks, children = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # It ended meanwhile.
        children.setdefault(int(fields[1]), []).append(int(name))
        # User and system time, its own and that of its children that ended.
        ticks[int(name)] = sum(map(int, fields[11:15]))
    below, total = [os.getpid()], 0
    while below:
        process = below.pop()
        total += ticks.get(process, 0)
        below += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


class Timer:
    """Wall time and processor time of what is done inside."""

    def __enter__(self) -> Timer:
        self.begin = (time.monotonic(), processor_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.monotonic() - self.begin[0]
        self.processor = processor_seconds() - self.begin[1]


def by_shell(command: str, paths: list[str]) -> Timer:
    """Runs a command for each image, one after another, in a shell loop."""
    script = f'for image; do {command} "$image" >/dev/null 2>&1; done; true'
    loop = ["xargs", "-n", "100", "sh", "-c", script, "loop"]
    with Timer() as timer:
        subprocess.run(loop, input="\n".join(paths), text=True, check=True)
    return timer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--folder", help="where the images are made; by default a temporary one")
    arguments = parser.parse_args()
    images.need_tools()
    with tempfile.TemporaryDirectory(prefix="floe-fleet-", dir=arguments.folder) as folder:
        paths, damaged = fleet(folder, arguments.images)
        rows = [("e2fsck -fn in a shell loop", by_shell("e2fsck -fn", paths))]
        command = f"{images.FLOE} check --threads 1"
        rows.append(("floe check in a shell loop", by_shell(command, paths)))
        spark = session(folder)
        # The first job starts the workers' Python.
        floe_spark.check(spark, paths[:8], program=images.FLOE).images.collect()
        with Timer() as timer:
            found = floe_spark.check(spark, paths, folder=f"{folder}/results", program=images.FLOE)
        rows.append((f"floe_spark.check to Parquet, {WORKERS} workers", timer))
        results = {row["path"]: row for row in found.images.collect()}
        findings: dict[str, list[tuple[str, str | None]]] = {path: [] for path in paths}
        for row in found.findings.collect():
            findings[row["path"]].append((row["code"], row["file"]))
        spark.stop()
        verdicts: dict[str, int] = {}
        for path in paths:
            single = floe.check(path, threads=1)
            assert results[path]["verdict"] == single.verdict, path
            assert findings[path] == [(of.code, of.path) for of in single.findings], path
            assert (single.verdict != "clean") == (path in damaged), (path, single.verdict)
            verdicts[single.verdict] = verdicts.get(single.verdict, 0) + 1
    print(f"{len(paths)} images, {len(damaged)} of them damaged: {verdicts}; Spark found what single checks find")
    print("| | images a second of a core | images a second |\n|---|---:|---:|")
    for name, timer in rows:
        print(f"| {name} | {len(paths) / timer.processor:.0f} | {len(paths) / timer.wall:.0f} |")


if __name__ == "__main__":
    main()

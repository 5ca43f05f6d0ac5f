"""The package `floe_spark` on a real Spark: two workers that are processes of their own."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import floe

import images

try:
    from pyspark.sql import SparkSession

    import floe_spark
except ImportError as error:
    raise unittest.SkipTest(f"PySpark is not installed: {error}") from error
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    raise unittest.SkipTest("java is not installed")

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")


class OnSpark(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        images.need_tools()
        folder = tempfile.TemporaryDirectory(prefix="floe-spark-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("floe tests")
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.execution.pythonUDF.arrow.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": SOURCES,
            "spark.executor.memory": "512m",
            "spark.local.dir": cls.folder,
            "spark.speculation": "true",
            "spark.sql.shuffle.partitions": "4",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        cls.spark = builder.getOrCreate()
        cls.addClassCleanup(cls.spark.stop)
        cls.spark.sparkContext.setLogLevel("ERROR")

    def at(self, name: str) -> str:
        return os.path.join(self.folder, self.id().rsplit(".", 1)[-1] + "-" + name)

    def program(self, script: str) -> str:
        """A script in the place of floe, which starts the real one as "$FLOE"."""
        path = self.at("program")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nFLOE='{images.FLOE}'\n{script}\n")
        os.chmod(path, 0o700)
        return path

    def fleet(self, count: int) -> list[str]:
        """Images, a quarter of them damaged, and one that is no file system."""
        sound, damaged = images.make(self.at("0")), images.make(self.at("1"), damaged=True)
        paths = [sound, damaged]
        for at in range(2, count):
            paths.append(shutil.copy(damaged if at % 4 == 1 else sound, self.at(str(at))))
        paths.append(self.at("zeros"))
        with open(paths[-1], "wb") as file:
            file.truncate(1 << 20)
        return paths

    def test_verdicts_are_those_of_single_checks(self) -> None:
        count = int(os.environ.get("FLOE_SPARK_IMAGES", "24"))
        paths = self.fleet(count)
        log = self.at("log")
        program = self.program(f'echo . >> "{log}"; exec "$FLOE" "$@"')
        fleet = floe_spark.check(self.spark, paths, folder=self.at("results"), program=program)
        rows = {row["path"]: row for row in fleet.images.collect()}
        self.assertEqual(sorted(rows), sorted(paths))
        singles = {path: floe.check(path, program=images.FLOE) for path in paths}
        for path, single in singles.items():
            said = (rows[path]["verdict"], rows[path]["exit_code"], rows[path]["error"])
            self.assertEqual(said, (single.verdict, single.exit_code, single.error))
        self.assertEqual(fleet.images.where("verdict = 'damaged'").count(), count // 4)
        found = {(row["path"], row["code"], row["file"]) for row in fleet.findings.collect()}
        self.assertEqual(
            found,
            {(path, one.code, one.path) for path, of in singles.items() for one in of.findings},
        )
        # Speculation may repeat some, but no column is worth another check.
        with open(log, encoding="ascii") as file:
            self.assertLess(len(file.readlines()), 2 * len(paths))
        self.assertTrue(glob.glob(self.at("results") + "/findings/*.parquet"))
        fleet.write_json_lines(self.at("run.jsonl"))
        # The folder that Spark wrote, in each codec that it has by default, says what the lines say.
        folders = [self.at("results"), self.at("results") + "/images"]
        for codec in ("none", "gzip", "zstd"):
            folders.append(self.at(codec))
            fleet.images.coalesce(2).write.parquet(folders[-1], compression=codec)
        said = {}
        for results in (self.at("run.jsonl"), *folders):
            command = [images.FLOE, "report", "--fleet", results]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 12, done.stderr)
            self.assertIn(paths[1], done.stdout)
            said[results] = done.stdout.split(": ", 1)[1]
        self.assertEqual(set(said.values()), {said[folders[0]]})

    def test_a_data_frame_and_a_killed_check(self) -> None:
        paths = self.fleet(4)
        program = self.program(f'case "$*" in *{paths[2]}*) kill -9 $$;; esac; exec "$FLOE" "$@"')
        frame = self.spark.createDataFrame([(path, 7) for path in paths], "path string, more int")
        fleet = floe_spark.check(self.spark, frame, program=program)
        verdicts = {row["path"]: (row["verdict"], row["error"]) for row in fleet.images.collect()}
        self.assertEqual(verdicts[paths[0]], ("clean", None))
        verdict, error = verdicts[paths[2]]
        self.assertEqual(verdict, "incomplete")
        self.assertIn("signal 9", error)
        found = {row["path"] for row in fleet.findings.select("path").collect()}
        self.assertIn(paths[1], found)
        self.assertNotIn(paths[2], found)

    def test_contents_and_fetched_images(self) -> None:
        paths = self.fleet(2)
        binary = self.spark.read.format("binaryFile").load(paths)
        # Spark names files by URLs.
        named = {f"file:{path}": floe.check(path, program=images.FLOE) for path in paths}
        fleet = floe_spark.check(self.spark, binary, program=images.FLOE)
        self.same(fleet, named)
        kept = self.at("bucket")
        os.mkdir(kept)
        for at, path in enumerate(paths):
            os.rename(path, os.path.join(kept, str(at)))

        def fetch(key: str, file: str) -> None:
            shutil.copyfile(os.path.join(kept, key.removeprefix("store://")), file)

        named = {f"store://{at}": of for at, of in enumerate(named.values())}
        keys = [*named, "store://lost"]
        scratch = self.at("scratch")
        os.mkdir(scratch)
        fleet = floe_spark.check(
            self.spark, keys, fetch=fetch, program=images.FLOE, scratch=scratch
        )
        rows = self.same(fleet, named)
        self.assertEqual(rows["store://lost"]["verdict"], "incomplete")
        self.assertIn("cannot fetch store://lost", rows["store://lost"]["error"])
        self.assertEqual(os.listdir(scratch), [])

    def test_one_image_that_is_none_ends_no_job(self) -> None:
        good = images.make(self.at("good"))
        odd = os.fsencode(good) + b"'\"\n,\xff"
        shutil.copy(good, odd)
        for name, size in (("empty", 0), ("short", 2048)):
            with open(good, "rb") as whole, open(self.at(name), "wb") as file:
                file.write(whole.read(size))
        os.mkdir(self.at("folder")), os.mkfifo(self.at("pipe"))
        bad = [*map(self.at, ("empty", "short", "folder", "pipe", "none")), "", "a\0b", "x" * 200_000]
        paths = [good, good, odd, *bad]
        fleet = floe_spark.check(self.spark, paths, folder=self.at("results"), program=images.FLOE)
        rows = fleet.images.collect()
        verdicts = {row["path"]: row["verdict"] for row in rows}
        self.assertEqual(len(rows), len(paths))
        self.assertEqual(verdicts.pop(good), "clean")
        self.assertEqual(verdicts.pop(good + "'\"\n,\\xff"), "clean")
        self.assertEqual(verdicts, dict.fromkeys(bad, "incomplete"))
        report = [images.FLOE, "report", "--fleet", self.at("results")]
        said = subprocess.run(report, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 8, said.stderr)
        self.assertIn(f"{len(paths) - 1} images: 2 clean", said.stdout)
        self.assertIn("1 result was replaced", said.stdout)
        frame = self.spark.createDataFrame([(good,), (None,)], "path string")
        for fetch in (None, shutil.copyfile):
            fleet = floe_spark.check(self.spark, frame, fetch=fetch, program=images.FLOE)
            verdicts = {row["path"]: row["error"] for row in fleet.images.collect()}
            self.assertEqual(verdicts, {good: None, None: "this row has no path"})
        with self.assertRaisesRegex(TypeError, "not one path"):
            floe_spark.check(self.spark, good)

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "pyarrow is not installed")
    def test_images_fetched_by_url_and_their_tables(self) -> None:
        store = self.at("store of images")
        os.mkdir(store)
        images.make(store + "/a 1%.img", damaged=True), images.make(store + "/b.img")
        files = self.spark.read.format("binaryFile").load(f"file://{store}/*.img").select("path")
        urls = {row["path"] for row in files.collect()}
        fleet = floe_spark.check(
            self.spark, files, fetch=floe_spark.fetch_url, folder=self.at("results"), program=images.FLOE
        )
        rows = {row["path"]: row["verdict"] for row in fleet.images.collect()}
        self.assertEqual(set(rows), urls)
        self.assertEqual(sorted(rows.values()), ["clean", "damaged"])
        # The same columns as those of pyarrow's tables.
        import pyarrow.parquet

        tables = floe.to_arrow([])
        for name, table in (("images", tables.images), ("findings", tables.findings)):
            (file,) = glob.glob(self.at(f"results/{name}/*.parquet"))[:1]
            schema = pyarrow.parquet.read_schema(file).remove_metadata()
            fields = [field for field in schema if field.name != "findings"]
            self.assertEqual([(of.name, of.type) for of in fields], [(of.name, of.type) for of in table.schema])

    def test_a_fleet_without_findings_and_one_without_images(self) -> None:
        good = images.make(self.at("good"))
        for name, paths in (("clean", [good]), ("empty", [])):
            fleet = floe_spark.check(self.spark, paths, folder=self.at(name), program=images.FLOE)
            self.assertEqual((fleet.images.count(), fleet.findings.count()), (len(paths), 0))
            command = [images.FLOE, "report", "--fleet", self.at(name)]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(said.returncode, 0 if paths else 16, said.stderr)

    def same(self, fleet: floe_spark.Fleet, expected: dict[str, floe.Report]) -> dict:
        """Compares the results of some images with reports of the same content elsewhere."""
        rows = {row["path"]: row for row in fleet.images.collect()}
        found = fleet.findings.collect()
        for name, report in expected.items():
            self.assertEqual(rows[name]["verdict"], report.verdict)
            self.assertEqual(json.loads(rows[name]["document"])["device"], name)
            codes = [(row["code"], row["file"]) for row in found if row["path"] == name]
            self.assertEqual(codes, [(of.code, of.path) for of in report.findings])
            error = (report.error or "").replace(report.device, name)
            self.assertEqual(rows[name]["error"] or "", error)
        return rows

    def test_wrong_options_end_the_job(self) -> None:
        paths = self.fleet(2)
        with self.assertRaisesRegex(Exception, "--no-such-option"):
            fleet = floe_spark.check(self.spark, paths, options=["--no-such-option"])
            fleet.images.collect()

    def test_a_device_in_shards(self) -> None:
        image = images.make(self.at("a"), damaged=True, groups=32)
        one = floe.check(image, program=images.FLOE, options=["--accounting", "fingerprint"])
        self.assertTrue(one.findings)
        for shards, refine in ((1, 0), (5, 2)):
            report = floe_spark.check_device(
                self.spark, image, shards, refine=refine, program=images.FLOE
            )
            self.assertEqual(report.findings, one.findings)
            self.assertEqual(report.document["totals"], one.document["totals"])

    def test_a_killed_shard_and_a_killed_worker_are_repeated(self) -> None:
        image = images.make(self.at("a"), damaged=True, groups=32)
        one = floe.check(image, program=images.FLOE, options=["--accounting", "fingerprint"])
        # The first run of shard 1 is killed; that of shard 2 takes its worker with it, the Java
        # process above Python and its daemon.
        script = f"""
        first() {{ mkdir "{self.at('done-')}$1" 2>/dev/null; }}
        parent() {{ sed 's/.*) . \\([0-9]*\\) .*/\\1/' "/proc/$1/stat"; }}
        case "$*" in
        *'--shard 1/4'*) if first 1; then kill -9 $$; fi;;
        *'--shard 2/4'*) if first 2; then
            above=$PPID
            while ! grep -qa CoarseGrainedExecutorBackend "/proc/$above/cmdline"; do
                above=$(parent "$above")
            done
            kill -9 "$above"
            sleep 5
        fi;;
        esac
        exec "$FLOE" "$@"
        """
        report = floe_spark.check_device(self.spark, image, 4, program=self.program(script))
        self.assertEqual(report.findings, one.findings)
        self.assertTrue(os.path.isdir(self.at("done-1")) and os.path.isdir(self.at("done-2")))

    def test_no_shards_and_no_images(self) -> None:
        with self.assertRaisesRegex(ValueError, "one shard"):
            floe_spark.check_device(self.spark, "/none", 0)
        fleet = floe_spark.check(self.spark, [], program=images.FLOE)
        self.assertEqual((fleet.images.count(), fleet.findings.count()), (0, 0))


if __name__ == "__main__":
    unittest.main()

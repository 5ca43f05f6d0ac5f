"""The package `floe`: checks, shards and merges, and what it does with bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import unittest

import floe

import images


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        images.need_tools()
        folder = tempfile.TemporaryDirectory(prefix="floe-python-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)


class Checks(WithFolder):
    def test_a_clean_image(self) -> None:
        report = floe.check(images.make(self.at("a")), threads=1)
        self.assertTrue(report.clean)
        self.assertEqual((report.exit_code, report.findings, report.error), (0, (), None))
        self.assertGreaterEqual(report.document["totals"]["directories"], 17)

    def test_findings_have_their_places(self) -> None:
        report = floe.check(images.make(self.at("a"), damaged=True))
        self.assertEqual((report.verdict, report.exit_code), ("damaged", 4))
        wrong = [found for found in report.findings if found.id == "inode-link-count-wrong"]
        self.assertEqual(sorted(found.path or "" for found in wrong), ["/1/file", "/5/file"])
        self.assertIn("9", wrong[0].message)
        self.assertIsInstance(wrong[0].inode, int)

    def test_an_image_that_cannot_be_examined_is_a_report(self) -> None:
        with open(self.at("zeros"), "wb") as file:
            file.truncate(1 << 20)
        for name in ("zeros", "missing"):
            report = floe.check(self.at(name))
            self.assertEqual((report.verdict, report.exit_code), ("incomplete", 8), name)
            self.assertTrue(report.error)

    def test_wrong_options_and_programs_are_errors(self) -> None:
        image = images.make(self.at("a"))
        with self.assertRaisesRegex(floe.FloeError, "--no-such-option") as caught:
            floe.check(image, options=["--no-such-option"])
        self.assertEqual(caught.exception.exit_code, 16)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((str(again), again.exit_code), (str(caught.exception), 16))
        with self.assertRaisesRegex(floe.FloeError, "cannot start /no/such/floe"):
            floe.check(image, program="/no/such/floe")
        killed = self.at("killed")
        with open(killed, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nkill -9 $$\n")
        os.chmod(killed, 0o700)
        with self.assertRaisesRegex(floe.FloeKilled, "signal 9"):
            floe.check(image, program=killed)
        with self.assertRaisesRegex(floe.FloeError, "no report"):
            floe.check(image, program="/bin/echo")

    def test_a_path_that_no_file_can_have_is_a_report(self) -> None:
        for name in ("", "a\0b", "x" * 200_000, "\ud800"):
            report = floe.check(name)
            self.assertEqual((report.verdict, report.exit_code), ("incomplete", 8))
            self.assertIn("the path ", report.error or "")

    def test_names_that_are_not_utf_8(self) -> None:
        devices = []
        for at in (0xFE, 0xFF):
            name = os.fsencode(self.at("a")) + bytes([at])
            images.make(os.fsdecode(name))
            for path in (name, os.fsdecode(name)):
                report = floe.check(path)
                self.assertTrue(report.clean)
            devices.append(report.device)
            missing = floe.check(path + "-none").device
            self.assertEqual(missing, report.device + "-none")
        self.assertEqual(devices, [self.at("a\\xfe"), self.at("a\\xff")])

    def test_a_path_that_looks_like_an_option(self) -> None:
        images.make(self.at("a"))
        os.rename(self.at("a"), self.at("--version"))
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        self.assertTrue(floe.check("--version").clean)


class Shards(WithFolder):
    def parts(self, image: str, count: int) -> list[str]:
        paths = [self.at(f"part-{index}") for index in range(count)]
        for index, path in enumerate(paths):
            floe.shard(image, index, count, path, threads=1)
        return paths

    def test_merges_find_what_one_check_finds(self) -> None:
        image = images.make(self.at("a"), damaged=True, groups=16)
        one = floe.check(image, options=["--accounting", "fingerprint"])
        self.assertTrue(one.findings)
        parts = self.parts(image, 3)
        self.assertEqual(floe.merge(image, reversed_list(parts)).findings, one.findings)
        for name in ("inodes", "names"):
            floe.refine(image, parts, 0, 1, self.at(name))
            parts.append(self.at(name))
            self.assertEqual(floe.merge(image, parts).findings, one.findings)
        with self.assertRaisesRegex(floe.FloeError, "merge them without --refine"):
            floe.refine(image, parts, 0, 1, self.at("third"))

    def test_lost_and_repeated_parts_are_errors(self) -> None:
        image = images.make(self.at("a"), groups=16)
        parts = self.parts(image, 3)
        for wrong, why in ((parts[:2], "none of 2"), ([*parts, parts[0]], "both of shard 0/3")):
            with self.assertRaisesRegex(floe.FloeError, why) as caught:
                floe.merge(image, wrong)
            self.assertEqual(caught.exception.exit_code, 16)
        with self.assertRaises(ValueError):
            floe.merge(image, [])
        with self.assertRaisesRegex(TypeError, "not one path"):
            floe.merge(image, parts[0])
        with self.assertRaisesRegex(floe.FloeError, "last one is 2/3"):
            floe.shard(image, 3, 3, self.at("more"))

    def test_shards_without_a_common_folder_share_a_new_key(self) -> None:
        image = images.make(self.at("a"), damaged=True, groups=16)
        floe.new_key(self.at("key"))
        self.assertEqual(stat.S_IMODE(os.stat(self.at("key")).st_mode), 0o600)
        with self.assertRaises(FileExistsError):
            floe.new_key(self.at("key"))
        parts = []
        for index in range(2):
            os.mkdir(self.at(str(index)))
            parts.append(self.at(f"{index}/part"))
            floe.shard(image, index, 2, parts[-1], key=self.at("key"))
        one = floe.check(image, options=["--accounting", "fingerprint"])
        self.assertEqual(floe.merge(image, parts).findings, one.findings)


@unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "pyarrow is not installed")
class Arrow(WithFolder):
    def test_results_are_tables(self) -> None:
        images.make(self.at("a")), images.make(self.at("b"), damaged=True)
        reports = [floe.check(self.at(name)) for name in ("a", "b", "missing")]
        tables = floe.to_arrow(reports)
        self.assertEqual(tables.images["path"].to_pylist(), [of.device for of in reports])
        verdicts = ["clean", "damaged", "incomplete"]
        self.assertEqual(tables.images["verdict"].to_pylist(), verdicts)
        found = tables.findings.to_pylist()
        self.assertEqual([row["file"] for row in found], [of.path for of in reports[1].findings])
        self.assertTrue(found and all(row["path"] == self.at("b") for row in found))
        self.assertEqual(reports[1].to_arrow(), tables.findings)
        self.assertEqual(reports[0].to_arrow().num_rows, 0)

    def test_the_columns_stay(self) -> None:
        """Results of years are read together: columns may be added, no others removed or changed."""
        tables = floe.to_arrow([])
        columns = [
            [(field.name, str(field.type)) for field in table.schema] for table in tables
        ]
        text = "string"
        self.assertEqual(
            columns[0][:10],
            [
                *[("path", text), ("verdict", text), ("exit_code", "int64"), ("error", text)],
                *[("label", text), ("uuid", text), ("bytes", "int64"), ("seconds", "double")],
                *[("bytes_read", "int64"), ("document", text)],
            ],
        )
        self.assertEqual(
            columns[1][:11],
            [
                *[("path", text), ("code", text), ("id", text), ("severity", text)],
                *[("weight", text), ("object", text), ("inode", "int64"), ("file", text)],
                *[("message", text), ("repair", text), ("evidence", text)],
            ],
        )

    def test_the_fleet_report_reads_parquet(self) -> None:
        import pyarrow.parquet

        images.make(self.at("a")), images.make(self.at("b"), damaged=True)
        reports = [floe.check(self.at(name)) for name in ("a", "b", "missing")]
        with open(self.at("run"), "w", encoding="ascii") as file:
            file.writelines(json.dumps(report.document) + "\n" for report in reports)
        expected = self.report("run")
        self.assertEqual(expected.returncode, 12, expected.stderr)
        self.assertIn("3 images: 1 clean, 1 damaged", expected.stdout)
        tables = floe.to_arrow(reports)
        os.mkdir(self.at("parts"))
        for codec in ("none", "snappy", "gzip", "zstd"):
            for version in ("1.0", "2.0"):
                for dictionary in (True, False):
                    for at in range(4):  # The last one has no row.
                        pyarrow.parquet.write_table(
                            tables.images.slice(at, 1) if at < 3 else tables.images.slice(0, 0),
                            self.at(f"parts/{at}.parquet"),
                            compression=codec,
                            data_page_version=version,
                            use_dictionary=dictionary,
                            write_page_checksum=dictionary,
                        )
                    said = self.report("parts")
                    self.assertEqual(said.returncode, 12, said.stderr)
                    self.assertEqual(said.stdout, expected.stdout.replace("run:", "parts:"))

    def test_other_parquet_and_damaged_parquet_are_refused(self) -> None:
        import pyarrow.parquet

        images.make(self.at("a"))
        tables = floe.to_arrow([floe.check(self.at("a"))] * 50)
        pyarrow.parquet.write_table(tables.findings, self.at("findings"))
        pyarrow.parquet.write_table(tables.images, self.at("lz4"), compression="lz4")
        plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
        pyarrow.parquet.write_table(tables.images, self.at("good"), **plain)
        with open(self.at("good"), "rb") as file:
            good = file.read()
        with open(self.at("short"), "wb") as file:
            file.write(good[:-1])
        with open(self.at("bad"), "wb") as file:
            # Inside of the longest column.
            file.write(good[: len(good) // 2] + b"\0\1\2" + good[len(good) // 2 + 3 :])
        os.makedirs(self.at("running/_temporary"))
        for wrong, why in (
            ("findings", "no column of texts `document`"),
            ("lz4", "LZ4"),
            ("short", "truncated"),
            ("bad", "damaged"),
            ("running", "has not ended"),
            ("none", "none"),
        ):
            said = self.report(wrong)
            self.assertEqual(said.returncode, 8, wrong)
            self.assertIn(self.at(wrong), said.stderr)
            self.assertIn(why, said.stderr)
        self.assertEqual(self.report("good").returncode, 0)

    def report(self, name: str) -> subprocess.CompletedProcess[str]:
        command = [images.FLOE or "floe", "report", "--fleet", self.at(name)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@unittest.skipIf(
    importlib.util.find_spec("prometheus_client") is None, "prometheus_client is not installed"
)
class Metrics(WithFolder):
    def test_a_parser_of_prometheus_reads_them(self) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        hostile = images.make(self.at("a\"b\\\n{}=,#"), damaged=True)
        reports = [floe.check(images.make(self.at("sound"))), floe.check(hostile)]
        documents = [json.dumps(report.document) for report in reports]
        metrics = [images.FLOE or "floe", "report", "--metrics", self.at("metrics"), "--fleet"]
        for run, lines in (("one", documents[:1]), ("two", documents)):
            with open(self.at(run), "w", encoding="ascii") as file:
                file.write("\n".join(lines))
            metrics.append(self.at(run))
        done = subprocess.run(metrics, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 4, done.stderr)
        with open(self.at("metrics"), encoding="utf-8", newline="") as file:
            families = {of.name: of for of in text_string_to_metric_families(file.read())}
        self.assertTrue(all(of.type == "gauge" and of.documentation for of in families.values()))
        (damage,) = families["floe_fleet_image_damage"].samples
        self.assertEqual((damage.labels["device"], damage.value), (reports[1].device, 2.0))
        added = [of.value for of in families["floe_fleet_changes"].samples if of.labels["change"] == "added"]
        self.assertEqual(added, [1.0])
        slow = {of.labels["device"] for of in families["floe_fleet_slow_check_seconds"].samples}
        self.assertEqual(slow, {report.device for report in reports})


def reversed_list(items: list[str]) -> list[str]:
    return list(reversed(items))


if __name__ == "__main__":
    unittest.main()

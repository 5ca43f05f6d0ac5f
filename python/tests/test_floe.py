"""The package `floe`: checks, shards and merges, and what it does with bad input."""

from __future__ import annotations

import importlib.util
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

    def test_parquet_becomes_lines_for_the_fleet_report(self) -> None:
        import pyarrow.parquet

        images.make(self.at("a")), images.make(self.at("b"), damaged=True)
        reports = [floe.check(self.at(name)) for name in ("a", "b")]
        tables = floe.to_arrow(reports)
        os.mkdir(self.at("images"))
        for at in range(2):
            table = tables.images.slice(at, 1)
            pyarrow.parquet.write_table(table, self.at(f"images/{at}.parquet"))
        documents = [floe.Report.from_json(text) for text in floe.documents_of(self.at("images"))]
        self.assertEqual(documents, reports)
        command = [sys.executable, "-m", "floe", "to-json-lines"]
        done = subprocess.run([*command, self.at("images")], capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.at("run"), "wb") as file:
            file.write(done.stdout)
        report = [images.FLOE or "floe", "report", "--fleet"]
        said = subprocess.run([*report, self.at("run")], capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 4, said.stderr)
        self.assertIn("2 images: 1 clean, 1 damaged", said.stdout)
        # The program says how to convert, rather than that this is no JSON.
        for parquet in ("images", "images/0.parquet"):
            said = subprocess.run(
                [*report, self.at(parquet)], capture_output=True, text=True, check=False
            )
            self.assertEqual(said.returncode, 8, said.stderr)
            self.assertIn("python -m floe to-json-lines", said.stderr)
        pyarrow.parquet.write_table(tables.findings, self.at("findings"))
        for wrong in ("none", "run", "findings"):
            done = subprocess.run([*command, self.at(wrong)], capture_output=True, check=False)
            self.assertEqual(done.returncode, 8, wrong)
            self.assertIn(self.at(wrong).encode(), done.stderr)


def reversed_list(items: list[str]) -> list[str]:
    return list(reversed(items))


if __name__ == "__main__":
    unittest.main()

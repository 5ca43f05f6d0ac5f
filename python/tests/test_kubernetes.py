"""The recipes for Kubernetes in dist/: the API's schema knows them, and their script runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import tempfile
import unittest
from typing import Any

import images

RECIPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../dist/kubernetes")

#: What check-snapshots.sh fills in.
FILLED = {"@CLAIM@": "data-0", "@SNAPSHOTS@": "fast", "@STORAGE@": "block", "@SIZE@": "10Gi"}

#: A kubectl that knows two volumes, and "runs" Jobs with the program of the tests. It notes its calls.
KUBECTL = r"""#!/bin/sh
printf '%s\n' "$*" >> "$FOLDER/calls"
case "$*" in
'get pods '*'--selector=job-name=floe-'*) all=${*#*job-name=floe-}; printf 'pod-of-%s' "${all%% *}";;
*'--selector=fleet=nightly'*) printf 'sound\nbroken\nzeros\n';;
*'--selector='*) ;;
'get pvc '*storageClassName*) printf block;;
'get pvc '*capacity*) printf 10Gi;;
'get volumesnapshot '*) printf content-of-it;;
'apply '*) cat > /dev/null;;
'get job floe-sound '*) printf 'SuccessCriteriaMet Complete';;
'get job '*) printf 'FailureTarget Failed';;
'logs '*' pod-of-'*)
    claim=${*#*pod-of-}
    command=$(printf %s "$COMMAND" | sed -e "s|/dev/data-0|$FOLDER/$claim|" -e "s|/dev/term|$FOLDER/$claim.term|")
    # A log has both outputs. If it is too long, its beginning is lost.
    sh -c "$command" > "$FOLDER/log-$claim" 2>&1 || true
    if [ -e "$FOLDER/lost-$claim" ]; then tail -n 9 "$FOLDER/log-$claim"; else cat "$FOLDER/log-$claim"; fi;;
'logs '*) printf '{\n  "the report of a pod that was evicted';;
'delete '*) cat >> "$FOLDER/deleted";;
esac
"""


def documents(name: str) -> list[dict[str, Any]]:
    import yaml

    with open(os.path.join(RECIPES, name), encoding="utf-8") as file:
        text = file.read()
    for mark, value in FILLED.items():
        text = text.replace(mark, value)
    return list(yaml.safe_load_all(text))


@unittest.skipIf(
    importlib.util.find_spec("kubernetes_validate") is None, "kubernetes-validate is not installed"
)
class Schema(unittest.TestCase):
    def test_the_schema_of_the_api_knows_all_fields(self) -> None:
        import kubernetes_validate

        kinds = []
        for name in sorted(os.listdir(RECIPES)):
            if not name.endswith(".yaml"):
                continue
            for document in documents(name):
                kinds.append(document["kind"])
                if document["apiVersion"].startswith("snapshot."):
                    # A custom resource, of which the API has no schema.
                    source = document["spec"]["source"]
                    self.assertEqual(source, {"persistentVolumeClaimName": "data-0"})
                    continue
                kubernetes_validate.validate(document, "1.30", strict=True)
        self.assertEqual(sorted(set(kinds)), ["Job", "PersistentVolumeClaim", "VolumeSnapshot"])
        self.assertEqual(kinds.count("Job"), 4)

    def test_a_wrong_field_is_refused(self) -> None:
        import kubernetes_validate

        job = documents("check-shards.yaml")[0]
        job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, "1.30", strict=True)

    def test_volumes_and_containers_are_those_that_are_named(self) -> None:
        for name in ("check-job.yaml", "check-shards.yaml", "check-snapshot.yaml"):
            for job in (one for one in documents(name) if one["kind"] == "Job"):
                pod = job["spec"]["template"]["spec"]
                self.assertEqual(pod["restartPolicy"], "Never")
                (container,) = pod["containers"]
                volumes = {volume["name"] for volume in pod["volumes"]}
                used = container["volumeDevices"] + container.get("volumeMounts", [])
                self.assertEqual({of["name"] for of in used}, volumes, name)
                rule = job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]
                self.assertEqual(rule["containerName"], container["name"])
                devices = [of["devicePath"] for of in container["volumeDevices"]]
                self.assertTrue(all(device in " ".join(container["command"]) for device in devices))


class Script(unittest.TestCase):
    def setUp(self) -> None:
        images.need_tools()
        folder = tempfile.TemporaryDirectory(prefix="floe-kubernetes-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        images.make(self.at("sound")), images.make(self.at("broken"), damaged=True)
        os.mkdir(self.at("bin"))
        with open(self.at("bin/kubectl"), "w", encoding="ascii") as file:
            file.write(KUBECTL)
        os.chmod(self.at("bin/kubectl"), 0o700)
        os.symlink(os.path.abspath(images.FLOE or ""), self.at("bin/floe"))
        with open(self.at("zeros"), "wb") as zeros:
            zeros.truncate(1 << 20)
        with open(os.path.join(RECIPES, "check-snapshot.yaml"), encoding="utf-8") as recipe:
            (command,) = re.findall(r"command: \[sh, -c, (.*)\]", recipe.read())
        self.command = command.replace("@CLAIM@", "data-0")

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def run_script(self, selector: str, results: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.at('bin')}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "FOLDER": self.folder, "COMMAND": self.command}
        script = os.path.join(RECIPES, "check-snapshots.sh")
        command = ["sh", script, selector, "fast", self.at(results), "--namespace=data"]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )

    def test_each_volume_has_a_report_and_leaves_nothing(self) -> None:
        done = self.run_script("fleet=nightly", "monday")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.at("monday"), encoding="utf-8") as file:
            text = file.read()
        decoder, verdicts, at = json.JSONDecoder(), [], 0
        while text[at:].strip():
            document, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
            verdicts.append(document["verdict"])
        self.assertEqual(verdicts, ["clean", "damaged", "incomplete"])
        with open(self.at("zeros.termination-log"), encoding="utf-8") as last_words:
            self.assertIn("superblock", last_words.read())
        with open(self.at("deleted"), encoding="utf-8") as file:
            deleted = file.read()
        self.assertEqual(deleted.count("kind: VolumeSnapshot\nmetadata"), 3)
        self.assertIsNone(re.search("@[A-Z]+@", deleted))
        self.assertIn("name: floe-broken", deleted)
        with open(self.at("calls"), encoding="utf-8") as file:
            calls = file.readlines()
        self.assertTrue(all("--namespace=data" in call for call in calls))
        report = [images.FLOE or "floe", "report", "--fleet", self.at("monday")]
        said = subprocess.run(report, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 12, said.stderr)
        # Results are not replaced.
        self.assertEqual(self.run_script("fleet=nightly", "monday").returncode, 16)

    def test_a_volume_without_a_report_is_named(self) -> None:
        os.remove(self.at("zeros"))
        open(self.at("lost-broken"), "w", encoding="ascii").close()
        open(self.at("lost-zeros"), "w", encoding="ascii").close()
        done = self.run_script("fleet=nightly", "tuesday")
        self.assertEqual(done.returncode, 8, done.stderr)
        self.assertIn("no report of broken\n", done.stderr)
        with open(self.at("deleted"), encoding="utf-8") as file:
            self.assertEqual(file.read().count("kind: Job"), 3)
        with open(self.at("tuesday"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["verdict"], "clean")
        self.assertEqual(self.run_script("fleet=none", "wednesday").returncode, 16)


if __name__ == "__main__":
    unittest.main()

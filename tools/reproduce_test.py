#!/usr/bin/python3
"""tools/reproduce as its user runs it; bazel is a script that writes what a benchmark would."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path("tools/reproduce").resolve()

BAZEL = """#!/bin/sh
echo "$@" >> {calls}
for word; do
  case $word in
    --json=*) cp {new} "${{word#--json=}}" ;;
    --out=*) mkdir -p "${{word#--out=}}" && cp {new} "${{word#--out=}}/compare.json" ;;
    --fail) exit 3 ;;
  esac
done
"""


def record(command, rate):
    return json.dumps({"command": command, "runs": [{"topology": "ring", "workers": 2, "samples_per_s": rate}]})


class ReproduceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results"
        self.results.mkdir()
        (self.folder / "new.json").write_text(record("", 150))
        (self.folder / "calls").write_text("")
        bazel = self.folder / "bazel"
        bazel.write_text(BAZEL.format(calls=self.folder / "calls", new=self.folder / "new.json"))
        bazel.chmod(0o755)

    def add(self, name, command):
        (self.results / name).write_text(record(command, 100))

    def call(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.folder}:/usr/bin:/bin"}
        return subprocess.run(["/usr/bin/python3", str(TOOL), f"--results={self.results}", f"--out={self.folder}/out", *arguments],
                              capture_output=True, text=True, env=environment)

    def test_each_record_is_measured_again_beside_the_old_one(self):
        self.add("a.json", "bazel run //benchmarks:sync_bench -- --ranks=2 --json=elsewhere.json")
        self.add("compare_default_x.json", "bazel run //benchmarks:compare --")
        result = self.call()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("ring 2: 100 -> 150 samples/s, 1.500 times"), 2, result.stdout)
        self.assertTrue(result.stdout.endswith("2 ran, 0 failed, 0 skipped\n"))
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual(calls, [f"run //benchmarks:sync_bench -- --json={self.folder}/out/a.json --ranks=2",
                                 f"run //benchmarks:compare -- --out={self.folder}/out/compare_default_x"])
        self.assertIn("1 to run", self.call("--quick", "--list").stdout)

    def test_what_cannot_be_measured_here_is_skipped_with_the_reason(self):
        self.add("a.json", "bazel run //benchmarks:compare -- --data=cifar10:nowhere")
        self.add("b.json", "")
        result = self.call()
        self.assertEqual(result.returncode, 0)
        self.assertIn("a.json: skipped: needs nowhere\n", result.stdout)
        self.assertIn("b.json: skipped: names no command\n", result.stdout)

    def test_a_command_that_fails_is_said_and_the_others_run(self):
        self.add("a.json", "bazel run //benchmarks:sync_bench -- --fail")
        self.add("b.json", "bazel run //benchmarks:sync_bench --")
        result = self.call()
        self.assertEqual(result.returncode, 1)
        self.assertIn("FAILED with exit status 3", result.stdout)
        self.assertIn("1 ran, 1 failed, 0 skipped", result.stdout)

    def test_a_name_that_nothing_has_is_refused(self):
        self.add("a.json", "bazel run //benchmarks:sync_bench --")
        result = self.call("--only=b*")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--only=b*: expected the name of a file in", result.stderr)


if __name__ == "__main__":
    unittest.main()

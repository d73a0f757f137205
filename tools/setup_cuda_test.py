#!/usr/bin/env python3
"""Runs setup_cuda where it need not fetch anything; no network."""
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "setup_cuda"


class SetupCudaTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.cache = pathlib.Path(self.temporary.name)
        self.folder = self.cache / "gradsync" / "cuda"

    def tearDown(self):
        self.temporary.cleanup()

    def run_tool(self, *flags):
        environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run([str(TOOL), *flags], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True)

    def wheels(self):
        result = self.run_tool("--dry-run")
        self.assertEqual(result.returncode, 0, result.stderr)
        line = result.stdout.split("\n")[0]
        self.assertIn("would fetch", line)
        self.assertIn(f"into {self.folder}: ", line)
        return line.split(": ")[-1]

    def test_a_dry_run_names_folder_and_versions_and_does_nothing(self):
        wheels = self.wheels()
        self.assertIn("torch==2.11.0", wheels.split())
        self.assertIn("nvidia-nccl-cu13==2.28.9", wheels.split())
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_does_nothing_where_all_is_there_in_these_versions(self):
        wheels = self.wheels()
        self.folder.mkdir(parents=True)
        (self.folder / "installed").write_text(wheels + "\n")
        for flags in [], ["--dry-run"]:
            result = self.run_tool(*flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("nothing to do", result.stdout)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["installed"])

    def test_another_version_is_replaced(self):
        wheels = self.wheels()
        self.folder.mkdir(parents=True)
        (self.folder / "installed").write_text(wheels.replace("torch==2.11.0", "torch==2.10.0") + "\n")
        self.assertEqual(self.wheels(), wheels)

    def test_an_unknown_option_is_refused_with_those_that_are_known(self):
        result = self.run_tool("--help-me")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("unknown option '--help-me'; expected --dry-run or --help", result.stderr)


if __name__ == "__main__":
    unittest.main()

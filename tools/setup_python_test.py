#!/usr/bin/env python3
"""Runs setup_python where it need not fetch anything; no network."""
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "setup_python"


class SetupPythonTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.temporary.cleanup)
        self.cache = pathlib.Path(self.temporary.name)
        self.folder = self.cache / "gradsync" / "python"

    def run_tool(self, *arguments):
        environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run([str(TOOL), *arguments], env=environment, capture_output=True, text=True, check=False)

    def wanted(self, version):
        """What a dry run would fetch for that version."""
        result = self.run_tool("--dry-run", version)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, rf"would fetch \d+ MB into {self.folder}/torch-{version}: ")
        return result.stdout.strip().split(": ")[-1]

    def test_a_dry_run_names_what_it_would_fetch_and_does_nothing(self):
        self.assertIn("torch==2.15.0 ", self.run_tool("--dry-run").stdout)
        self.assertIn("nvidia-cuda-runtime-cu12==12.4.127", self.wanted("2.6.0").split())
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_does_nothing_where_a_version_is_there(self):
        folder = self.folder / "torch-2.11.0"
        folder.mkdir(parents=True)
        (folder / "installed").write_text(self.wanted("2.11.0") + "\n")
        result = self.run_tool("2.11.0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("nothing to do", result.stdout)
        self.assertEqual([path.name for path in folder.iterdir()], ["installed"])

    def test_other_packages_are_replaced(self):
        folder = self.folder / "torch-2.15.0"
        folder.mkdir(parents=True)
        (folder / "installed").write_text("torch==2.15.0\n")
        self.wanted("2.15.0")

    def test_what_it_does_not_know_is_refused(self):
        for argument, said in [("--all", "unknown option '--all'; expected --dry-run"), ("1.13.0", "knows PyTorch 2.15.0, 2.11.0, 2.6.0, found '1.13.0'")]:
            result = self.run_tool(argument)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(said, result.stderr)


if __name__ == "__main__":
    unittest.main()

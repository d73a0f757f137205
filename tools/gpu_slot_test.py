#!/usr/bin/env python3
"""Runs gpu_slot, rehearsing without a GPU, over programs that are scripts."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "gpu_slot"


class GpuSlotTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "tools").mkdir()
        shutil.copy(TOOL, self.folder / "tools" / "gpu_slot")
        self.out = self.folder / "out"

    def tearDown(self):
        self.temporary.cleanup()

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def run_tool(self, *flags):
        result = subprocess.run([sys.executable, str(self.folder / "tools" / "gpu_slot"), *flags], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, universal_newlines=True)
        return result.returncode, re.sub(r" \([\d.]+ s\)|^\d+ s\n", "", result.stdout, flags=re.M).split("\n")[:-1], result.stderr

    def slot(self, only, *flags):
        return self.run_tool("run", "--device=cpu", f"--out={self.out}", f"--only={only}", *flags)

    def test_a_stage_that_fails_stops_nothing_and_all_is_in_the_log(self):
        self.program("worker/worker", "echo no such model; exit 3")
        self.program("core/gpu/open_gpu_test", "echo skipped, no GPU")
        status, lines, _ = self.slot("warm-up,device,nccl")
        self.assertEqual(lines, ["FAILED warm-up: worker: exit status 3", "FAILED nccl: open_nccl_test: exit status 127",
                                 "PASSED device", "1 passed, 2 failed, 0 skipped"])
        self.assertEqual(status, 1)
        log = (self.out / "slot.log").read_text()
        for text in "no such model", "skipped, no GPU", "===== nccl", "1 passed, 2 failed, 0 skipped":
            self.assertIn(text, log)
        self.assertEqual(len((self.out / "summary.txt").read_text().split("\n")), 4)

    def test_what_hangs_and_what_it_started_is_ended_at_its_limit_and_the_rest_skipped_without_time(self):
        self.program("worker/worker", f"sleep 1000 & echo $! > {self.folder}/child; wait")
        self.program("core/gpu/open_gpu_test", "exit 0")
        begin = time.monotonic()
        status, lines, _ = self.slot("warm-up,device", "--budget=21.5")
        self.assertLess(time.monotonic() - begin, 40)
        self.assertRegex(lines[0], r"FAILED warm-up: worker: not done after 2\d s")
        self.assertRegex(lines[1], r"SKIPPED device: -?\d+ s of the budget were left")
        self.assertEqual(status, 1)
        child = int((self.folder / "child").read_text())
        state = pathlib.Path(f"/proc/{child}/stat")
        self.assertTrue(not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z")

    def test_checks_run_side_by_side_and_the_log_has_them_in_pieces(self):
        meets = "echo {0} begins; touch ../{0}; until [ -e ../{1} ]; do sleep 0.01; done; echo {0} ends"
        self.program("core/gpu/open_gpu_test", meets.format("one", "two"))
        self.program("worker/worker", meets.format("two", "one"))
        status, lines, _ = self.slot("device,alone-fast")
        self.assertEqual(sorted(lines), ["2 passed, 0 failed, 0 skipped", "PASSED alone-fast", "PASSED device"])
        self.assertEqual(status, 0)
        log = (self.out / "slot.log").read_text()
        for name in "one", "two":
            self.assertIn(f"{name} begins\n{name} ends\n", log)

    def test_a_program_under_another_one_is_found_where_it_was_carried(self):
        self.program("bin/compute-sanitizer", 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"')
        self.program("core/gpu/open_gpu_test", "echo looked into")
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        result = subprocess.run([sys.executable, str(self.folder / "tools/gpu_slot"), "run", f"--out={self.out}", "--device=cuda:0",
                                 "--only=memcheck-kernels"], env=dict(os.environ, PATH=path), stdout=subprocess.DEVNULL)
        log = (self.out / "slot.log").read_text()
        self.assertEqual(result.returncode, 0, log)
        self.assertIn("looked into", log)

    def test_records_are_kept_by_stage_as_they_come(self):
        self.program("benchmarks/peers", 'for a in "$@"; do case $a in --json=*) echo \'{"runs": [1]}\' > "${a#*=}" ;; esac; done')
        status, lines, _ = self.slot("train-128,train-32")
        self.assertEqual(lines[-1], "2 passed, 0 failed, 0 skipped")
        self.assertEqual(status, 0)
        self.assertEqual(json.loads((self.out / "results.json").read_text()),
                         {"train-128": {"peers_128.json": {"runs": [1]}}, "train-32": {"peers_32.json": {"runs": [1]}}})
        self.assertLessEqual(len(list(self.out.iterdir())), 8)

    def test_a_stage_that_is_not_there_is_refused_by_name(self):
        status, _, text = self.slot("warm-up,nonsense")
        self.assertEqual(status, 2)
        self.assertIn("found nonsense", text)

    def test_a_set_that_is_not_there_is_refused_by_name(self):
        status, _, text = self.run_tool("run", "--set=smoke,nonsense")
        self.assertEqual(status, 2)
        self.assertIn("expected some of smoke, checks, measurements, found nonsense", text)

    def test_all_stages_of_a_gpu_are_listed_without_one(self):
        status, lines, _ = self.run_tool("list")
        self.assertEqual(status, 0)
        self.assertTrue([line for line in lines if "--link=cuda_ipc" in line])


if __name__ == "__main__":
    unittest.main()

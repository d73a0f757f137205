#!/usr/bin/env python3
"""Runs gpu_check on scripts that print what tests of GoogleTest print."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "gpu_check"

# Stands for a test program: runs the tests of --gtest_filter, each of which does what it is called.
PROGRAM = """#!{python}
import os, sys, time
NAMES = {names}
def value(flag):
    return [a.split("=", 1)[1] for a in sys.argv[1:] if a.startswith(flag + "=")]
if "--gtest_list_tests" in sys.argv:
    print("Running main() from somewhere")
    print("Suite.  # TypeParam = int")
    for name in NAMES:
        print("  " + name + "  # GetParam() = 1")
    sys.exit(0)
wanted = value("--gtest_filter")[0].split(":")
failed = False
for name in NAMES:
    if "Suite." + name not in wanted:
        continue
    print("[ RUN      ] Suite." + name, flush=True)
    if name == "Hangs":
        print("pid", os.getpid(), file=open("{folder}/pid", "w", buffering=1))
        time.sleep(1000)
    if name == "Dies":
        os.abort()
    if name == "Skips":
        print("some/file.cc:12: Skipped\\nthis machine has no GPU\\n")
    if name == "HasRanks":
        for line in "[ RUN      ] Inner.Fails", "[  FAILED  ] Inner.Fails (5 ms)", "[ RUN      ] Inner.Works":
            print(line)
    if name == "Fails":
        print("expected 1, found 2")
        failed = True
    word = {{"Fails": "  FAILED  ", "Skips": "  SKIPPED ", }}.get(name, "       OK ")
    print("[" + word + "] Suite." + name + ("" if name != "Fails" else ", where GetParam() = 1") + " (5 ms)", flush=True)
print("[  FAILED  ] Suite.Fails, where GetParam() = 1", flush=True)
if "Suite.DiesAtExit" in wanted:
    os.abort()
sys.exit(failed)
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def add_tests(self, name, *names):
        self.program(name, PROGRAM.format(python=sys.executable, names=list(names), folder=self.folder))

    def check(self, *flags):
        result = subprocess.run([sys.executable, str(TOOL), str(self.folder), *flags], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, universal_newlines=True)
        return result.returncode, re.sub(r" \([\d.]+ s\)", "", result.stdout).split("\n")[:-1], result.stderr

    def test_every_test_has_a_line_and_all_a_last_one(self):
        self.add_tests("a_test", "Works", "Skips")
        self.add_tests("b_test.stripped", "Works")
        (self.folder / "notes.txt").write_text("not a program")
        status, lines, _ = self.check()
        self.assertEqual(lines, ["PASSED a_test Suite.Works", "SKIPPED a_test Suite.Skips: this machine has no GPU",
                                 "PASSED b_test.stripped Suite.Works", "2 passed, 0 failed, 1 skipped"])
        self.assertEqual(status, 0)

    def test_tests_after_one_that_fails_dies_or_hangs_are_run(self):
        self.add_tests("a_test", "Works", "Fails", "Dies", "Hangs", "AlsoWorks")
        status, lines, _ = self.check("--limit=2")
        self.assertEqual([line for line in lines if not line.startswith("    ")],
                         ["PASSED a_test Suite.Works", "FAILED a_test Suite.Fails", "FAILED a_test Suite.Dies",
                          "FAILED a_test Suite.Hangs", "PASSED a_test Suite.AlsoWorks", "2 passed, 3 failed, 0 skipped"])
        self.assertIn("    expected 1, found 2", lines)
        self.assertTrue([line for line in lines if "its program ended, exit status -6" in line], lines)
        self.assertTrue([line for line in lines if "not done after 2.0 s" in line], lines)
        self.assertEqual(status, 1)

    def test_a_program_that_is_being_run_ends_with_it(self):
        self.add_tests("a_test", "Hangs")
        running = subprocess.Popen([sys.executable, str(TOOL), str(self.folder)], stdout=subprocess.DEVNULL)
        pid = self.folder / "pid"
        while not (pid.exists() and pid.read_text().endswith("\n")):
            time.sleep(0.01)
        running.terminate()
        self.assertEqual(running.wait(timeout=60), 143)
        state = pathlib.Path(f"/proc/{pid.read_text().split()[1]}/stat")
        self.assertTrue(not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z")

    # What ranks that are processes printed was taken for tests of the program, and gpu_check died.
    def test_tests_inside_of_a_test_are_its_own_business(self):
        self.add_tests("a_test", "HasRanks", "Works")
        status, lines, _ = self.check()
        self.assertEqual(lines, ["PASSED a_test Suite.HasRanks", "PASSED a_test Suite.Works", "2 passed, 0 failed, 0 skipped"])
        self.assertEqual(status, 0)

    def test_a_program_that_dies_after_its_tests_has_failed(self):
        self.add_tests("a_test", "Works", "DiesAtExit")
        status, lines, _ = self.check()
        self.assertEqual([line for line in lines if not line.startswith("    ")],
                         ["PASSED a_test Suite.Works", "PASSED a_test Suite.DiesAtExit", "FAILED a_test (its end)",
                          "2 passed, 1 failed, 0 skipped"])
        self.assertTrue([line for line in lines if "exit status -6" in line], lines)
        self.assertEqual(status, 1)

    def test_a_program_that_cannot_start_has_failed(self):
        self.program("a_test", "#!/bin/sh\necho libtorch.so: not found\nexit 127\n")
        status, lines, _ = self.check()
        self.assertEqual(lines[0], "FAILED a_test")
        self.assertIn("    libtorch.so: not found", lines)
        self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")
        self.assertEqual(status, 1)

    def test_jobs_whose_bits_differ_have_failed(self):
        self.program("worker", """#!/bin/sh
for a in "$@"; do case $a in
  --link=*) link=${a#*=} ;; --update=*) update=${a#*=} ;;
  --metrics_json=*) json=${a#*=} ;; --port_file=*) echo 127.0.0.1:1 > "${a#*=}" ;;
esac; done
[ $update = owner ] || link=same
[ -z "$json" ] || echo "{\\"params_sha256\\": \\"$link\\"}" > "$json"
""")
        status, lines, _ = self.check()
        self.assertEqual([line for line in lines if not line.startswith("    ")],
                         ["PASSED worker trains alone", "PASSED worker two, update at worker",
                          "FAILED worker two, update at owner", "2 passed, 1 failed, 0 skipped"])
        self.assertIn("    nccl: nccl", lines)
        self.assertEqual(status, 1)

    def test_an_empty_folder_is_no_success(self):
        status, lines, _ = self.check()
        self.assertEqual((status, lines), (1, ["0 passed, 0 failed, 0 skipped"]))

    def test_a_wrong_command_line_is_refused(self):
        status, _, text = self.check("--nonsense")
        self.assertEqual(status, 2)
        self.assertIn("--nonsense", text)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""gradsync compare, which runs scripts as they are, and gradsync.record, with the wheel in a fresh environment.

Most are skipped where tools/setup --python has not put PyTorch. --test_env=GRADSYNC_TORCH=2.6.0 takes another version than the newest
there. From the root of the repository, after `bazel build //python:wheel`: python/tests/compare_test.py
"""
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from installed import TESTS, Environment, torch_environment  # noqa: E402

PATIENCE = 280

# A script of the reader's, with what tests put in its places.
SCRIPT = """
import os
import torch
import torch.distributed as dist
{imports}
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed({seed})
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(rank))
for step in range({steps}):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    {before}
    optimizer.step()
dist.destroy_process_group()
"""


def script(steps=5, seed="1", before="pass", imports=""):
    return SCRIPT.format(steps=steps, seed=seed, before=before, imports=imports)


class CommandTest(unittest.TestCase):
    """What starts the command, and reads what it has left."""

    @classmethod
    def setUpClass(cls):
        cls.environment = cls.make_environment()
        cls.addClassCleanup(cls.environment.close)

    @staticmethod
    def make_environment():
        return torch_environment()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, text, name="script.py"):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def command(self, *flags):
        return [self.environment.path / "bin/gradsync", "compare", f"--out={self.folder}/out", *flags]

    def compare(self, *flags, **variables):
        """(exit code, standard output, standard error)"""
        return self.environment.run(self.command(*flags), PATIENCE, **variables)

    def logs(self, pattern):
        return [path.read_text("utf-8") for path in sorted((self.folder / "out").glob(pattern))]

    def runs(self):
        """The records, by name."""
        with open(self.folder / "out/compare.json", encoding="utf-8") as file:
            return {run["row"]: run for run in json.load(file)["runs"]}


class CommandLineTest(CommandTest):
    @staticmethod
    def make_environment():
        return Environment()

    def test_what_is_wrong_is_named_before_anything_runs(self):
        path = self.write("print('never')")
        for flags, said in [
                ([], "expected a script after --, found none"),
                (["--rounds=0", "--", path], "--rounds: expected at least 1, found 0"),
                (["--rounds=many", "--", path], "--rounds: invalid int value: 'many'"),
                (["--workers=1", "--", path], "--workers: expected at least 2, found 1"),
                (["--warmup=0", "--", path], "--warmup_steps: expected at least 1, found 0"),
                (["--steps=3", "--", path], "--steps: expected more than --warmup_steps=3, found 3"),
                (["--margin=0", "--", path], "--margin: expected per cent between 0 and 100, found 0"),
                (["--configurations=gloo", "--", path], "--configurations: expected at least two, found gloo alone"),
                (["--configurations=gloo,gloo", "--", path], "--configurations: expected each once, found gloo 2 times"),
                (["--configurations=gloo,star/shm", "--", path], "or gloo or script, found \"star/shm\""),
                (["--configurations=gloo,ring", "--", path], "or gloo or script, found \"ring\""),
                (["--colour=red", "--", path], "unrecognized arguments: --colour=red"),
                (["--", "absent.py"], "absent.py: expected a script, found none"),
                (["--", self.folder], "expected a script, found a folder"),
                (["--", "--epochs=1"], "expected a script after --, or -m and a module, found --epochs=1"),
                (["--", "-m"], "expected a module after -m, found none"),
                (["--", path], "torch: expected PyTorch for ")]:
            with self.subTest(flags=flags):
                code, output, error = self.compare(*flags)
                self.assertEqual((code, output), (2, ""))
                self.assertRegex(error, r"\Acompare: [^\n]+\n\Z")
                self.assertIn(said, error)
        self.assertFalse((self.folder / "out").exists())

    def test_the_command_has_one_subcommand(self):
        program = self.environment.path / "bin/gradsync"
        for arguments, expected, output_is, error_is in [
                (["--version"], 0, r"gradsync \d", r"\Z"), (["--help"], 0, "usage: gradsync compare", r"\Z"),
                (["compare", "--help"], 0, "usage: gradsync compare", r"\Z"),
                (["train"], 2, r"\Z", "gradsync: expected compare or server, found train\nusage: "),
                ([], 2, r"\Z", "gradsync: expected compare or server, found nothing\n")]:
            with self.subTest(arguments):
                code, output, error = self.environment.run([program, *arguments])
                self.assertEqual(code, expected)
                self.assertRegex(output, r"\A" + output_is)
                self.assertRegex(error, r"\A" + error_is)

    def test_what_the_parameters_say_depends_on_who_adds_in_which_order(self):
        """Hashes by round of some configurations with so many workers: the line, and whether all is well."""
        code, output, error = self.environment.run(["-c", """
import types
from gradsync._comparison import Round, verdict

def said(workers, hashes, steps=(9, 9), device="cpu"):
    measured = {name: [Round([10.0, 11.0, 12.0], steps[number], text, device, 1, "gloo", "2.15.0") for number, text in enumerate(each)]
                for name, each in hashes.items()}
    lines, agree = verdict(measured, types.SimpleNamespace(workers=workers, margin=2.0))
    print(agree, lines[-1])

said(2, {"ring/shm": ["a", "a"], "gloo": ["a", "a"]})
said(2, {"ring/shm": ["a", "a"], "gloo": ["b", "b"]})
said(2, {"ring/shm": ["a", "c"], "gloo": ["b", "b"]})
said(2, {"ring/shm": ["a", "b"], "gloo": ["c", "d"]})
said(2, {"ring/shm": ["a"], "gloo": ["b"]})
said(3, {"ring/shm": ["a", "a"], "ps/shm": ["a", "a"], "gloo": ["b", "b"]})
said(3, {"ring/shm": ["a", "a"], "gloo": ["b", "b"]})
said(3, {"gloo": ["b"], "script": ["a"]})
said(2, {"ring/shm": ["a", "a"], "gloo": ["b", "b"]}, device="NVIDIA H200")
said(2, {"ring/shm": ["a", "b"], "gloo": ["b", "b"]}, steps=(9, 8))
"""])
        self.assertEqual(code, 0, error)
        self.assertEqual(output.splitlines(), [
            "True bits: identical in all 2 configurations with 2 workers",
            "False bits: DIFFER with 2 workers: ring/shm a; gloo b",
            "False bits: DIFFER with 2 workers: ring/shm a c; gloo b",
            "True bits: not compared: the script ends with other parameters each time, whatever the configuration; it sets no seed?",
            "True bits: DIFFER with 2 workers: ring/shm a; gloo b; --rounds=2 tells whether the script does so by itself",
            "True bits: identical in all 2 configurations with 3 workers; gloo adds in an order of its own",
            "True bits: only one configuration with 3 workers, nothing to compare; gloo adds in an order of its own",
            "True bits: not compared; gloo adds in an order of its own; script adds in an order of its own",
            "True bits: not compared: on a GPU additions may come in another order each time",
            "True bits: not compared: the script took 8 to 9 steps; --steps makes them equal"])

    def test_speeds_are_compared_by_the_reports_arithmetic(self):
        """The fastest beside each of the others, by the ratios of rounds."""
        code, output, error = self.environment.run(["-c", """
import types
from gradsync._comparison import Round, verdict

def rounds(*medians):
    return [Round([each], 9, "a", "cpu", 1, "gloo", "2.15.0") for each in medians]

measured = {"gloo": rounds(12.9, 13.1, 13.0), "ring/shm": rounds(10.0, 10.0, 10.0), "ps/shm": rounds(10.01, 10.02, 10.0)}
for options in ({"margin": 2.0}, {"margin": 0.01}):
    print(*verdict(measured, types.SimpleNamespace(workers=2, **options))[0], sep="\\n")
"""])
        self.assertEqual(code, 0, error)
        lines = output.splitlines()
        for line, said in [(0, r"ring/shm and ps/shm are equal within 2 %: 10.00 against 10.01 ms per step, 1.001 times \("),
                           (1, r"ring/shm was 30 % faster than gloo: 10.00 against 13.00 ms per step, 1.300 times \("),
                           (3, r"not decided between ring/shm and ps/shm: at least \d+ rounds? more: ")]:
            self.assertRegex(lines[line], "^speed: with 2 workers " + said)


class ComparisonTest(CommandTest):
    def test_a_script_runs_to_its_end_over_each_backend(self):
        code, output, error = self.compare("--configurations=ring/shm,gloo", "--rounds=2", "--batch_size=16", "--", TESTS / "train.py",
                                           "--epochs=1", "--backend=gloo")
        self.assertEqual(code, 0, error + output)
        progress = error.splitlines()
        self.assertEqual(len(progress), 4)
        for line, name in zip(progress, ["ring/shm", "gloo", "gloo", "ring/shm"]):
            self.assertRegex(line, rf"\[\d/4\] {name}, round \d of 2: [\d.]+ ms per step")
        for pattern, backend in [("ring-shm-*.log", "gradsync"), ("gloo-*.log", "gloo")]:
            self.assertEqual([len(re.findall(f"backend {backend} weights", text)) for text in self.logs(pattern)], [2, 2])
        self.assertRegex(output, r"  speed: with 2 workers .*(faster than|times as fast as|equal within 2 %|not decided between).* ms per "
                         r"step, [\d.]+ times \([\d.]+ to [\d.]+\)\n")
        self.assertIn("  bits: identical in all 2 configurations with 2 workers\n", output)
        runs = self.runs()
        self.assertEqual([(run["library"], run["topology"], run["link"]) for run in runs.values()],
                         [("gradsync", "ring", "shm"), ("gloo", "ring", "gloo")])
        for run in runs.values():
            self.assertEqual((run["steps"], run["workers"]), (8, 2))
            self.assertEqual((len(run["round_step_ms_p50"]), len(set(run["round_params_sha256"]))), (2, 1))
            self.assertAlmostEqual(run["samples_per_s"], 2 * 16 * run["steps_per_s"])

    def check_equal_bits(self, configurations):
        code, output, error = self.compare(f"--configurations={configurations}", "--rounds=1", "--steps=6", "--warmup=2", "--",
                                           TESTS / "train.py")
        self.assertEqual(code, 0, error + output)
        self.assertIn("bits: identical in all 3 configurations with 2 workers", output)
        self.assertIn("at least 1 round more", output)
        self.assertEqual({run["steps"] for run in self.runs().values()}, {6})
        # A run that is ended after its steps does nothing more.
        self.assertFalse([text for text in self.logs("*.log") if "weights" in text or "Traceback" in text])

    def test_rings_end_with_the_bits_of_gloo(self):
        self.check_equal_bits("ring/shm,ring/tcp,gloo")

    def test_servers_end_with_the_bits_of_gloo(self):
        self.check_equal_bits("ps/shm,ps/grpc,gloo")

    def test_three_workers_end_with_equal_bits(self):
        code, output, error = self.compare("--configurations=ring/shm,ps/grpc", "--workers=3", "--rounds=1", "--steps=4", "--",
                                           TESTS / "train.py")
        self.assertEqual(code, 0, error + output)
        self.assertIn("bits: identical in all 2 configurations with 3 workers\n", output)


class ScriptTest(CommandTest):
    def test_what_the_script_has_of_its_own_stays(self):
        """Its sitecustomize, its groups, its processes; run as a module."""
        self.write("import builtins\nbuiltins.own_sitecustomize = True\n", "sitecustomize.py")
        self.write(script(steps=9, imports="""
import datetime, subprocess, sys
assert own_sitecustomize
assert "GRADSYNC_COMPARE" not in os.environ
subprocess.run([sys.executable, "-c", "import sys; assert own_sitecustomize and sys.excepthook is sys.__excepthook__"], check=True)
""", before="""
    if step == 0:
        same, others = dist.new_group(backend="gloo"), dist.new_group(timeout=datetime.timedelta(seconds=60))
        print("groups", dist.get_backend(), dist.get_backend(same), dist.get_backend(others), flush=True)
"""), "mine.py")
        code, output, error = self.compare("--configurations=ps/shm,script", "--rounds=1", "--steps=5", "--", "-m", "mine",
                                           PYTHONPATH=str(self.folder))
        self.assertEqual(code, 0, error + output + "".join(self.logs("*.log")))
        for pattern, backend in [("ps-shm-1.log", "gradsync"), ("script-1.log", "gloo")]:
            (text,) = self.logs(pattern)
            self.assertEqual(text.count(f"groups {backend} {backend} {backend}\n"), 2, text)

    def test_what_a_script_does_when_it_ends_is_done(self):
        body = script(steps=9).replace("\nfor step", "\ntry:\n  for step")
        body = body.replace("\ndist.destroy", "\nfinally:\n  print('over')\n  dist.destroy")
        body = "\n".join("  " + line if line.startswith("    ") else line for line in body.splitlines())
        code, output, error = self.compare("--configurations=ring/shm,gloo", "--rounds=1", "--steps=5", "--", self.write(body))
        self.assertEqual(code, 0, error + output)
        self.assertNotIn("exit code", error)
        self.assertEqual([text.count("over") for text in self.logs("*.log")], [2, 2])

    def refused(self, text, said, *flags):
        code, output, error = self.compare("--configurations=gloo,script", "--rounds=1", *flags, "--", self.write(text))
        self.assertEqual((code, output), (1, ""))
        self.assertRegex(error, rf"\ncompare: gloo: (\S+script.py: |rank 0 of \S+script.py ){said}; see \S+gloo-1.log\n")

    def test_a_script_without_a_process_group_is_told_so(self):
        self.refused("print('hello')", r"expected a call of torch.distributed.init_process_group\(\), found none in rank 0")
        self.refused("import torch\np = torch.zeros(1, requires_grad=True)\no = torch.optim.SGD([p])\n" + 9 * "o.step()\n",
                     r"expected a call of torch.distributed.init_process_group\(\), found none in rank 0")

    def test_a_script_with_too_few_steps_is_told_so(self):
        self.refused(script(steps=0), "expected more than --warmup_steps=3 steps of an optimizer of torch.optim, found none in rank 0")
        self.refused(script(steps=3), "expected more than --warmup_steps=3 steps of an optimizer of torch.optim, found 3 in rank 0")

    def test_a_script_that_leaves_in_a_hurry_is_told_what_helps(self):
        self.refused(script() + "\nos._exit(0)", "ended in a way that ran no exit handlers; --steps ends it before")

    def test_a_script_that_fails_is_quoted_and_the_others_go_on(self):
        path = self.write(script(before="""
    if rank == 1 and step == 4 and dist.get_backend() == "gradsync":
        print("about to fail", flush=True)
        raise ValueError("the loss is not a number")
"""))
        code, output, error = self.compare("--configurations=gloo,ring/shm", "--rounds=2", "--", path)
        self.assertEqual(code, 1)
        self.assertRegex(error, r"compare: ring/shm: rank 1 of \S+script.py failed: ValueError: the loss is not a number; see "
                                r"\S+ring-shm-1.log\n  \| ")
        self.assertRegex(error, r"\n  \| (\[rank1\]: )?ValueError: the loss is not a number\n")
        self.assertNotIn("torch/distributed/elastic", error)
        self.assertIn("ring/shm, round 2 of 2: left out, since it failed\n", error)
        self.assertEqual(list(self.runs()), ["gloo"])
        self.assertIn("bits: only one configuration with 2 workers, nothing to compare", output)

    def test_a_rank_that_ends_with_an_exit_code_is_named(self):
        path = self.write(script(before="if rank == 0 and step == 4: os._exit(7)"))
        code, _, error = self.compare("--configurations=gloo,ring/shm", "--rounds=1", "--", path)
        self.assertEqual(code, 1)
        self.assertRegex(error, "compare: ring/shm: rank (0 of .* ended with exit code 7|1 of .* failed: DistBackendError: .*rank 0)")

    def test_an_interrupt_ends_the_ranks(self):
        fifo = self.folder / "ranks"
        os.mkfifo(fifo)
        path = self.write(f"import os, signal\nwith open({str(fifo)!r}, 'w') as file:\n  file.write(f'{{os.getpid()}}\\n')\nsignal.pause()\n")
        with self.environment.start(self.command("--configurations=gloo,script", "--", path)) as process:
            try:
                ranks = []
                while len(ranks) < 2:
                    with open(fifo, encoding="utf-8") as file:
                        ranks += [int(line) for line in file]
                process.send_signal(signal.SIGINT)
                _, error = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        self.assertEqual(process.returncode, 128 + signal.SIGINT, error)
        self.assertIn("\ncompare: interrupted\n", error)
        for rank in ranks:
            with self.assertRaises(ProcessLookupError):
                os.kill(rank, 0)


RECORDED = """
import sys
import torch
from torch import nn
import gradsync

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
model[2].bias.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(32, 64), torch.randint(10, (32,))

def train(steps, backwards=1):
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(backwards):
            nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            model(inputs)

with gradsync.record(sys.argv[1], model, optimizer, batch_size=32, name="mine"):
    train(8)
train(1, backwards=2)  # nobody looks any more

def refused(kind, said, call, **options):
    try:
        with gradsync.record(sys.argv[1] + ".absent", model, optimizer, **{"batch_size": 32, **options}):
            call()
    except kind as error:
        assert said in str(error), error
        return
    raise AssertionError("expected: " + said)

refused(ValueError, "expected more than warmup_steps=3 steps, found 3", lambda: train(3))
refused(ValueError, "batch_size: expected at least 1, found 0", lambda: train(5), batch_size=0)
refused(RuntimeError, "found a second forward()", lambda: train(1, backwards=2))
refused(RuntimeError, "expected forward() and backward() before a step", lambda: optimizer.step())

class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(64, 10), nn.Linear(2, 2)
    def forward(self, value):
        return self.used(value)

model = Partly()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
refused(RuntimeError, "found none for unused.bias, unused.weight", lambda: train(1))
model = nn.ReLU()
refused(ValueError, "model: expected a trainable parameter, found none", lambda: None)
"""


class RecordTest(CommandTest):
    def test_a_recorded_step_is_a_step_profile(self):
        """What ValidateStepProfile() of benchmarks/profiles/step_profile.h asks, and no field that the message has not."""
        path = self.folder / "mine.json"
        code, output, error = self.environment.run(["-c", RECORDED, path], PATIENCE)
        self.assertEqual((code, output), (0, ""), error)
        self.assertEqual([each.name for each in self.folder.iterdir()], ["mine.json"])
        profile = json.loads(path.read_text("utf-8"))
        with open("proto/step_profile.proto", encoding="utf-8") as file:
            messages = dict(re.findall(r"^message (\w+) \{(.*?)^\}", file.read(), re.MULTILINE | re.DOTALL))
        with open("proto/run_record.proto", encoding="utf-8") as file:
            messages.update(re.findall(r"^message (Machine) \{(.*?)^\}", file.read(), re.MULTILINE | re.DOTALL))
        for message, value in [("StepProfile", profile), ("ProfiledTensor", profile["tensors"][0]), ("Machine", profile["machine"])]:
            self.assertLessEqual(set(value), set(re.findall(r"(\w+) = \d+;", messages[message])), message)
        self.assertEqual((profile["model"], profile["origin"], profile["batch_size"]), ("mine", "measured", 32))
        numel = {tensor["name"]: tensor["numel"] for tensor in profile["tensors"]}
        self.assertEqual(numel, {"4.bias": 10, "4.weight": 1280, "2.weight": 16384, "0.bias": 128, "0.weight": 8192})
        ready = [tensor["ready_us"] for tensor in profile["tensors"]]
        self.assertEqual(ready, sorted(ready))
        self.assertLessEqual(0 < profile["forward_us"] and ready[-1], profile["forward_us"] + profile["backward_us"])
        self.assertGreaterEqual(ready[0], profile["forward_us"])
        self.assertGreater(profile["update_us"], 0)
        # Gradients of the last layer come first.
        self.assertEqual({tensor["name"] for tensor in profile["tensors"][:2]}, {"4.bias", "4.weight"})

    def test_after_an_exception_there_is_no_file_and_what_cannot_be_one_is_named_first(self):
        (self.folder / "taken").mkdir()
        code, output, error = self.environment.run(["-c", """
import pathlib, sys, torch, gradsync
folder = pathlib.Path(sys.argv[1])
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
for name in ("mine.json", "taken", "none/mine.json"):
    try:
        with gradsync.record(folder / name, model, optimizer, batch_size=1):
            print(name, "begins")
            raise KeyError("weight")
    except (KeyError, OSError) as error:
        print(type(error).__name__)
""", self.folder], PATIENCE)
        self.assertEqual((code, error), (0, ""))
        self.assertEqual(output.split("\n")[:-1], ["mine.json begins", "KeyError", "IsADirectoryError", "FileNotFoundError"])
        self.assertEqual([each.name for each in self.folder.iterdir()], ["taken"])


if __name__ == "__main__":
    unittest.main()

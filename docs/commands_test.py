#!/usr/bin/env python3
"""Every command in README.md, CONTRIBUTING.md, docs/ and the programs' head comments does what it says.

Programs of this repository run as `bazel run` would start them, with the very flags of the document, and after these those of
PROGRAMS below, which make the same thing small: the last of several settings wins. Where a machine, a network or a download is
missing, flags are still parsed by the program (--help after them), and a line says SKIPPED and why. A command of a kind that is
not known here is an error: teach this test what it is.

Of LABORATORY_PAGES, whose commands measure, flags alone are checked; --all runs their commands too, as .ci/nightly does.

Run by hand, with -v or with the name of a document to see one's commands only:
  bazel test //docs:commands_test --test_output=all --test_arg=docs/compare/netlab.md
"""
import dataclasses
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.getcwd(), "docs"))

import commands  # noqa: E402

ROOT = pathlib.Path.cwd()  # of the runfiles, where tests start
PATIENCE = 300


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of the repository: flags that make it small, before and after the first `--`."""
    path: str
    small: tuple = ()
    small_after: tuple = ()
    flags: bool = True  # has flags and --help
    python: bool = False  # does not parse what precedes --help
    network: bool = False  # with --bandwidth, or always: needs namespaces
    always_network: bool = False


# Their commands take more than half of the time of all.
LABORATORY_PAGES = ("benchmarks/profiles/README.md", "docs/compare/benchmarks.md", "docs/compare/cost_model.md",
                    "docs/compare/lab.md", "docs/compare/netlab.md", "docs/compare/published.md", "docs/internals/slices.md",
                    "docs/use/choosing.md", "docs/use/consistency.md", "docs/use/parallelism.md", "docs/use/sharding.md")

JOB = ("--steps=3", "--data=synthetic", "--batch_size=4", "--timeout=90s")

PROGRAMS = {
    "//benchmarks:compare": Program(
        "benchmarks/compare",
        ("--rounds=1", "--warmup_steps=1", "--workers=2", "--servers=1", "--model=mlp", "--bandwidth=none", "--out=out", *JOB)),
    "//benchmarks:sync_bench": Program(
        "benchmarks/sync_bench", ("--bytes=64KiB", "--iterations=2", "--warmup=1", "--ranks=2", "--servers=1"),
        network=True),
    "//benchmarks:train_bench": Program(
        "benchmarks/train_bench", ("--steps=2", "--warmup_steps=1", "--workers=2", "--servers=1", "--compute_scale=0.1"),
        network=True),
    "//benchmarks:predict": Program("benchmarks/predict"),
    "//benchmarks:peers": Program(
        "benchmarks/peers",
        ("--rounds=1", "--bytes=4KiB", "--iterations=1", "--warmup=0", "--ranks=2", "--contestants=ring/shm,memcpy")),
    "//benchmarks:many_workers": Program("benchmarks/many_workers", ("--workers=2,4", "--topologies=ring,ps:1", "--steps=1")),
    "//benchmarks:data_parallel": Program(
        "benchmarks/data_parallel",
        ("--rounds=1", "--warmup_steps=1", "--replicas=2", "--model=mlp", "--out=out", *JOB)),
    "//benchmarks:mesh_study": Program("benchmarks/mesh_study", python=True),
    "//benchmarks:split_sweep": Program("benchmarks/split_sweep", python=True),
    "//docs:flags": Program("tools/flag_reference", ("--out=page.md", "worker/worker", "tools/launch"), python=True),
    "//examples:own_model": Program("examples/own_model", flags=False),
    "//ps_server": Program("ps_server/ps_server"),
    "//tests:virtual_cluster": Program("tests/virtual_cluster", ("--seeds=20",)),
    "//tools:task": Program("tools/task", ("--timeout=90s",), ("--model=mlp", *JOB)),
    "//tools:launch": Program("tools/launch", ("--timeout=90s",), ("--model=mlp", *JOB)),
    "//tools:netlab": Program("tools/netlab", small_after=("true",), network=True, always_network=True),
    "//tools:report": Program("tools/report/report", python=True),
    "//worker": Program("worker/worker", ("--model=mlp", *JOB)),
}

# What else makes a small job of one with these flags: they need steps, or a model, that JOB and PROGRAMS do not have.
SMALL_WITH = {
    "--lr_milestones": ("--lr_milestones=1,2",),
    "--lr_warmup": ("--lr_warmup=1",),
    "--sync_batchnorm": ("--model=resnet18",),
}

# compare with --bandwidth: one network, fast enough for a step to take no time.
COMPARE_ON_NETWORK = ("--bandwidth=400mbit",)
FAST_NETWORK = ("--bandwidth=4gbit",)
TRAIN_BENCH_ON_NETWORK = (*FAST_NETWORK, "--replay=benchmarks/profiles/resnet18.json")

# Scripts of the repository, and why they do not run here. Flags must be in what --help prints.
SCRIPTS = {
    "tools/get_cifar10": "downloads 170 MB; //tools:scripts_test runs it",
    "tools/cifar10_to_folder": "",  # runs
    "tools/check_layers": "needs bazel; .ci/run runs it",
    "tools/check_outside": "needs bazel; .ci/run runs it",
    "tools/check_docs": "reads the checkout; .ci/run runs it",
    "tools/fuzz": "builds with clang, and fuzzes for minutes; //tests/fuzz:replay_test feeds the same targets",
    "tools/gpu_slot": "needs a GPU; //tools:scripts_test rehearses it",
    "tools/gpu_check": "needs a GPU; //tools:scripts_test runs it",
    "tests/pairs_test.py": "takes an hour; //tests:pairs_test runs a part of it",
    "tools/trace_check": "needs a trace of a GPU; //tools:scripts_test runs it",
    "tools/try_fresh_root": "makes a Debian root of 4 GB",
    ".ci/run": "runs this test",
    ".ci/nightly": "takes hours",
}

# Commands of the system in a debugging session or on another machine.
ELSEWHERE = {
    "pgrep": "looks at running processes",
    "gdb": "looks at a running process",
    "cat": "looks at a running process",
    "ss": "looks at a running process",
    "grep": "looks at a running process",
    "mkdir": "carries programs to a machine with a GPU",
    "cp": "carries programs to a machine with a GPU",
    "tar": "carries programs to a machine with a GPU",
    "python3": "on a machine with a GPU",
    "site=$(python3": "on a machine with a GPU",
    "export": "for the commands behind it",
    "kubectl": "needs a Kubernetes cluster; //tests:launchers_test runs what the manifest would",
    "./worker.stripped": "on a machine with a GPU",
    "pip": "installs into the reader's environment; //python:torch_test installs into one of its own",
    "gradsync": "starts a script of the reader's; //python:compare_test starts such ones",
    "benchmarks/python_ddp_bench.py": "measures; needs PyTorch of PyPI",
    "benchmarks/decode_bench": "measures; needs a build of //benchmarks:decode_rate beside it",
    "benchmarks/profiles/make_shapes.py": "needs python3-torch, and writes into the checkout",
}

# Programs that start others, and why they do not run here.
LAUNCHERS = {
    "srun": "needs Slurm; //tests:hosts_test runs it where that is",
    "sbatch": "needs Slurm; //tests:hosts_test runs it where that is",
    "torchrun": "needs Python PyTorch; //tests:launchers_test runs it where that is",
    "mpirun": "needs MPI",
}

# What a document names as the result of an earlier measurement: where such a file is.
MEASURED = {
    "gradsync-report/compare.json": "benchmarks/results/compare_default_2core_epyc.json",
    "probe.json": "benchmarks/results/network_exchange_n4_400mbit_2core_epyc.json",
    "straggler/compare.json": "benchmarks/results/compare_staleness_mlp_2core_epyc.json",
    "staleness/compare.json": "benchmarks/results/compare_staleness_mlp_2core_epyc.json",
    "mine.json": "benchmarks/profiles/resnet18.json",
}

BAZEL_OPTIONS = re.compile(r"--(config=\w+|compilation_mode=\w+|test_\w+(=\S+)?|nocache_test_results|runs_per_test=\d+|"
                           r"local_test_jobs=\d+|strategy=\S+|test_arg=\S+)$|-c$")
HOST = re.compile(r"\bHOST\d\b")


class Unknown(Exception):
    """A command of a kind that is not known."""


def documents():
    pages = ["README.md", "CONTRIBUTING.md", "third_party/README.md", "benchmarks/profiles/README.md"]
    pages += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    sources = sorted(str(path.relative_to(ROOT)) for pattern in ("benchmarks/*.cc", "examples/*/*.cc", "tools/*.cc")
                     for path in ROOT.glob(pattern))
    return pages, sources


def flags_of(words):
    return [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]


def before_and_after(arguments):
    """What stands before the first `--`, and what after it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1:]


def has_slices(words):
    return any(word.startswith("--mesh=") and "tensor=" in word for word in words)


class Runner:
    """Runs documented commands in a folder of their own, each text once."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.done = set()
        self.no_network = self._why_no_network()
        shutil.copytree(ROOT / "benchmarks/profiles", self.folder / "benchmarks/profiles",
                        ignore=lambda folder, names: [name for name in names if not name.endswith(".json")])
        # CIFAR-10 as it is after tools/get_cifar10, but of two images a file.
        cifar = self.folder / "cifar10/cifar-10-batches-bin"
        cifar.mkdir(parents=True)
        for number, name in enumerate(["test_batch"] + [f"data_batch_{i}" for i in range(1, 6)]):
            (cifar / f"{name}.bin").write_bytes(b"".join(bytes([2 * number % 10 + i]) + bytes(range(256)) * 12 for i in range(2)))
        for name, source in MEASURED.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, self.folder / name)
        shutil.copytree(ROOT / "configs", self.folder / "configs")

    def environment(self, more=()):
        # As `bazel run` does, so that paths are relative to where the reader is.
        return {**os.environ, "BUILD_WORKING_DIRECTORY": str(self.folder), "HOME": str(self.folder), "PWD": str(self.folder),
                **dict(more)}

    def execute(self, argv, more=()):
        try:
            return subprocess.run(argv, env=self.environment(more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode(errors="replace") if error.stdout else ""
            return subprocess.CompletedProcess(argv, -1, f"{output}\nnot done after {PATIENCE} s")

    def _why_no_network(self):
        result = self.execute([str(ROOT / "tools/netlab"), "--hosts=2", "--", "true"])
        return "" if result.returncode == 0 else result.stdout.strip().split("\n")[-1]

    def expand(self, words):
        expanded = []
        for word in words:
            word = word.replace("$HOME", str(self.folder)).replace("$PWD", str(self.folder))
            expanded.append(str(self.folder) + word[1:] if word.startswith("~/") else word)
        return expanded

    def must_pass(self, argv, more=()):
        result = self.execute(argv, more)
        if result.returncode == 0:
            return result
        tail = "\n    ".join(result.stdout.strip().split("\n")[-12:])
        raise AssertionError(f"exit code {result.returncode} of {' '.join(argv)}\n    {tail}")

    def must_pass_in_folder(self, words):
        subprocess.run(words, cwd=self.folder, check=True, stdin=subprocess.DEVNULL, capture_output=True)

    def check_flags(self, program, arguments):
        """That the program takes the documented flags, without doing anything."""
        before, after = before_and_after(arguments)
        if not program.flags:
            return
        if program.python:
            self.check_help(program.path, arguments)
        else:
            self.must_pass([str(ROOT / program.path), *before, "--help"])
        if after and program.path in ("tools/launch", "tools/task", "benchmarks/compare"):
            self.must_pass([str(ROOT / "worker/worker"), *after, "--help"])

    def check_help(self, path, arguments):
        text = self.must_pass([str(ROOT / path), "--help"]).stdout
        for flag in flags_of(arguments):
            if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text):
                raise AssertionError(f"{path} --help does not know {flag}")

    def bazel(self, words):
        """`bazel run|build|test ...` -> (verdict)."""
        verb, options, rest = words[1], [], words[2:]
        while rest and not rest[0].startswith("//"):
            if not BAZEL_OPTIONS.match(rest[0]) and not (options and options[-1] == "-c"):
                raise Unknown(f"option {rest[0]} of bazel")
            options.append(rest.pop(0))
        if verb in ("build", "test"):
            for word in rest:
                if not word.startswith("//") and not BAZEL_OPTIONS.match(word):
                    raise Unknown(f"{word} of bazel {verb}")
            return "SKIPPED: a build is not a test's; tools/check_docs looks for its targets"
        if verb != "run" or not rest:
            raise Unknown(f"bazel {verb}")
        return self.program(rest[0], rest[1:], gpu="--config=cuda" in options)

    def program(self, target, arguments, gpu=False):
        if target == "//tests:chaos":
            return "SKIPPED: //tests:chaos_test runs it"
        if target == "//tests:soak":
            return "SKIPPED: takes minutes"
        program = PROGRAMS.get(target)
        if program is None:
            raise Unknown(f"no row of PROGRAMS says how to run {target}")
        if arguments[:1] == ["--"]:
            arguments = arguments[1:]
        elif arguments:
            raise Unknown(f"{target}: expected -- before {arguments[0]}")
        reason = self.why_not_here(target, program, arguments, gpu)
        if reason:
            self.check_flags(program, arguments)
            return f"flags checked. SKIPPED: {reason}"
        before, after = before_and_after(arguments)
        argv = [str(ROOT / program.path), *before, *self.small(target, program, arguments)]
        if after or program.small_after:
            more = [flag for name in flags_of(after) for flag in SMALL_WITH.get(name, ())]
            argv += ["--", *after, *self.small_after(program, after), *more]
        begin = time.monotonic()
        self.must_pass(without_flags_of_other_models(argv))
        return f"ran, {time.monotonic() - begin:.1f} s"

    def why_not_here(self, target, program, arguments, gpu):
        """Why a program cannot run in this test, or nothing. One that runs checks its flags by that."""
        if target == "//benchmarks:compare" and not arguments:  # with other flags it would not be the default comparison
            return "//benchmarks:compare_test runs it"
        if target in ("//benchmarks:mesh_study", "//benchmarks:split_sweep"):
            return "measures for an hour or more"
        if gpu or any(word.startswith("--device=cuda") for word in arguments):
            return "needs a GPU"
        if "--train" in arguments:
            return "needs Python PyTorch; //benchmarks:peers_test runs it"
        on_network = program.always_network or any(word.startswith("--bandwidth") for word in arguments)
        if on_network and (program.network or "compare" in program.path):
            return self.no_network
        return ""

    def small(self, target, program, arguments):
        on_network = any(word.startswith("--bandwidth") for word in arguments)
        if target == "//benchmarks:compare":
            more = COMPARE_ON_NETWORK if on_network else ()
        elif target == "//benchmarks:sync_bench":
            # So small it is no measurement: what later commands read is not to be replaced by it.
            more = ("--json=small.json",) if any(word.startswith("--json") for word in arguments) else ()
        elif target == "//benchmarks:train_bench":
            # Slices have profiles of their own, which a command before this one has recorded.
            more = () if not on_network else FAST_NETWORK if has_slices(arguments) else TRAIN_BENCH_ON_NETWORK
        else:
            return program.small
        # The slow worker must be one of those that are left.
        slow = ("--straggler=1:2",) if any(re.match(r"--straggler=\d", word) for word in arguments) else ()
        small = program.small
        if target == "//benchmarks:compare" and any(word.startswith("--mesh=") for word in arguments):
            # It says itself how many workers, and needs a server for each stage.
            small = [word for word in small if not word.startswith(("--workers=", "--servers="))]
        return [*small, *more, *slow]

    def small_after(self, program, after):
        # A folder of images is small already, and its flags are for no other data.
        if any(word.startswith("--data=imagefolder:") for word in after):
            return [word for word in program.small_after if not word.startswith("--data=")]
        # Only some models can be cut into slices.
        if has_slices(after):
            return [word for word in program.small_after if not word.startswith(("--model=", "--data="))]
        return program.small_after

    def script(self, words):
        path = words[0]
        if path == "tools/cifar10_to_folder":
            self.must_pass([str(ROOT / path), *words[1:]])
            return "ran"
        if path in ("tools/setup", "tools/setup_peers"):
            if os.path.exists("/etc/debian_version"):
                self.must_pass([str(ROOT / path), *words[1:], "--dry-run"])
                return "ran with --dry-run. SKIPPED: installing"
        elif not (ROOT / path).exists():
            return f"SKIPPED: {SCRIPTS[path]}"
        elif flags_of(words):
            self.check_help(path, words[1:])
        return f"flags checked. SKIPPED: {SCRIPTS.get(path, 'installs packages')}"

    def worker_elsewhere(self, words):
        flags = [word for word in words[1:] if word.startswith("-")]
        self.must_pass([str(ROOT / "worker/worker"), *flags, "--help"])
        return "flags checked. SKIPPED: needs a GPU"

    def by_launcher(self, words):
        """`srun -n 2 bazel-bin/PROGRAM FLAGS : -n 1 bazel-bin/PROGRAM FLAGS`."""
        if words[0] == "sbatch":
            script = next(word for word in words if word.endswith(".sbatch"))
            if not (ROOT / script).exists():
                raise AssertionError(f"there is no {script}")
            self.check_flags(PROGRAMS["//worker"], words[words.index(script) + 1:])
            return f"flags checked. SKIPPED: {LAUNCHERS['sbatch']}"
        if any(word.endswith(".py") for word in words):
            return "SKIPPED: starts a script of the reader's; //python:torch_test starts such ones"
        argv, rest = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], words[1:]
        while rest:
            part, rest = (rest[:rest.index(":")], rest[rest.index(":") + 1:]) if ":" in rest else (rest, [])
            at = next((i for i, word in enumerate(part) if word.startswith("bazel-bin/")), None)
            path = part[at].replace("bazel-bin/", "", 1) if at is not None else ""
            program = next((each for each in PROGRAMS.values() if each.path == path), None)
            if program is None:
                raise Unknown(f"what does {words[0]} start in {' '.join(part)}?")
            self.check_flags(program, part[at + 1:])
            small = program.small_after if "--" in part else program.small
            argv += [*part[:at], *without_flags_of_other_models([str(ROOT / path), *part[at + 1:], *small]),
                     *([":"] if rest else [])]
        if any(re.match(r"(servers=)?[\d.]+:\d+$", word) for word in words):
            return "flags checked. SKIPPED: needs a server that runs"
        if words[0] != "mpirun" or shutil.which("mpirun.openmpi") is None:
            return f"flags checked. SKIPPED: {LAUNCHERS[words[0]]}"
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            store = {"MASTER_PORT": str(port.getsockname()[1])}
        begin = time.monotonic()
        self.must_pass(argv, store)
        return f"ran, {time.monotonic() - begin:.1f} s"

    def together(self, lines):
        """A job by hand: its processes at the same time, every host this one."""
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            master = f"127.0.0.1:{port.getsockname()[1]}"
        processes = []
        begin = time.monotonic()
        for line in lines:
            for words in line.commands():
                words = [HOST.sub("127.0.0.1", re.sub(r"HOST\d:\d+", master, word)) for word in words]
                path = words[0].replace("bazel-bin/", "")
                small = JOB if path == "worker/worker" else ()
                output = (self.folder / f"output{len(processes)}").open("w+")
                processes.append((words, output, subprocess.Popen(
                    [str(ROOT / path), *words[1:], *small], env=self.environment(), stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT)))
        failures = []
        for words, output, process in processes:
            try:
                code = process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            with output:
                output.seek(0)
                said = output.read().strip()[-800:]
            if code != 0:
                failures.append(f"exit code {code} of {' '.join(words)}\n    {said}")
        if failures:
            raise AssertionError("\n".join(failures))
        return f"ran together, {time.monotonic() - begin:.1f} s"

    def run(self, words):
        more, words = commands.split_assignments(words)
        if not words:
            raise Unknown("assignments alone")
        words = self.expand(words)
        first = words[0]
        if first == "bazel":
            return self.bazel(words)
        if first.startswith("bazel-bin/"):
            package, name = first[len("bazel-bin/"):].rsplit("/", 1)
            target = f"//{package}" if package == name else f"//{package}:{name}"
            if "…" in " ".join(words) or target.endswith("_test"):
                return "SKIPPED: a test, which runs by itself"
            return self.program(target, ["--", *words[1:]])
        if first in SCRIPTS or first in ("tools/setup", "tools/setup_peers"):
            return self.script(words)
        if first == "worker":
            return self.worker_elsewhere(words)
        if first in ("openssl", "chmod"):
            self.must_pass_in_folder(words)
            return "ran"
        if first in LAUNCHERS:
            return self.by_launcher(words)
        if words[:2] == ["gradsync", "server"]:
            self.check_flags(PROGRAMS["//ps_server"], words[2:])
            return "flags checked. SKIPPED: //python:wheel_test starts servers"
        if first in ELSEWHERE:
            return f"SKIPPED: {ELSEWHERE[first]}"
        raise Unknown(f"what is {first}? Teach docs/commands_test.py")

    def check_only(self, words):
        """For head comments: that their flags are taken, not that they work."""
        words = self.expand(commands.split_assignments(words)[1])
        if words[:2] != ["bazel", "run"]:
            return self.run(words)
        at = next((i for i, word in enumerate(words) if word.startswith("//")), None)
        if at is None or words[at] not in PROGRAMS:
            raise Unknown(f"no row of PROGRAMS says how to run {' '.join(words)}")
        self.check_flags(PROGRAMS[words[at]], words[at + 2:])
        return "flags checked"


def without_flags_of_other_models(argv):
    """A job that was made small has another model, beside which the flags of its own are refused."""
    models = [word for word in argv if word.startswith("--model=")]
    if not models or models[-1] != "--model=mlp":
        return argv
    return [word for word in argv if not re.match(r"--(stem|gpt_\w+|dropout|channels_last)\b", word)]


class CommandsTest(unittest.TestCase):
    wanted = []  # documents; empty: all
    all = False  # whether LABORATORY_PAGES' commands run too

    def setUp(self):
        self.runner = Runner()
        self.addCleanup(shutil.rmtree, self.runner.folder, ignore_errors=True)
        self.failures = []

    def note(self, line, text, do, *arguments):
        try:
            verdict = do(*arguments)
        except (AssertionError, Unknown, commands.BadLine, OSError) as error:
            self.failures.append(f"{line.file}:{line.number}: {text}\n  {error}")
            verdict = "FAILED"
        print(f"{line.file}:{line.number}: {text}\n    {verdict}", flush=True)

    def own(self, files):
        """This shard's part of them. A page is whole: its commands build on each other."""
        if "TEST_SHARD_STATUS_FILE" in os.environ:
            pathlib.Path(os.environ["TEST_SHARD_STATUS_FILE"]).touch()
        shards, own = int(os.environ.get("TEST_TOTAL_SHARDS", 1)), int(os.environ.get("TEST_SHARD_INDEX", 0))
        return files[own::shards]

    def lines(self, file):
        if self.wanted and file not in self.wanted:
            return []
        try:
            return list(commands.lines_of(file, (ROOT / file).read_text()))
        except commands.BadLine as error:
            self.failures.append(f"{file}: {error}")
            return []

    def run_lines(self, lines, run):
        # A block that names hosts is one job.
        jobs = {(line.file, line.block) for line in lines if HOST.search(line.text)}
        for line in lines:
            if HOST.search(line.text):
                if (line.file, line.block) in jobs:
                    jobs.remove((line.file, line.block))
                    job = [each for each in lines if each.block == line.block and HOST.search(each.text)]
                    self.note(line, f"{len(job)} processes of one job", self.runner.together, job)
                continue
            try:
                for words in line.commands():
                    text = " ".join(words)
                    if text not in self.runner.done:
                        self.runner.done.add(text)
                        self.note(line, text, run, words)
            except commands.BadLine as error:
                self.failures.append(f"{line.file}:{line.number}: {error}")

    def finish(self, found):
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{len(found)} lines of commands, {usage.ru_utime + usage.ru_stime:.0f} s of CPU time so far", flush=True)
        self.assertTrue(found or self.wanted, "no command was found")
        self.assertFalse(self.failures, "\n" + "\n".join(self.failures))

    def test_commands_of_the_pages_work(self):
        lines = []
        # The laboratory's last: what another page says too is to run.
        for page in sorted(self.own(documents()[0]), key=lambda page: page in LABORATORY_PAGES):
            own = self.lines(page)
            self.run_lines(own, self.runner.run if self.all or page not in LABORATORY_PAGES else self.runner.check_only)
            lines += own
        self.finish(lines)

    def test_commands_of_head_comments_can_be_pasted(self):
        lines = [line for source in self.own(documents()[1]) for line in self.lines(source)]
        self.run_lines(lines, self.runner.check_only)
        self.finish(lines)


class ExtractionTest(unittest.TestCase):
    def words(self, file, text):
        return [words for line in commands.lines_of(file, text) for words in line.commands()]

    def test_bash_fences_and_indented_blocks_that_begin_with_a_command(self):
        text = ("```bash\ntools/setup && bazel test //...  # all\nodd thing\n```\n\n```\nbuild --x\n```\n\ntext\n"
                "    not a block\n\n    load = n/k\n\n    bazel run //x -- --a=1 \\\n        --b\n    # said\n    bazel test //y\n")
        self.assertEqual(self.words("a.md", text), [
            ["tools/setup"], ["bazel", "test", "//..."], ["odd", "thing"], ["bazel", "run", "//x", "--", "--a=1", "--b"],
            ["bazel", "test", "//y"]])

    def test_comments_of_a_program(self):
        text = "// Copy and try:\n//\n//   bazel run //x -- \\\n//       --a\n//   NAME  a table\n//\n//   NAME  a table\nint x;\n"
        self.assertEqual(self.words("a.cc", text), [["bazel", "run", "//x", "--", "--a"], ["NAME", "a", "table"]])

    def test_a_backslash_at_the_end_of_a_block_is_an_error(self):
        with self.assertRaises(commands.BadLine):
            list(commands.lines_of("a.md", "```bash\nbazel run //x \\\n```\n"))

    def test_assignments_come_off(self):
        self.assertEqual(commands.split_assignments(["A=b", "bazel", "C=d"]), ({"A": "b"}, ["bazel", "C=d"]))


class KindsTest(unittest.TestCase):
    """What nobody knows, and flags that no program has, are errors."""

    @classmethod
    def setUpClass(cls):
        cls.runner = Runner()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.runner.folder, ignore_errors=True)

    def test_unknown_programs_and_options(self):
        for words in (["curl", "x"], ["bazel", "run", "//nowhere"], ["bazel", "clean"], ["bazel", "test", "--odd", "//x"]):
            with self.subTest(words), self.assertRaises(Unknown):
                self.runner.run(words)

    def test_a_flag_that_is_gone(self):
        for words in (["bazel", "run", "//benchmarks:predict", "--", "--gone=1"],
                      ["bazel", "run", "--config=cuda", "//tools:launch", "--", "--workers=2", "--", "--gone"],
                      ["tools/trace_check", "--gone", "FILE"]):
            with self.subTest(words), self.assertRaises(AssertionError):
                self.runner.run(words)


if __name__ == "__main__":
    CommandsTest.wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    CommandsTest.all = "--all" in sys.argv[1:]
    sys.argv = sys.argv[:1] + [argument for argument in sys.argv[1:] if argument.startswith("-") and argument != "--all"]
    unittest.main()

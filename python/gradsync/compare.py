"""Runs a PyTorch script of yours, as it is, with each topology and link in turns, and says which was faster.

  gradsync compare -- train.py --epochs=1
  gradsync compare --configurations=ring/shm,ps/shm,gloo --rounds=5 --steps=40 -- train.py
  gradsync compare --workers=4 -- -m package.train --batch_size=32

The script makes a process group by init_process_group(), with any backend, and steps an optimizer of torch.optim: what torchrun starts.
It is started by torchrun, once per configuration and round, in another order in each round. A configuration is TOPOLOGY/LINK of
gradsync (ring or ps; shm, tcp, grpc or auto), gloo, or script: the backend that the script names.

A step lasts from the end of one optimizer step to the end of the next, on the slowest rank, so loading of data counts. Compared are
ratios within a round: docs/compare/fairness.md has the arithmetic. After the last step the optimizer's parameters are hashed, to see
whether all configurations end with the same bits.

Exit codes: 0; 1 a run failed, or ended with other bits than it must; 2 bad flags, found before any run started; 128 + signal when
interrupted.
"""
import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from . import _compared
from ._comparison import Round, records_of, table, verdict
from .decision import EQUAL_MARGIN

TOPOLOGIES = ("ring", "ps")
LINKS = ("shm", "tcp", "grpc", "auto")
OTHERS = ("gloo", "script")
DEFAULT = "ring/shm,ps/shm,ring/tcp,ps/grpc,gloo"

# Ranks get these from torchrun, or from this program.
OF_A_RANK = re.compile("(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|GRADSYNC_(TOPOLOGY|LINK|COMPARE)$)")

# The lines of torchrun's own among those of the ranks, and the one by which it says that a rank has failed.
TORCHRUN_LINE = re.compile(r"[IWE]\d{4} [\d:.]+ +\d+ (site-packages/)?torch/distributed/|W\d{4} .*\*{20}")
FAILED_LINE = re.compile(r"E\d{4} .*failed \(exitcode: (-?\d+)\) local_rank: (\d+)")

LINES_OF_TAIL = 15
PATIENCE = 15  # seconds for torchrun to end its ranks

SITECUSTOMIZE = '''"""Made by gradsync compare: prepares a rank, and gives way to the sitecustomize that is found without this one."""
import importlib.util
import os
import sys


def prepare():
    spec = importlib.util.spec_from_file_location("gradsync_compared", {path!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.start()


def give_way():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if error.name != "sitecustomize":
            raise


prepare()
give_way()
'''


class BadInput(Exception):
    """What is wrong with the command line or what it names, in one line."""


class Failure(Exception):
    """Why a run has no figures, in one line."""

    def __init__(self, text, tail="", hopeless=False):
        super().__init__(text)
        self.tail = tail  # of what the ranks said
        self.hopeless = hopeless  # the script is not one to compare, under whatever configuration


class Ended(BaseException):
    """By a signal."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str

    @property
    def topology(self):
        return self.name.partition("/")[0] if "/" in self.name else ""

    @property
    def link(self):
        return self.name.partition("/")[2]

    @property
    def backend(self):
        """As init_process_group() takes it; "": that of the script."""
        return "gradsync" if self.topology else "" if self.name == "script" else self.name

    def variables(self):
        return {"GRADSYNC_TOPOLOGY": self.topology, "GRADSYNC_LINK": self.link} if self.topology else {}


def configuration(name):
    topology, slash, link = name.partition("/")
    if name not in OTHERS and not (slash and topology in TOPOLOGIES and link in LINKS):
        links = f"{', '.join(LINKS[:-1])} or {LINKS[-1]}"
        raise BadInput(f"--configurations: expected {' or '.join(TOPOLOGIES)} with {links}, as ring/shm, or {' or '.join(OTHERS)}, found "
                       f"\"{name}\"")
    return Configuration(name)


# ---- The command line


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BadInput(message.removeprefix("argument "))


def parser():
    made = Parser(prog="gradsync compare", usage="gradsync compare [flags] -- SCRIPT [arguments]", description=__doc__,
                  formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--configurations", default=DEFAULT, help=f"what takes turns ({DEFAULT})")
    made.add_argument("--workers", "--nproc", type=int, default=2, help="ranks of each run, all on this machine (2)")
    made.add_argument("--rounds", type=int, default=3, help="runs of each configuration (3)")
    made.add_argument("--steps", type=int,
                      help="steps after which a run is ended, warm-up included; without it the script runs to its end")
    made.add_argument("--warmup_steps", "--warmup", type=int, default=3, help="steps at the start that are not measured, at least 1 (3)")
    made.add_argument("--margin", type=float, default=100 * EQUAL_MARGIN, help="two are equal within so many per cent (2)")
    made.add_argument("--batch_size", type=int, default=0,
                      help="samples of each rank and step, as the script has them: only for samples/s, without which //tools:report "
                           "makes no page of compare.json (0: unknown)")
    made.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gradsync-compare"),
                      help="folder for compare.json and what the ranks print, a file per run (gradsync-compare)")
    made.add_argument("--json", type=pathlib.Path, help="another file for the records of compare.json")
    return made


def options_of(command):
    """The flags before "--", checked as far as can be without a run, with `script` and `configurations`."""
    at = command.index("--") if "--" in command else len(command)
    options = parser().parse_args(command[:at])
    options.script = command[at + 1:]
    options.configurations = [configuration(name) for name in options.configurations.split(",")]
    names = [each.name for each in options.configurations]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"--configurations: expected each once, found {name} {names.count(name)} times")
    if len(names) < 2:
        raise BadInput(f"--configurations: expected at least two, found {names[0]} alone")
    for name, least in (("workers", 2), ("rounds", 1), ("warmup_steps", 1), ("batch_size", 0)):
        if getattr(options, name) < least:
            raise BadInput(f"--{name}: expected at least {least}, found {getattr(options, name)}")
    if options.steps is not None and options.steps <= options.warmup_steps:
        raise BadInput(f"--steps: expected more than --warmup_steps={options.warmup_steps}, found {options.steps}")
    if not 0 < options.margin < 100:
        raise BadInput(f"--margin: expected per cent between 0 and 100, found {options.margin:g}")
    check_script(options.script)
    return options


def check_script(script):
    if not script:
        raise BadInput("expected a script after --, found none: gradsync compare [flags] -- train.py [arguments]")
    if script[0] in ("-m", "--module"):
        if len(script) == 1:
            raise BadInput(f"expected a module after {script[0]}, found none")
    elif script[0].startswith("-"):
        raise BadInput(f"expected a script after --, or -m and a module, found {script[0]}")
    elif not os.path.isfile(script[0]):
        raise BadInput(f"{script[0]}: expected a script, found {'a folder' if os.path.isdir(script[0]) else 'none'}")


def check_installed(options):
    if importlib.util.find_spec("torch") is None:
        raise BadInput(f"torch: expected PyTorch for {sys.executable}, found none")
    if any(each.backend == "gradsync" for each in options.configurations):
        from ._library import library

        try:
            library()
        except (ImportError, AttributeError) as error:
            raise BadInput(str(error)) from error


def make_writable(options):
    """Makes the folder; nobody shall learn after an hour that the result cannot be written."""
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for path in filter(None, (options.out / "compare.json", options.json)):
            there = path.exists()
            with open(path, "a", encoding="utf-8"):
                pass
            if not there:
                path.unlink()
    except OSError as error:
        raise BadInput(f"{error.filename}: expected to be able to write it, found: {error.strerror}") from error


# ---- Runs


class Runs:
    """Starts the runs. `folder` is for files between this process and the ranks."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        hooks = folder / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(SITECUSTOMIZE.format(path=os.path.abspath(_compared.__file__)), encoding="utf-8")
        own = {name: value for name, value in os.environ.items() if not OF_A_RANK.match(name)}
        self.environment = {**own, "PYTHONPATH": os.pathsep.join(filter(None, (str(hooks), own.get("PYTHONPATH"))))}

    def order(self, number):
        """The configurations, from another one on in each round."""
        all_of_them = self.options.configurations
        shift = max(1, len(all_of_them) // self.options.rounds) * number % len(all_of_them)
        return all_of_them[shift:] + all_of_them[:shift]

    def run(self, which, number):
        """Raises Failure."""
        stem = f"{which.name.replace('/', '-')}-{number + 1}"
        folder = self.folder / stem
        folder.mkdir()
        log = self.options.out / f"{stem}.log"
        orders = {"backend": which.backend, "steps": self.options.steps or 0, "folder": str(folder)}
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self.options.workers}", "--rdzv-backend=c10d",
                   "--rdzv-endpoint=127.0.0.1:0", "--max-restarts=0", *self.options.script]
        with open(log, "wb") as file:
            code = self.wait_for(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={
                **self.environment, **which.variables(), _compared.ORDERS: json.dumps(orders)}))
        results = [json.loads(path.read_text("utf-8")) if path.exists() else None
                   for path in (_compared.result_path(folder, rank) for rank in range(self.options.workers))]
        check_run(code, results, self.options, log)
        if code != 0:
            say(f"(ended with exit code {code} after its last step; see {log}) ", end="")
        return round_of(results, self.options)

    @staticmethod
    def wait_for(process):
        try:
            return process.wait()
        finally:
            if process.poll() is None:  # interrupted: torchrun ends its ranks
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def check_run(code, results, options, log):
    """Raises Failure unless all ranks have left the times of enough steps."""
    script = " ".join(options.script[:2] if options.script[0].startswith("-") else options.script[:1])
    found = [result for result in results if result is not None]
    # One that was ended after its steps may well fail where it tidies up: it has not come to its own end.
    ended = len(found) == len(results) and all(result["stopped"] for result in found)
    if code != 0 and not ended:
        tail = tail_of(log)
        failed = FAILED_LINE.search(log.read_text("utf-8", "replace"))
        errors = sorted((*result["error"], result["rank"]) for result in found if result["error"] is not None)
        if errors:
            _, text, rank = errors[0]
            raise Failure(f"rank {rank} of {script} failed: {text}; see {log}", tail)
        how = f"rank {failed[2]} of {script} ended with exit code {failed[1]}" if failed else f"torchrun ended with exit code {code}"
        raise Failure(f"{how}; see {log}", tail)
    if len(found) < len(results):
        missing = next(rank for rank, result in enumerate(results) if result is None)
        raise Failure(f"rank {missing} of {script} ended in a way that ran no exit handlers; --steps ends it before; see {log}",
                      tail_of(log))
    for result in found:
        if result["groups"] == 0:
            raise Failure(f"{script}: expected a call of torch.distributed.init_process_group(), found none in rank {result['rank']}; "
                          f"see {log}", hopeless=True)
        if result["steps"] <= options.warmup_steps:
            steps = "none" if result["steps"] == 0 else str(result["steps"])
            raise Failure(f"{script}: expected more than --warmup_steps={options.warmup_steps} steps of an optimizer of torch.optim, "
                          f"found {steps} in rank {result['rank']}; see {log}", hopeless=True)


def round_of(results, options):
    hashes = [result["params_sha256"] for result in results]
    if len(set(hashes)) > 1:  # parts of the model, or a model of its own on each rank
        hashes = [hashlib.sha256(" ".join(hashes).encode()).hexdigest()]
    slowest = [max(times) for times in zip(*(result["step_ms"] for result in results))]
    first = results[0]
    # The first step has no begin.
    return Round(slowest[options.warmup_steps - 1:], min(result["steps"] for result in results), hashes[0], first["device"],
                 first["threads"], first["asked"], first["torch"])


def tail_of(log):
    """The end of what the script has said, without torchrun's own lines."""
    lines = []
    for line in log.read_text("utf-8", "replace").splitlines():
        if FAILED_LINE.match(line):
            break
        if line.strip() and not TORCHRUN_LINE.match(line):
            lines.append(line)
    return "\n".join("  | " + line for line in lines[-LINES_OF_TAIL:])


# ---- All of it


def say(text, end="\n"):
    print(text, end=end, file=sys.stderr, flush=True)


def complain(text):
    say(f"compare: {text}")


def measure(options, runs):
    """(name to rounds of what has not failed, whether something has). What is left out has failed in an earlier round."""
    measured = {each.name: [] for each in options.configurations}
    count = 0
    for number in range(options.rounds):
        for which in runs.order(number):
            count += 1
            say(f"[{count}/{options.rounds * len(options.configurations)}] {which.name}, round {number + 1} of {options.rounds}: ", end="")
            if which.name not in measured:
                say("left out, since it failed")
                continue
            try:
                found = runs.run(which, number)
            except Failure as failure:
                say("failed")
                complain(f"{which.name}: {failure}")
                if failure.tail:
                    say(failure.tail)
                del measured[which.name]
                if failure.hopeless:
                    return {}, True
                continue
            say(f"{found.median:.2f} ms per step")
            measured[which.name].append(found)
    return measured, len(measured) < len(options.configurations)


def report(measured, options, command):
    """Prints and writes; returns whether the bits are as they must be."""
    first = next(iter(measured.values()))[0]
    print(f"{' '.join(options.script)}: {options.workers} workers, PyTorch {first.torch}, {first.device}, {first.threads} "
          f"thread{'' if first.threads == 1 else 's'} each, {options.rounds} round{'' if options.rounds == 1 else 's'}\n{table(measured)}")
    lines, agree = verdict(measured, options)
    print("\n".join("  " + line for line in lines))
    text = json.dumps(records_of(measured, options, command), indent=1) + "\n"
    for path in filter(None, (options.out / "compare.json", options.json)):
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return agree


@contextlib.contextmanager
def signals_end_it():
    def end(number, _):
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(command=None) -> int:
    command = sys.argv[1:] if command is None else command
    try:
        options = options_of(command)
        check_installed(options)
        make_writable(options)
    except BadInput as error:
        complain(error)
        return 2
    try:
        with signals_end_it(), tempfile.TemporaryDirectory(prefix="gradsync-compare-") as folder:
            measured, failed = measure(options, Runs(options, pathlib.Path(folder)))
    except Ended as ended:
        say("")
        complain("interrupted")
        return 128 + ended.number
    agree = report(measured, options, command) if measured else True
    return 1 if failed or not agree else 0


if __name__ == "__main__":
    sys.exit(main())

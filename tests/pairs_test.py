#!/usr/bin/env python3
"""All pairs of a way to run a job and a feature: each trains as one worker does, or is refused before the first step.

A way is a topology, link, update site, level of ZeRO, mesh, and number of replicas or stages in a process; a feature is a
start from weights, a checkpoint, an average, an evaluation, accumulation, synchronised BatchNorm, a compression or a
precision. For each pair a job of real processes is started. It must end with exit code 0, equal parameters on all ranks,
and the losses and evaluations of one worker with batches of the same samples, within the rounding that FEATURES states; or
with exit code 2 before the first step and one line on each process that names a flag. Everything else is a silent fault.

From the root of the repository, after `bazel build //worker //ps_server //tools:launch`:

    tests/pairs_test.py                    # the pairs that CI tries
    tests/pairs_test.py --all              # also those that differ from them in several respects
    tests/pairs_test.py --only='pipeline.*x init_from'
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

BIN = pathlib.Path(".") if os.path.exists("tools/launch") else pathlib.Path("bazel-bin")
PATIENCE = 400  # seconds, on a machine that does other things too
BATCH = 8   # samples of a step, of all workers together
STEPS = 7   # into the second epoch: of 44 samples the sixth step of an epoch has four
ROUNDING = 1e-5  # relative: sums in another order

IMAGES = ["--model=mlp", "--data=imagefolder:{data}/images", "--image_size=8", "--crop=padded"]
TOKENS = ["--model=gpt", "--data=text:{data}/text", "--gpt_width=16", "--gpt_layers=2", "--gpt_heads=2", "--gpt_context=8",
          "--dropout=0"]
RESNET = ["--model=resnet18", "--stem=cifar", "--data=imagefolder:{data}/images", "--image_size=8", "--crop=padded"]
# Several buckets and chunks even of a small model.
COMMON = ["--lr=0.1", "--threads=1", "--log_every=1", "--bucket_bytes=8KiB", "--first_bucket_bytes=2KiB", "--chunk_bytes=1KiB",
          "--timeout=60s"]


@dataclasses.dataclass(frozen=True)
class Way:
    """How a job runs. `replicas`: ranks that train on samples of their own."""
    name: str
    flags: tuple = ()
    workers: int = 1
    servers: int = 0
    replicas: int = 1
    ci: bool = False       # one of those by which CI tries each value of each dimension
    tokens: bool = False   # has no slices of an MLP
    apart: bool = False    # workers train by themselves, so nothing is trained: the learning rate is 0


def ways():
    def way(name, *flags, **more):
        return Way(name, tuple(flags), **more)

    def topologies():
        yield "ring", ("--topology=ring",), 0
        yield "ps, servers", ("--topology=ps",), 2
        yield "ps, in workers", ("--topology=ps",), 0

    yield way("one worker", ci=True)
    yield way("local, two workers", workers=2, replicas=2, ci=True, apart=True)
    for topology, flags, servers in topologies():
        for link in ("grpc", "tcp", "shm", "gloo"):
            for update in ("worker", "owner"):
                yield way(f"{topology}, {link}, {update}", *flags, f"--link={link}", f"--update={update}", workers=2,
                          servers=servers, replicas=2, ci=(link, update) in (("grpc", "worker"), ("tcp", "owner"))
                          or (topology, link, update) in (("ring", "shm", "worker"), ("ring", "gloo", "worker")))
        for zero in (1, 2, 3):
            yield way(f"{topology}, zero={zero}", *flags, f"--zero={zero}", workers=2, servers=servers, replicas=2,
                      ci=topology == "ring" or zero == 3)
            yield way(f"{topology}, grpc, zero={zero}", *flags, "--link=grpc", f"--zero={zero}", workers=2, servers=servers,
                      replicas=2)
    for parts, tokens in (("pipeline", False), ("tensor", True)):
        yield way(f"{parts}=2", f"--mesh={parts}=2", workers=2, ci=True, tokens=tokens)
        for topology, flags, servers in topologies():
            for link in ("auto", "tcp"):
                for update in ("worker", "owner"):
                    yield way(f"data=2,{parts}=2, {topology}, {link}, {update}", f"--mesh=data=2,{parts}=2", *flags,
                              f"--link={link}", f"--update={update}", workers=4, servers=servers, replicas=2, tokens=tokens,
                              ci=(topology, link, update) == ("ring", "auto", "worker"))
        yield way(f"shard=2,{parts}=2, ring, zero=1", f"--mesh=shard=2,{parts}=2", "--topology=ring", "--zero=1", workers=4,
                  replicas=2, tokens=tokens)
    for zero in (1, 2, 3):
        for topology, flags, servers in topologies():
            yield way(f"shard=2, {topology}, zero={zero}", "--mesh=shard=2", *flags, f"--zero={zero}", workers=2,
                      servers=servers, replicas=2, ci=(topology, zero) == ("ring", 2))
        yield way(f"data=2,shard=2, ring, zero={zero}", "--mesh=data=2,shard=2", "--topology=ring", f"--zero={zero}",
                  workers=4, replicas=4, ci=zero == 3)
    for inside in ("data_parallel", "model_parallel"):
        yield way(f"{inside}=2", f"--{inside}=2", ci=True)
        for topology, flags, servers in topologies():
            for update in ("worker", "owner"):
                yield way(f"{inside}=2, {topology}, {update}", *flags, f"--{inside}=2", f"--update={update}", workers=2,
                          servers=servers, replicas=2)
        yield way(f"{inside}=2, ring, zero=1", "--topology=ring", f"--{inside}=2", "--zero=1", workers=2, replicas=2)


@dataclasses.dataclass(frozen=True)
class Feature:
    """`flags` of the job and of the one worker with which it is compared."""
    name: str = dataclasses.field(default="", compare=False)
    flags: tuple = ()
    alone: tuple = None        # of the one worker, where they are others
    rounding: float = ROUNDING
    batches: int = 1           # that each worker has of a step
    model: tuple = ()          # instead of the way's
    steps: int = STEPS
    still: bool = False        # with a learning rate of 0 parameters must end as they began: equal hashes
    own_moments: bool = False  # losses are by the moments of each worker's batch, so only parameters are compared
    matters: bool = False      # that it has an effect is seen by parameters with other bits alone
    resume: str = ""           # from whose checkpoint the job goes on, if from any
    unseen: bool = False       # the weights' file is gone when the ranks after 0 start
    ci: bool = dataclasses.field(default=True, compare=False)


HALF = 2e-2    # relative: products of 8 bits of mantissa
COARSE = 1e-2  # gradients of 8 or 11 bits
MOMENTS = 1e-3  # of 20 layers with BatchNorm

# --init_from reached rank 0's part of the model alone: other stages, slices, and workers by themselves trained from weights
# of their own, with exit code 0.
WEIGHTS = "--init_from={weights}/latest/model.pt"
FEATURES = [
    Feature("nothing"),
    Feature("init_from .pt", (WEIGHTS,), matters=True),
    Feature("init_from .safetensors, lr=0", ("--init_from={weights}/latest/model.safetensors", "--lr=0"), still=True),
    Feature("init_from, BatchNorm, lr=0", (WEIGHTS, "--lr=0"), model=tuple(RESNET), steps=2, still=True, own_moments=True),
    Feature("init_from of rank 0 alone, lr=0", (WEIGHTS, "--lr=0"), still=True, unseen=True),
    Feature("resume", resume="own"),
    Feature("resume from a ring's", resume="ring"),
    Feature("init_from and resume", (WEIGHTS,), resume="own", ci=False),
    Feature("ema", ("--ema_decay=0.9",)),
    Feature("ema and resume", ("--ema_decay=0.9",), resume="own", ci=False),
    Feature("evaluate_every", ("--evaluate_every=3",)),
    Feature("evaluate_only", (WEIGHTS, "--evaluate_only")),
    Feature("checkpoint_best", ("--checkpoint={new}", "--checkpoint_every=3", "--checkpoint_best"), ci=False),
    Feature("accumulate", ("--accumulate=2",), batches=2),
    Feature("micro_batches", ("--micro_batches=2",), ("--accumulate=2",), batches=2, ci=False),
    # From nothing and at the others' learning rate running moments are so far from the batch's that the evaluation's loss is
    # hundreds, and magnifies rounding.
    Feature("sync_batchnorm", ("--sync_batchnorm", "--lr=0.001"), model=tuple(RESNET), steps=2, rounding=MOMENTS, ci=False),
    Feature("sync_batchnorm and init_from", ("--sync_batchnorm", WEIGHTS), model=tuple(RESNET), steps=2, rounding=MOMENTS),
    Feature("compression=fp16", ("--compression=fp16",), (), COARSE, matters=True),
    Feature("compression=bf16", ("--compression=bf16",), (), COARSE, matters=True, ci=False),
    Feature("compression=topk", ("--compression=topk:1",), ()),
    Feature("compression=topk and resume", ("--compression=topk:0.3",), (), rounding=1, resume="own", matters=True,
            ci=False),
    Feature("precision=bf16", ("--precision=bf16",), rounding=HALF, matters=True),
    Feature("precision=fp16", ("--precision=fp16",), rounding=HALF),
]


class Fault(Exception):
    pass


class Refused(Exception):
    pass


@dataclasses.dataclass
class Result:
    losses: list     # by step, the mean over ranks
    figures: dict    # what was evaluated
    hash: str        # of the parameters


def png(pixels, side):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + pixels[3 * side * y:3 * side * (y + 1)] for y in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_data(folder):
    """44 images to train on, 33 to evaluate, of three classes that differ; and a text of 44 samples and some to evaluate."""
    state = 1
    for split, count in (("train", 44), ("val", 33)):
        for i in range(count):
            label = i % 3
            pixels = bytearray()
            for at in range(8 * 8 * 3):
                state = state * 1103515245 + 12345 & 0x7fffffff
                pixels.append(min(255, (state >> 16) % 160 + (90 if at % 3 == label else 0)))
            path = folder / "images" / split / f"class{label}" / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(bytes(pixels), 8))
    (folder / "text").write_text("".join(chr(97 + (i * i + 3 * i) % 23) for i in range(400)))


class Lab:
    def __init__(self, folder):
        self.folder = folder
        self.numbers = itertools.count()
        make_data(folder)

    def new_folder(self, what):
        path = self.new(what)
        path.mkdir()
        return path

    def new(self, what):
        return self.folder / f"{what}{next(self.numbers)}"

    def run(self, way, flags):
        """Runs a job; its result, or Refused or Fault."""
        records = self.new_folder("records")
        argv = [str(BIN / "tools/launch"), f"--workers={way.workers}", f"--servers={way.servers}", "--timeout=60s", "--",
                *flags, f"--metrics_json={records}/{{rank}}.json"]
        try:
            job = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Fault(f"still runs after {PATIENCE} s") from None
        said = [line for line in job.stderr.splitlines() if line.startswith("[worker")]
        if job.returncode == 2:
            check_refusal(job.stdout, said)
        if job.returncode != 0:
            raise Fault(f"exit code {job.returncode}: {' / '.join(said[:2])}")
        return read_records(records, way)

    def run_apart(self, way, flags):
        """The same for a way without servers. The file with weights is removed when rank 0 has read it."""
        folder = self.new_folder("apart")
        seen = folder / "model.pt"
        port_file = folder / "port"
        ranks = []

        def start(rank, master):
            log = open(folder / f"{rank}.log", "w", encoding="utf-8")
            return subprocess.Popen([BIN / "worker/worker", f"--rank={rank}", f"--world_size={way.workers}", f"--master={master}",
                                     f"--port_file={port_file if rank == 0 else ''}", f"--metrics_json={folder}/{rank}.json",
                                     *flags], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

        weights = pathlib.Path(next(flag for flag in flags if flag.startswith("--init_from=")).split("=")[1])
        shutil.copy(weights, seen)
        flags = [f"--init_from={seen}" if flag.startswith("--init_from=") else flag for flag in flags]
        try:
            ranks.append(start(0, "127.0.0.1:0"))
            deadline = time.monotonic() + PATIENCE
            while not port_file.exists() and ranks[0].poll() is None and time.monotonic() < deadline:
                select.select([], [], [], 0.01)
            seen.unlink()
            for rank in range(1, way.workers):
                ranks.append(start(rank, port_file.read_text().strip() if port_file.exists() else "127.0.0.1:1"))
            codes = [rank.wait(timeout=PATIENCE) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise Fault(f"still runs after {PATIENCE} s") from None
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if set(codes) == {2}:
            logs = [(folder / f"{rank}.log").read_text() for rank in range(way.workers)]
            check_refusal("".join(f"[worker {rank}] {line}\n" for rank, log in enumerate(logs) for line in log.splitlines()),
                          [f"[worker {rank}] {line}" for rank, log in enumerate(logs) for line in log.splitlines()
                           if line.startswith("worker: ")])
        if any(codes):
            raise Fault(f"exit codes {codes}: {(folder / '0.log').read_text().strip().splitlines()[-1]}")
        return read_records(folder, way)


def check_refusal(out, said):
    if re.search(r"\] step \d+/", out):
        raise Fault(f"refused after a step: {said}")
    naming = [line for line in said if re.search(r"--\w+: |--\w+=", line)]
    ranks = collections.Counter(line.split("]")[0] for line in said)
    if not naming or max(ranks.values()) > 1:
        raise Fault(f"refused in other words than one line that names a flag: {said}")
    raise Refused(re.sub(r"^\[worker \d+\]\s*worker: (INVALID_ARGUMENT: )?", "", naming[0]))


def read_records(folder, way):
    records = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(way.workers)]
    hashes = {record["params_sha256"] for record in records}
    if len(hashes) != 1:
        raise Fault(f"parameters differ between ranks: {sorted(hashes)}")
    losses = [sum(step) / len(records) for step in zip(*(record.get("loss", []) for record in records))]
    figures = {}
    for key in ("test_loss", "test_accuracy", "weights_test_loss", "weights_test_accuracy"):
        if records[0].get(key):
            figures[key] = records[0][key]
    for point in records[0].get("accuracy_curve", []):
        figures[f"accuracy of step {point.get('step')}"] = point.get("accuracy", 0)
    return Result(losses, figures, hashes.pop())


class Pairs:
    def __init__(self, lab):
        self.lab = lab

    def flags(self, way, feature, alone=False, steps=None):
        flags = list(feature.model or (TOKENS if way.tokens else IMAGES)) + COMMON
        flags.append(f"--batch_size={BATCH // feature.batches // (1 if alone else way.replicas)}")
        flags.append(f"--steps={steps or feature.steps}")
        flags.append("--evaluate")
        if not alone:
            flags += way.flags
        flags += feature.flags if not alone or feature.alone is None else feature.alone
        if way.apart:
            flags.append("--lr=0")
        model = "resnet" if feature.model else "gpt" if way.tokens else "mlp"
        at = {"data": self.lab.folder, "weights": self.lab.folder / f"weights_{model}"}
        if "--checkpoint={new}" in flags:
            at["new"] = self.lab.new("checkpoints")
        return [flag.format(**at) for flag in flags]

    def make_weights(self, model, flags):
        """Of another seed, and trained, so that running statistics are not the first ones either."""
        self.lab.run(Way("weights"), [flag.format(data=self.lab.folder) for flag in flags] +
                     ["--batch_size=8", "--steps=2", "--lr=0.05", "--seed=7",
                      f"--checkpoint={self.lab.folder}/weights_{model}"])

    @functools.lru_cache(maxsize=None)
    def one_worker(self, feature, tokens, apart):
        return self.lab.run(Way("one worker"), self.flags(Way("one worker", tokens=tokens, apart=apart), feature, alone=True))

    @functools.lru_cache(maxsize=None)
    def ring_checkpoint(self, workers, batch, tokens):
        """Of step 3 by a ring of so many workers."""
        folder = self.lab.new("ring")
        way = Way("ring", ("--topology=ring", "--link=grpc") if workers > 1 else (), workers=workers, replicas=BATCH // batch,
                  tokens=tokens)
        self.lab.run(way, self.flags(way, Feature("ring"), steps=3) + [f"--checkpoint={folder}"])
        return folder

    @functools.lru_cache(maxsize=None)
    def whole(self, way, feature):
        """Of the job that is not resumed."""
        if feature.unseen:
            return self.lab.run_apart(way, self.flags(way, feature))
        return self.lab.run(way, self.flags(way, feature))

    def result_of(self, way, feature):
        if not feature.resume:
            return self.whole(way, feature)
        if feature.resume == "ring":
            start = self.ring_checkpoint(way.workers, BATCH // way.replicas, way.tokens)
            rest = self.lab.run(way, self.flags(way, feature) + [f"--resume={start}"])
        else:
            folder = self.lab.new("checkpoints")
            checkpoint = [f"--checkpoint={folder}"]
            self.lab.run(way, self.flags(way, feature, steps=3) + checkpoint)
            rest = self.lab.run(way, self.flags(way, feature) + checkpoint + ["--resume=auto"])
        whole = self.whole(way, dataclasses.replace(feature, resume=""))
        if rest.hash != whole.hash:
            raise Fault("a resumed job ends with other parameters than one that was not stopped")
        if rest.figures != whole.figures:
            raise Fault(f"a resumed job evaluates otherwise: {rest.figures}, not {whole.figures}")
        if rest.losses != whole.losses[3:]:
            raise Fault(f"a resumed job has other losses: {rest.losses}, not {whole.losses[3:]}")
        return whole

    def judge(self, way, feature):
        found = self.result_of(way, feature)
        expected = self.one_worker(dataclasses.replace(feature, resume=""), way.tokens, way.apart)
        if feature.matters and not way.apart and found.hash == self.whole(way, FEATURES[0]).hash:
            raise Fault("has no effect")
        if (feature.still or way.apart) and found.hash != expected.hash:
            raise Fault("at a learning rate of 0 the parameters are others than one worker's")
        if feature.own_moments and (way.replicas > 1 or "--data_parallel=2" in way.flags):
            return
        if len(found.losses) != len(expected.losses):
            raise Fault(f"{len(found.losses)} losses, one worker has {len(expected.losses)}")
        for step, (here, there) in enumerate(zip(found.losses, expected.losses), 1):
            if not abs(here - there) <= feature.rounding * abs(there):
                raise Fault(f"loss of step {step} {here:.7g}, one worker has {there:.7g}")
        if found.figures.keys() != expected.figures.keys():
            raise Fault(f"evaluated {sorted(found.figures)}, one worker has {sorted(expected.figures)}")
        for name, there in expected.figures.items():
            here = found.figures[name]
            # A sample whose two best classes are a rounding apart counts otherwise: one of 33, and up to five where logits
            # have 8 or 11 bits; the loss is what says that it is the same model.
            # What drops most of the gradients trains otherwise; such a job is compared with itself, resumed.
            flips = 33 if feature.rounding >= 1 else 5 if feature.rounding >= HALF else 1
            allowed = (flips + 0.5) / 33 if "ccuracy" in name else feature.rounding * abs(there)
            if not abs(here - there) <= allowed:
                raise Fault(f"{name} {here:.7g}, one worker has {there:.7g}")

    def try_pair(self, way, feature):
        start = time.monotonic()
        try:
            self.judge(way, feature)
            verdict, why = "trained", ""
        except Refused as refusal:
            verdict, why = "refused", str(refusal)
        except Fault as fault:
            verdict, why = "FAULT", str(fault)
        return verdict, why, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all pairs, not only those of CI")
    parser.add_argument("--only", default="", help="pairs whose name, WAY x FEATURE, has this regular expression")
    parser.add_argument("--jobs", type=int, default=2, help="pairs tried at a time")
    options = parser.parse_args()
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        pathlib.Path(os.environ["TEST_SHARD_STATUS_FILE"]).touch()
    shard, shards = int(os.environ.get("TEST_SHARD_INDEX", 0)), int(os.environ.get("TEST_TOTAL_SHARDS", 1))
    # By way, since pairs of a way are compared with the same job.
    chosen = [way for way in ways() if way.ci or options.all][shard::shards]
    pairs = [(way, feature) for way in chosen for feature in FEATURES
             if (feature.ci or options.all) and not (feature.unseen and (way.servers or way.workers == 1)) and
             re.search(options.only, f"{way.name} x {feature.name}")]
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        tried = Pairs(Lab(pathlib.Path(temporary)))
        for model, flags in (("mlp", IMAGES), ("gpt", TOKENS), ("resnet", RESNET)):
            tried.make_weights(model, flags)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            results = pool.map(lambda pair: tried.try_pair(*pair), pairs)
            for (way, feature), (verdict, why, seconds) in zip(pairs, results):
                counts[verdict] += 1
                print(f"{verdict:8}{seconds:5.1f} s  {way.name} x {feature.name}{': ' if why else ''}{why}", flush=True)
    print(f"{len(pairs)} pairs: {counts['trained']} trained, {counts['refused']} refused, {counts['FAULT']} faults")
    return 1 if counts["FAULT"] or not pairs else 0


if __name__ == "__main__":
    sys.exit(main())

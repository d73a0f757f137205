#!/usr/bin/python3
"""Stages of a model measured beside what theory and the simulator say of them. Paste:

  bazel run -c opt //benchmarks:mesh_study -- --out=mesh_study
  bazel run -c opt //benchmarks:mesh_study -- --out=quick --studies=bubble --counts=1,4 --steps=3

Into the folder OUT go records, each unless it is there already, of the same flags, and into summary.txt what is printed. What
`train_bench` calls invalid, because the machine was too busy, is counted and left out:

  bubble     share of all ranks' time in which they neither compute nor update, against the number of micro-batches: two
             stages computed here, four replayed from recorded times; equal stages and unequal ones
  schedules  1f1b beside gpipe on slow links, between sockets with Linux's own buffers and with the emulated hosts' small ones
  memory     most bytes of tensors on the rank that has most, of both schedules, with and without checkpointing
  advice     --draws jobs drawn by --seed, on all their meshes: how much slower than the fastest is the one that predict
             --advise would choose

All of it takes two hours on two cores, on which nothing else should run. Needs what `train_bench --bandwidth` needs
(docs/compare/netlab.md). Exit codes: 0; 1 when a program failed; 2 for bad flags.
"""
import argparse
import itertools
import os
import random
import re
import sys

from study import Failed, numbers, of_same_flags, out_folder, percentile, read_json, run, said, why_invalid

STUDIES = ("bubble", "schedules", "memory", "advice")
SCHEDULES = ("gpipe", "1f1b")

# Layers that take equally long, but for the first and the last block, which take next to nothing.
MODEL = ("--model=gpt", "--gpt_layers=8", "--gpt_width=256", "--gpt_heads=4", "--gpt_context=64")
SAMPLES = 8  # of a micro-batch

# Blocks before which stages begin: equal stages, and some of which the last has most to do.
SPLITS = {2: {"equal": "5", "unequal": "3"}, 4: {"equal": "3,5,7", "unequal": "2,3,5"}}

# Of TCP: Linux's own, which grow as they are used, and those that emulated hosts have, which keep queues short.
BUFFERS = {"linux": ("--tcp_rmem=4096 131072 6291456", "--tcp_wmem=4096 16384 4194304"), "128KiB": ()}


def parse(argv):
    parser = argparse.ArgumentParser(prog="mesh_study", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for all files")
    parser.add_argument("--studies", default=",".join(STUDIES), help="which: some of " + ", ".join(STUDIES))
    parser.add_argument("--counts", type=numbers, default=[1, 2, 4, 8, 16, 32], help="of micro-batches, for the bubble")
    parser.add_argument("--steps", type=int, default=6, help="of each measurement, the first of which does not count")
    parser.add_argument("--bandwidths", default="20mbit,50mbit,100mbit,400mbit", help="of the slow links")
    parser.add_argument("--draws", type=int, default=20, help="jobs for the advice")
    parser.add_argument("--seed", type=int, default=1, help="of the draws")
    args = parser.parse_args(argv)
    args.studies = args.studies.split(",")
    unknown = [name for name in args.studies if name not in STUDIES]
    if unknown:
        parser.error(f"argument --studies: expected some of {', '.join(STUDIES)}, found {unknown[0]!r}")
    for flag, least in (("steps", 2), ("draws", 1)):
        if getattr(args, flag) < least:
            parser.error(f"argument --{flag}: expected at least {least}, found {getattr(args, flag)}")
    return args


class Study:
    def __init__(self, args):
        self.args = args
        self.lines = []

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def path(self, name):
        return os.path.join(self.args.out, name)

    def steps(self):
        return (f"--steps={self.args.steps}", "--warmup_steps=1")

    def profile(self):
        path = self.path("profile.json")
        if not os.path.exists(path):
            run("benchmarks/train_bench", f"--record={path}", *MODEL, "--threads=1", f"--batch_size={SAMPLES}", *self.steps())
        return path

    def replay(self, name, *flags):
        """Pairs of runs and predictions; says how many are invalid, and leaves them out."""
        path = self.path(f"{name}.json")
        if not os.path.exists(path):
            partial = self.path("partial.json")
            run("benchmarks/train_bench", *flags, *self.steps(), f"--json={partial}")
            os.replace(partial, path)
        records = read_json(path)
        for line in why_invalid(records["runs"]):
            self.say(line)
        return [pair for pair in zip(records["runs"], records["predictions"]) if not pair[0]["invalid"]]

    def compute(self, name, *flags):
        """Metrics of the ranks of a job of two stages on this machine."""
        paths = [self.path(f"{name}_{rank}.json") for rank in range(2)]
        if not all(os.path.exists(path) for path in paths):
            run("tools/launch", "--workers=2", "--", "--mesh=pipeline=2", *MODEL, "--threads=1", f"--batch_size={SAMPLES}",
                *self.steps(), *flags, "--metrics_json=" + self.path(f"{name}_{{rank}}.json"))
        return [read_json(path) for path in paths]

    # ---- the bubble --------------------------------------------------------------------------------------------------------

    def predicted(self, stages, split):
        """Of each schedule and number of micro-batches, on links that take no time to speak of."""
        path = self.path(f"predicted_{stages}_{split.replace(',', '_')}.json")
        if not os.path.exists(path):
            run("benchmarks/predict", f"--profile={self.profile()}", f"--mesh=pipeline={stages}", f"--split={split}",
                f"--pipeline_schedule={','.join(SCHEDULES)}", "--micro_batches=" + ",".join(map(str, self.args.counts)),
                "--bandwidth=100gbit", f"--json={path}")
        return {(made["pipeline_schedule"], made["micro_batches"]): made["bubble_share"] for made in read_json(path)["predictions"]}

    def bubble(self):
        self.say("bubble: share of all ranks' time; theory is (p - 1) / (m + p - 1), of equal stages and free links")
        self.say("stages              micro-batches  schedule  measured  simulator  theory")
        errors = []
        for stages, kind, split, measured in (*self.computed_bubbles(), *self.replayed_bubbles()):
            predicted = self.predicted(stages, split)
            for (schedule, count), share in measured.items():
                theory = (stages - 1) / (count + stages - 1)
                errors.append(abs(share - predicted[schedule, count]))
                self.say(f"{stages} {kind:17} {count:13}  {schedule:8}  {share:8.1%}  {predicted[schedule, count]:9.1%}  "
                         + (f"{theory:6.1%}" if kind.startswith("equal") else "      "))
        self.say(f"measured from simulated: median {100 * percentile(errors, 0.5):.1f}, worst {100 * max(errors):.1f} points")

    def computed_bubbles(self):
        for kind, split in SPLITS[2].items():
            measured = {}
            for schedule in SCHEDULES:
                for count in self.args.counts:
                    ranks = self.compute(f"bubble_{kind}_{schedule}_{count}", f"--split={split}",
                                         f"--pipeline_schedule={schedule}", f"--micro_batches={count}")
                    waited = sum(sum(rank["exposed_ms"]) for rank in ranks)  # for neighbours, too
                    measured[schedule, count] = waited / sum(sum(rank["step_ms"]) for rank in ranks)
            yield 2, f"{kind}, computed", split, measured

    def replayed_bubbles(self):
        step = read_json(self.profile())
        # What is replayed are the blocks, whose times were recorded one by one and add up to about those of the step.
        micro_batch = sum(block["forward_us"] + block["backward_us"] for block in step["blocks"])
        for kind, split in SPLITS[4].items():
            pairs = self.replay(f"bubble_{kind}_replayed", f"--replay={self.profile()}", "--topology=ring", "--mesh=pipeline=4",
                                f"--split={split}", f"--pipeline_schedule={','.join(SCHEDULES)}", "--bandwidth=10gbit",
                                "--micro_batches=" + ",".join(map(str, self.args.counts)))
            measured = {}
            for made, _ in pairs:
                count = made["micro_batches"]
                busy = count * micro_batch + step["update_us"]
                measured[made["pipeline_schedule"], count] = 1 - 1e-3 * busy / (4 * made["step_ms_p50"])
            yield 4, f"{kind}, replayed", split, measured

    # ---- schedules on slow links -------------------------------------------------------------------------------------------

    def schedules(self):
        self.say("schedules on slow links: time of gpipe over that of 1f1b, of medians and as predicted")
        self.say("buffers  stages  bandwidth  micro-batches  measured  predicted")
        for buffers, stages in itertools.product(BUFFERS, SPLITS):
            pairs = self.replay(f"schedules_{buffers}_{stages}", f"--replay={self.profile()}", "--topology=ring",
                                f"--mesh=pipeline={stages}", f"--split={SPLITS[stages]['equal']}", "--micro_batches=4,8,16",
                                f"--pipeline_schedule={','.join(SCHEDULES)}", f"--bandwidth={self.args.bandwidths}",
                                *BUFFERS[buffers])
            least = None
            found = {(made["pipeline_schedule"], made["bandwidth"], made["micro_batches"]): (made["step_ms_p50"], predicted["step_ms_p50"])
                     for made, predicted in pairs}
            for (schedule, bandwidth, count), times in found.items():
                if schedule != "gpipe" or ("1f1b", bandwidth, count) not in found:
                    continue
                ratios = [of_gpipe / of_1f1b for of_gpipe, of_1f1b in zip(times, found["1f1b", bandwidth, count])]
                least = min(least or ratios[0], ratios[0])
                self.say(f"{buffers:7}  {stages:6}  {bandwidth:>9}  {count:13}  {ratios[0]:8.3f}  {ratios[1]:9.3f}")
            if least is not None:
                self.say(f"least {least:.3f}")

    # ---- memory ------------------------------------------------------------------------------------------------------------

    def memory(self):
        self.say("memory: MB of tensors but parameters and gradients, most at once, of 8 micro-batches in 2 stages; and, as "
                 "predicted, of activations")
        self.say("schedule  checkpointing  stage 0  stage 1  predicted, most")
        for schedule in ("naive", *SCHEDULES):
            for checkpointing in ("false", "true"):
                common = (f"--pipeline_schedule={schedule}", "--micro_batches=8", f"--split={SPLITS[2]['equal']}",
                          f"--activation_checkpointing={checkpointing}")
                ranks = self.compute(f"memory_{schedule}_{checkpointing}", *common)
                path = self.path(f"memory_{schedule}_{checkpointing}_predicted.json")
                if not os.path.exists(path):
                    run("benchmarks/predict", f"--profile={self.profile()}", "--mesh=pipeline=2", *common, f"--json={path}")
                predicted = read_json(path)["predictions"][0]["activation_bytes"]
                peaks = "  ".join(f"{1e-6 * rank['peak_tensor_bytes']:7.1f}" for rank in ranks)
                self.say(f"{schedule:8}  {checkpointing:13}  {peaks}  {1e-6 * predicted:15.1f}")

    # ---- advice ------------------------------------------------------------------------------------------------------------

    def advised_profiles(self, model):
        """Of a model whose advice is asked for; meshes with slices are those that it has profiles of."""
        if model == "vgg16":  # most of its parameters in three layers
            path = self.path("vgg16.json")
            if not os.path.exists(path):
                run("benchmarks/train_bench", f"--record={path}", "--model=vgg16", "--data=synthetic:64", "--threads=1",
                    f"--batch_size={SAMPLES}", *self.steps())
            return path
        slices = ("", "_tensor2", "_tensor4") if model == "gpt" else ("",)
        return ",".join(f"benchmarks/profiles/{model}{name}.json" for name in slices)

    def advised(self, name, *flags):
        """Mesh and topology, of the sentence that predict --advise prints."""
        path = self.path(f"{name}.txt")
        if not os.path.exists(path):
            sentence = said("benchmarks/predict", "--advise", *flags)
            with open(path, "w", encoding="utf-8") as file:
                file.write(sentence)
        with open(path, encoding="utf-8") as file:
            sentence = file.read()
        found = re.search(r" use ([a-z=0-9,]+?)(?: \([^)]*\))?, (ring|ps)\b", sentence)
        if found is None:
            raise Failed(f"predict --advise: expected a mesh, found {sentence!r}")
        return found.groups()

    def advice(self):
        self.say("advice: what predict --advise says, and how much longer it takes than the fastest mesh")
        self.say("job  model       workers  bandwidth  micro-batches  times    meshes  regret  advised")
        regrets, errors, spreads = [], [], []
        for job in range(self.args.draws):
            draw = random.Random(f"{self.args.seed}/{job}")
            model = draw.choice(("resnet18", "resnet50", "vgg16", "gpt"))
            workers = draw.choice((2, 3, 4, 6))
            bandwidth = round(50 * 40 ** draw.random())
            count = draw.choice((1, 2) if model == "gpt" else (2, 4, 8))  # of a worker's samples, which gpt has two of
            scale = draw.choice((1, 4, 16))
            topologies = "ring,ps" if workers <= 4 else "ring"
            profiles = self.advised_profiles(model)
            flags = ("--mesh=auto", f"--workers={workers}", f"--micro_batches={count}", f"--bandwidth={bandwidth}mbit",
                     f"--topology={topologies}", f"--servers={workers}", f"--compute_scale={scale}")
            pairs = self.replay(f"advice_{self.args.seed}_{job}", f"--replay={profiles}", *flags)
            mesh, topology = self.advised(f"advised_{self.args.seed}_{job}", f"--profile={profiles}", *flags)
            errors += [abs(predicted["step_ms_p50"] / made["step_ms_p50"] - 1) for made, predicted in pairs]
            rates = {(made["mesh"], made["topology"]): made["samples_per_s"] for made, _ in pairs}
            regret = "     -"  # where the advised mesh could not be measured
            if (mesh, topology) in rates:
                fastest = max(rates.values())
                spreads.append(fastest / min(rates.values()))
                regrets.append(fastest / rates[mesh, topology] - 1)
                regret = f"{regrets[-1]:6.1%}"
            self.say(f"{job:3}  {model:10}  {workers:7}  {bandwidth:5}mbit  {count:13}  x {scale:<5}  {len(pairs):6}  {regret}  "
                     f"{topology} {mesh}")
        if not regrets:
            raise Failed("no advised mesh could be measured")
        self.say(f"{len(errors)} measurements, from the simulator: median {percentile(errors, 0.5):.1%}, worst {max(errors):.1%}; the "
                 f"slowest mesh of a job took {min(spreads):.1f} to {max(spreads):.1f} times as long as the fastest")
        self.say(f"regret, of {len(regrets)} jobs: median {percentile(regrets, 0.5):.1%}, mean {sum(regrets) / len(regrets):.1%}, worst {max(regrets):.1%}")


def main(argv):
    args = parse(argv)
    study = Study(args)
    try:
        args.out = out_folder(args.out)
        # Jobs that are advised have a file each.
        of_same_flags(args.out, {name: value for name, value in vars(args).items() if name not in ("out", "studies", "draws")})
        for name in args.studies:
            getattr(study, name)()
            study.say()
    except (Failed, OSError) as error:
        print(f"mesh_study: {error}", file=sys.stderr)
        return 1
    with open(study.path("summary.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(study.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

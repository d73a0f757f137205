#!/usr/bin/python3
"""The published sweep over split sizes: ResNet-50 in two stages, cut after layer2, 120 images of 3x128x128 per step in
micro-batches of 1 to 60, and in one of all 120, which walks through one stage after the other. Paste:

  bazel run -c opt //benchmarks:split_sweep -- --out=split_sweep
  bazel run -c opt //benchmarks:split_sweep -- --out=quick --sizes=20,60 --bandwidths=1gbit --steps=3

Into the folder OUT it writes, the first three unless they are there already, so that an interrupted sweep goes on:

  profile_S.json   the step of a batch of S, recorded block by block
  computed_S.json  steps computed on this machine: in one process, not cut and with a thread for each stage, and in two
                   processes, one for each stage
  replayed_B.json  the recorded stages replayed on emulated hosts with links of B, with the simulator's prediction beside
                   each
  computed.json, replayed.json   those together
  computed.svg, replayed.svg   time of a step against split size; bars from the 10th to the 90th percentile
  summary.txt     what it prints at the end: times beside that of all images at once, and the predictions' errors, without
                  those of measurements that are invalid because the machine was too busy

All of it takes two hours on two cores, on which nothing else should run. Needs what `train_bench --bandwidth` needs
(docs/compare/netlab.md). Exit codes: 0; 1 when a program failed; 2 for bad flags.
"""
import argparse
import os
import sys

from study import Failed, numbers, of_same_flags, out_folder, percentile, read_json, run, why_invalid, write_json

SCHEDULES = ("gpipe", "1f1b")


def parse(argv):
    parser = argparse.ArgumentParser(prog="split_sweep", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for all files")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--pixels", type=int, default=128, help="images are so high and wide")
    parser.add_argument("--images", type=int, default=120, help="of a step")
    parser.add_argument("--split", type=int, default=8, help="the block before which the second stage begins")
    parser.add_argument("--sizes", type=numbers, default=[1, 3, 5, 8, 10, 12, 20, 40, 60, 120],
                        help="samples per micro-batch; numbers that divide the images of a step")
    parser.add_argument("--bandwidths", type=lambda text: text.split(","), default=["100mbit", "400mbit", "1gbit"],
                        help="of the emulated links")
    parser.add_argument("--steps", type=int, default=6, help="of each measurement, the first of which does not count")
    args = parser.parse_args(argv)
    if any(args.images % size for size in args.sizes):
        parser.error(f"argument --sizes: expected numbers that divide {args.images}, found {args.sizes}")
    if args.steps < 2:
        parser.error(f"argument --steps: expected at least 2, found {args.steps}")
    return args


def of_model(args):
    return [f"--model={args.model}", f"--data=synthetic:{args.pixels}", "--threads=1"]


def record(args, size):
    path = os.path.join(args.out, f"profile_{size}.json")
    if not os.path.exists(path):
        run("benchmarks/train_bench", f"--record={path}", *of_model(args), f"--batch_size={size}",
            f"--steps={args.steps}", "--warmup_steps=1")
    return path


# Where stages are.
ALONE, THREADS, PROCESSES = "one process", "two threads", "two processes"


def ways():
    """(where stages are, schedule) of what is computed for each size."""
    return [(ALONE, ""), *((where, schedule) for where in (THREADS, PROCESSES) for schedule in SCHEDULES)]


def way_of(made):
    where = PROCESSES if made["workers"] > 1 else THREADS if made.get("model_parallel", 1) > 1 else ALONE
    return where, made["pipeline_schedule"]


def as_run(args, size, where, schedule, metrics):
    """What the processes of a job measured, as compare.json has runs. A step is as long as on the slowest rank."""
    workers = len(metrics)
    steps = [max(of_step) for of_step in zip(*(rank["step_ms"] for rank in metrics))]
    median = percentile(steps, 0.5)
    return {"library": "gradsync", "topology": "ring", "update": "worker", "workers": workers, "model": args.model,
            "batch_size": size, "global_batch_size": args.images, "micro_batches": args.images // size,
            "mesh": f"pipeline={workers}", "pipeline_schedule": schedule,
            "split": "" if where == ALONE else str(args.split), "model_parallel": metrics[0]["model_parallel"],
            "threads": 1, "steps": len(steps), "step_ms_p50": median,
            "step_ms_p10": percentile(steps, 0.1), "step_ms_p90": percentile(steps, 0.9),
            "samples_per_s": 1e3 * args.images / median, "params_sha256": metrics[0]["params_sha256"]}


def compute(args, size, where, schedule):
    """One job on this machine."""
    folder = os.path.join(args.out, "metrics")
    os.makedirs(folder, exist_ok=True)
    count = args.images // size
    name = os.path.join(folder, "_".join((*where.split(), schedule or "whole", str(size), "")))
    files = [f"{name}{rank}.json" for rank in range(2 if where == PROCESSES else 1)]
    common = [*of_model(args), f"--batch_size={size}", f"--steps={args.steps}", "--warmup_steps=1",
              f"--metrics_json={name}{{rank}}.json"]
    cut = [f"--split={args.split}", f"--pipeline_schedule={schedule}", f"--micro_batches={count}"]
    if where == PROCESSES:
        run("tools/launch", "--workers=2", "--", "--mesh=pipeline=2", *cut, *common)
    elif where == THREADS:
        run("worker/worker", "--model_parallel=2", *cut, *common)
    else:
        run("worker/worker", f"--accumulate={count}", *common)
    return as_run(args, size, where, schedule, [read_json(path) for path in files])


def compute_all(args, size):
    """All ways, into a file, whose path it returns."""
    path = os.path.join(args.out, f"computed_{size}.json")
    if not os.path.exists(path):
        runs = [compute(args, size, where, schedule) for where, schedule in ways()]
        hashes = {made["params_sha256"] for made in runs}
        if len(hashes) > 1:
            raise Failed(f"batches of {size}: expected equal parameters wherever stages are, found {hashes}")
        write_json(path, {"runs": runs})
    return path


def replay_all(args, profiles, bandwidth):
    """All sizes, into a file, whose path it returns."""
    path = os.path.join(args.out, f"replayed_{bandwidth}.json")
    if not os.path.exists(path):
        # Written after each measurement, and whole only at the end.
        partial = os.path.join(args.out, "replayed.partial.json")
        run("benchmarks/train_bench", f"--replay={','.join(profiles)}", "--topology=ring", "--mesh=pipeline=2",
            f"--pipeline_schedule={','.join(SCHEDULES)}", f"--split={args.split}", f"--global_batch_size={args.images}",
            "--micro_batches=" + ",".join(str(args.images // size) for size in args.sizes),
            f"--bandwidth={bandwidth}", f"--steps={args.steps}", "--warmup_steps=1", f"--json={partial}")
        os.replace(partial, path)
    return path


def together(args, name, paths):
    """One record of several, which differ in their lists of runs and in the command only."""
    records = [read_json(path) for path in paths]
    whole = {**records[0], "command": " ".join(["split_sweep", *sys.argv[1:]]),
             **{key: [item for record in records for item in record[key]]
                for key in ("runs", "predictions") if key in records[0]}}
    write_json(os.path.join(args.out, f"{name}.json"), whole)
    return whole


def seconds(made):
    return f"{made['step_ms_p50'] / 1e3:6.2f}"


def computed_table(args, runs):
    """Times by size, and how much faster than the same images at once in two stages, as the tutorial has it."""
    found = {(made["batch_size"], *way_of(made)): made for made in runs}
    lines = ["computed, s per step", "size  " + "  ".join(f"{where:>20}" for where, _ in ways()),
             "      " + "  ".join(f"{schedule or 'not cut':>20}" for _, schedule in ways())]
    for size in args.sizes:
        cells = []
        for way in ways():
            made = found[(size, *way)]
            whole = found.get((args.images, *way)) if way[0] != ALONE else None
            gain = f" ({whole['step_ms_p50'] / made['step_ms_p50'] - 1:+5.0%})" if whole else ""
            cells.append(f"{seconds(made) + gain:>20}")
        lines.append(f"{size:4}  " + "  ".join(cells))
    return lines


def replayed_table(records):
    """How far predictions are from what they stand beside."""
    lines = ["replayed: prediction over measurement"]
    errors = []
    for made, predicted in zip(records["runs"], records["predictions"]):
        error = predicted["step_ms_p50"] / made["step_ms_p50"] - 1
        if not made["invalid"]:
            errors.append(abs(error))
        lines.append(f"{made['bandwidth']:>8}  {made['pipeline_schedule']:5}  size {made['batch_size']:3}"
                     f"  {seconds(made)} s  {error:+6.1%}" + ("  invalid" if made["invalid"] else ""))
    if not errors:
        raise Failed("all that was replayed is invalid, such as: " + records["runs"][0]["invalid"])
    lines += why_invalid(records["runs"])
    lines.append(f"median {percentile(errors, 0.5):.1%}, worst {max(errors):.1%}")
    return lines


def summarise(args, computed, replayed):
    text = "\n".join(computed_table(args, computed["runs"]) + replayed_table(replayed)) + "\n"
    print(text, end="", flush=True)
    with open(os.path.join(args.out, "summary.txt"), "w", encoding="utf-8") as file:
        file.write(text)


def sweep(args):
    profiles = [record(args, size) for size in args.sizes]
    computed = together(args, "computed", [compute_all(args, size) for size in args.sizes])
    replayed = together(args, "replayed", [replay_all(args, profiles, bandwidth) for bandwidth in args.bandwidths])
    summarise(args, computed, replayed)
    for name in ("computed", "replayed"):
        run("tools/report/report", os.path.join(args.out, f"{name}.json"), "--figure_of=split",
            "--figure=" + os.path.join(args.out, f"{name}.svg"))


def main(argv):
    args = parse(argv)
    try:
        args.out = out_folder(args.out)
        # Each bandwidth has a file of its own.
        of_same_flags(args.out, {name: value for name, value in vars(args).items() if name not in ("out", "bandwidths")})
        sweep(args)
    except (Failed, OSError) as error:
        print(f"split_sweep: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

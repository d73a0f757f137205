#!/usr/bin/python3
"""Exchanges on emulated hosts whose configurations are drawn at random, each with the flags' defaults, beside what is
predicted of it and beside bare TCP. Paste:

  bazel run -c opt //benchmarks:network_sweep -- --out=drawn --seed=7 --count=40

Draws 2 to 8 workers, a ring or dedicated, colocated or mixed servers, 100 Mbit/s to 1 Gbit/s and 10 to 400 MB (evenly in the
logarithm). What is drawn follows from --seed, --longest and --most alone. Into the folder OUT it writes

  drawn_I.json   what `sync_bench` says of the Ith one, unless it is there already, so that an interrupted sweep goes on
  summary.txt    what it prints at the end: the closed form, the simulator and bare TCP over the measured time, with the worst and
                 the median of those that are valid

Some 15 s each, during which nothing else should run. Needs what `sync_bench --bandwidth` needs (docs/compare/netlab.md). Exit codes: 0;
1 when a program failed; 2 for bad flags.
"""
import argparse
import os
import random
import sys

from study import Failed, of_same_flags, out_folder, percentile, read_json, run, why_invalid

# As links carry payloads (docs/compare/cost_model.md); only to tell what would take too long.
PAYLOAD = 0.955
BANDWIDTHS = (100, 150, 200, 300, 400, 600, 800, 1000)  # Mbit/s


def parse(argv):
    parser = argparse.ArgumentParser(prog="network_sweep", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for all files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40, help="of configurations")
    parser.add_argument("--longest", type=float, default=5, help="seconds of an exchange; what takes longer is not drawn")
    parser.add_argument("--most", type=float, default=4.5,
                        help="Gbit/s that all hosts send together, which this machine must carry; likewise")
    parser.add_argument("--exchanges", type=int, default=3, help="of each configuration, whose median counts")
    args = parser.parse_args(argv)
    for name in ("count", "exchanges", "longest", "most"):
        if getattr(args, name) <= 0:
            parser.error(f"argument --{name}: expected more than 0, found {getattr(args, name)}")
    return args


def load(workers, servers, placement):
    """Of the busiest link, in gradients (docs/compare/cost_model.md)."""
    n, k = workers, servers
    if placement == "dedicated":
        return max(1, n / k)
    if placement == "colocated":
        return (n + k - 2) / k
    if placement == "mixed":
        return 2 * n * (n - 1) / (n * n + k * n - 2 * k)
    return 2 * (n - 1) / n


def drawn(args):
    """The configurations, in their order: (workers, servers, placement, megabits per second, megabytes)."""
    dice = random.Random(args.seed)
    found = []
    for _ in range(1000 * args.count):
        workers, bandwidth = dice.randint(2, 8), dice.choice(BANDWIDTHS)
        megabytes = round(10 * 40 ** dice.random())
        placement = dice.choice(("ring", "dedicated", "dedicated", "colocated", "mixed"))
        servers = 0 if placement == "ring" else dice.randint(1, workers - 1 if placement == "mixed" else workers)
        seconds = load(workers, servers, placement) * 8 * megabytes / (PAYLOAD * bandwidth)
        sent = (2 * (workers - 1) if placement == "ring" else 2 * workers) * 8 * megabytes
        if seconds <= args.longest and sent / 1000 / seconds <= args.most:
            found.append((workers, servers, placement, bandwidth, megabytes))
        if len(found) == args.count:
            return found
    raise Failed(f"only {len(found)} of {args.count} configurations are within --longest={args.longest:g} and --most={args.most:g}")


def measure(args, number, workers, servers, placement, bandwidth, megabytes):
    path = os.path.join(args.out, f"drawn_{number}.json")
    if not os.path.exists(path):
        partial = path + ".partial"
        kind = ["--topology=ring"] if placement == "ring" else ["--topology=ps", f"--servers={servers}", f"--placement={placement}"]
        run("benchmarks/sync_bench", *kind, "--link=grpc", f"--workers={workers}", f"--bandwidth={bandwidth}mbit",
            f"--bytes={megabytes}MB", f"--iterations={args.exchanges}", "--warmup=1", f"--json={partial}")
        os.replace(partial, path)
    return next(made for made in read_json(path)["runs"] if made["library"] == "gradsync")


def ratios(made):
    """Predicted by the closed form, by the simulator, and of bare TCP, over measured."""
    return made["model_us"] / made["time_us_p50"], made["simulated_us"] / made["time_us_p50"], made["peer_ratio"]


def summary(configurations, runs):
    lines = ["Mbit/s   MB  workers           servers  chunk, KiB        ms   model  simulator  bare TCP  cores"]
    for (workers, servers, placement, bandwidth, megabytes), made in zip(configurations, runs):
        lines.append("%6d %4d %8d %9s %7s  %10.1f %9.1f  %6.3f  %9.3f  %8.3f   %3.0f %%%s" % (
            bandwidth, megabytes, workers, placement, servers or "", made["chunk_bytes"] / 1024, made["time_us_p50"] / 1e3,
            *ratios(made), 100 * made["cpu_share"], "  invalid" if made["invalid"] else ""))
    valid = [ratios(made) for made in runs if not made["invalid"]]
    lines += why_invalid(runs)
    for place, name in enumerate(("closed form", "simulator", "bare TCP")) if valid else ():
        of_name = [ratio[place] for ratio in valid]
        lines.append(f"{name}: {min(of_name):.3f} to {max(of_name):.3f}, median {percentile(of_name, 0.5):.3f}, "
                     f"of {len(valid)} configurations")
    return lines


def main(argv):
    args = parse(argv)
    args.out = out_folder(args.out)
    try:
        of_same_flags(args.out, {name: getattr(args, name) for name in ("seed", "longest", "most", "exchanges")})
        configurations = drawn(args)
        runs = [measure(args, number, *configuration) for number, configuration in enumerate(configurations)]
        lines = summary(configurations, runs)
    except Failed as failed:
        print(f"network_sweep: {failed}", file=sys.stderr)
        return 1
    with open(os.path.join(args.out, "summary.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Soak: long jobs of real processes, whose memory and open files must not grow.

    bazel run //tests:soak -- --steps=20000
    bazel run //tests:soak -- --steps=1000000 --seconds=3600 --configurations=ps/shm

That many steps follow --warmup_steps, which do not count: LibTorch, gRPC and the allocator's arenas take memory for some
20,000 small steps before they have all that they will ever need.

Trains a small model for many steps in each configuration, with checkpoints, an evaluation now and then, health checks
and a page for Prometheus that is read all the time. Looks at /proc for every process meanwhile, prints a row for each,
and ends with 1 if, after the warm-up, the resident memory of one has grown by more than --growth, its open files at all,
or its threads by more than two. Compares the medians of the first and the last fifth of what follows the warm-up.
"""
import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

CONFIGURATIONS = {
    "ring/grpc": ["--topology=ring", "--link=grpc"],
    "ring/shm": ["--topology=ring", "--link=shm"],
    "ps/grpc": ["--topology=ps", "--link=grpc"],
    "ps/shm": ["--topology=ps", "--link=shm"],
    "ring/tcp": ["--topology=ring", "--link=tcp"],
    "ps/tcp": ["--topology=ps", "--link=tcp"],
    "asp/grpc": ["--topology=ps", "--link=grpc", "--update=owner", "--consistency=asp"],
}
NUMBER = {"rss": re.compile(r"^VmRSS:\s+(\d+) kB", re.M), "threads": re.compile(r"^Threads:\s+(\d+)", re.M)}


def runfile(path):
    roots = (os.environ.get("RUNFILES_DIR"), f"{__file__}.runfiles/gradsync", pathlib.Path(__file__).parent.parent, os.getcwd(), "bazel-bin")
    for root in roots:
        if root and (pathlib.Path(root) / path).exists():
            return str((pathlib.Path(root) / path).resolve())
    return path


def children_of(pid):
    """(pid, name) of the workers and servers that a launcher has started."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = pathlib.Path(f"/proc/{entry.name}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append((int(entry.name), stat[stat.index("(") + 1:stat.rindex(")")]))
        except (OSError, ValueError):
            pass  # it has ended
    return sorted(found)


def look_at(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    sample = {what: int(pattern.search(status).group(1)) for what, pattern in NUMBER.items()}
    sample["files"] = len(os.listdir(f"/proc/{pid}/fd"))
    return sample


def read_pages(folder, done):
    while not done.wait(0.5):
        for path in pathlib.Path(folder).glob("page*"):
            try:
                urllib.request.urlopen(f"http://{path.read_text().strip()}/metrics", timeout=5).read()
            except (OSError, ValueError):
                pass  # not there yet, or not any more


def listen(lines, warmup_steps, said, warm):
    for line in lines:
        said.append(line)
        del said[:-20]
        step = re.search(r"\bstep (\d+)", line)
        if step and int(step.group(1)) >= warmup_steps:
            warm.set()


def soak(name, options):
    """Samples after the warm-up by process, the seconds that they took, and why the job failed, if it did."""
    samples = {}
    steps = options.warmup_steps + options.steps
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        servers = 0 if name.startswith("ring") else options.servers
        argv = [options.launch, f"--workers={options.workers}", f"--servers={servers}", f"--worker_binary={options.worker}",
                f"--server_binary={options.server}", "--", *CONFIGURATIONS[name], "--model=mlp", "--batch_size=4", "--threads=1",
                f"--steps={steps}", f"--log_every={max(steps // 50, 1)}", f"--checkpoint={folder}/checkpoint",
                f"--checkpoint_every={max(steps // 20, 1)}", "--metrics_port=0", f"--metrics_port_file={folder}/page{{rank}}"]
        job = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        warm = threading.Event()
        reader = threading.Thread(target=listen, args=(job.stdout, options.warmup_steps, said, warm), daemon=True)
        reader.start()
        done = threading.Event()
        pages = threading.Thread(target=read_pages, args=(folder, done), daemon=True)
        pages.start()
        begin = time.monotonic()
        warm_after = None
        told = False
        while job.poll() is None:
            if warm_after is None and warm.is_set():
                warm_after = time.monotonic() - begin
                samples.clear()
            for pid, program in children_of(job.pid):
                try:
                    samples.setdefault((pid, program), []).append(look_at(pid))
                except (OSError, AttributeError):
                    pass  # it has ended
            if options.seconds and not told and time.monotonic() - begin > options.seconds:
                told = True
                job.send_signal(signal.SIGTERM)  # which drains the job
            time.sleep(options.interval)
        done.set()
        reader.join(10)
        pages.join(10)
        took = time.monotonic() - begin
        expected = (0, 128 + signal.SIGTERM) if told else (0,)
        failure = None if job.returncode in expected else f"exit code {job.returncode}: {''.join(said[-3:])}"
    if failure is None and warm_after is None:
        failure = f"it did not come to the end of its {options.warmup_steps} steps of warm-up"
    return samples, took - (warm_after or 0), failure


def judge(name, samples, took, failure, options):
    good = failure is None
    if failure:
        print(f"{name}: FAILED: {failure}")
    for (_, program), all_samples in sorted(samples.items(), key=lambda row: row[0][0]):
        later = all_samples[:-2]  # while it ends it closes things
        fifth = len(later) // 5
        if fifth < 3:
            print(f"{name:10} {program:10} seen too rarely: {len(all_samples)} samples in {took:.0f} s; give more --steps")
            good = False
            continue
        first, last = later[:fifth], later[-fifth:]
        median = lambda part, what: statistics.median(sample[what] for sample in part)
        grown = median(last, "rss") - median(first, "rss")
        flat = grown <= options.growth * 1024 and median(last, "files") <= median(first, "files")
        # gRPC keeps more or fewer threads ready.
        flat = flat and median(last, "threads") <= median(first, "threads") + 2
        good = good and flat
        print(f"{name:10} {program:10} {took:7.0f} s  rss {median(first, 'rss') / 1024:7.1f} MiB {grown / 1024:+6.2f}  "
              f"files {median(first, 'files'):4.0f} {median(last, 'files') - median(first, 'files'):+3.0f}  "
              f"threads {median(first, 'threads'):3.0f} {median(last, 'threads') - median(first, 'threads'):+3.0f}  "
              f"{'flat' if flat else 'GROWS'}", flush=True)
    return good and bool(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20000, help="after the warm-up")
    parser.add_argument("--warmup_steps", type=int, default=30000)
    parser.add_argument("--seconds", type=float, default=0, help="after which a job is told to end; 0: after its steps")
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--interval", type=float, default=0.2, help="s between two looks")
    parser.add_argument("--growth", type=float, default=1.0, help="MiB by which a process may grow")
    parser.add_argument("--worker", default=runfile("worker/worker"))
    parser.add_argument("--server", default=runfile("ps_server/ps_server"))
    parser.add_argument("--launch", default=runfile("tools/launch"))
    options = parser.parse_args()
    names = options.configurations.split(",")
    for name in names:
        if name not in CONFIGURATIONS:
            sys.exit(f"soak: --configurations: expected some of {', '.join(CONFIGURATIONS)}, found {name}")
    good = [judge(name, *soak(name, options), options) for name in names]
    print("passed" if all(good) else "FAILED")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

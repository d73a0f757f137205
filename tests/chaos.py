#!/usr/bin/env python3
"""Chaos: training jobs as real processes, in each of which something is broken on purpose.

    bazel run //tests:chaos -- --rounds=200 --seed=1
    bazel run //tests:chaos -- --seed=1 --round=17       # that one again, with all that was said

A round draws a job (topology, link, consistency, sizes, started by hand or by //tools:launch), a fault, a moment and a victim. Then
it looks at all others: whether they end within the failure timeout and two seconds (within two seconds where the victim was killed)
of the fault, or of their first connection where the launcher started them only then, whether their message begins with the culprit,
whether they blame an innocent, and whether their exit codes tell of the failure. It prints a table, a row for each kind of fault,
and ends with 1 unless nobody was late, nobody blamed an innocent, none that failed ended with 0, all processes were gone, and 99 %
of all survivors named the culprit or had done their work before.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import sys
import time

from chaos_draw import FAULTS, MOMENTS, draw_round
from chaos_faults import GRACE, Fault
from chaos_job import PATIENCE, Job, NotPossible, await_until
from chaos_judge import Judge

BAR = 0.99


class Round:
    """A job, what is broken in it, and what is thought of those that survive."""

    def __init__(self, draw, options):
        self.draw = draw
        self.options = options
        self.job = Job(draw, options)
        self.fault = Fault(self.job)
        self.problems = []
        self.rows = []

    def run(self):
        unharmed = False
        try:
            self.job.begin()
            self.fault.await_moment()
            self.fault.inject()
            self.let_the_late_come()
            unharmed = self.await_end()
            left = self.job.left_by_launch()
            if left:
                self.problems.append(f"launch left {', '.join(left)} behind")
        finally:
            self.job.kill()
            self.fault.let_go()
            self.job.clean_up()
        self.rows = Judge(self.job, self.fault, unharmed).judge()
        return self

    def let_the_late_come(self):
        """Starts the worker that was kept back in set-up, where the job may go on or the fault is not met without it."""
        late, unused = self.job.late, self.draw.cuts_unused_link()
        if late is None or not (self.draw.is_harmless() or unused):
            return
        self.job.start_worker(late)
        if unused:
            process = self.job.processes[f"worker {late}"]
            await_until(lambda: process.out or self.job.some_child_ended(), what="the late worker")
            self.fault.injected_at = time.monotonic()

    def await_end(self):
        """Until all that are waited for have ended, or have had the time to. Returns whether nothing came of the fault."""
        job, fault, processes = self.job, self.fault, self.job.processes
        in_time = self.options.failure_timeout + GRACE
        # Of descriptors nobody misses any before it opens something, and most jobs just end.
        end = fault.injected_at + (PATIENCE if self.draw.fault == "descriptors" else in_time + self.options.extra)
        looked, steps = fault.injected_at, job.steps_of_rank_0()
        while time.monotonic() < end:
            fault.look_for_ends()
            all_wait = self.draw.fault in ("partition", "descriptors", "halfclose") and self.draw.victim in processes
            waited_for = list(processes.values()) if all_wait else fault.survivors()
            if all(process.ended_at is not None for process in waited_for) and job.launch_ended():
                break
            if self.draw.is_harmless() and time.monotonic() - looked > in_time and "worker 0" in processes:
                now = job.steps_of_rank_0()
                if now > steps + 2 and all(process.ended_at is None for process in list(processes.values())):
                    return True
                looked, steps = time.monotonic(), now
            time.sleep(0.01)
        fault.look_for_ends()
        return False


def run_round(draw, options):
    try:
        return Round(draw, options).run()
    except NotPossible as reason:
        return f"skipped: {reason}"
    except TimeoutError as reason:
        return f"did not begin: {reason}"


def runfile(path):
    roots = (os.environ.get("RUNFILES_DIR"), f"{__file__}.runfiles/gradsync", pathlib.Path(__file__).parent.parent, os.getcwd(), "bazel-bin")
    for root in roots:
        if root and (pathlib.Path(root) / path).exists():
            return str((pathlib.Path(root) / path).resolve())
    return path


def seconds(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected seconds, as in 3s, got {text!r}")
    return float(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="this one alone, with all that its processes say")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--failure_timeout", type=seconds, default="3s", help="of the jobs, as 3s; 10s is their default, which is then not given")
    parser.add_argument("--jobs", type=int, default=2, help="rounds side by side")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--moments", default=",".join(MOMENTS))
    parser.add_argument("--slack", type=float, default=0.0, help="s that survivors may take longer, on a machine that is busy with others")
    parser.add_argument("--extra", type=float, default=15.0, help="s for which a round looks on after all should have ended")
    parser.add_argument("--worker", default=runfile("worker/worker"))
    parser.add_argument("--server", default=runfile("ps_server/ps_server"))
    parser.add_argument("--launch", default=runfile("tools/launch"))
    options = parser.parse_args()
    options.verbose = options.round is not None
    numbers = [options.round] if options.verbose else range(options.first, options.first + options.rounds)
    draws = {number: draw_round(options.seed, number, options.faults.split(","), options.moments.split(",")) for number in numbers}
    table = {}
    bad_rounds = 0
    skipped = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(run_round, draw, options): number for number, draw in draws.items()}
        for future in concurrent.futures.as_completed(futures):
            number = futures[future]
            draw, done = draws[number], future.result()
            row = table.setdefault(draw.fault, dict(rounds=0, survivors=0, right=0, nobody=0, wrong=0, zero=0, late=0, hang=0, done=0,
                                                   longest=0.0))
            if isinstance(done, str):
                print(f"round {number}: {done} ({draw})", flush=True)
                skipped += done.startswith("skipped")
                bad_rounds += not done.startswith("skipped")
                continue
            row["rounds"] += 1
            for problem in done.problems:
                print(f"round {number}: {problem} ({draw})", flush=True)
                bad_rounds += 1
            for name, verdict, took, words in done.rows:
                row["survivors"] += 1
                row[verdict] += 1
                if verdict == "late":
                    row["right"] += 1
                if verdict not in ("done",):
                    row["longest"] = max(row["longest"], took)
                if verdict not in ("right", "done") or options.verbose:
                    print(f"round {number}: {name} {verdict} {took:.1f} s: {words[:300]}   ({draw})", flush=True)
    columns = ("rounds", "survivors", "right", "done", "nobody", "wrong", "zero", "late", "hang", "longest")
    print(f"{'':12}" + "".join(f"{column:>10}" for column in columns))
    total = {column: (max if column == "longest" else sum)([row[column] for row in table.values()] or [0]) for column in columns}
    for fault, row in sorted(table.items()) + [("all", total)]:
        print(f"{fault:12}" + "".join(f"{row[column]:>10.1f}" if column == "longest" else f"{row[column]:>10}" for column in columns))
    named = total["right"] + total["done"]
    good = (named >= BAR * total["survivors"] and not any(total[verdict] for verdict in ("wrong", "zero", "hang", "late"))
            and bad_rounds == 0 and total["rounds"] > 0)
    print(f"seed {options.seed}, {skipped} rounds skipped, {named} of {total['survivors']} survivors named the culprit or had "
          f"finished: {'passed' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

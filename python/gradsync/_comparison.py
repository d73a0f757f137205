"""What rounds of several configurations show: the lines and the table of gradsync compare, and its records."""
import dataclasses
import shlex
import statistics

from . import __version__
from ._machine import machine
from .decision import decide

SHORT_HASH = 12


@dataclasses.dataclass
class Round:
    """What one run of one configuration has shown."""
    step_ms: list[float]  # of measured steps, the slowest rank's of each
    steps: int
    params_sha256: str
    device: str
    threads: int
    asked: str | None
    torch: str

    @property
    def median(self):
        return statistics.median(self.step_ms)


def percentile(values, share):
    """The value below which are so many of all: the nearest rank."""
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def describe_bits(measured, options):
    """(a line about the parameters that the configurations ended with, whether all is as it must be). `measured`: name to rounds."""
    of_gpus = any(each.device != "cpu" for rounds in measured.values() for each in rounds)
    steps = {each.steps for rounds in measured.values() for each in rounds}
    with_workers = f"with {options.workers} workers"
    if of_gpus:
        return "bits: not compared: on a GPU additions may come in another order each time", True
    if len(steps) > 1:
        return f"bits: not compared: the script took {min(steps)} to {max(steps)} steps; --steps makes them equal", True
    # Two numbers have one sum.
    compared = {name: rounds for name, rounds in measured.items() if options.workers == 2 or "/" in name}
    left_out = "".join(f"; {name} adds in an order of its own" for name in measured if name not in compared)
    if not compared:
        return f"bits: not compared{left_out}", True
    hashes = {name: sorted({each.params_sha256 for each in rounds}) for name, rounds in compared.items()}
    if len({each for found in hashes.values() for each in found}) == 1:
        return (f"bits: only one configuration {with_workers}, nothing to compare{left_out}" if len(compared) == 1 else
                f"bits: identical in all {len(compared)} configurations {with_workers}{left_out}"), True
    least = min(map(len, compared.values()))
    if least > 1 and all(len(found) > 1 for found in hashes.values()):
        return "bits: not compared: the script ends with other parameters each time, whatever the configuration; it sets no seed?", True
    sides = "; ".join(f"{name} {' '.join(each[:SHORT_HASH] for each in found)}" for name, found in hashes.items())
    if least == 1:
        return f"bits: DIFFER {with_workers}: {sides}; --rounds=2 tells whether the script does so by itself", True
    return f"bits: DIFFER {with_workers}: {sides}{left_out}", False


def verdict(measured, options):
    """(lines, whether bits are as they must be)."""
    medians = {name: statistics.median(each.median for each in rounds) for name, rounds in measured.items()}
    best, *others = sorted(medians, key=medians.get)
    lines = []
    for other in others:
        ratios = [theirs.median / own.median for own, theirs in zip(measured[best], measured[other])]
        decision = decide(ratios, len(measured), options.margin / 100)
        line = (f"speed: with {options.workers} workers {decision.describe(best, other)}: {medians[best]:.2f} against "
                f"{medians[other]:.2f} ms per step")
        if len(ratios) > 1:
            line += f", {decision.ratio:.3f} times ({decision.low:.3f} to {decision.high:.3f})"
        lines.append(line)
    bits, agree = describe_bits(measured, options)
    return [*lines, bits], agree


def table(measured):
    rows = [("configuration", "ms per step", "of rounds", "steps")]
    for name, rounds in measured.items():
        medians = [each.median for each in rounds]
        rows.append((name, f"{statistics.median(medians):.2f}", f"{min(medians):.2f} to {max(medians):.2f}",
                     str(len(rounds[0].step_ms))))
    name_width, *widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join([name.ljust(name_width), *(cell.rjust(width) for cell, width in zip(cells, widths))])
                     for name, *cells in rows)


def record_of(which, rounds, options):
    """Run of proto/run_record.proto."""
    middle = sorted(rounds, key=lambda each: each.median)[len(rounds) // 2]
    step_ms = statistics.median(each.median for each in rounds)
    samples = 1000 * options.batch_size * options.workers
    record = {
        "library": which.backend if which.backend else "pytorch_ddp", "topology": which.topology or "ring",
        "link": which.link or (which.backend or str(middle.asked or "").lower()), "update": "worker", "row": which.name,
        "placement": "colocated" if which.topology == "ps" else "", "workers": options.workers,
        "servers": options.workers if which.topology == "ps" else 0, "model": " ".join(options.script),
        "batch_size": options.batch_size, "threads": middle.threads, "steps": middle.steps, "device": middle.device,
        "samples_per_s": samples / step_ms, "steps_per_s": 1000 / step_ms, "step_ms_p50": step_ms, "step_ms_p10": percentile(middle.step_ms, 0.1),
        "step_ms_p90": percentile(middle.step_ms, 0.9), "params_sha256": middle.params_sha256,
        "own_order": which.backend != "gradsync", "bytes_uncounted": True,
        "round_step_ms_p50": [each.median for each in rounds], "round_params_sha256": [each.params_sha256 for each in rounds]}
    if options.batch_size > 0:
        record["round_samples_per_s"] = [samples / each.median for each in rounds]
    return record


def records_of(measured, options, command):
    torch = next(iter(measured.values()))[0].torch
    by_name = {each.name: each for each in options.configurations}
    return {"machine": machine(torch=torch, gradsync=__version__), "command": shlex.join(["gradsync", "compare", *command]),
            "runs": [record_of(by_name[name], rounds, options) for name, rounds in measured.items()]}

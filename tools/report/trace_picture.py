#!/usr/bin/python3
"""Draws a step of a trace (worker --trace=FILE) as an SVG.

Usage: trace_picture.py FILE.pftrace OUT.svg [--step=N] [--title=TEXT] [--predicted]

Time goes from left to right. Each worker has three rows: what it computes, its buckets from launch to resolution, and
the chunks that come to it; each server has two: the chunks that come, and what it folds and updates. --predicted draws
the simulator's processes instead of the measured ones. Exit status: 0; 2 for a file that cannot be read or has no such
step.
"""
import argparse
import collections
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot  # noqa: E402: after the choice of a backend

Slice = collections.namedtuple("Slice", "process lane name step begin end")

BEGIN, END, INSTANT = 1, 2, 3

# What is drawn in a process' rows, from the top: title of the row, lanes by how their names begin.
WORKER_ROWS = [("compute", ("compute",)), ("buckets", ("buckets",)), ("receives", ("from ",))]
SERVER_ROWS = [("receives", ("from ",)), ("folds", ("folds", "updates"))]

COLOURS = {"data": "#999999", "forward": "#88bbee", "backward": "#3377bb", "update": "#55aa55", "bucket": "#ddcc88",
           "gradient": "#dd7755", "result": "#9966bb", "fold": "#dd7755", "copy": "#9966bb"}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Number and value of each field of a message; fixed-size ones are passed over."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            size, at = varint(data, at)
            yield key >> 3, data[at:at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[kind]


def message(data):
    return dict(fields(data))


def text(found, number):
    return found.get(number, b"").decode()


def step_of(event):
    for number, value in fields(event):
        if number == 4:
            annotation = message(value)
            if text(annotation, 10) == "step":
                return annotation.get(4, 0)
    return 0


def read(data):
    """Slices of a trace, by proto/perfetto_trace.proto: no module of Perfetto's is needed."""
    processes, lanes, open_slices, slices = {}, {}, {}, []
    for number, packet in fields(data):
        if number != 1:
            continue
        packet = message(packet)
        if 60 in packet:
            track = message(packet[60])
            if 3 in track:
                processes[track[1]] = text(message(track[3]), 6)
            else:
                lanes[track[1]] = (processes[track[5]], text(track, 2))
        elif 11 in packet:
            event = message(packet[11])
            lane = event[11]
            if lane not in lanes:
                continue  # "clock", of a process itself
            if event[9] == BEGIN:
                open_slices[lane] = (text(event, 23), step_of(packet[11]), packet[8])
            elif event[9] == END:
                name, step, begin = open_slices.pop(lane)
                slices.append(Slice(*lanes[lane], name, step, begin, packet[8]))
    return slices


def rows_of(slices, predicted):
    """[(process, row, [slice])] from the top."""
    rows = []
    for process in sorted({s.process for s in slices}, key=lambda name: (name.split()[-2] != "worker", name)):
        if process.startswith("predicted: ") != predicted:
            continue
        for title, lanes in SERVER_ROWS if " server " in " " + process else WORKER_ROWS:
            rows.append((process, title, [s for s in slices if s.process == process and s.lane.startswith(lanes)]))
    return rows


def draw(rows, origin, title, path):
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gradsync", "font.family": "sans-serif"})
    height = 0.26 * len(rows) + 0.9
    figure, axes = matplotlib.pyplot.subplots(figsize=(9, height), layout="constrained")
    ticks = []
    last = None
    top = 0.0
    for process, row, slices in rows:
        top += 1.0 if process == last else 1.35
        ticks.append((top, f"{process}  {row}" if process != last else row))
        last = process
        bars = collections.defaultdict(list)  # by colour
        for one in slices:
            bars[COLOURS.get(one.name.split()[0], "#bbbbbb")].append(
                (round(1e-6 * (one.begin - origin), 2), round(1e-6 * (one.end - one.begin), 2)))
        for colour, pieces in bars.items():
            axes.broken_barh(pieces, (top - 0.4, 0.8), facecolors=colour, edgecolors="white", linewidth=0.2)
    axes.set_ylim(top + 0.7, 0.5)
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds since the step began on worker 0", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    kinds = ["forward", "backward", "update", "bucket", "gradient", "result"]
    axes.legend([matplotlib.patches.Patch(color=COLOURS[kind]) for kind in kinds],
                ["forward", "backward", "update", "bucket, launch to resolution", "gradient chunk", "result chunk"],
                fontsize=6, ncol=6, frameon=False, loc="lower center", bbox_to_anchor=(0.45, 1.0))
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("out")
    parser.add_argument("--step", type=int, help="which one; the first of the trace")
    parser.add_argument("--title", default="")
    parser.add_argument("--predicted", action="store_true")
    options = parser.parse_args()
    try:
        with open(options.file, "rb") as file:
            slices = read(file.read())
    except (OSError, IndexError, KeyError, ValueError) as error:
        print(f"trace_picture.py: {options.file}: expected a trace, found {error!r}", file=sys.stderr)
        return 2
    steps = {s.step for s in slices}
    step = options.step if options.step is not None else min(steps, default=0)
    slices = [s for s in slices if s.step == step]
    rows = rows_of(slices, options.predicted)
    begins = [s.begin for s in slices if s.lane == "steps" and s.process.endswith("worker 0")
              and s.process.startswith("predicted: ") == options.predicted]
    if not rows or not begins:
        print(f"trace_picture.py: {options.file}: expected step {step} of worker 0, found steps {sorted(steps)}",
              file=sys.stderr)
        return 2
    draw(rows, begins[0], options.title, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What each plot of a section shows: its numbers, its words and the table that says the same."""
import dataclasses
import math

import names
import plots
import series
from records import BadInput, bytes_per_s, usable


@dataclasses.dataclass
class Figure:
    svg: str
    columns: list
    rows: list


@dataclasses.dataclass
class Group:
    """Plots of one quantity, side by side."""
    title: str
    caption: str
    figures: list


def _scaled(run, value):
    """`value`, proportional to steps per second, with the ends of its interval over rounds or, without rounds, those of
    slow and fast steps."""
    if run.samples_per_s_low > 0 and len(run.round_samples_per_s) > 1:
        return (value, value * run.samples_per_s_low / run.samples_per_s,
                value * run.samples_per_s_high / run.samples_per_s)
    low = value * run.step_ms_p50 / run.step_ms_p90 if run.step_ms_p90 > 0 else value
    high = value * run.step_ms_p50 / run.step_ms_p10 if run.step_ms_p10 > 0 else value
    return value, min(low, value), max(high, value)


def _range(low, high):
    return f"{names.number(low)}–{names.number(high)}"


def _in_rounds(runs):
    return any(len(run.round_samples_per_s) > 1 for run in runs)


def _ranges_of(runs):
    """What the lines at points are."""
    return "the interval over rounds" if _in_rounds(runs) else "the p10–p90 of steps"


class Page:
    """Makes the figures of one page: knows the lines' styles and hands out identifiers. `over_bandwidth` has the lines of
    series.bandwidth_lines()."""

    def __init__(self, sections, over_bandwidth=()):
        self.sections = sections
        lines = {line.label: line.order for section in sections for panel in series.panels(section)
                 for line in panel.lines}
        lines.update({line.label: line.order for line in over_bandwidth if line.label not in lines})
        curves = [names.short(run) for section in sections for run in sorted(section.runs, key=names.order)
                  if run.curve or run.staleness_histogram]
        ordered = sorted(lines, key=lambda label: (lines[label], label))
        self.style = plots.styles(ordered)
        self.curve_style = plots.styles(sorted(set(curves), key=curves.index))
        self._made = 0

    def _figure(self, height, draw, description, columns, rows, title):
        self._made += 1
        with plots.Canvas(f"p{self._made}", height) as canvas:
            draw(canvas)
            svg = plots.text_of(canvas.svg(), title, description)
        return Figure(svg, columns, rows)

    def _lines_figure(self, where, panel, quantity, unit, value_of, **options):
        """One panel; value_of(run, is_measured) gives y, low and high, or None."""
        lines, rows = [], []
        for line in panel.lines:
            measured = [(run, value_of(run)) for run in line.measured]
            predicted = [(p, value_of(p)) for p in line.predicted]
            measured = [(run, v) for run, v in measured if v]
            predicted = [(p, v) for p, v in predicted if v]
            if not measured and not predicted:
                continue
            lines.append((line.label, [(run.workers, *v) for run, v in measured],
                          [(p.workers, v[0]) for p, v in predicted]))
            of_workers = {p.workers: v[0] for p, v in predicted}
            seen = {run.workers for run, _ in measured}
            for run, v in measured:
                rows.append([line.label, run.workers, names.number(v[0]), _range(v[1], v[2]),
                             names.number(of_workers[run.workers]) if run.workers in of_workers else "–"])
            rows.extend([line.label, p.workers, "–", "–", names.number(v[0])] for p, v in predicted
                        if p.workers not in seen)
        if not lines:
            return None
        ranges = "interval" if _in_rounds(run for line in panel.lines for run in line.measured) else "p10–p90"
        columns = ["line", "workers", unit, ranges, "predicted"]
        if all(row[4] == "–" for row in rows):
            columns, rows = columns[:4], [row[:4] for row in rows]
        title = f"{quantity}, {panel.title}" if panel.title else quantity
        description = (f"{title}, against the number of workers{where}: "
                       + "; ".join(_line_words(*line) for line in lines) + ".")
        return self._figure(plots.lines_height([line[0] for line in lines]),
                            lambda canvas: plots.draw_lines(canvas, lines, self.style, title, **options),
                            description, columns, rows, title)

    def groups(self, section):
        where = f" {names.bandwidth_phrase(section.job.bandwidth)}"
        if not any(usable(run) for run in section.runs):
            return []
        found = [self._scaling(section, where), self._breakdown(section, where), self._bytes(section, where),
                 *self._learning(section, where)]
        return [group for group in found if group.figures]

    def _scaling(self, section, where):
        panels = series.panels(section)
        total = series.samples(section)
        predicted = any(line.predicted for panel in panels for line in panel.lines)
        caption = f"Samples of all workers per second. Points are measured, with {_ranges_of(section.runs)}"
        caption += "; broken lines are predictions." if predicted else "."
        if not predicted and len({run.workers for run in section.runs if usable(run)}) == 1:
            return Group("Throughput", caption, [self._throughput(where, panel) for panel in panels])
        caption += (" Scaling efficiency is samples/s over n times the samples/s of one worker in the same set-up; 1 "
                    f"is ideal. Time to finish is for {total:,} samples, as many as the shortest of these jobs took.")
        made = [make(where, panel) for panel in panels
                for make in (self._throughput, self._efficiency, lambda w, p: self._time_to_finish(w, p, total))]
        return Group("Scaling", caption, list(filter(None, made)))

    def over_bandwidth(self, workers, lines):
        """The one figure of what series.bandwidth_lines() found."""
        drawn, rows = _over_bandwidth(lines), []
        for line, (label, measured, predicted) in zip(lines, drawn):
            of_bandwidth = dict(predicted)
            rows.extend([label, names.number(x), names.number(y), _range(low, high),
                         names.number(of_bandwidth[x]) if x in of_bandwidth else "–"] for x, y, low, high in measured)
            seen = {point[0] for point in measured}
            rows.extend([label, names.number(x), "–", "–", names.number(y)] for x, y in predicted if x not in seen)
        title = f"Samples per second, {names.count(workers, 'worker')}"
        words = "; ".join(_line_words(*line) for line in drawn)
        measured = [run for line in lines for run in line.measured]
        caption = "Samples of all workers per second against the link of each host. "
        caption += (f"Points are measured, with {_ranges_of(measured)}; broken lines are predictions." if measured else
                    "All of it is predicted, nothing measured.")
        figure = self._figure(plots.lines_height([line[0] for line in drawn]),
                              lambda canvas: plots.draw_lines(canvas, drawn, self.style, title,
                                                              x_axis=plots.bandwidth_axis),
                              f"Samples per second against Mbit/s with {names.count(workers, 'worker')}: {words}.",
                              ["line", "Mbit/s", "samples/s", "interval", "predicted"], rows, title)
        return Group("", caption, [figure])

    def _throughput(self, where, panel):
        return self._lines_figure(where, panel, "Samples per second", "samples/s",
                                  lambda run: _scaled(run, run.samples_per_s) if run.samples_per_s > 0 else None)

    def _efficiency(self, where, panel):
        return self._lines_figure(
            where, panel, "Scaling efficiency", "efficiency",
            lambda run: _scaled(run, run.scaling_efficiency) if run.scaling_efficiency > 0 else None, ideal=1.0)

    def _time_to_finish(self, where, panel, total):
        def seconds(run):
            if run.samples_per_s <= 0:
                return None
            rate, low, high = _scaled(run, run.samples_per_s)
            return total / rate, total / high, total / low
        return self._lines_figure(where, panel, "Seconds to finish", "seconds", seconds)

    def _by_workers(self, section):
        by_workers = {}
        for run in sorted(filter(usable, section.runs), key=lambda run: (run.workers, names.order(run))):
            by_workers.setdefault(run.workers, []).append(run)
        return by_workers

    def _breakdown(self, section, where):
        figures = []
        by_workers = self._by_workers(section)
        parts = [part for part, _, _ in plots.PARTS]
        longest = max(sum(getattr(run.breakdown_ms, part) for part in parts)
                      for runs in by_workers.values() for run in runs)
        for workers, runs in by_workers.items():
            bars = [(names.short(run), {part: getattr(run.breakdown_ms, part) for part in parts}) for run in runs]
            bars = [bar for bar in bars if sum(bar[1].values()) > 0]
            if not bars:
                continue
            title = names.count(workers, "worker")
            rows = [[label, *(names.number(values[part]) for part in parts)] for label, values in bars]
            words = "; ".join(f"{label} {names.number(sum(values.values()))} ms, of which "
                              f"{names.number(values['exposed'])} exposed" for label, values in bars)
            figures.append(self._figure(
                plots.bars_height(len(bars), len(parts)),
                lambda canvas, bars=bars, title=title: plots.draw_breakdown(canvas, bars, title, longest),
                f"Where a step's time goes{where} with {title}: {words}.",
                ["run", *(f"{label}, ms" for _, label, _ in plots.PARTS)], rows, f"Parts of a step, {title}"))
        return Group("Where a step's time goes", "Medians of the parts on the slowest worker. Exposed communication is "
                     "what nothing hides; bars of one section share their scale.", figures)

    def _bytes(self, section, where):
        figures = []
        by_workers = {workers: [run for run in runs if not run.bytes_uncounted and run.wire_tx_bytes_max_node > 0]
                      for workers, runs in self._by_workers(section).items()}
        longest = max((max(run.wire_tx_bytes_max_node, series.capacity(run)) / 1e6
                       for runs in by_workers.values() for run in runs), default=0)
        with_capacity = False
        for workers, runs in by_workers.items():
            if not runs:
                continue
            bars = [(names.short(run), run.wire_tx_bytes_max_node / 1e6, series.capacity(run) / 1e6) for run in runs]
            with_capacity = with_capacity or any(bar[2] for bar in bars)
            title = names.count(workers, "worker")
            rows = [[label, names.number(sent), names.number(capacity) if capacity else "–",
                     names.percent(sent / capacity) if capacity else "–"] for label, sent, capacity in bars]
            words = "; ".join(f"{label} {names.number(sent)} MB" + (
                f" of {names.number(capacity)} MB" if capacity else "") for label, sent, capacity in bars)
            figures.append(self._figure(
                plots.bars_height(len(bars), 2),
                lambda canvas, bars=bars, title=title: plots.draw_bytes(canvas, bars, title, longest),
                f"Payload that the busiest node sends per step{where} with {title}: {words}.",
                ["run", "sent, MB", "capacity, MB", "share"], rows, f"Bytes at the busiest node, {title}"))
        caption = "Payload that the worker or server that sends most sends in a step."
        if with_capacity:
            caption += (" The outer bar is what its interface could send in the time of a step: where the inner one "
                        "nearly fills it, the network decides; where it does not, computation or waiting does.")
        return Group("Bytes at the busiest node", caption, figures)

    def _learning(self, section, where):
        curves, histograms = {}, {}
        for run in sorted(filter(usable, section.runs), key=names.order):
            if len(run.curve) > 1:
                curves.setdefault(run.workers, []).append(run)
            if sum(run.staleness_histogram) > 0:
                histograms.setdefault(run.workers, []).append(run)
        loss, accuracy = [], []
        for workers, runs in curves.items():
            loss.append(self._curve(where, workers, runs, "loss", "Training loss"))
            accuracy.append(self._curve(where, workers, runs, "accuracy", "Test accuracy"))
        yield Group("Learning against time", "Loss is the mean over workers and over some sixtieth of the steps, "
                    "accuracy that on the test split, time since the first step of the same run.",
                    list(filter(None, loss + accuracy)))
        yield Group("Staleness", "Of the pulls of parameters, how many missed so many steps of the slowest worker.",
                    [self._histogram(where, workers, runs) for workers, runs in histograms.items()])

    def _curve(self, where, workers, runs, field, quantity):
        lines = _curve_lines(runs, field)
        if not lines:
            return None
        title = names.count(workers, "worker")
        rows = [[label, names.number(x), names.number(y)] for label, points in lines for x, y in points]
        return self._figure(
            plots.lines_height([line[0] for line in lines]),
            lambda canvas: plots.draw_curves(canvas, lines, self.curve_style, f"{quantity}, {title}"),
            f"{quantity} against time{where} with {title}: {_curve_words(lines)}.", ["run", "seconds", field], rows,
            f"{quantity}, {title}")

    def _histogram(self, where, workers, runs):
        largest = max(len(run.staleness_histogram) for run in runs) - 1
        bins = series.staleness_bins(largest)
        lines = [(names.short(run), [sum(run.staleness_histogram[low:high + 1]) / sum(run.staleness_histogram)
                                     for low, high in bins]) for run in runs]
        bin_names = [str(low) if low == high else f"{low}–{high}" for low, high in bins]
        title = names.count(workers, "worker")
        words = "; ".join(f"{names.short(run)} at most {len(run.staleness_histogram) - 1}, "
                          f"{names.percent(shares[0])} none" for run, (_, shares) in zip(runs, lines))
        rows = [[label, steps, names.percent(share)] for label, shares in lines
                for steps, share in zip(bin_names, shares)]
        return self._figure(
            plots.lines_height([line[0] for line in lines]),
            lambda canvas: plots.draw_histogram(canvas, bin_names, lines, self.curve_style, f"% of pulls, {title}"),
            f"Staleness of pulls{where} with {title}: {words}.", ["run", "steps missed", "pulls"], rows,
            f"Staleness, {title}")


MAX_CURVE_POINTS = 60


def _curve_lines(runs, field):
    """(label, [(seconds, y)]) of the runs that have such points. Losses are smoothed, they differ from batch to batch.
    """
    lines = []
    for run in runs:
        points = [(point.seconds, getattr(point, field)) for point in run.curve
                  if field == "loss" or point.accuracy > 0]
        if points:
            lines.append((names.short(run), series.means_of_groups(points, MAX_CURVE_POINTS)
                          if field == "loss" else points))
    return lines


def _curve_words(lines):
    return "; ".join(f"{label} from {names.number(points[0][1])} to {names.number(points[-1][1])} in "
                     f"{names.number(points[-1][0])} s" for label, points in lines)


def _over_bandwidth(lines):
    """`lines` as plots.draw_lines() takes them, over Mbit/s."""
    def megabits(run):
        return round(8e-6 * bytes_per_s(run.bandwidth), 6)
    return [(line.label, [(megabits(run), *_scaled(run, run.samples_per_s)) for run in line.measured],
             [(megabits(p), p.samples_per_s) for p in line.predicted]) for line in lines]


def _line_words(label, measured, predicted):
    points = [(workers, y) for workers, y, _, _ in measured] or predicted
    values = ", ".join(f"{names.number(y)} at {workers}" for workers, y in points[:8])
    return f"{label}{'' if measured else ' (predicted)'} {values}"


MAX_PANELS = 4


def _rate(run):
    return _scaled(run, run.samples_per_s)


def _step_ms(run):
    low, high = ((run.step_ms_low, run.step_ms_high) if len(run.round_step_ms_p50) > 1
                 else (run.step_ms_p10 or run.step_ms_p50, run.step_ms_p90 or run.step_ms_p50))
    return run.step_ms_p50, low, high


def _picture_panels(sections, value_of):
    """(title, lines) of the job with most runs, a panel for each network and link; without codecs and owners' updates.
    value_of(run) gives y, low and high."""
    def apart_from_network(section):
        return [value for name, value in sorted(vars(section.job).items()) if name != "bandwidth"]

    def runs_of(section):
        return sum(len(s.runs) for s in sections if apart_from_network(s) == apart_from_network(section))
    most = max(sections, key=runs_of)
    chosen = []
    for section in sections:
        if apart_from_network(section) != apart_from_network(most):
            continue
        for panel in series.panels(section):
            lines = []
            for line in panel.lines:
                measured = [(run.workers, *value_of(run)) for run in line.measured
                            if run.update != "owner" and not names.codec(run)]
                if measured:
                    of_line = {run.workers for run in line.measured}
                    lines.append((line.label, measured, [(p.workers, value_of(p)[0]) for p in line.predicted
                                                         if p.workers <= max(of_line)]))
            network = names.bandwidth(section.job.bandwidth)
            title = ", ".join(filter(None, [network, panel.title if len(series.panels(section)) > 1 or not network
                                            else ""]))
            if lines:
                chosen.append((title, lines))
    return chosen[:MAX_PANELS]


def _kind_of_picture(path):
    kind = path.rsplit(".", 1)[-1].lower()
    if kind not in ("svg", "png"):
        raise BadInput(f"--figure: expected a name that ends in .svg or .png, found {path}")
    return kind


def _drawn(kind, size, draw, title, words):
    width, height = size
    with plots.Canvas("figure", height, width, light=kind == "png") as canvas:
        draw(canvas)
        if kind == "png":
            return canvas.png()
        return plots.text_of(canvas.svg(), title, words + ".", standalone=True).encode()


def _strip(kind, sections, panels, y_label, title, order=None):
    order = order or {}
    order.update({line.label: line.order for section in sections for panel in series.panels(section)
                  for line in panel.lines})
    labels = sorted({line[0] for _, lines in panels for line in lines}, key=lambda label: (order[label], label))
    words = ". ".join(f"{panel}: " + "; ".join(_line_words(*line) for line in lines) for panel, lines in panels)
    return _drawn(kind, plots.strip_size(len(panels), len(labels)),
                  lambda canvas: plots.draw_strip(canvas, panels, plots.styles(labels), labels, y_label), title, words)


def picture(records, path):
    """One picture for a document, as the bytes of an SVG or PNG file, as `path` ends: samples/s against workers, ring
    and parameter servers, a panel for each network. Raises BadInput."""
    kind = _kind_of_picture(path)
    sections = [section for section in series.sections(records) if any(map(usable, section.runs))]
    panels = _picture_panels(sections, _rate) if sections else []
    if not panels:
        raise BadInput("--figure: expected runs with the update at the workers and without a codec, found none")
    return _strip(kind, sections, panels, "samples/s", "Samples per second against workers")


IDEAL = "perfect scaling"


def time_picture(records, path):
    """Likewise: the time of a step that has as many samples whatever the number of workers, and what it were if n
    workers took an n-th of one worker's."""
    kind = _kind_of_picture(path)
    # A ring of one exchanges nothing, over whatever link it says.
    rings = [run for run in records.runs if run.topology == "ring"]
    links = {run.link for run in rings if run.workers > 1}
    for run in rings:
        if run.workers == 1 and len(links) == 1:
            run.link = next(iter(links))
    sections = [section for section in series.sections(records)
                if section.job.strong and any(map(usable, section.runs))]
    panels = _picture_panels(sections, _step_ms) if sections else []
    if not panels:
        raise BadInput("--figure_of=time: expected runs with --global_batch_size, found none")
    for _, lines in panels:
        alone = [point[1] for _, measured, _ in lines for point in measured if point[0] == 1]
        workers = sorted({point[0] for _, measured, _ in lines for point in measured})
        if alone:
            lines.append((IDEAL, [], [(n, min(alone) / n) for n in workers]))
    samples = sections[0].job.batch
    return _strip(kind, sections, panels, f"ms per step of {samples:,} samples", "Time of a step against workers",
                  {IDEAL: (len(names.TOPOLOGY_ORDER),)})


def _split_label(run):
    """None for an arrangement without a place in a sweep over split sizes."""
    if not run.mesh or run.micro_batches < 1 or run.batch_size < 1 or run.update == "owner":
        return None
    if run.model_parallel > 1:
        return f"{run.model_parallel} threads, {run.pipeline_schedule}"
    if run.workers == 1:
        return "one process"
    return f"{run.mesh}, {run.pipeline_schedule}" if run.split else f"{run.mesh}, not cut"


def _split_lines(records, bandwidth):
    lines = {}
    for kind, runs in enumerate((records.runs, records.predictions)):
        for run in runs:
            label = _split_label(run)
            if label is None or run.bandwidth != bandwidth or run.step_ms_p50 <= 0 or (kind == 0 and not usable(run)):
                continue
            values = _step_ms(run) if kind == 0 else [run.step_ms_p50]
            lines.setdefault(label, ([], []))[kind].append((run.batch_size, *(value / 1e3 for value in values)))
    return [(label, sorted(measured), sorted(predicted)) for label, (measured, predicted) in sorted(lines.items())]


def split_picture(records, path):
    """Likewise: the time of a step against the samples of a micro-batch, of as many samples in all, a panel for each
    network."""
    kind = _kind_of_picture(path)
    batches = {run.global_batch_size for run in records.runs if _split_label(run)}
    bandwidths = list(dict.fromkeys(run.bandwidth for run in records.runs if _split_label(run)))
    panels = [(names.bandwidth(bandwidth) or "this host", _split_lines(records, bandwidth))
              for bandwidth in bandwidths[:MAX_PANELS]]
    panels = [(title, lines) for title, lines in panels if lines]
    if not panels or len(batches) != 1 or 0 in batches:
        raise BadInput("--figure_of=split: expected runs of --mesh with one --global_batch_size, found none or others")
    labels = sorted({line[0] for _, lines in panels for line in lines})
    words = ". ".join(f"{panel}: " + "; ".join(_line_words(*line) for line in lines) for panel, lines in panels)
    return _drawn(kind, plots.strip_size(len(panels), len(labels)),
                  lambda canvas: plots.draw_strip(canvas, panels, plots.styles(labels), labels,
                                                  f"s per step of {max(batches):,.0f} samples", plots.split_axis),
                  "Time of a step against the samples of a micro-batch", words)


def bandwidth_picture(records, path):
    """Likewise: samples/s against the bandwidth of each host's link."""
    kind = _kind_of_picture(path)
    workers, lines = series.bandwidth_lines(records)
    if not lines:
        raise BadInput("--figure_of=bandwidth: expected runs or predictions at two bandwidths, found fewer")
    drawn = _over_bandwidth(lines)
    labels = [line.label for line in lines]
    title = f"Samples per second of {names.count(workers, 'worker')}"
    size = 1.6 * plots.WIDTH, 1.3 * plots.lines_height(labels)
    return _drawn(kind, size,
                  lambda canvas: plots.draw_lines(canvas, drawn, plots.styles(labels), title,
                                                  x_axis=plots.bandwidth_axis),
                  f"{title} against bandwidth", "; ".join(_line_words(*line) for line in drawn))


def learning_picture(records, path):
    """Likewise: training loss and test accuracy against time, of the runs with as many workers that are most."""
    kind = _kind_of_picture(path)
    groups = {}
    for index, section in enumerate(series.sections(records)):
        for run in sorted(filter(usable, section.runs), key=names.order):
            if len(run.curve) > 1:
                groups.setdefault((index, run.workers), []).append(run)
    if not groups:
        raise BadInput("--figure_of=learning: expected runs with a curve, found none")
    runs = max(groups.values(), key=len)
    panels = [(title, lines) for title, lines in (("Training loss", _curve_lines(runs, "loss")),
                                                  ("Test accuracy", _curve_lines(runs, "accuracy"))) if lines]
    labels = [names.short(run) for run in runs]
    words = ". ".join(f"{title}: {_curve_words(lines)}" for title, lines in panels)
    return _drawn(kind, plots.curve_strip_size(len(panels), labels),
                  lambda canvas: plots.draw_curve_strip(canvas, panels, plots.styles(labels), labels),
                  "Learning against time", words)


def epochs_picture(workers, path):
    """Likewise: training loss and accuracy of jobs over their epochs. `workers`: (label, records.load_worker()), rank 0
    of each job. Losses are of its own batches, accuracies of all workers' samples, as they were trained on."""
    kind = _kind_of_picture(path)
    loss, accuracy = [], []
    for label, worker in workers:
        steps = max(epoch.steps for epoch in worker.epochs)
        points = [((i + 1) * worker.step_stride / steps, value) for i, value in enumerate(worker.loss) if math.isfinite(value)]
        if points:
            loss.append((label, series.means_of_groups(points, MAX_CURVE_POINTS)))
        accuracy.append((label, [(epoch.epoch, 100 * epoch.global_accuracy) for epoch in worker.epochs]))
    labels = [label for label, _ in workers]
    panels = [("Training loss", loss), ("Training accuracy, %", accuracy)]
    words = ". ".join(f"{title}: " + "; ".join(
        f"{label} from {names.number(points[0][1])} to {names.number(points[-1][1])}" for label, points in lines)
        for title, lines in panels)
    return _drawn(kind, plots.curve_strip_size(len(panels), labels),
                  lambda canvas: plots.draw_curve_strip(canvas, panels, plots.styles(labels), labels, "epochs"),
                  "Learning against epochs", words)

"""Fills the template: the verdict, the plots, the table of all runs, and where the numbers come from."""
import os

import jinja2

import decision
import figures
import names
import plots
import series
import verdict
from records import usable

FOLDER = os.path.dirname(os.path.abspath(__file__))
HASH = 12


def _section_title(section, sections):
    """The network, the kind of scaling, and what else tells this section from the others."""
    def differs(name):
        return len({getattr(other.job, name) for other in sections}) > 1
    job = section.job
    parts = [names.bandwidth(job.bandwidth) if job.bandwidth else "No emulated network",
             "strong scaling" if job.strong else "weak scaling"]
    if differs("model"):
        parts.append(job.model)
    if len({other.job.data for other in sections if other.job.model == job.model}) > 1:
        parts.append(job.data)
    if differs("profile"):
        parts.append("replayed" if job.profile else "real training")
    if job.straggler:
        parts.append(f"straggler {job.straggler}")
    if differs("compute_scale"):
        parts.append(f"computation times {job.compute_scale:g}")
    if differs("bucket_bytes"):
        parts.append(f"buckets of {job.bucket_bytes / 2**20:.3g} MiB")
    if differs("device"):
        parts.append(job.device)
    if differs("computation"):
        parts.append(job.computation or "fp32")
    if differs("threads"):
        parts.append(names.count(job.threads, "thread"))
    same = [other for other in sections if other.job.strong == job.strong and other.job.model == job.model]
    if len({other.job.batch for other in same}) > 1:
        parts.append(f"batch {job.batch:,}")
    return ", ".join(parts)


def _section_intro(job):
    batch = (f"{job.batch:,} samples per step over all workers, so each worker's part shrinks as workers are added"
             if job.strong else f"{job.batch:,} samples per worker and step, so the batch grows with the workers")
    what = f"{job.model} on {job.data}" if job.data else job.model
    extra = f"; computation replayed from {job.profile}" if job.profile else ""
    extra += f"; straggler {job.straggler}" if job.straggler else ""
    return f"{what}: {batch}{extra}."


def _contest_rows(runs):
    rows = []
    for contest in verdict.contests(runs, by_link=True):
        job = verdict.job(contest.winner)
        low, high = contest.spread
        rows.append({
            "network": names.bandwidth(job.bandwidth) or "none emulated", "workers": contest.workers,
            "scaling": "strong" if job.strong else "weak", "link": names.link(contest.winner),
            "codec": names.codec(contest.winner) or "none", "straggler": job.straggler or "none",
            "faster": names.sentence(contest.winner, False), "rate": names.number(contest.winner.samples_per_s),
            "slower": names.sentence(contest.loser, False), "other": names.number(contest.loser.samples_per_s),
            "lead": (f"{1 + contest.lead:.1f} times ({1 + low:.1f} to {1 + high:.1f})" if contest.lead >= 1 else
                     f"{names.percent(contest.lead)} ({names.percent(low)} to {names.percent(high)})"),
            "noise": contest.noise, "rounds": len(contest.ratios),
            "verdict": _difference(contest)})
    return rows


def _difference(contest):
    if contest.ratios:
        if contest.outcome == "equal":
            return f"equal within {names.percent(decision.EQUAL_MARGIN)}"
        return f"not decided: {contest.decision.open_words()}" if contest.noise else "faster"
    return "not decided" if contest.noise else "clear" if not contest.overlap else "p10–p90 overlap"


def _lead_text(rows):
    """What the brackets of the table of contests are, and when a lead counts."""
    if max((row["rounds"] for row in rows), default=0):
        return ("Leads are means of ratios within a round; in brackets their interval, for all rows together. Faster: it leaves "
                f"out 0 %. Equal within {names.percent(decision.EQUAL_MARGIN)}: two one-sided tests. Not decided: neither.")
    return ("A lead counts when neither median lies within the other's p10–p90 of steps; in brackets, the lead if one "
            "side had its slow and the other its fast steps.")


def _varies(rows, name):
    return len({row[name] for row in rows}) > 1


def _contest_table(runs):
    rows = _contest_rows(runs)
    columns = [("network", "network"), ("scaling", "scaling"), ("straggler", "straggler"), ("link", "link"),
               ("codec", "codec"), ("workers", "workers"), ("faster", "faster"), ("lead", "lead (interval)" if any(row["rounds"] for row in rows) else "lead (p10–p90)"),
               ("verdict", "verdict"), ("rate", "samples/s"), ("slower", "slower"), ("other", "samples/s")]
    columns = [(key, title) for key, title in columns
               if key not in ("network", "scaling", "straggler", "link", "codec") or _varies(rows, key)]
    return {"columns": [title for _, title in columns], "text": _lead_text(rows),
            "rows": [{"cells": [row[key] for key, _ in columns], "noise": row["noise"]} for row in rows]}


def _bandwidth_section(records, page):
    workers, lines = series.bandwidth_lines(records)
    if not lines:
        return None
    return page.over_bandwidth(workers, lines)


def _rate(run):
    if len(run.round_samples_per_s) < 2:
        return _positive(run.samples_per_s)
    return (f"{names.number(run.samples_per_s)} ({names.number(run.samples_per_s_low)}–"
            f"{names.number(run.samples_per_s_high)})")


def _milliseconds(run):
    if run.step_ms_p10 > 0 and run.step_ms_p90 > 0:
        return f"{names.number(run.step_ms_p50)} ({names.number(run.step_ms_p10)}–{names.number(run.step_ms_p90)})"
    return names.number(run.step_ms_p50)


def _positive(value, text=names.number):
    return text(value) if value == value and value > 0 else "–"


def _predicted(run, prediction):
    if prediction is None:
        return "–"
    return f"{names.number(prediction.step_ms_p50)} ({names.percent(prediction.step_ms_p50 / run.step_ms_p50 - 1)})"


def _sent(run):
    return _positive(run.wire_tx_bytes_max_node / 1e6) if not run.bytes_uncounted else "–"


def _share(run):
    room = series.capacity(run)
    return names.percent(run.wire_tx_bytes_max_node / room) if room > 0 and not run.bytes_uncounted else "–"


# (title, text of a run, whether it is a number). A column in which all runs say "–" is left out.
COLUMNS = [
    ("model", lambda run, _: run.model or "–", False),
    ("data", lambda run, _: run.data or "–", False),
    ("replayed profile", lambda run, _: run.profile or "–", False),
    ("network", lambda run, _: names.bandwidth(run.bandwidth) or "–", False),
    ("library", lambda run, _: run.library if run.library not in ("", "gradsync") else "–", False),
    ("topology", lambda run, _: run.topology or "–", False),
    ("placement", lambda run, _: run.placement or "–", False),
    ("link", lambda run, _: names.link(run) or "–", False),
    ("device", lambda run, _: run.device, False),
    ("computation", lambda run, _: names.computation(run) or "–", False),
    ("NCCL", lambda run, _: names.nccl(run) or "–", False),
    ("update at", lambda run, _: run.update or "–", False),
    ("codec", lambda run, _: names.codec(run) or "–", False),
    ("consistency", lambda run, _: names.consistency(run) or "–", False),
    ("straggler", lambda run, _: run.straggler or "–", False),
    ("servers", lambda run, _: _positive(run.servers, str), True),
    ("workers", lambda run, _: str(run.workers), True),
    ("bucket, MiB", lambda run, _: _positive(run.bucket_bytes / 2**20), True),
    ("computation times", lambda run, _: f"{run.compute_scale:g}" if run.compute_scale != 1 else "–", True),
    ("compute threads", lambda run, _: _positive(run.threads, str), True),
    ("batch per worker", lambda run, _: _positive(run.batch_size, str), True),
    ("batch of all workers", lambda run, _: _positive(run.global_batch_size, lambda size: f"{size:,.0f}"), True),
    ("measured steps", lambda run, _: _positive(run.steps, str), True),
    ("samples/s", lambda run, _: _rate(run), True),
    ("step, ms (p10–p90)", lambda run, _: _milliseconds(run) if run.step_ms_p50 > 0 else "–", True),
    ("predicted step, ms", lambda run, p: _predicted(run, p), True),
    ("exposed, ms", lambda run, _: names.number(run.exposed_ms_p50), True),
    ("efficiency", lambda run, _: _positive(run.scaling_efficiency), True),
    ("busiest node sends, MB", lambda run, _: _sent(run), True),
    ("of its capacity", lambda run, _: _share(run), True),
    ("CPU, ms per step", lambda run, _: _positive(run.cpu_ms_per_step), True),
    ("CPU share", lambda run, _: _positive(run.cpu_share, names.percent), True),
    ("final loss", lambda run, _: f"{run.final_loss:.4f}" if run.final_loss else "–", True),
    ("accuracy", lambda run, _: _positive(run.accuracy, names.percent), True),
    ("max staleness", lambda run, _: _positive(run.max_staleness, str), True),
    ("wrong elements", lambda run, _: _positive(run.wrong, lambda n: f"{n:,.0f}"), True),
    ("parameters", lambda run, _: run.params_sha256[:HASH] or "–", False),
    ("not used because", lambda run, _: run.invalid or run.failure or "–", False),
]


# Columns that are of a configuration and go into a sentence where all runs have the same in them.
SHARED = {"model", "data", "replayed profile", "network", "placement", "link", "computation", "update at", "codec",
          "consistency", "straggler", "servers", "bucket, MiB", "computation times", "compute threads", "batch per worker",
          "batch of all workers", "measured steps"}


def _table(records, sections):
    """The columns that tell something, the rows, and in words what is the same in all of them."""
    predicted = {id(run): prediction for run, prediction in series.pairs(records)}
    runs = list({id(run): run for section in sections
                 for run in sorted(section.runs, key=lambda r: (r.workers, names.order(r)))}.values())
    cells = [[text(run, predicted.get(id(run))) for _, text, _ in COLUMNS] for run in runs]
    same = [i for i, column in enumerate(COLUMNS)
            if column[0] in SHARED and len(runs) > 1 and len({row[i] for row in cells}) == 1]
    without = {"device": "cpu"}  # what a column says that tells nothing
    shown = [i for i in range(len(COLUMNS))
             if i not in same and any(row[i] != without.get(COLUMNS[i][0], "–") for row in cells)]
    return {"columns": [{"title": COLUMNS[i][0], "number": COLUMNS[i][2]} for i in shown],
            "same": ", ".join(f"{COLUMNS[i][0]} {cells[0][i]}" for i in same if cells[0][i] != "–"),
            "rows": [{"cells": [{"text": row[i], "number": COLUMNS[i][2]} for i in shown], "bad": not usable(run)}
                     for run, row in zip(runs, cells)]}


def _networks(records):
    columns = ["bandwidth", "hosts", "burst, kB", "congestion control", "tcp_rmem", "tcp_wmem", "bare TCP / bandwidth"]
    return {"columns": columns, "rows": [
        [names.bandwidth(n.bandwidth), n.hosts, names.number(n.burst_bytes / 1e3), n.congestion_control, n.tcp_rmem,
         n.tcp_wmem, f"{n.tcp_factor:.3f}" if n.tcp_factor else "–"] for n in records.networks]}


def _machine(machine):
    rows = [("CPU", f"{machine.cpu}, {names.count(machine.cores, 'core')}" if machine.cpu else ""),
            ("memory", f"{machine.memory_bytes / 1e9:.1f} GB" if machine.memory_bytes else ""),
            ("system", ", ".join(filter(None, [machine.os, machine.kernel]))),
            ("compiler", ", ".join(filter(None, [machine.compiler, machine.build_mode]))),
            ("libraries", ", ".join(f"{name} {version}" for name, version in sorted(machine.versions.items()))),
            ("measured", machine.date.replace("T", " ").replace("Z", " UTC")),
            ("commit", machine.commit + (", with changes" if machine.dirty else ""))]
    return [row for row in rows if row[1]]


def _prediction_text(records):
    errors = verdict.prediction_errors(series.pairs(records))
    if not errors:
        return ""
    number, median, worst = errors
    return (f"Predicted step times were within {names.percent(median)} (median) and {names.percent(worst)} (worst) of "
            f"the measured ones in {names.count(number, 'configuration')}.")


def _kicker(records):
    models = names.joined(sorted({run.model for run in records.runs if run.model}))
    machine = records.machine
    cpu = f"{names.count(machine.cores, 'core')} of {machine.cpu}" if machine.cpu and machine.cores else machine.cpu
    return " · ".join(filter(None, ["gradsync", models, cpu, machine.date[:10].replace("-", "\u2011")]))


def nobreak(text):
    """Keeps numbers and their units on one line."""
    for unit in ("%", "Mbit/s", "kbit/s", "samples/s", "workers"):
        text = text.replace(f" {unit}", f"\u00a0{unit}")
    return text.replace("p10–p90", "p10\u2060–\u2060p90")


def render(records):
    """The page as text; the same records give the same text."""
    sections = series.sections(records)
    page = figures.Page(sections, series.bandwidth_lines(records)[1])
    bandwidth = _bandwidth_section(records, page)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["nobreak"] = nobreak
    with open(os.path.join(FOLDER, "style.css"), encoding="utf-8") as file:
        style = plots.style_sheet() + file.read()
    made = []
    for i, section in enumerate(sections, start=1):
        made.append({"id": f"section-{i}", "title": _section_title(section, sections),
                     "intro": _section_intro(section.job), "groups": page.groups(section)})
    differ = not verdict.bits(records.runs).agree
    return environment.get_template("report.html").render(
        style=style, kicker=_kicker(records), verdict=verdict.sentence(records.runs),
        notes=verdict.notes(records.runs, records.machine, records.no_network), bandwidth=bandwidth,
        bits_differ=differ, prediction=_prediction_text(records), contests=_contest_table(records.runs), sections=made,
        table=_table(records, sections), machine=_machine(records.machine), networks=_networks(records),
        command=records.command)

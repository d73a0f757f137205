"""Sorts runs and predictions into jobs, panels and lines."""
import collections
import dataclasses

import names
import verdict
from records import bytes_per_s, usable

EQUAL_SERVERS = "n"  # as many servers as workers


def _library(run):
    return run.library if run.library not in ("", "gradsync") else ""


def _family(run):
    """Runs that may be points of one line, but for their servers."""
    return (_library(run), run.topology, run.placement, run.link, run.update == "owner", names.codec(run),
            names.consistency(run), names.arrangement(run))


def _line_label(run, servers):
    if _library(run):
        return _library(run)
    if run.topology != "ps":
        text = {"local": "no exchange"}.get(run.topology, run.topology)
    else:
        text = f"ps, {names.servers_and_placement(servers, run.placement)}"
    return ", ".join([text] + [extra for extra in (names.consistency(run), names.arrangement(run)) if extra])


@dataclasses.dataclass
class Line:
    """One topology with its servers, over numbers of workers."""
    label: str
    order: tuple
    measured: list
    predicted: list


@dataclasses.dataclass
class Panel:
    """The lines with one link, update site and codec."""
    title: str
    lines: list


@dataclasses.dataclass
class Section:
    """The runs of one job (see verdict.job)."""
    job: object
    runs: list
    predictions: list


def matches(prediction, run):
    """Whether `prediction` is of `run`'s configuration. What a prediction leaves open fits everything."""
    def fits(name):
        return not getattr(prediction, name) or getattr(prediction, name) == getattr(run, name)
    return (prediction.topology == run.topology and prediction.workers == run.workers
            and prediction.servers == run.servers and prediction.placement == run.placement
            and bytes_per_s(prediction.bandwidth) == bytes_per_s(run.bandwidth)
            and (prediction.update == "owner") == (run.update == "owner")
            and names.codec(prediction) == names.codec(run) and names.consistency(prediction) == names.consistency(run)
            and names.arrangement(prediction) == names.arrangement(run)
            and fits("link") and fits("model")
            and fits("straggler") and fits("profile")
            and prediction.compute_scale == run.compute_scale
            and _batch_fits(prediction, run.global_batch_size, run.batch_size))


def _batch_fits(prediction, global_batch_size, batch_size):
    if prediction.global_batch_size > 0 or global_batch_size > 0 and prediction.batch_size > 0:
        return prediction.global_batch_size == global_batch_size
    return not prediction.batch_size or prediction.batch_size == batch_size


def _bucket_distance(prediction, bucket_bytes):
    """Predictions give the size of the largest bucket, runs its limit, so the nearest one is meant."""
    return abs(prediction.bucket_bytes - bucket_bytes) if prediction.bucket_bytes else 0.0


def _nearest_buckets(predictions, bucket_bytes):
    """Of each configuration, the prediction whose buckets are nearest."""
    found = {}
    for prediction in sorted(predictions, key=lambda p: _bucket_distance(p, bucket_bytes)):
        found.setdefault((_family(prediction), prediction.servers, prediction.workers), prediction)
    return list(found.values())


def pairs(records):
    """Of each usable run that has a prediction, (run, prediction)."""
    found = []
    for run in records.runs:
        if usable(run):
            of_run = [p for p in records.predictions if p.step_ms_p50 > 0 and matches(p, run)]
            nearest = min(of_run, key=lambda p: _bucket_distance(p, run.bucket_bytes), default=None)
            if nearest is not None:
                found.append((run, nearest))
    return found


def _belongs(prediction, section_job):
    batches = (section_job.batch, 0) if section_job.strong else (0, section_job.batch)
    return (bytes_per_s(prediction.bandwidth) == bytes_per_s(section_job.bandwidth)
            and (not prediction.model or prediction.model == section_job.model)
            and all(not getattr(prediction, name) or getattr(prediction, name) == getattr(section_job, name)
                    for name in ("straggler", "profile"))
            and prediction.compute_scale == section_job.compute_scale
            and _batch_fits(prediction, *batches))


def sections(records):
    """In the order of the page: the main job first, then by model and so on; from narrow to wide networks."""
    main = verdict.main_job(records.runs)
    main_model = next((run.model for run in records.runs if verdict.job_apart_from_network(run) == main), "")
    found = {}
    for run in records.runs:
        key = verdict.job_key(run)
        found.setdefault(key, Section(verdict.job(run), [], [])).runs.append(run)
    for key, section in list(found.items()):
        if all(run.topology == "local" for run in section.runs):
            # What exchanges nothing is of every section that differs in buckets only.
            apart = [name for name in vars(section.job) if name != "bucket_bytes"]
            others = [other for other in found.values() if other is not section and all(
                getattr(section.job, name) == getattr(other.job, name) for name in apart)]
            for other in others:
                other.runs.extend(section.runs)
            if others:
                del found[key]
    for section in found.values():
        of_section = [p for p in records.predictions if _belongs(p, section.job) and p.samples_per_s > 0]
        section.predictions = _nearest_buckets(of_section, section.job.bucket_bytes)
    return sorted(found.values(), key=lambda s: (
        verdict.job_apart_from_network(s.runs[0]) != main, s.job.model != main_model, s.job.model, s.job.data,
        s.job.profile, s.job.straggler, s.job.strong, s.job.batch,
        bytes_per_s(s.job.bandwidth) or float("inf"), s.job.bandwidth, s.job.compute_scale, s.job.bucket_bytes,
        s.job.threads))


def _servers_keys(runs):
    """Maps each number of servers of a family to what its line is called after: the number, or EQUAL_SERVERS."""
    workers_of = collections.defaultdict(set)
    for run in runs:
        workers_of[run.servers].add(run.workers)
    diagonal = [k for k, workers in workers_of.items() if k > 0 and workers == {k}]
    all_equal = all(run.servers == run.workers for run in runs)
    if len(diagonal) < 2 and not (all_equal and len(runs) > 1):
        diagonal = []
    return {k: EQUAL_SERVERS if k in diagonal else k for k in workers_of}


def _lines(measured, predicted):
    families = collections.defaultdict(lambda: ([], []))
    for run in measured:
        families[_family(run)][0].append(run)
    for prediction in predicted:
        families[_family(prediction)][1].append(prediction)
    lines = []
    for runs, predictions in families.values():
        keys = _servers_keys(runs + predictions)
        has_diagonal = EQUAL_SERVERS in keys.values()
        found = {}
        for side, items in ((0, runs), (1, predictions)):
            for item in items:
                of_item = {keys[item.servers]}
                if has_diagonal and item.servers == item.workers:
                    of_item.add(EQUAL_SERVERS)
                for key in of_item:
                    rank = float("inf") if key == EQUAL_SERVERS else key
                    order = names.order(item)[:4] + (rank,) + names.order(item)[5:]
                    line = found.setdefault(key, Line(_line_label(item, key), order, [], []))
                    (line.measured, line.predicted)[side].append(item)
        lines.extend(found.values())
    for line in lines:
        line.measured.sort(key=lambda run: run.workers)
        line.predicted.sort(key=lambda run: run.workers)
    # One predicted point is no line; it stands in the picture over bandwidth.
    lines = [line for line in lines if line.measured or len(line.predicted) > 1]
    return sorted(lines, key=lambda line: line.order)


def _of_bandwidths(run, link):
    """Whether a run over `link`, or a prediction, may stand in the picture of samples/s against bandwidth."""
    return (bytes_per_s(run.bandwidth) > 0 and run.samples_per_s > 0 and run.workers >= 2 and run.topology != "local"
            and run.link in ("", "grpc", link) and not names.options(run) and not _library(run))


def bandwidth_lines(records):
    """(workers, lines) of the main job, each line over the bandwidths of one topology with its servers: for the number of
    workers of which most bandwidths are known, measured or predicted. (0, []) with fewer than two bandwidths."""
    main = verdict.main_job(records.runs)
    # Those over TCP where there are none over gRPC.
    link = "grpc" if any(run.link == "grpc" and run.bandwidth for run in records.runs) else "tcp"
    runs = [run for run in records.runs if usable(run) and _of_bandwidths(run, link)
            and verdict.job_apart_from_network(run) == main]
    of_main = next((run for run in records.runs if verdict.job_apart_from_network(run) == main), None)
    predictions = [] if of_main is None else [
        p for p in records.predictions if _of_bandwidths(p, link) and (not p.model or p.model == of_main.model)
        and _batch_fits(p, of_main.global_batch_size, of_main.batch_size)]
    known = collections.defaultdict(set)
    for run in runs + predictions:
        known[run.workers].add(bytes_per_s(run.bandwidth))
    workers = max(known, key=lambda n: (len(known[n]), n), default=0)
    if len(known[workers]) < 2:
        return 0, []
    lines = {}
    for side, items in ((0, runs), (1, predictions)):
        for item in sorted(items, key=lambda run: bytes_per_s(run.bandwidth)):
            if item.workers == workers:
                key = (item.topology, item.placement, item.servers)
                line = lines.setdefault(key, Line(_line_label(item, item.servers), names.order(item), [], []))
                (line.measured, line.predicted)[side].append(item)
    return workers, sorted(lines.values(), key=lambda line: line.order)


def _variant(run):
    return (run.update == "owner", names.codec(run))


def _variant_title(variant, variants):
    parts = []
    if len({v[0] for v in variants}) > 1 or variant[0]:
        parts.append("update at owner" if variant[0] else "update at worker")
    if variant[1]:
        parts.append(variant[1])
    return parts


MAX_LINES = 7


def _split(title, lines):
    """Too many lines for one panel become one panel for each placement, each with what is no parameter server."""
    if len(lines) <= MAX_LINES:
        return [Panel(title, lines)]
    others = [line for line in lines if line.order[0] != 1]
    panels = []
    for placement in sorted({line.order[2] for line in lines if line.order[0] == 1}):
        chosen = others + [line for line in lines if line.order[0] == 1 and line.order[2] == placement]
        name = names.PLACEMENT_ORDER[placement] if placement < len(names.PLACEMENT_ORDER) else ""
        panels.append(Panel(", ".join(filter(None, [title, f"{name} servers".strip()])), chosen))
    return panels


def panels(section):
    """The panels of a section, each with all its lines. Only links that were measured get one."""
    runs = [run for run in section.runs if usable(run)]
    links = sorted({run.link for run in runs if run.topology != "local"}, key=lambda l: (
        list(names.LINKS).index(l) if l in names.LINKS else len(names.LINKS), l)) or [""]
    variants = sorted({_variant(run) for run in runs})
    found = []
    for link in links:
        for variant in variants:
            def here(run):
                local = run.topology == "local"
                return local or run.link == link and _variant(run) == variant
            measured = [run for run in runs if here(run)]
            if not any(run.topology != "local" for run in measured) and len(links) + len(variants) > 2:
                continue
            predicted = []
            for p in section.predictions:
                if p.link in ("", link) and _variant(p) == variant:
                    copy = type(p)(**vars(p))
                    copy.link = link
                    predicted.append(copy)
            title = ", ".join(filter(None, [names.LINKS.get(link, link)] + _variant_title(variant, variants)))
            found.extend(_split(title, _lines(measured, predicted)))
    return found


def capacity(run):
    """Bytes that a node's interface can send in one step; 0 where no bandwidth is emulated."""
    return bytes_per_s(run.bandwidth) * run.step_ms_p50 / 1e3


def samples(section):
    """How many samples the shortest of the section's jobs trained on: what times to finish are for. On a mesh batches are
    micro-batches, and the ranks of a replica have the same ones."""
    return min((run.steps or 1) * verdict.replicas(run) * run.batch_size * max(1, run.micro_batches)
               for run in section.runs if usable(run))


def means_of_groups(points, at_most):
    """`points` (x, y) in order as at most so many: means over groups of neighbours, at each group's last x."""
    size = -(-len(points) // at_most)
    groups = [points[i:i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def staleness_bins(largest):
    """[(first, last)] from 0 to at least `largest`: one for each number where there are few, else ever wider ones."""
    if largest <= 10:
        return [(steps, steps) for steps in range(largest + 1)]
    bins = [(0, 0), (1, 1), (2, 2)]
    while bins[-1][1] < largest:
        low = bins[-1][1] + 1
        bins.append((low, 2 * low - 2))
    return bins

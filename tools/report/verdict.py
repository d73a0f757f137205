"""Who won, by how much, whether that is more than noise, and whether the bits agree: from the runs, nothing else."""
import collections
import dataclasses
import types

import decision
import names
from records import bytes_per_s, usable

# Medians of one round that are closer than this decide nothing.
TIE = 0.01


def job(run):
    """What must be equal for two runs to be a comparison, but for the number of workers and the topology."""
    strong = run.global_batch_size > 0
    return types.SimpleNamespace(
        model=run.model, data=run.data, threads=run.threads, profile=run.profile, straggler=run.straggler,
        bandwidth=run.bandwidth, compute_scale=run.compute_scale, strong=strong, device=run.device,
        computation=names.computation(run),
        # Who exchanges nothing has no buckets, and a peer does not tell.
        bucket_bytes=run.bucket_bytes if run.topology != "local" else 0.0,
        batch=int(run.global_batch_size) if strong else run.batch_size)


def job_key(run):
    return tuple(vars(job(run)).values())


def job_apart_from_network(run):
    values = vars(job(run))
    return tuple(values[name] for name in sorted(values) if name != "bandwidth")


def main_job(runs):
    """The job, network apart, that most usable runs are of, with weak before strong scaling; None without any."""
    sizes = collections.Counter(job_apart_from_network(run) for run in runs if usable(run))
    weak_first = sorted((run for run in runs if usable(run)), key=lambda run: job(run).strong)
    return max(map(job_apart_from_network, weak_first), key=lambda key: sizes[key], default=None)


def _along(run, dimension):
    """How many ranks a mesh has along a dimension (core/group/mesh.h); without a mesh all are along data."""
    mesh = run.mesh or f"data={run.workers}"
    return int(dict(part.split("=") for part in mesh.split(",")).get(dimension, 1))


def replicas(run):
    """Ranks that train on other samples."""
    return _along(run, "data") * _along(run, "shard")


def spread(run):
    """How the model is spread over ranks, which is not what topologies differ in."""
    return run.mesh, run.pipeline_schedule, run.micro_batches, run.data_parallel, run.model_parallel


def hosts(run):
    """Hosts of an emulated network that the run's processes are on (benchmarks/options/placed_job.h)."""
    return run.workers + (run.servers if run.placement in ("dedicated", "mixed") else 0)


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


@dataclasses.dataclass
class Contest:
    """The faster of two runs that differ in topology, and the other."""
    winner: types.SimpleNamespace
    loser: types.SimpleNamespace
    decisions: int = 1  # that are read together: there are no more than runs

    @property
    def workers(self):
        return self.winner.workers

    @property
    def more_hosts(self):
        """Whether one side has hosts, and so interfaces, that the other has not."""
        return self.winner.bandwidth != "" and hosts(self.winner) != hosts(self.loser)

    @property
    def ratios(self):
        """The winner's rate over the loser's, round by round; empty when they were not measured in several rounds."""
        pairs = list(zip(self.winner.round_samples_per_s, self.loser.round_samples_per_s))
        if len(self.winner.round_samples_per_s) != len(self.loser.round_samples_per_s) or len(pairs) < 2:
            return []
        return [one / other for one, other in pairs if other > 0]

    @property
    def decision(self):
        """Only with several rounds."""
        return decision.decide(self.ratios, self.decisions)

    @property
    def lead(self):
        """The mean of ratios, or the ratio of medians: 0.1 is 10 % faster."""
        return (self.decision.ratio if self.ratios else self.winner.samples_per_s / self.loser.samples_per_s) - 1

    @property
    def spread(self):
        """The interval of the lead over rounds. Without rounds: the lead if one side had its slow and the other its fast
        steps (p10 and p90), and the other way round."""
        if self.ratios:
            return self.decision.low - 1, self.decision.high - 1
        winner, loser = self.winner, self.loser
        slow = _ratio(loser.step_ms_p10, loser) / _ratio(winner.step_ms_p90, winner)
        fast = _ratio(loser.step_ms_p90, loser) / _ratio(winner.step_ms_p10, winner)
        return (1 + self.lead) * slow - 1, (1 + self.lead) * fast - 1

    @property
    def outcome(self):
        """That of decision.py. Without rounds there is nothing to decide by: not decided when a median lies within the other
        run's p10 to p90, or the medians are as good as equal."""
        if self.ratios:
            return self.decision.outcome
        if self.lead < TIE:
            return "not decided"
        loser_in_winner = 1 + self.lead <= _ratio(self.winner.step_ms_p90, self.winner)
        winner_in_loser = 1 / (1 + self.lead) >= _ratio(self.loser.step_ms_p10, self.loser)
        return "not decided" if loser_in_winner or winner_in_loser else "faster"

    @property
    def noise(self):
        """Whether the winner is one by name alone."""
        return self.outcome != "faster"

    @property
    def overlap(self):
        """True when the steps' p10 to p90 have times in common."""
        return not self.ratios and self.spread[0] <= 0


def _ratio(step_ms, run):
    return step_ms / run.step_ms_p50 if step_ms > 0 else 1.0


def _best(runs, topology):
    # Over NCCL there are rings alone: beside servers of the host that would compare transports, not topologies.
    of_topology = [run for run in runs if run.topology == topology and run.link != "nccl"]
    return max(of_topology, key=lambda run: run.samples_per_s) if of_topology else None


def contest(runs, decisions=1):
    """The best ring against the best parameter servers among `runs`, or None when one of them is missing."""
    sides = [_best(runs, "ring"), _best(runs, "ps")]
    if None in sides:
        return None
    sides.sort(key=lambda run: -run.samples_per_s)
    found = Contest(*sides, decisions)
    return found if found.lead >= 0 else Contest(*reversed(sides), decisions)


def _contests_of(runs, decisions):
    """On a network servers on the workers' hosts and servers on more hosts are two contests."""
    if not runs[0].bandwidth:
        return [contest(runs, decisions)]
    same = [run for run in runs if run.topology != "ps" or hosts(run) == run.workers]
    more = [run for run in runs if run.topology != "ps" or hosts(run) > run.workers]
    return [contest(same, decisions), contest(more, decisions)]


def contests(runs, by_link=False):
    """One for each job, number of workers from 2, codec and mesh (and link, if asked for), of usable runs under bsp."""
    groups = collections.defaultdict(list)
    for run in runs:
        if usable(run) and run.workers >= 2 and run.library in ("", "gradsync") and not names.consistency(run):
            groups[(job_key(run), run.workers, names.codec(run), spread(run), run.link if by_link else "")].append(run)
    found = [c for group in groups.values() for c in _contests_of(group, len(runs))]
    return sorted((c for c in found if c is not None), key=lambda c: (
        c.winner.model, c.winner.profile, c.winner.straggler, job(c.winner).strong, job(c.winner).batch,
        bytes_per_s(c.winner.bandwidth) or float("inf"), c.workers, names.codec(c.winner), c.more_hosts, c.winner.link))


def _bits_group(run):
    """Runs of one group must end with equal parameters; None: nothing to compare."""
    if not run.params_sha256 or run.invalid or run.failure or names.consistency(run):
        return None
    if run.topology == "local" and run.workers > 1 or run.own_order and run.workers > 2:
        return None
    # A GPU's convolutions may add in another order each time.
    if run.device != "cpu":
        return None
    # A ring rounds at every hop and a server once.
    codec = (run.topology, names.codec(run)) if names.codec(run) else ()
    # A replayed step ends with gradients or parameters, as the update's place has it.
    replay = (run.profile, run.update, run.bucket_bytes, run.mesh, run.split) if run.profile else ()
    # Stages change no bits; slices and replicas in a process add up other parts.
    parts = (replicas(run), run.micro_batches, _along(run, "tensor"), run.data_parallel)
    return (run.model, run.data, run.threads, run.steps, run.batch_size, parts, codec, replay, names.computation(run))


@dataclasses.dataclass
class Bits:
    agree: bool
    compared: int      # runs that have another to be compared with
    differences: list  # "with 2 workers: A against B"
    left_out: int      # usable runs with nothing to compare
    wrong: list        # "3 elements of A"

    def clause(self):
        if self.wrong:
            return f"but results were WRONG: {names.joined(self.wrong)}"
        if self.differences:
            return f"but the parameters DIFFER {'; '.join(self.differences)}"
        if self.compared == 0:
            return "no two runs were to end with the same parameters, so bits were not compared"
        which = "both runs" if self.compared == 2 else f"all {self.compared} runs"
        return f"{which} that must end with the same parameters did, bit for bit"


def bits(runs):
    groups = collections.defaultdict(list)
    left_out = 0
    for run in runs:
        key = _bits_group(run)
        if key is not None:
            groups[key].append(run)
        elif usable(run):
            left_out += 1
    # A run of several rounds is compared with itself, too.
    alone = [key for key, group in groups.items() if len(group) == 1 and len(set(group[0].round_params_sha256)) < 2]
    left_out += len(alone)
    groups = {key: group for key, group in groups.items() if key not in alone}
    differences = []
    for group in groups.values():
        by_hash = collections.defaultdict(list)
        for run in group:
            name = names.sentence(run) + (f" {names.bandwidth_phrase(run.bandwidth)}" if run.bandwidth else "")
            for params in run.round_params_sha256 or [run.params_sha256]:
                if name not in by_hash[params]:
                    by_hash[params].append(name)
        if len(by_hash) > 1:
            sides = sorted(by_hash.values(), key=len)
            differences.append(f"with {names.count(replicas(group[0]), 'replica' if group[0].mesh else 'worker')}: "
                               + " against ".join(names.joined(side) for side in sides))
    wrong = [f"{names.count(int(run.wrong), 'element')} of {names.sentence(run)} with "
             f"{names.count(run.workers, 'worker')}" for run in runs if run.wrong > 0]
    return Bits(not differences and not wrong, sum(map(len, groups.values())), differences, left_out, wrong)


def _weight(c):
    """Most workers come first, and of those on several meshes the whole models, then the fastest."""
    return c.workers, not c.winner.mesh, c.winner.samples_per_s if c.winner.mesh else 0


def headline_contests(runs):
    """Of the main job, without codecs unless there are only such: for each network the contest with most workers."""
    found = contests(runs)
    of_main = [c for c in found if job_apart_from_network(c.winner) == main_job(runs)] or found[:1]
    of_main = [c for c in of_main if not names.codec(c.winner)] or of_main
    best = {}
    for c in of_main:
        key = (c.winner.bandwidth, c.more_hosts)
        if key not in best or _weight(c) > _weight(best[key]):
            best[key] = c
    return list(best.values())


def _of_what(c):
    """What the first bracket of a sentence is about."""
    return f", interval over {len(c.ratios)} rounds" if c.ratios else " over the steps' p10–p90"


def _range(c, factor=False, unit=""):
    low, high = c.spread
    if factor:
        return f"{1 + low:.1f} to {1 + high:.1f}{unit}"
    return f"{names.percent(low)} to {names.percent(high)}{unit}"


def _where(c, with_workers):
    words = [f"with {names.count(c.workers, 'worker')}"] if with_workers else []
    words.append(names.bandwidth_phrase(c.winner.bandwidth))
    if c.winner.straggler:
        words.append(f"and straggler {c.winner.straggler}")
    return " ".join(words)


def _clause(group, with_workers):
    """What contests with the same winner and loser say, all of them clear or all of them within noise."""
    first = group[0]
    with_link = any(c.winner.link != "grpc" or c.loser.link != "grpc" for c in group)
    winner, loser = names.sentence(first.winner, with_link), names.sentence(first.loser, with_link)
    several = first.winner.servers > 1 or first.winner.placement == "mixed"
    verb = "were" if first.winner.topology == "ps" and several else "was"
    if len(group) > 1:
        # The first of them says what the others' brackets are.
        parts = [f"{_where(c, with_workers)} by {names.percent(c.lead)} ({_range(c, unit=_of_what(c) if c is first else '')})"
                 for c in group]
        if first.outcome == "equal":
            return f"{winner} and {loser} were equal within {names.percent(decision.EQUAL_MARGIN)}: {names.joined(parts)}"
        if first.noise:
            return f"it is not decided between {winner} and {loser}: {names.joined(parts)}"
        return f"{winner} {verb} faster than {loser}, {names.joined(parts)}"
    rates = f"{names.number(first.winner.samples_per_s)} against {names.number(first.loser.samples_per_s)} samples/s"
    where = _where(first, with_workers)
    if first.outcome == "equal":
        return (f"{where} {winner} and {loser} were equal within {names.percent(decision.EQUAL_MARGIN)}, {rates} (a lead of "
                f"{names.percent(first.lead)}, {_range(first, unit=_of_what(first))})")
    if first.noise:
        more = f", {first.decision.open_words()}" if first.ratios else ""
        return (f"{where} it is not decided between {winner} and {loser}{more}, {rates} (a lead of "
                f"{names.percent(first.lead)}, {_range(first, unit=_of_what(first))})")
    if first.lead >= 1:
        return (f"{where} {winner} {verb} {1 + first.lead:.1f} times as fast ({_range(first, True, _of_what(first))}) as "
                f"{loser}, {rates}")
    return (f"{where} {winner} {verb} {names.percent(first.lead)} faster ({_range(first, unit=_of_what(first))}) than {loser}, "
            f"{rates}")


def sentence(runs):
    """The verdict in one sentence."""
    chosen = headline_contests(runs)
    bits_clause = bits(runs).clause()
    glue = ", " if bits_clause.startswith("but") else "; "
    if not chosen:
        return _nothing_to_compare(runs) + glue + bits_clause + "."
    same_workers = len({c.workers for c in chosen}) == 1 and len(chosen) > 1
    groups = collections.OrderedDict()
    for c in chosen:
        sides = [names.sentence(c.winner), names.sentence(c.loser)]
        groups.setdefault((*(sorted(sides) if c.noise else sides), c.outcome), []).append(c)
    text = "; ".join(_clause(group, not same_workers) for group in groups.values())
    if same_workers:
        text = f"with {names.count(chosen[0].workers, 'worker')}, {text}"
    return text[0].upper() + text[1:] + glue + bits_clause + "."


def _nothing_to_compare(runs):
    good = [run for run in runs if usable(run)]
    if not good:
        return "No run is valid, so there is no winner"
    several = [run for run in good if run.workers >= 2]
    if not several:
        return "One worker has nobody to exchange with, so no topology won"
    found = sorted({run.topology for run in several})
    return (f"With two or more workers only {names.joined(found)} ran under equal conditions, so there is nothing to "
            "compare it with" if len(found) == 1 else "No ring and parameter servers ran under equal conditions")


def notes(runs, machine, no_network=""):
    """What a reader must know before he believes the sentence."""
    found = []
    chosen = headline_contests(runs)
    if no_network:
        found.append(f"Nothing was measured on emulated hosts, so what bandwidth does is only predicted: {no_network}.")
    rounds = max((len(c.ratios) for c in chosen), default=0)
    if rounds:
        found.append(f"Leads are means of ratios within a round. Of 100 pages at most {100 * decision.ERROR_RATE:.0f} say \"faster\" "
                     "or \"equal\" somewhere though it is not so; more --rounds decide more.")
    invalid = sum(1 for run in runs if run.invalid)
    if invalid:
        found.append(f"{names.count(invalid, 'run')} of {len(runs)} {'is' if invalid == 1 else 'are'} marked invalid "
                     "and left out of the verdict and the plots; the table says why.")
    failed = sum(1 for run in runs if run.failure)
    if failed:
        found.append(f"{names.count(failed, 'run')} failed; the table says why.")
    winners = collections.OrderedDict()
    for c in chosen:
        run = c.winner
        if run.bandwidth and run.placement in ("dedicated", "mixed") and not c.noise:
            winners.setdefault((hosts(run), run.workers), []).append(names.bandwidth(run.bandwidth))
    for (with_servers, workers), networks in winners.items():
        found.append(f"The winner at {names.joined(networks)} uses {with_servers} hosts, because servers have their "
                     f"own; the ring uses {workers}.")
    servers = any(run.servers > 0 for run in runs)
    if servers and any(not c.winner.bandwidth for c in chosen):
        where = ("Where no network was emulated, all processes share one machine" if any(run.bandwidth for run in runs)
                 else "All processes share one machine")
        found.append(f"{where}: servers use the workers' cores and no network is the bottleneck, so on a cluster the "
                     "order may be another.")
    elif servers and any(run.bandwidth and not run.profile for run in runs):
        found.append("All hosts are emulated on one machine, so that servers also use the workers' cores.")
    left_out = bits(runs).left_out
    if left_out:
        found.append(f"{names.count(left_out, 'run')} had no other to compare bits with: alone of the kind, under ssp "
                     "or asp, which depend on timing, with Gloo or NCCL beyond two workers, which add in an order of "
                     "their own, or on GPUs, whose convolutions may add in another order each time.")
    profiles = sorted({run.profile for run in runs if run.profile})
    if profiles:
        found.append(f"Computation was replayed from a recorded step ({names.joined(profiles)}); the exchanges moved "
                     "real bytes.")
    overlapping = [c for c in chosen if c.overlap and not c.noise]
    if overlapping:
        found.append("Some steps of the slower side were faster than some of the winner's (their p10–p90 overlap).")
    if machine.build_mode not in ("", "opt"):
        found.append(f"The programs were built without optimisation ({machine.build_mode}): times mean little.")
    return found


def prediction_errors(pairs):
    """(number, median, worst) of |predicted − measured| / measured of (run, prediction) pairs; None without any."""
    errors = sorted(abs(predicted.step_ms_p50 / run.step_ms_p50 - 1) for run, predicted in pairs)
    if not errors:
        return None
    return len(errors), median(errors), errors[-1]

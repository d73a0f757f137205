"""Who won, by how much, whether that is more than noise, and whether the bits agree: from the runs, nothing else."""
import collections
import dataclasses
import types

import names
from records import bytes_per_s, usable

# Medians closer than this are called equal, as //benchmarks:compare does.
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


@dataclasses.dataclass
class Contest:
    """The faster of two runs that differ in topology, and the other."""
    winner: types.SimpleNamespace
    loser: types.SimpleNamespace

    @property
    def workers(self):
        return self.winner.workers

    @property
    def lead(self):
        """Of the medians: 0.1 is 10 % faster."""
        return self.winner.samples_per_s / self.loser.samples_per_s - 1

    @property
    def spread(self):
        """The lead if one side had its slow and the other its fast steps (p10 and p90), and the other way round."""
        winner, loser = self.winner, self.loser
        slow = _ratio(loser.step_ms_p10, loser) / _ratio(winner.step_ms_p90, winner)
        fast = _ratio(loser.step_ms_p90, loser) / _ratio(winner.step_ms_p10, winner)
        return (1 + self.lead) * slow - 1, (1 + self.lead) * fast - 1

    @property
    def noise(self):
        """True when a median lies within the other run's p10 to p90, or the medians are as good as equal."""
        if self.lead < TIE:
            return True
        loser_in_winner = 1 + self.lead <= _ratio(self.winner.step_ms_p90, self.winner)
        winner_in_loser = 1 / (1 + self.lead) >= _ratio(self.loser.step_ms_p10, self.loser)
        return loser_in_winner or winner_in_loser

    @property
    def overlap(self):
        """True when the steps' p10 to p90 have times in common."""
        return self.spread[0] <= 0


def _ratio(step_ms, run):
    return step_ms / run.step_ms_p50 if step_ms > 0 else 1.0


def _best(runs, topology):
    # Over NCCL there are rings alone: beside servers of the host that would compare transports, not topologies.
    of_topology = [run for run in runs if run.topology == topology and run.link != "nccl"]
    return max(of_topology, key=lambda run: run.samples_per_s) if of_topology else None


def contest(runs):
    """The best ring against the best parameter servers among `runs`, or None when one of them is missing."""
    sides = [_best(runs, "ring"), _best(runs, "ps")]
    if None in sides:
        return None
    sides.sort(key=lambda run: -run.samples_per_s)
    return Contest(*sides)


def contests(runs, by_link=False):
    """One for each job, number of workers from 2 and codec (and link, if asked for), of usable runs under bsp."""
    groups = collections.defaultdict(list)
    for run in runs:
        if usable(run) and run.workers >= 2 and run.library in ("", "gradsync") and not names.consistency(run):
            groups[(job_key(run), run.workers, names.codec(run), run.link if by_link else "")].append(run)
    found = [contest(group) for group in groups.values()]
    return sorted((c for c in found if c is not None), key=lambda c: (
        c.winner.model, c.winner.profile, c.winner.straggler, job(c.winner).strong, job(c.winner).batch,
        bytes_per_s(c.winner.bandwidth) or float("inf"), c.workers, names.codec(c.winner), c.winner.link))


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
    replay = (run.profile, run.update, run.bucket_bytes) if run.profile else ()
    return (run.model, run.data, run.threads, run.steps, run.batch_size, run.workers, codec, replay,
            names.computation(run))


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
    left_out += sum(1 for group in groups.values() if len(group) == 1)
    groups = {key: group for key, group in groups.items() if len(group) > 1}
    differences = []
    for group in groups.values():
        by_hash = collections.defaultdict(list)
        for run in group:
            name = names.sentence(run) + (f" {names.bandwidth_phrase(run.bandwidth)}" if run.bandwidth else "")
            if name not in by_hash[run.params_sha256]:
                by_hash[run.params_sha256].append(name)
        if len(by_hash) > 1:
            sides = sorted(by_hash.values(), key=len)
            differences.append(f"with {names.count(group[0].workers, 'worker')}: "
                               + " against ".join(names.joined(side) for side in sides))
    wrong = [f"{names.count(int(run.wrong), 'element')} of {names.sentence(run)} with "
             f"{names.count(run.workers, 'worker')}" for run in runs if run.wrong > 0]
    return Bits(not differences and not wrong, sum(map(len, groups.values())), differences, left_out, wrong)


def headline_contests(runs):
    """Of the main job, without codecs unless there are only such: for each network the contest with most workers."""
    found = contests(runs)
    of_main = [c for c in found if job_apart_from_network(c.winner) == main_job(runs)] or found[:1]
    of_main = [c for c in of_main if not names.codec(c.winner)] or of_main
    best = {}
    for c in of_main:
        if c.winner.bandwidth not in best or c.workers > best[c.winner.bandwidth].workers:
            best[c.winner.bandwidth] = c
    return list(best.values())


STEPS = " over the steps' p10–p90"


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
        parts = [f"{_where(c, with_workers)} by {names.percent(c.lead)} ({_range(c, unit=STEPS if c is first else '')})"
                 for c in group]
        if first.noise:
            return f"{winner} and {loser} were equally fast within noise, differing {names.joined(parts)}"
        return f"{winner} {verb} faster than {loser}, {names.joined(parts)}"
    rates = f"{names.number(first.winner.samples_per_s)} against {names.number(first.loser.samples_per_s)} samples/s"
    where = _where(first, with_workers)
    if first.noise:
        return (f"{where} {winner} and {loser} were equally fast within noise, {rates} (a difference of "
                f"{names.percent(first.lead)}, {_range(first, unit=STEPS)})")
    if first.lead >= 1:
        return (f"{where} {winner} {verb} {1 + first.lead:.1f} times as fast ({_range(first, True, STEPS)}) as "
                f"{loser}, {rates}")
    return (f"{where} {winner} {verb} {names.percent(first.lead)} faster ({_range(first, unit=STEPS)}) than {loser}, "
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
        groups.setdefault((names.sentence(c.winner), names.sentence(c.loser), c.noise), []).append(c)
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


def notes(runs, machine):
    """What a reader must know before he believes the sentence."""
    found = []
    chosen = headline_contests(runs)
    invalid = sum(1 for run in runs if run.invalid)
    if invalid:
        found.append(f"{names.count(invalid, 'run')} of {len(runs)} {'is' if invalid == 1 else 'are'} marked invalid "
                     "and left out of the verdict and the plots; the table says why.")
    failed = sum(1 for run in runs if run.failure)
    if failed:
        found.append(f"{names.count(failed, 'run')} failed; the table says why.")
    hosts = collections.OrderedDict()
    for c in chosen:
        run = c.winner
        if run.bandwidth and run.placement in ("dedicated", "mixed") and not c.noise:
            hosts.setdefault((run.workers + run.servers, run.workers), []).append(names.bandwidth(run.bandwidth))
    for (with_servers, workers), networks in hosts.items():
        found.append(f"The winner at {names.joined(networks)} uses {with_servers} hosts, because servers have their "
                     f"own; the ring uses {workers}.")
    servers = any(run.servers > 0 for run in runs)
    if servers and any(not c.winner.bandwidth for c in chosen):
        found.append("All processes share one machine: servers use the workers' cores and no network is the "
                     "bottleneck, so on a cluster the order may be another.")
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
    middle = len(errors) // 2
    median = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
    return len(errors), median, errors[-1]

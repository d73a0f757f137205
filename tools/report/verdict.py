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
        bandwidth=run.bandwidth, strong=strong, batch=int(run.global_batch_size) if strong else run.batch_size)


def job_key(run):
    return tuple(vars(job(run)).values())


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
    of_topology = [run for run in runs if run.topology == topology]
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
    if run.topology == "local" and run.workers > 1 or run.link == "gloo" and run.workers > 2:
        return None
    # A ring rounds at every hop and a server once.
    codec = (run.topology, names.codec(run)) if names.codec(run) else ()
    return (run.model, run.data, run.threads, run.steps, run.batch_size, run.workers, codec)


@dataclasses.dataclass
class Bits:
    agree: bool
    compared: int       # runs that have another to be compared with
    groups: int
    differences: list   # sentences
    left_out: int       # usable runs with nothing to compare

    def clause(self):
        if self.differences:
            return f"but the parameters DIFFER {'; '.join(self.differences)}"
        if self.compared == 0:
            return "no two runs were to end with the same parameters, so bits were not compared"
        which = "both runs" if self.compared == 2 else f"all {self.compared} runs"
        rest = f" ({names.count(self.left_out, 'other run')} had nothing to be compared with)" if self.left_out else ""
        return f"{which} that must end with the same parameters did, bit for bit{rest}"


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
    return Bits(not differences, sum(map(len, groups.values())), len(groups), differences, left_out)


def lead_text(c):
    low, high = c.spread
    spread = f"{names.percent(low)} to {names.percent(high)} over the steps' p10–p90"
    if c.lead >= 1:
        return f"{1 + c.lead:.1f} times as fast ({1 + low:.1f} to {1 + high:.1f} over the steps' p10–p90) as"
    return f"{names.percent(c.lead)} faster ({spread}) than"


def contest_clause(c, with_workers=True, with_rates=True):
    """"with 4 workers at 400 Mbit/s the ring over gRPC was 12 % faster (…) than …"."""
    run = c.winner
    where = [names.bandwidth_phrase(run.bandwidth)]
    if with_workers:
        where.insert(0, f"with {names.count(c.workers, 'worker')}")
    if run.straggler:
        where.append(f"and straggler {run.straggler}")
    with_link = run.link != "grpc" or c.loser.link != "grpc"
    one, other = names.sentence(run, with_link), names.sentence(c.loser, with_link)
    rates = f", {names.number(run.samples_per_s)} against {names.number(c.loser.samples_per_s)} samples/s"
    rates = rates if with_rates else ""
    text = " ".join(where)
    if c.noise:
        low, high = c.spread
        return (f"{text} {one} and {other} were equally fast within noise{rates} (a difference of "
                f"{names.percent(c.lead)}, {names.percent(low)} to {names.percent(high)} over the steps' p10–p90)")
    verb = "were" if run.topology == "ps" and run.servers > 1 else "was"
    return f"{text} {one} {verb} {lead_text(c)} {other}{rates}"


def headline_contests(runs):
    """For the first codec and each job, bandwidths apart, the contest with most workers."""
    best = {}
    for c in contests(runs):
        key = (job_key(c.winner), names.codec(c.winner) != "")
        if key not in best or c.workers > best[key].workers:
            best[key] = c
    plain = [c for c in best.values() if not names.codec(c.winner)]
    return plain or list(best.values())


MAX_CLAUSES = 4


def sentence(runs):
    """The verdict in one sentence."""
    chosen = headline_contests(runs)[:MAX_CLAUSES]
    bits_clause = bits(runs).clause()
    glue = ", " if bits_clause.startswith("but") else "; "
    if not chosen:
        return _nothing_to_compare(runs) + glue + bits_clause + "."
    same_workers = len({c.workers for c in chosen}) == 1 and len(chosen) > 1
    several_modes = len({job(c.winner).strong for c in chosen}) > 1
    clauses = []
    for c in chosen:
        clause = contest_clause(c, not same_workers, len(chosen) <= 2)
        if several_modes:
            clause += " (strong scaling)" if job(c.winner).strong else " (weak scaling)"
        clauses.append(clause)
    text = "; ".join(clauses)
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
        found.append(f"{names.count(invalid, 'run')} of {len(runs)} "
                     f"{'is' if invalid == 1 else 'are'} marked invalid and left out of the verdict and the plots; the table says why.")
    failed = sum(1 for run in runs if run.failure)
    if failed:
        found.append(f"{names.count(failed, 'run')} failed; the table says why.")
    for c in chosen:
        ps = c.winner if c.winner.topology == "ps" else c.loser
        if ps.bandwidth and ps.placement in ("dedicated", "mixed") and ps is c.winner and not c.noise:
            found.append(f"{names.bandwidth_phrase(ps.bandwidth).capitalize()} the winner uses more hosts: "
                         f"{ps.workers + ps.servers} with the servers' own, the ring {ps.workers}.")
    servers = any(run.servers > 0 for run in runs)
    if servers and any(not c.winner.bandwidth for c in chosen):
        found.append("All processes share one machine: servers use the workers' cores and no network is the bottleneck, "
                     "so on a cluster the order may be another.")
    elif servers and any(run.bandwidth and not run.profile for run in runs):
        found.append("All hosts are emulated on one machine, so that servers also use the workers' cores.")
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

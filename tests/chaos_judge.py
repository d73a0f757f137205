"""What //tests:chaos thinks of those that survived a fault."""
import re
import time

# s after a failure, after which //tools:launch ends those that are left. None after exit code 2, of a process that found
# something wrong before training began, which others need not notice.
SETTLE = 3.0

BLAME = re.compile(r"(?:(?:link )?(?:ranks?|server)|worker) \d")  # how a message begins that blames somebody


class Judge:
    """Of the processes of `job` after `fault`. `unharmed`: the job went on, as it may."""

    def __init__(self, job, fault, unharmed=False):
        self.job = job
        self.draw = job.draw
        self.fault = fault
        self.unharmed = unharmed

    def culprits(self):
        """What a message may begin with."""
        def name(process):
            kind, index = process.split()
            return rf"rank {index}\b" if kind == "worker" else rf"server {index} \([^)]*\)"

        def link(a, b):
            ends = [re.sub(r" \\\(.*", "", name(end)) for end in (a, b)]  # a server does not know its address as others do
            return rf"link (?:{ends[0]}.* - {ends[1]}|{ends[1]}.* - {ends[0]})"

        victim, other = self.draw.victim, self.draw.other
        names = [name(victim)]
        if self.draw.fault == "partition":
            names = [link(victim, other)]
            # Who is cut off from the store cannot be told from one that is lost, by the others or by itself.
            if "worker 0" in (victim, other):
                names += [name(victim), name(other)]
        if self.draw.fault == "halfclose":
            # Whoever is at the other end of the connection sees the same as the victim.
            names += [name(self.fault.peer), link(victim, self.fault.peer)]
        return re.compile("(?:" + "|".join(names) + ")")

    def judge(self):
        """Rows (process, verdict, seconds, words); verdicts: right, nobody, wrong, done, zero, late, hang."""
        if self.unharmed:
            return [(process.name, "done", 0.0, "") for process in self.fault.survivors()]
        rows = [(process.name, *self.judge_survivor(process)) for process in self.fault.survivors()]
        if self.draw.launched:
            rows.append(("launch", *self.judge_launch()))
        return [(name, "late" if verdict == "right" and took > self.fault.limit() + self.job.options.slack else verdict, took, words)
                for name, verdict, took, words in rows]

    def is_done(self, process):
        """Whether it has done its work to the end.

        Jobs in which a step is disturbed have no end, but a server has served those that drain.
        """
        if self.draw.moment in ("evaluation", "shutdown"):
            return process.has_result or process.has_served()
        return self.draw.fault == "term" and process.has_served()

    def judge_survivor(self, process):
        noticeable_at = max(self.fault.injected_at, process.connected_at or self.fault.injected_at)
        took = (process.ended_at or time.monotonic()) - noticeable_at
        said = [line for line in process.err
                if line.startswith(("worker: ", "ps_server: ")) and not line.startswith("worker: waiting for ")]
        words = said[-1] if said else (process.err[-1] if process.err else "")
        if process.ended_at is None:
            return "hang", took, words
        if self.is_done(process) and (process.code == 0 or process.code is None and not said):
            return "done", 0.0, words
        # It failed, or had not come to its end.
        if process.code == 0:
            return "zero", took, words
        if self.was_ended_in_setup(process, said, took):
            return "done", took, words
        return self.verdict(words), took, words

    def was_ended_in_setup(self, process, said, took):
        """Whether its launcher ended it, which says why, before it had met anybody long enough to miss one."""
        settle = 0 if any("exit code 2]" in line for line in self.job.launch_err) else SETTLE
        ended = self.job.launch_failed_at is not None and process.ended_at > self.job.launch_failed_at + settle - 0.5
        told = not said or re.search("told to end by SIGTERM|ended by SIGTERM before the first step", said[-1]) is not None
        if process.connected_at is not None and took < self.job.options.failure_timeout:
            # Others may have taken steps, which the end of a server drains.
            told = told or "ended by SIGTERM" in said[-1]
        return self.draw.moment == "setup" and ended and told

    def judge_launch(self):
        words = next((line for line in self.job.launch_err if line.startswith("launch: ")), "")
        code = self.job.children["launch"].returncode
        if code is None:
            return "hang", time.monotonic() - self.fault.injected_at, words
        if code != 0:
            return self.verdict(words), 0.0, words
        return "done" if all(self.is_done(process) for process in self.job.processes.values()) else "zero", 0.0, words

    def verdict(self, words):
        text = re.sub(r"^(?:worker|ps_server|launch): (?:[A-Z_]+: )?", "", words)
        if self.culprits().match(text):
            return "right"
        # A worker or a server that is told to end drains the job, and all say who was told.
        if self.draw.fault == "term" and re.search(rf"ended by SIGTERM to {self.draw.victim.replace('worker', 'rank')}\b", text):
            return "right"
        # Of a process that was killed a launcher says the number, not the rank.
        if re.match(rf"{self.draw.victim} \(pid", text):
            return "right"
        # Of one that failed with words that blame nobody a launcher says those, and then who it was.
        if words.startswith("launch: ") and f"[{self.draw.victim} (pid" in words and not BLAME.match(text):
            return "right"
        return "wrong" if BLAME.match(text) else "nobody"

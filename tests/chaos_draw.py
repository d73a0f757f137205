"""What //tests:chaos breaks, and in which job: all of it drawn by a seed."""
import dataclasses
import itertools
import random

FAULTS = ("kill", "term", "stop", "thread", "threads", "descriptors", "halfclose", "disk", "partition")
MOMENTS = ("setup", "step", "evaluation", "shutdown")


@dataclasses.dataclass
class Draw:
    topology: str
    link: str
    consistency: str
    update: str
    workers: int
    servers: int
    launched: bool
    fault: str
    moment: str
    victim: str  # "worker 1", "server 0"
    other: str   # of a partition: the other end
    delay: float  # s after the moment has come

    def __str__(self):
        how = "launch" if self.launched else "by hand"
        where = f" - {self.other}" if self.fault == "partition" else ""
        return (f"{self.fault} {self.victim}{where} in {self.moment}: {self.topology}/{self.link}/{self.consistency}/{self.update} "
                f"{self.workers}+{self.servers} {how}")

    def is_harmless(self):
        """Whether the job may well go on. It may not with a held thread: whichever that is, the process tells of it."""
        return self.fault in ("descriptors", "halfclose") and self.moment in ("setup", "step")

    def cuts_unused_link(self):
        """Whether it cuts a way that nobody uses before all have come: one between others than rank 0."""
        return self.fault == "partition" and "worker 0" not in (self.victim, self.other)


def draw_round(seed, number, faults, moments):
    rng = random.Random(f"{seed}/{number}")
    fault = rng.choice(faults)
    topology = rng.choice(("ps", "ring"))
    link = rng.choice(("grpc", "tcp", "shm"))
    consistency, update = "bsp", rng.choice(("worker", "owner"))
    if topology == "ps":
        consistency = rng.choice(("bsp", "bsp", "ssp:2", "asp"))
    if consistency != "bsp":
        link, update = rng.choice(("grpc", "tcp")), "owner"
    workers = rng.randint(2, 4)
    servers = rng.randint(0, 2) if topology == "ps" else 0  # without any, workers are the servers
    launched = rng.random() < 0.5
    moment = rng.choice(moments)
    everybody = [f"worker {rank}" for rank in range(workers)] + [f"server {index}" for index in range(servers)]
    victim = rng.choice(everybody)
    delay = rng.random()
    if fault == "partition":
        link, launched = rng.choice(("grpc", "tcp")), False  # between hosts
        moment = "step" if moment == "shutdown" else moment
    if fault == "disk":
        victim = "worker 0"
        moment = "step"
    if fault == "halfclose" and moment in ("setup", "shutdown"):
        moment = "step"
    other = rng.choice([name for name in everybody if name != victim])
    if fault == "partition":
        victim, other = rng.choice(links(topology, workers, servers))
    return Draw(topology, link, consistency, update, workers, servers, launched, fault, moment, victim, other, delay)


def links(topology, workers, servers):
    """The pairs of processes that talk to each other: over the topology's streams, and with rank 0's store."""
    names = [f"worker {rank}" for rank in range(workers)]
    if topology == "ring":
        pairs = [(name, names[(rank + 1) % workers]) for rank, name in enumerate(names)]
    elif servers == 0:
        pairs = list(itertools.combinations(names, 2))
    else:
        pairs = [(name, f"server {index}") for name in names for index in range(servers)]
    return pairs + [(name, names[0]) for name in names[1:]]

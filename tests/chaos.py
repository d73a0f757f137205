#!/usr/bin/env python3
"""Chaos: training jobs as real processes, in each of which something is broken on purpose.

    bazel run //tests:chaos -- --rounds=200 --seed=1
    bazel run //tests:chaos -- --seed=1 --round=17       # that one again, with all that was said

A round draws a job (topology, link, consistency, sizes, started by hand or by //tools:launch), a fault, a moment and a victim. Then
it looks at all others: whether they end within the failure timeout and two seconds (within two seconds where the victim was killed)
of the fault, or of their first connection where the launcher started them only then, whether their message begins with the culprit,
whether they blame an innocent, and whether their exit codes tell of the failure. It prints a table, a row for each kind of fault,
and ends with 1 unless nobody was late, nobody blamed an innocent, none that failed ended with 0, all processes were gone, and 99 %
of all survivors named the culprit or had done their work before.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

FAULTS = ("kill", "term", "stop", "thread", "threads", "descriptors", "halfclose", "disk", "partition")
MOMENTS = ("setup", "step", "evaluation", "shutdown")
ENDED = ("kill", "term", "disk")  # faults after which the victim's process ends by itself
NOTICED_AT_ONCE = 2.0  # s, in which survivors of a killed process end
GRACE = 2.0  # s beyond the failure timeout
PATIENCE = 60.0  # s for a job to come as far as the moment of its fault
SETTLE = 3.0  # s after a failure, after which //tools:launch ends those that are left
BAR = 0.99

BLAME = re.compile(r"(?:(?:link )?(?:ranks?|server)|worker) \d")  # how a message begins that blames somebody

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
PIDFD_OPEN, PIDFD_GETFD = 434, 438


class NotPossible(Exception):
    """This machine, or this round, has not what the fault needs."""


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


def draw_round(seed, number, faults, moments):
    rng = random.Random(f"{seed}/{number}")
    fault = rng.choice(faults)
    topology = rng.choice(("ps", "ring"))
    link = rng.choice(("grpc", "shm"))
    consistency, update = "bsp", rng.choice(("worker", "owner"))
    if topology == "ps":
        consistency = rng.choice(("bsp", "bsp", "ssp:2", "asp"))
    if consistency != "bsp":
        link, update = "grpc", "owner"
    workers = rng.randint(2, 4)
    servers = rng.randint(1, 2) if topology == "ps" else 0
    launched = rng.random() < 0.5
    moment = rng.choice(moments)
    everybody = [f"worker {rank}" for rank in range(workers)] + [f"server {index}" for index in range(servers)]
    victim = rng.choice(everybody)
    delay = rng.random()
    if fault == "partition":
        link, launched = "grpc", False  # between hosts
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
    else:
        pairs = [(name, f"server {index}") for name in names for index in range(servers)]
    return pairs + [(name, names[0]) for name in names[1:]]


def draw_is_harmless(draw):
    """Whether the job may well go on. It may not with a held thread: whichever that is, the process tells of it."""
    return draw.fault in ("descriptors", "halfclose") and draw.moment in ("setup", "step")


class Process:
    """One process of a job, and what it has said."""

    def __init__(self, name, pid):
        self.name = name
        self.pid = pid
        self.out = []
        self.err = []
        self.code = None  # not known of those that are launch's children
        self.ended_at = None
        self.connected_at = None  # of one that a launcher starts in set-up, perhaps after the fault: when it could begin to notice
        self.has_result = False  # of a worker: of its training

    def has_served(self):
        return any(line.startswith("served ") for line in self.out)


def await_until(condition, patience=PATIENCE, what="a condition"):
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience:g} s for {what}")
        time.sleep(0.005)


def sockets_of(pid):
    """Established TCP connections: (descriptor, local port, remote port)."""
    inodes = {}
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    inodes[target[8:-1]] = int(entry.name)
        found = []
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "01" and fields[9] in inodes:
                    found.append((inodes[fields[9]], int(fields[1].split(":")[1], 16), int(fields[2].split(":")[1], 16)))
        return found
    except OSError:
        return []


class Tracer:
    """Holds threads still. All calls from one thread, the tracer's."""

    def __init__(self):
        self.held = []

    def hold(self, tid):
        if libc.ptrace(PTRACE_SEIZE, tid, None, None) != 0:
            raise NotPossible(f"ptrace: {os.strerror(ctypes.get_errno())}")
        libc.ptrace(PTRACE_INTERRUPT, tid, None, None)
        os.waitpid(tid, WALL)
        self.held.append(tid)

    def reap(self):
        """Lets go of threads that were killed, so that their process can end."""
        for tid in list(self.held):
            try:
                done, _ = os.waitpid(tid, WALL | os.WNOHANG)
                if done:
                    self.held.remove(tid)
            except ChildProcessError:
                self.held.remove(tid)


class Lab:
    """A network of hosts on a bridge, each a network namespace that lives as long as its process."""

    def __init__(self, count):
        self.holders = []
        try:
            for _ in range(count + 1):
                holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"], stderr=subprocess.DEVNULL)
                self.holders.append(holder)
            own = os.readlink("/proc/self/ns/net")
            for holder in self.holders:
                await_until(lambda: self._inside(holder) not in (None, own) or holder.poll() is not None, 10, "a namespace")
                if holder.poll() is not None:
                    raise NotPossible("no network namespaces")
            self._ip(count, "link add br0 type bridge")
            self._ip(count, "link set br0 up")
            for host in range(count):
                self._ip(host, f"link add eth0 type veth peer name port{host} netns {self.holders[count].pid}")
                self._ip(host, f"addr add {self.address(host)}/24 dev eth0")
                self._ip(host, "link set lo up")
                self._ip(host, "link set eth0 up")
                self._ip(count, f"link set port{host} master br0 up")
        except (OSError, NotPossible):
            self.close()
            raise NotPossible("needs root, ip and network namespaces")

    @staticmethod
    def _inside(holder):
        try:
            return os.readlink(f"/proc/{holder.pid}/ns/net")
        except OSError:
            return None

    def _ip(self, host, command):
        done = subprocess.run([*self.inside(host), "ip", *command.split()], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise NotPossible(f"ip {command}: {done.stderr.strip()}")

    @staticmethod
    def address(host):
        return f"10.77.0.{host + 1}"

    def inside(self, host):
        return ["nsenter", "-t", str(self.holders[host].pid), "-n"]

    def cut(self, a, b):
        self._ip(a, f"route add blackhole {self.address(b)}/32")
        self._ip(b, f"route add blackhole {self.address(a)}/32")

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


class Round:
    def __init__(self, number, draw, options):
        self.number = number
        self.draw = draw
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="chaos-"))
        self.processes = {}  # by name
        self.children = {}   # Popen by name; one named "launch" with --launch
        self.readers = []
        self.tracer = Tracer()
        self.lab = None
        self.mounted = None
        self.injected_at = None
        self.addresses = {}  # of servers
        self.problems = []
        self.strangers = set()
        self.peer = None  # of a half-closed connection: who is at its other end
        self.launch_err = []
        self.launch_failed_at = None
        self.unharmed = False

    # ---- the job -----------------------------------------------------------------------------------------------------------

    def flags(self):
        draw = self.draw
        flags = [f"--topology={draw.topology}", f"--link={draw.link}", f"--consistency={draw.consistency}", f"--update={draw.update}",
                 "--model=mlp", "--batch_size=4", "--threads=1", f"--metrics_json={self.folder}/result{{rank}}", *self.timeout_flags()]
        if draw.moment == "evaluation":
            flags += ["--data=synthetic:96", "--steps=2", "--log_every=1", "--evaluate"]
        elif draw.moment == "shutdown":
            flags += ["--steps=40", "--log_every=20"]
        else:
            flags += ["--steps=100000000", "--log_every=20"]
        if draw.fault == "disk":
            flags += [f"--checkpoint={self.folder}/full", "--checkpoint_every=10"]
        return flags

    def timeout_flags(self):
        return [] if self.options.failure_timeout == 10 else [f"--failure_timeout={self.options.failure_timeout:g}s"]

    def start(self, name, argv, host=None):
        environment = dict(os.environ)
        if self.lab is not None:
            argv = [*self.lab.inside(host), *argv]
            environment["GRADSYNC_JOB_KEY"] = "chaos"  # who listens beyond its host wants one
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 errors="replace", cwd=self.folder, env=environment)
        self.children[name] = child
        if name != "launch":
            self.processes[name] = Process(name, child.pid)
        for stream, is_err in ((child.stdout, False), (child.stderr, True)):
            reader = threading.Thread(target=self.read, args=(name, stream, is_err), daemon=True)
            reader.start()
            self.readers.append(reader)
        return child

    def read(self, name, stream, is_err):
        with contextlib.suppress(ValueError):
            for line in stream:
                line = line.rstrip("\n")
                if self.options.verbose:
                    print(f"  {time.monotonic() - self.started_at:7.3f} {name}{' !' if is_err else ''} {line}", flush=True)
                self.hear(name, line, is_err)

    def hear(self, name, line, is_err):
        if name == "launch":
            prefixed = re.match(r"\[((?:worker|server) \d+)\] +(.*)", line)
            if prefixed is None:
                self.launch_err.append(line)
                self.launch_failed_at = self.launch_failed_at or time.monotonic()
                return
            name, line = prefixed.groups()
            started = re.match(r"started, pid (\d+)", line)
            if started and not is_err:
                self.processes[name] = Process(name, int(started.group(1)))
                return
        process = self.processes.get(name)
        if process is None:
            return
        if line.startswith("listening on "):
            self.addresses[name] = line.split()[-1]
        (process.err if is_err else process.out).append(line)

    def launch(self):
        draw = self.draw
        self.start("launch", [self.options.launch, f"--workers={draw.workers}", f"--servers={draw.servers}",
                              f"--worker_binary={self.options.worker}", f"--server_binary={self.options.server}", "--", *self.flags()])
        await_until(lambda: draw.victim in self.processes or self.children["launch"].poll() is not None, what=draw.victim)

    def address_file(self, name):
        path = self.folder / name.replace(" ", "")
        await_until(lambda: path.exists() or self.children[name].poll() is not None, what=f"{name}'s address")
        if not path.exists():
            raise TimeoutError(f"{name} ended before it said where it listens")
        return path.read_text().strip()

    def host(self, name):
        kind, index = name.split()
        return int(index) + (self.draw.workers if kind == "server" else 0)

    def start_server(self, index):
        host = self.lab.address(self.draw.workers + index) if self.lab else "127.0.0.1"
        name = f"server {index}"
        self.start(name, [self.options.server, f"--listen={host}:0", f"--port_file={self.folder}/server{index}", *self.timeout_flags()],
                   self.host(name))

    def start_worker(self, rank):
        argv = [self.options.worker, f"--rank={rank}", f"--world_size={self.draw.workers}", f"--master={self.master}", *self.flags()]
        if rank == 0:
            argv.append(f"--port_file={self.folder}/worker0")
        if self.draw.servers:
            argv.append("--servers=" + ",".join(self.server_addresses))
        self.start(f"worker {rank}", argv, self.host(f"worker {rank}"))

    def by_hand(self):
        draw = self.draw
        if draw.fault == "partition":
            self.lab = Lab(draw.workers + draw.servers)
        for index in range(draw.servers):
            self.start_server(index)
        self.server_addresses = [self.address_file(f"server {index}") for index in range(draw.servers)]
        self.master = f"{self.lab.address(0) if self.lab else '127.0.0.1'}:0"
        self.start_worker(0)
        self.master = self.address_file("worker 0")
        # In set-up somebody does not come, so that there is time for a fault.
        late = [rank for rank in range(1, draw.workers) if f"worker {rank}" not in (draw.victim, draw.other)]
        if draw.victim == "worker 0":
            late = late[1:]  # by one that does come it is seen that the store is there
        # Workers go to a server once all of them have met.
        late = late[-1] if draw.moment == "setup" and late and self.server_to_meet() is None else None
        for rank in range(1, draw.workers):
            if rank != late:
                self.start_worker(rank)
        self.late = late

    # ---- the fault ---------------------------------------------------------------------------------------------------------

    def victim(self):
        return self.processes[self.draw.victim]

    def server_to_meet(self):
        """The server that rank 0 must have met before it misses it: the victim, or what it is cut off from."""
        draw = self.draw
        ends = (draw.victim, draw.other) if draw.fault == "partition" else (draw.victim,)
        server = next((name for name in ends if name.startswith("server")), None)
        return None if draw.fault == "partition" and "worker 0" not in ends else server

    def some_child_ended(self):
        return any(child.poll() is not None for child in self.children.values())

    def await_moment(self):
        draw = self.draw
        rank_0 = lambda: self.processes.get("worker 0", Process("", 0)).out
        if draw.moment == "setup" and not draw.launched:
            server = self.server_to_meet()
            if server is not None:
                port = int(self.addresses[server].rsplit(":", 1)[1])
                others = ["worker 0"]
            else:
                port = int(self.master.rsplit(":", 1)[1])
                others = [draw.victim]
                if draw.victim == "worker 0":  # holds the store: somebody has met it, of a partition the other end
                    others = [draw.other] if draw.fault == "partition" else [
                        f"worker {rank}" for rank in range(1, draw.workers) if rank != self.late]
            connected = lambda: any(remote == port for name in others if name in self.processes
                                    for _, _, remote in sockets_of(self.processes[name].pid))
            await_until(lambda: connected() or self.some_child_ended() or any("step " in line for line in rank_0()), 15, "a connection")
            # A process is known to others once it has joined, some milliseconds after it has connected.
            time.sleep(0.1 + draw.delay * 0.1)
        elif draw.moment == "setup":
            time.sleep(draw.delay * 1.5)
        elif draw.moment == "step":
            await_until(lambda: any(line.startswith("step 40/") for line in rank_0()) or self.some_child_ended(), what="step 40")
            time.sleep(draw.delay * 0.2)
        elif draw.moment == "evaluation":
            await_until(lambda: any(line.startswith("epoch 1 ") for line in rank_0()) or self.some_child_ended(), what="the evaluation")
            time.sleep(draw.delay * 0.3)
        else:
            await_until(lambda: any(line.startswith("step 40/") for line in rank_0()) or self.some_child_ended(), what="step 40")
            time.sleep(draw.delay * 0.1)

    def inject(self):
        draw = self.draw
        fault, pid = draw.fault, self.victim().pid
        if draw.moment == "setup" and not draw.launched:
            # Whoever has met nobody yet cannot know of anybody's end; it waits for --timeout.
            self.strangers = {name for name, process in self.processes.items() if not sockets_of(process.pid)}
        self.injected_at = time.monotonic()
        try:
            if fault == "kill":
                os.kill(pid, signal.SIGKILL)
            elif fault == "term":
                os.kill(pid, signal.SIGTERM)
            elif fault == "stop":
                os.kill(pid, signal.SIGSTOP)
            elif fault == "thread":
                self.tracer.hold(pid)  # the main thread: of a worker the one that trains
            elif fault == "threads":
                for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
                    with contextlib.suppress(NotPossible, ChildProcessError):
                        self.tracer.hold(tid)
            elif fault == "descriptors":
                count = len(os.listdir(f"/proc/{pid}/fd"))
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, count))
            elif fault == "halfclose":
                self.half_close(pid)
            elif fault == "disk":
                pass  # it was full from the beginning
            elif fault == "partition":
                self.lab.cut(self.host(draw.victim), self.host(draw.other))
        except (ProcessLookupError, FileNotFoundError):
            pass  # the job was faster
        if self.options.verbose:
            print(f"  {time.monotonic() - self.started_at:7.3f} ---- {draw}", flush=True)

    def half_close(self, pid):
        connections = sockets_of(pid)
        if not connections:
            raise NotPossible("the victim has no connection")
        descriptor, local, remote = random.Random(self.draw.delay).choice(sorted(connections))
        self.peer = next((name for name, process in self.processes.items()
                          if any(ends == [remote, local] for _, *ends in sockets_of(process.pid))), None)
        if self.peer is None:
            raise NotPossible("nobody is at the other end of the connection")
        pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
        taken = libc.syscall(PIDFD_GETFD, pidfd, descriptor, 0)
        os.close(pidfd)
        if taken < 0:
            raise NotPossible("pidfd_getfd")
        with socket.socket(fileno=taken) as stream:
            stream.shutdown(socket.SHUT_WR)

    # ---- the end -----------------------------------------------------------------------------------------------------------

    def look_for_ends(self):
        now = time.monotonic()
        self.tracer.reap()
        for name, process in list(self.processes.items()):  # while a launcher starts more
            if process.ended_at is not None:
                continue
            if self.draw.moment == "setup" and self.draw.launched and process.connected_at is None and sockets_of(process.pid):
                process.connected_at = now
            if self.draw.launched:
                if not self.runs(process.pid):
                    process.ended_at = now
            elif process.pid in self.tracer.held:
                continue
            elif self.children[name].poll() is not None:
                process.ended_at = now
                process.code = self.children[name].returncode

    @staticmethod
    def runs(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def steps_of_rank_0(self):
        return sum(line.startswith("step ") for line in self.processes["worker 0"].out)

    def limit(self):
        if self.draw.fault == "descriptors":
            return PATIENCE
        return NOTICED_AT_ONCE if self.draw.fault in ENDED else self.options.failure_timeout + GRACE

    def survivors(self):
        return [process for name, process in sorted(self.processes.items())
                if name != self.draw.victim and name not in self.strangers]

    def await_end(self):
        end = self.injected_at + self.options.failure_timeout + GRACE + self.options.extra
        if self.draw.fault == "descriptors":
            end = self.injected_at + PATIENCE  # nobody misses any before it opens something, and most jobs just end
        harmless = draw_is_harmless(self.draw)
        looked, steps = self.injected_at, self.steps_of_rank_0() if "worker 0" in self.processes else 0
        while time.monotonic() < end:
            self.look_for_ends()
            victim = self.processes.get(self.draw.victim)
            waited_for = self.survivors() if victim is None or self.draw.fault not in ("partition", "descriptors", "halfclose") else list(
                self.processes.values())
            if all(process.ended_at is not None for process in waited_for) and (
                    not self.draw.launched or self.children["launch"].poll() is not None):
                break
            # Nothing came of it: the job goes on.
            if harmless and time.monotonic() - looked > self.options.failure_timeout + GRACE and "worker 0" in self.processes:
                now = self.steps_of_rank_0()
                if now > steps + 2 and all(process.ended_at is None for process in list(self.processes.values())):
                    self.unharmed = True
                    return
                looked, steps = time.monotonic(), now
            time.sleep(0.01)
        self.look_for_ends()

    def clean_up(self):
        for process in list(self.processes.values()):
            kind, index = process.name.split()
            process.has_result = kind == "worker" and (self.folder / f"result{index}").exists()
            if process.ended_at is None or process.name in self.children:
                child = self.children.get(process.name)
                if child is None or child.returncode is None:
                    if self.runs(process.pid):
                        with contextlib.suppress(OSError):
                            os.kill(process.pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while self.tracer.held and time.monotonic() < end:
            self.tracer.reap()
            time.sleep(0.005)
        for child in self.children.values():
            if child.returncode is None:
                with contextlib.suppress(OSError):
                    child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
        for reader in self.readers:
            reader.join(5)
        if self.lab is not None:
            self.lab.close()
        if self.mounted is not None:
            subprocess.run(["umount", "-l", self.mounted], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def mount_full_disk(self):
        path = self.folder / "full"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "chaos", path], stderr=subprocess.DEVNULL)
        if done.returncode != 0:
            raise NotPossible("needs root to mount a small disk")
        self.mounted = path

    def run(self):
        self.started_at = time.monotonic()
        try:
            if self.draw.fault == "disk":
                self.mount_full_disk()
            if self.draw.launched:
                self.launch()
            else:
                self.by_hand()
            self.await_moment()
            self.inject()
            # Nobody uses a way between others than rank 0 before all have come.
            unused = self.draw.fault == "partition" and "worker 0" not in (self.draw.victim, self.draw.other)
            if (draw_is_harmless(self.draw) or unused) and not self.draw.launched and self.late is not None:
                self.start_worker(self.late)
            if unused and self.late is not None:
                late = self.processes[f"worker {self.late}"]
                await_until(lambda: late.out or self.some_child_ended(), what="the late worker")
                self.injected_at = time.monotonic()
            self.await_end()
            if self.draw.launched and self.children["launch"].poll() is not None:
                left = [name for name, process in self.processes.items() if self.runs(process.pid)]
                if left:
                    self.problems.append(f"launch left {', '.join(left)} behind")
        finally:
            self.clean_up()
        return self

    # ---- the judgement -----------------------------------------------------------------------------------------------------

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
            names += [name(self.peer), link(victim, self.peer)]
        return re.compile("(?:" + "|".join(names) + ")")

    def judge(self):
        """Rows (process, verdict, seconds, words); verdicts: right, nobody, wrong, done, zero, late, hang."""
        if self.unharmed:
            return [(process.name, "done", 0.0, "") for process in self.survivors()]
        rows = [(process.name, *self.judge_survivor(process)) for process in self.survivors()]
        if self.draw.launched:
            rows.append(("launch", *self.judge_launch()))
        return [(name, "late" if verdict == "right" and took > self.limit() + self.options.slack else verdict, took, words)
                for name, verdict, took, words in rows]

    def is_done(self, process):
        """Whether it has done its work to the end. Jobs in which a step is disturbed have none, but a server has served those that drain."""
        if self.draw.moment in ("evaluation", "shutdown"):
            return process.has_result or process.has_served()
        return self.draw.fault == "term" and process.has_served()

    def judge_survivor(self, process):
        took = (process.ended_at or time.monotonic()) - max(self.injected_at, process.connected_at or self.injected_at)
        said = [line for line in process.err if line.startswith(("worker: ", "ps_server: ")) and not line.startswith("worker: waiting for ")]
        words = said[-1] if said else (process.err[-1] if process.err else "")
        if process.ended_at is None:
            return "hang", took, words
        if self.is_done(process) and (process.code == 0 or process.code is None and not said):
            return "done", 0.0, words
        # It failed, or had not come to its end.
        if process.code == 0:
            return "zero", took, words
        if self.was_ended_in_setup(process, said):
            return "done", took, words
        return self.verdict(words), took, words

    def was_ended_in_setup(self, process, said):
        """Whether its launcher ended it, which says why, while it had met nobody and could not hear of a failure."""
        ended = self.launch_failed_at is not None and process.ended_at > self.launch_failed_at + SETTLE - 0.5
        return self.draw.moment == "setup" and ended and (not said or "told to end by SIGTERM" in said[-1])

    def judge_launch(self):
        words = next((line for line in self.launch_err if line.startswith("launch: ")), "")
        code = self.children["launch"].returncode
        if code is None:
            return "hang", time.monotonic() - self.injected_at, words
        if code != 0:
            return self.verdict(words), 0.0, words
        return "done" if all(self.is_done(process) for process in self.processes.values()) else "zero", 0.0, words

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


def run_round(number, draw, options):
    try:
        return Round(number, draw, options).run()
    except NotPossible as reason:
        return f"skipped: {reason}"
    except TimeoutError as reason:
        return f"did not begin: {reason}"


def runfile(path):
    roots = (os.environ.get("RUNFILES_DIR"), f"{__file__}.runfiles/gradsync", pathlib.Path(__file__).parent.parent, os.getcwd(), "bazel-bin")
    for root in roots:
        if root and (pathlib.Path(root) / path).exists():
            return str((pathlib.Path(root) / path).resolve())
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="this one alone, with all that its processes say")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--failure_timeout", default="3s", help="of the jobs; 10s is their default, which is then not given")
    parser.add_argument("--jobs", type=int, default=2, help="rounds side by side")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--moments", default=",".join(MOMENTS))
    parser.add_argument("--slack", type=float, default=0.0, help="s that survivors may take longer, on a machine that is busy with others")
    parser.add_argument("--extra", type=float, default=15.0, help="s for which a round looks on after all should have ended")
    parser.add_argument("--worker", default=runfile("worker/worker"))
    parser.add_argument("--server", default=runfile("ps_server/ps_server"))
    parser.add_argument("--launch", default=runfile("tools/launch"))
    options = parser.parse_args()
    options.failure_timeout = float(options.failure_timeout.rstrip("s"))
    options.verbose = options.round is not None
    numbers = [options.round] if options.verbose else range(options.first, options.first + options.rounds)
    draws = {number: draw_round(options.seed, number, options.faults.split(","), options.moments.split(",")) for number in numbers}
    table = {}
    bad_rounds = 0
    skipped = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(run_round, number, draw, options): number for number, draw in draws.items()}
        for future in concurrent.futures.as_completed(futures):
            number = futures[future]
            draw, done = draws[number], future.result()
            row = table.setdefault(draw.fault, dict(rounds=0, survivors=0, right=0, nobody=0, wrong=0, zero=0, late=0, hang=0, done=0,
                                                   longest=0.0))
            if isinstance(done, str):
                print(f"round {number}: {done} ({draw})", flush=True)
                skipped += done.startswith("skipped")
                bad_rounds += not done.startswith("skipped")
                continue
            row["rounds"] += 1
            for problem in done.problems:
                print(f"round {number}: {problem} ({draw})", flush=True)
                bad_rounds += 1
            for name, verdict, took, words in done.judge():
                row["survivors"] += 1
                row[verdict] += 1
                if verdict == "late":
                    row["right"] += 1
                if verdict not in ("done",):
                    row["longest"] = max(row["longest"], took)
                if verdict not in ("right", "done") or options.verbose:
                    print(f"round {number}: {name} {verdict} {took:.1f} s: {words[:300]}   ({draw})", flush=True)
    columns = ("rounds", "survivors", "right", "done", "nobody", "wrong", "zero", "late", "hang", "longest")
    print(f"{'':12}" + "".join(f"{column:>10}" for column in columns))
    total = {column: (max if column == "longest" else sum)([row[column] for row in table.values()] or [0]) for column in columns}
    for fault, row in sorted(table.items()) + [("all", total)]:
        print(f"{fault:12}" + "".join(f"{row[column]:>10.1f}" if column == "longest" else f"{row[column]:>10}" for column in columns))
    named = total["right"] + total["done"]
    good = (named >= BAR * total["survivors"] and not any(total[verdict] for verdict in ("wrong", "zero", "hang", "late"))
            and bad_rounds == 0 and total["rounds"] > 0)
    print(f"seed {options.seed}, {skipped} rounds skipped, {named} of {total['survivors']} survivors named the culprit or had "
          f"finished: {'passed' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

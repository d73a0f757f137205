"""Training jobs of real processes, for //tests:chaos to break."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

PATIENCE = 60.0  # s for a job to come as far as the moment of its fault


class NotPossible(Exception):
    """This machine, or this round, has not what the fault needs."""


class Process:
    """One process of a job, and what it has said."""

    def __init__(self, name, pid):
        self.name = name
        self.pid = pid
        self.out = []
        self.err = []
        self.code = None  # not known of those that are launch's children
        self.ended_at = None
        self.connected_at = None  # to others, of one that a launcher starts in set-up, perhaps after the fault
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


def met_by(pid):
    """Its connections to other processes."""
    found = sockets_of(pid)
    own = {(local, remote) for _, local, remote in found}
    return [(descriptor, local, remote) for descriptor, local, remote in found if (remote, local) not in own]


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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


class Job:
    """A job's processes, started by hand or by //tools:launch, what they say and when they end."""

    def __init__(self, draw, options):
        self.draw = draw
        self.options = options
        self.started_at = time.monotonic()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="chaos-"))
        self.processes = {}  # by name
        self.children = {}   # Popen by name; one named "launch" with --launch
        self.readers = []
        self.lab = None
        self.mounted = None
        self.addresses = {}  # of servers
        self.late = None     # the worker that does not come in set-up, so that there is time for a fault
        self.launch_err = []
        self.launch_failed_at = None

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

    def begin(self):
        if self.draw.fault == "disk":
            self.mount_small_disk()
        if self.draw.launched:
            self.by_launch()
        else:
            self.by_hand()

    def by_launch(self):
        draw = self.draw
        self.start("launch", [self.options.launch, f"--workers={draw.workers}", f"--servers={draw.servers}",
                              f"--worker_binary={self.options.worker}", f"--server_binary={self.options.server}", "--", *self.flags()])
        await_until(lambda: draw.victim in self.processes or self.children["launch"].poll() is not None, what=draw.victim)
        if draw.victim not in self.processes:
            raise TimeoutError(f"launch ended before it started {draw.victim}")

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

    def server_to_meet(self):
        """The server that rank 0 must have met before it misses it: the victim, or what it is cut off from."""
        draw = self.draw
        ends = (draw.victim, draw.other) if draw.fault == "partition" else (draw.victim,)
        server = next((name for name in ends if name.startswith("server")), None)
        return None if draw.fault == "partition" and "worker 0" not in ends else server

    def some_child_ended(self):
        return any(child.poll() is not None for child in self.children.values())

    def steps_of_rank_0(self):
        return sum(line.startswith("step ") for line in self.processes["worker 0"].out) if "worker 0" in self.processes else 0

    def look_for_ends(self, held=()):
        """Notes who has ended. Nobody can wait yet for those whose main thread is among `held`."""
        now = time.monotonic()
        for name, process in list(self.processes.items()):  # while a launcher starts more
            if process.ended_at is not None:
                continue
            if self.draw.moment == "setup" and self.draw.launched and process.connected_at is None and met_by(process.pid):
                process.connected_at = now
            if self.draw.launched:
                if not runs(process.pid):
                    process.ended_at = now
            elif process.pid in held:
                continue
            elif self.children[name].poll() is not None:
                process.ended_at = now
                process.code = self.children[name].returncode

    def launch_ended(self):
        """Whether no launcher is at work."""
        return not self.draw.launched or self.children["launch"].poll() is not None

    def left_by_launch(self):
        """Who runs although the launcher has ended."""
        if not self.draw.launched or not self.launch_ended():
            return []
        return [name for name, process in self.processes.items() if runs(process.pid)]

    def fill_disk(self, pid):
        """Takes all room of the small disk, and what a checkpoint that is removed leaves, until the process has noticed."""
        with open(self.mounted / "filler", "ab", buffering=0) as filler:
            deadline = time.monotonic() + 1
            while runs(pid) and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(1 << 16))
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(1 << 12))
                time.sleep(0.001)

    def mount_small_disk(self):
        path = self.folder / "full"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "chaos", path], stderr=subprocess.DEVNULL)
        if done.returncode != 0:
            raise NotPossible("needs root to mount a small disk")
        self.mounted = path

    def kill(self):
        """Ends all that runs, after a look at who has a result."""
        for process in list(self.processes.values()):
            kind, index = process.name.split()
            process.has_result = kind == "worker" and (self.folder / f"result{index}").exists()
            if process.ended_at is None or process.name in self.children:
                child = self.children.get(process.name)
                if (child is None or child.returncode is None) and runs(process.pid):
                    with contextlib.suppress(OSError):
                        os.kill(process.pid, signal.SIGKILL)

    def clean_up(self):
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

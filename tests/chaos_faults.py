"""The faults of //tests:chaos: when they come, and how they are made."""
import contextlib
import ctypes
import os
import random
import resource
import signal
import socket
import time

from chaos_job import NotPossible, PATIENCE, Process, await_until, met_by, sockets_of

ENDED = ("kill", "term", "disk")  # faults after which the victim's process ends by itself
NOTICED_AT_ONCE = 2.0  # s, in which survivors of a killed process end
GRACE = 2.0  # s beyond the failure timeout

NOBODY_NEW = "has no file descriptors left, so that nobody new reaches the store that it holds"

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
PIDFD_OPEN, PIDFD_GETFD = 434, 438


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


class Fault:
    """What is broken in a job, and when it was."""

    def __init__(self, job):
        self.job = job
        self.draw = job.draw
        self.tracer = Tracer()
        self.injected_at = None
        self.strangers = set()
        self.peer = None  # of a half-closed connection: who is at its other end

    def await_moment(self):
        draw = self.draw
        rank_0 = lambda: self.job.processes.get("worker 0", Process("", 0)).out
        if draw.moment == "setup" and not draw.launched:
            server = self.job.server_to_meet()
            if server is not None:
                port = int(self.job.addresses[server].rsplit(":", 1)[1])
                others = ["worker 0"]
            else:
                port = int(self.job.master.rsplit(":", 1)[1])
                others = [draw.victim]
                if draw.victim == "worker 0":  # holds the store: somebody has met it, of a partition the other end
                    others = [draw.other] if draw.fault == "partition" else [
                        f"worker {rank}" for rank in range(1, draw.workers) if rank != self.job.late]
            connected = lambda: any(remote == port for name in others if name in self.job.processes
                                    for _, _, remote in sockets_of(self.job.processes[name].pid))
            await_until(lambda: connected() or self.job.some_child_ended() or any("step " in line for line in rank_0()), what="a connection")
            # A process is known to others once it has joined, some milliseconds after it has connected.
            time.sleep(0.1 + draw.delay * 0.1)
        elif draw.moment == "setup":
            time.sleep(draw.delay * 1.5)
        elif draw.moment == "step":
            await_until(lambda: any(line.startswith("step 40/") for line in rank_0()) or self.job.some_child_ended(), what="step 40")
            time.sleep(draw.delay * 0.2)
        elif draw.moment == "evaluation":
            await_until(lambda: any(line.startswith("epoch 1 ") for line in rank_0()) or self.job.some_child_ended(), what="the evaluation")
            time.sleep(draw.delay * 0.3)
        else:
            await_until(lambda: any(line.startswith("step 40/") for line in rank_0()) or self.job.some_child_ended(), what="step 40")
            time.sleep(draw.delay * 0.1)

    def inject(self):
        draw = self.draw
        fault, pid = draw.fault, self.job.processes[draw.victim].pid
        if draw.moment == "setup" and not draw.launched:
            # Whoever has met nobody yet cannot know of anybody's end; it waits for --timeout.
            self.strangers = {name for name, process in self.job.processes.items() if not met_by(process.pid)}
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
                self.job.fill_disk(pid)
            elif fault == "partition":
                self.job.lab.cut(self.job.host(draw.victim), self.job.host(draw.other))
        except (ProcessLookupError, FileNotFoundError):
            pass  # the job was faster
        if self.job.options.verbose:
            print(f"  {time.monotonic() - self.job.started_at:7.3f} ---- {draw}", flush=True)

    def half_close(self, pid):
        connections = sockets_of(pid)
        if not connections:
            raise NotPossible("the victim has no connection")
        descriptor, local, remote = random.Random(self.draw.delay).choice(sorted(connections))
        self.peer = next((name for name, process in self.job.processes.items()
                          if any(ends == [remote, local] for _, *ends in sockets_of(process.pid))), None)
        if self.peer is None:
            raise NotPossible("nobody is at the other end of the connection")
        pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
        if pidfd < 0:
            raise NotPossible("the victim has ended already")
        taken = libc.syscall(PIDFD_GETFD, pidfd, descriptor, 0)
        os.close(pidfd)
        if taken < 0:
            raise NotPossible("pidfd_getfd")
        with socket.socket(fileno=taken) as stream:
            stream.shutdown(socket.SHUT_WR)

    def look_for_ends(self):
        self.tracer.reap()
        self.job.look_for_ends(self.tracer.held)
        # Who came after such a fault has met nobody, as rank 0 says itself.
        rank_0 = self.job.processes.get("worker 0")
        if self.draw.fault == "descriptors" and self.draw.moment == "setup" and self.job.late is not None and rank_0 is not None:
            if rank_0.ended_at is not None and any(NOBODY_NEW in line for line in rank_0.err):
                self.strangers.add(f"worker {self.job.late}")

    def let_go(self):
        """Of threads whose process was killed."""
        end = time.monotonic() + 10
        while self.tracer.held and time.monotonic() < end:
            self.tracer.reap()
            time.sleep(0.005)

    def limit(self):
        """Seconds in which survivors must have ended."""
        if self.draw.fault == "descriptors":
            return PATIENCE
        return NOTICED_AT_ONCE if self.draw.fault in ENDED else self.job.options.failure_timeout + GRACE

    def survivors(self):
        """All but the victim, and those that cannot know of anybody's end yet."""
        return [process for name, process in sorted(self.job.processes.items())
                if name != self.draw.victim and name not in self.strangers]

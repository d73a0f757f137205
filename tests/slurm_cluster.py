"""Slurm on this machine for as long as a test needs it: two nodes that are both this host, with ports and folders of their own.

It runs as root, without systemd and without cgroups, and leaves no process and no file behind.
"""
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1

PATIENCE = 60
NODES = 2
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")

CONFIGURATION = """\
ClusterName=gradsync
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=3
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
{nodes}
PartitionName=all Nodes=n[0-{last}] Default=YES MaxTime=10 State=UP
"""

NODE = "NodeName=n{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"


def _find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def why_not():
    """Why there can be no cluster here; empty when there can."""
    missing = [program for program in PROGRAMS if _find(program) is None]
    if missing:
        return f"there is no {missing[0]}: tools/setup --extras installs Slurm"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    if pathlib.Path("/proc/self/setgroups").read_text().strip() != "allow":
        return "Slurm's daemons need a root that may set groups, as a sandbox's may not"
    return ""


def _end_with_test():
    """In a daemon, before it is what it is to be: it must not outlive a test that is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class SlurmCluster:
    """Nodes n0 and n1, idle once start() has returned. `environment` is for srun, sbatch and so on."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        # A job of this cluster is no part of one that the test itself may run in.
        for name in [name for name in self.environment if name.startswith(("SLURM_", "PMI_", "OMPI_", "PMIX_"))]:
            if name != "SLURM_CONF":
                del self.environment[name]
        self.daemons = []

    def start(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.folder / "state").mkdir()
        controller, *ports = free_ports(1 + NODES)
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(NODE.format(index=index, host=host, port=port) for index, port in enumerate(ports))
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, controller=controller, folder=self.folder, nodes=nodes, last=NODES - 1))
        self._daemon("munged", "--force", "--foreground", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                     f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed",
                     f"--log-file={self.folder}/munge.log")
        self._await("munge's socket", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        for index in range(NODES):
            self._daemon("slurmd", "-D", "-N", f"n{index}", "-f", str(self.folder / "slurm.conf"))
        self._await(f"{NODES} idle nodes", lambda: self._states() == ["idle"] * NODES)

    def stop(self):
        for _, process in reversed(self.daemons):
            process.terminate()
        for name, process in reversed(self.daemons):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def program(self, name):
        return _find(name)

    def _daemon(self, name, *arguments):
        with (self.folder / f"{name}{len(self.daemons)}.out").open("w") as output:
            process = subprocess.Popen([_find(name), *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, cwd=self.folder, preexec_fn=_end_with_test)
        self.daemons.append((name, process))

    def _states(self):
        try:
            result = subprocess.run([_find("sinfo"), "--noheader", "--Node", "--format=%T"], env=self.environment,
                                    stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return []
        return result.stdout.split()

    def _await(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = [name for name, process in self.daemons if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                words = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.out")))
                raise AssertionError(f"no {what}; ended: {ended}\n{words}")
            time.sleep(0.05)

#!/usr/bin/env python3
"""Jobs that a real Slurm starts, on two nodes that are both this machine, train what tools/launch trains, to the bit.

Skipped where Slurm is not installed (tools/setup --extras) or this is not root.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))

import slurm_cluster  # noqa: E402

ROOT = pathlib.Path.cwd()  # of the runfiles, where tests start
WORKER = str(ROOT / "worker/worker")
SERVER = str(ROOT / "ps_server/ps_server")
TASK = str(ROOT / "tools/task")
LAUNCH = str(ROOT / "tools/launch")
SAMPLES = ROOT / "examples/slurm"
JOB = ["--model=mlp", "--batch_size=4", "--steps=4", "--timeout=60s"]
PATIENCE = 100


def sha_of(output):
    return re.findall(r"params_sha256 (\w{64})", output)


@unittest.skipIf(slurm_cluster.why_not(), slurm_cluster.why_not())
class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(dir="/tmp")  # a socket's path is at most 107 bytes long
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.cluster = slurm_cluster.SlurmCluster(cls.folder)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()
        cls.expected = {}

    def run_here(self, *argv):
        # The nodes' names are nobody's addresses. The store's port is a free one, and the launcher's rule for it stays.
        environment = {**self.cluster.environment, "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(slurm_cluster.free_ports(1)[0])}
        return subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, cwd=self.folder)

    def train(self, *argv):
        result = self.run_here(*argv)
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def sha_by_launch(self, topology):
        if topology not in self.expected:
            servers = ["--servers=1"] if topology == "ps" else []
            output = self.train(LAUNCH, "--workers=2", *servers, "--", f"--topology={topology}", *JOB)
            self.expected[topology] = sha_of(output)
        return self.expected[topology]

    def assert_trains(self, topology, *argv):
        output = self.train("srun", *argv)
        shas = sha_of(output)
        self.assertEqual(len(shas), 1, output)  # rank 0 alone prints it
        self.assertEqual(shas, self.sha_by_launch(topology), output)
        return output

    def test_a_ring_of_two_nodes(self):
        output = self.assert_trains("ring", "-N2", "-n2", WORKER, "--topology=ring", *JOB)
        self.assertRegex(output, r"flags .*by Slurm: .*rank=0, .*world_size=2")

    def test_workers_and_a_server_in_one_line(self):
        self.assert_trains("ps", "-N2", "-n3", TASK, "--servers=1", "--", *JOB)

    def test_a_file_that_says_which_task_runs_what(self):
        tasks = self.folder / "tasks"
        tasks.write_text(f"0-1 {WORKER} --topology=ps --server_tasks=1 {' '.join(JOB)}\n"
                         f"2 {SERVER} --server_tasks=1 --timeout=60s\n")
        self.assert_trains("ps", "-N2", "-n3", "--multi-prog", str(tasks))

    def test_a_heterogeneous_job(self):
        self.assert_trains("ps", "-n2", WORKER, "--topology=ps", "--server_tasks=1", *JOB, ":", "-n1", SERVER,
                           "--server_tasks=1", "--timeout=60s")

    def test_servers_that_come_first_are_told_the_rule(self):
        tasks = self.folder / "wrong_tasks"
        tasks.write_text(f"0 {SERVER} --server_tasks=1\n1 {WORKER} --topology=ps --server_tasks=1 {' '.join(JOB)}\n")
        result = self.run_here("srun", "-n2", "--multi-prog", str(tasks))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("expected workers first and then servers, so task 0 of 2 as a worker, found a server", result.stdout)
        self.assertIn("so task 1 of 2 as a server, found a worker", result.stdout)

    def sample(self, name, *flags):
        log = self.folder / f"{name}.out"
        result = self.run_here("sbatch", "--wait", f"--output={log}", f"--export=ALL,GRADSYNC={ROOT}",
                               str(SAMPLES / f"{name}.sbatch"), *flags)
        output = log.read_text() if log.exists() else ""
        self.assertEqual(result.returncode, 0, result.stdout + output)
        return sha_of(output)

    def batch(self, name, *lines, flags=(), code=0):
        """What a batch script prints, of which sbatch waits for the end."""
        script = self.folder / f"{name}.sh"
        log = self.folder / f"{name}.log"
        script.write_text("#!/bin/bash\n" + "\n".join(lines) + "\n")
        result = self.run_here("sbatch", "--wait", *flags, f"--output={log}", str(script))
        output = log.read_text() if log.exists() else ""
        self.assertEqual(result.returncode, code, result.stdout + output)
        return output

    def test_what_a_batch_script_starts_by_itself(self):
        """In a script SLURM_PROCID is 0 and there is no SLURM_NTASKS, or the job's: workers refused it, or waited."""
        job = " ".join(JOB)
        for name, flags in ("without_tasks", ["-N1"]), ("with_tasks", ["-n2"]):
            with self.subTest(name):
                output = self.batch(f"launch_{name}", f"{LAUNCH} --workers=2 -- --topology=ring {job}", flags=flags)
                self.assertEqual(sha_of(output), self.sha_by_launch("ring"), output)
                output = self.batch(
                    f"flags_{name}", f"worker='{WORKER} --topology=ring --world_size=2 {job}'", "unset MASTER_ADDR MASTER_PORT",
                    "$worker --rank=0 --master=127.0.0.1:0 --port_file=store_$SLURM_JOB_ID &",
                    "until [ -s store_$SLURM_JOB_ID ]; do sleep 0.05; done",
                    "$worker --rank=1 --master=$(cat store_$SLURM_JOB_ID) && wait %1", flags=flags)
                self.assertEqual(sha_of(output), self.sha_by_launch("ring"), output)
                output = self.batch(f"alone_{name}", f"unset MASTER_ADDR MASTER_PORT; {WORKER} {job}", flags=flags)
                self.assertEqual(len(sha_of(output)), 1, output)
                said = "gradsync: SLURM_NTASKS=2 but this process is no task of a step: it trains alone"
                self.assertEqual(said in output, name == "with_tasks", output)

    def test_pmi_2_beside_slurms_own_variables(self):
        """They were taken for MPICH's, which had told no local rank, so that two tasks wanted one port for metrics."""
        ports = slurm_cluster.free_ports(1)
        output = self.assert_trains("ring", "--mpi=pmi2", "-N1", "-n2", WORKER, "--topology=ring", f"--metrics_port={ports[0]}",
                                    *JOB)
        self.assertRegex(output, r"flags .*by Slurm: local_rank=0, .*rank=0, .*world_size=2")

    def test_a_count_of_one_that_mpirun_left_does_not_part_the_tasks(self):
        """Each task trained a model of its own, as rank 0 of 1."""
        for left in ("PMI_RANK=0", "PMI_SIZE=1"), ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"):
            with self.subTest(left[0]):
                output = self.train("env", *left, "srun", "-n2", WORKER, "--topology=ring", *JOB)
                self.assertEqual(sha_of(output), self.sha_by_launch("ring"), output)
                self.assertIn("SIZE=1 and SLURM_STEP_NUM_TASKS=2 contradict each other", output)

    def test_a_signal_before_the_time_limit_leaves_a_checkpoint(self):
        """SIGUSR1 killed workers without one."""
        for name, script, batch in (
                ("step", f"srun -n2 {WORKER}", []),
                ("script", f"exec {LAUNCH} --workers=2 --", ["--batch"])):
            with self.subTest(name):
                script = f"{script} --topology=ring --checkpoint={self.folder}/{name} --steps=1000000 --log_every=1 " \
                         "--model=mlp --batch_size=4"
                environment = {**self.cluster.environment, "MASTER_ADDR": "127.0.0.1",
                               "MASTER_PORT": str(slurm_cluster.free_ports(1)[0])}
                log = self.folder / f"signal_{name}.log"
                job = subprocess.run(["sbatch", "--parsable", "-n2", f"--output={log}", "--wrap", script], env=environment,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True,
                                     cwd=self.folder).stdout.strip()
                self.wait_for("no step was trained", lambda at=log: at.exists() and "step 5/" in at.read_text())
                self.train("scancel", "--signal=USR1", *batch, job)
                self.wait_for("it goes on", lambda j=job: self.run_here("squeue", "--noheader", f"--jobs={j}").stdout.strip() == "")
                self.assertRegex(log.read_text(), r"worker: ended by SIGUSR1 to rank \d after step \d+; the checkpoint of step")
                self.assertTrue((self.folder / name / "latest/state.safetensors").exists())

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.1)

    def test_the_sample_scripts_run(self):
        self.assertEqual({path.name for path in SAMPLES.iterdir()}, {"ring.sbatch", "ps.sbatch"})
        self.assertEqual(self.sample("ring", *JOB), self.sha_by_launch("ring"))
        self.assertEqual(self.sample("ps", *JOB), self.sha_by_launch("ps"))


if __name__ == "__main__":
    unittest.main()

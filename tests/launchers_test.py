#!/usr/bin/env python3
"""What launchers start meets: a user's own program, and parameter servers that register in the store, after a restart too.

Servers took "job" for the run's id, and 0 for its attempt, where torchrun, Slurm and MPI have told the workers something else.
"""
import functools
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

WORKER = "worker/worker"  # from the root of the runfiles, where tests start
SERVER = "ps_server/ps_server"
OWN_MODEL = "examples/own_model"
TASK = "tools/task"
LAUNCH = "tools/launch"
JOB = ["--topology=ps", "--num_servers=1", "--model=mlp", "--batch_size=4", "--timeout=100s", "--master=127.0.0.1:0"]
TRAIN = ["--model=mlp", "--batch_size=4", "--steps=4", "--timeout=60s"]
PATIENCE = 100
MPIEXEC = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache/gradsync/peers/mpich/bin/mpiexec"


@functools.lru_cache(maxsize=None)
def has_torchrun():
    found = subprocess.run([sys.executable, "-c", "import torch.distributed.run"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    return found.returncode == 0


def sha_of(output):
    return re.findall(r"params_sha256 (\w{64})", output)


def free_port():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return str(port.getsockname()[1])


class LaunchersTest(unittest.TestCase):
    expected = {}  # topology -> bits of what tools/launch trains on two workers

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.port_file = self.folder / "master"
        self.outputs = {}  # process -> file with what it has printed
        self.addCleanup(self.end)

    def end(self):
        for process in self.outputs:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # with its children
            except ProcessLookupError:
                pass
            process.wait()

    def start(self, *argv, environment=None):
        path = self.folder / f"output{len(self.outputs)}"
        with path.open("w") as file:
            process = subprocess.Popen(argv, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        self.outputs[process] = path
        return process

    def output(self, process):
        return self.outputs[process].read_text()

    def finish(self, process):
        process.wait(timeout=PATIENCE)
        return self.output(process)

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)

    def master(self):
        self.wait_for("no port file", self.port_file.exists)
        return self.port_file.read_text().strip()

    def assert_ends_well(self, *processes):
        for process in processes:
            output = self.finish(process)
            self.assertEqual(process.returncode, 0, output)

    def check(self, worker_environment, server_environment, *server_flags):
        worker = self.start(WORKER, *JOB, "--steps=2", f"--port_file={self.port_file}", environment=worker_environment)
        server = self.start(SERVER, f"--master={self.master()}", "--timeout=100s", *server_flags,
                            environment=server_environment)
        self.assert_ends_well(worker, server)

    TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_RUN_ID": "seven", "TORCHELASTIC_RESTART_COUNT": "2"}

    def test_torchrun_whose_variables_the_server_lacks_or_has(self):
        self.check(self.TORCHRUN, {})

    def test_a_server_that_is_told_the_run(self):
        self.check(self.TORCHRUN, {}, "--run_id=seven", "--attempt=2")

    def test_slurm_in_a_job_step_of_its_own_after_a_requeue(self):
        slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1234",
                 "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}
        self.check(slurm, {**slurm, "SLURM_STEP_ID": "1"})

    def test_open_mpi_with_an_mpirun_of_its_own(self):
        mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "a"}
        self.check(mpi, {**mpi, "PMIX_NAMESPACE": "b"})

    def test_no_launcher(self):
        self.check({}, {})

    def test_a_server_of_another_run_is_refused(self):
        worker = self.start(WORKER, *JOB, "--steps=2", f"--port_file={self.port_file}", environment=self.TORCHRUN)
        for flag, words in (("--run_id=six", ("--run_id", "seven", "six")), ("--attempt=1", ("--attempt", "2", "1"))):
            server = self.start(SERVER, f"--master={self.master()}", flag)
            output = self.finish(server)
            self.assertEqual(server.returncode, 2)
            self.assertEqual(output.count("\n"), 1, output)
            for word in words:
                self.assertIn(word, output)
        self.assert_ends_well(self.start(SERVER, f"--master={self.master()}"), worker)

    def test_a_server_that_waits_for_the_store_can_be_told_to_end(self):
        server = self.start(SERVER, "--master=127.0.0.1:1", "--timeout=100s")
        # Its own threads show that it is past the beginning, where the signal would kill it.
        self.wait_for("no threads", lambda: len(os.listdir(f"/proc/{server.pid}/task")) > 2)
        server.send_signal(signal.SIGTERM)
        output = self.finish(server)
        self.assertEqual(output, "ps_server: told to end by SIGTERM\n")
        self.assertEqual(server.returncode, 128 + signal.SIGTERM)

    @unittest.skipUnless(has_torchrun(), "there is no torchrun")
    def test_torchrun_itself_and_its_restart(self):
        # torchrun takes a worker's --master for an abbreviation of its own flags, wherever it stands.
        script = self.folder / "start_worker"
        flags = " ".join([*JOB, "--steps=1000000000", "--log_every=1000000000", f"--port_file={self.port_file}"])
        script.write_text(f"#!/bin/sh\nexec {os.path.abspath(WORKER)} {flags}\n")
        script.chmod(0o755)
        # Debian's fails under its Python unless the worker's output goes to a log (-r) and here too (-t).
        torchrun = self.torchrun("--nproc_per_node=1", "--max_restarts=1", "-r", "1", "-t", "1", "--no_python",
                                 str(script))
        server = self.start(SERVER, f"--master={self.master()}")
        self.wait_for("no step was trained", lambda: self.output(torchrun).count("step 1/") == 1)
        self.port_file.unlink()
        for pid in self.workers_of(torchrun.pid):
            os.kill(pid, signal.SIGKILL)
        # The second attempt: a new store, for which torchrun counts 1, and a new server.
        again = self.start(SERVER, f"--master={self.master()}")
        self.wait_for("no step was trained again", lambda: self.output(torchrun).count("step 1/") == 2)
        self.assertIn("UNAVAILABLE: rank 0", self.finish(server))
        self.assertEqual(server.returncode, 1)
        self.assertIsNone(again.poll())

    def torchrun_command(self, *flags):
        # Not --standalone, for which torchrun 1.13 has one port: two tests at once would be one job's.
        return [sys.executable, "-u", "-m", "torch.distributed.run", "--rdzv_backend=c10d", "--rdzv_id=alone",
                f"--rdzv_endpoint=localhost:{free_port()}", "--monitor_interval=0.1", *flags]

    def torchrun(self, *flags):
        return self.start(*self.torchrun_command(*flags))

    def own_model(self, commands):
        """Runs a program of a user's on two ranks, by a line of shell."""
        script = self.folder / "own_model"
        script.write_text(f"#!/bin/sh\nexec 2>&1\n{commands}\n")
        script.chmod(0o755)
        process = self.torchrun("--nproc_per_node=2", "-r", "1", "-t", "1", "--no_python", str(script))
        return process, self.finish(process)

    @unittest.skipUnless(has_torchrun(), "there is no torchrun")
    def test_a_users_own_program_joins_under_torchrun(self):
        process, output = self.own_model(f"exec {os.path.abspath(OWN_MODEL)} ring")
        self.assertEqual(process.returncode, 0, output)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2, step 100: loss ", output)

    @unittest.skipUnless(has_torchrun(), "there is no torchrun")
    def test_ranks_of_different_jobs_are_told_so_without_any_flag(self):
        own_model = os.path.abspath(OWN_MODEL)
        process, output = self.own_model(
            f"if [ $RANK = 0 ]; then exec {own_model} ring; else exec {own_model} ps servers=127.0.0.1:1; fi")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("--topology: expected the same on all ranks; rank 0 has ring, rank 1 has ps", output)

    def assert_trains(self, topology, *argv, environment=None):
        """Two workers, as this command line starts them, end with the bits of tools/launch."""
        if topology not in self.expected:
            servers = ["--servers=1"] if topology == "ps" else []
            output = self.finish(self.start(LAUNCH, "--workers=2", *servers, "--", f"--topology={topology}", *TRAIN))
            self.expected[topology] = sha_of(output)
            self.assertEqual(len(self.expected[topology]), 1, output)
        process = self.start(*argv, environment=environment)
        output = self.finish(process)
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(set(sha_of(output)), set(self.expected[topology]), output)

    def script(self, *words):
        """torchrun takes others' flags for abbreviations of its own."""
        path = self.folder / "script"
        path.write_text(f"#!/bin/sh\nexec {' '.join(words)}\n")
        path.chmod(0o755)
        return str(path)

    @unittest.skipUnless(has_torchrun(), "there is no torchrun")
    def test_torchrun_trains_a_ring_with_servers_in_its_workers_and_among_its_tasks(self):
        flags = ["-r", "1", "-t", "1", f"--log_dir={self.folder}", "--no_python"]
        self.assert_trains("ring", *self.torchrun_command(*flags, "--nproc_per_node=2"),
                           self.script(os.path.abspath(WORKER), "--topology=ring", *TRAIN))
        self.assert_trains("ps", *self.torchrun_command(*flags, "--nproc_per_node=2"),
                           self.script(os.path.abspath(WORKER), "--topology=ps", *TRAIN))
        self.assert_trains("ps", *self.torchrun_command(*flags, "--nproc_per_node=3"),
                           self.script(os.path.abspath(TASK), "--servers=1", "--", *TRAIN))

    @unittest.skipUnless(has_torchrun(), "there is no torchrun")
    def test_torchrun_trains_with_servers_that_are_started_apart(self):
        port = int(free_port())
        # torchrun's own store is at --master_port, and rank 0's next to it.
        server = self.start(SERVER, f"--master=127.0.0.1:{port + 1}", "--timeout=60s")
        self.assert_trains("ps", sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--node_rank=0",
                           "--master_addr=127.0.0.1", f"--master_port={port}", "--monitor_interval=0.1", "-r", "1",
                           "-t", "1", f"--log_dir={self.folder}", "--no_python", "--nproc_per_node=2",
                           self.script(os.path.abspath(WORKER), "--topology=ps", "--num_servers=1", *TRAIN))
        self.assert_ends_well(server)

    def check_mpi(self, *mpirun):
        store = {"MASTER_PORT": free_port()}
        self.assert_trains("ring", *mpirun, "-n", "2", os.path.abspath(WORKER), "--topology=ring", *TRAIN,
                           environment=store)
        self.assert_trains("ps", *mpirun, "-n", "3", os.path.abspath(TASK), "--servers=1", "--", *TRAIN,
                           environment=store)
        self.assert_trains("ps", *mpirun, "-n", "2", os.path.abspath(WORKER), "--topology=ps", "--server_tasks=1", *TRAIN,
                           ":", "-n", "1", os.path.abspath(SERVER), "--server_tasks=1", "--timeout=60s",
                           environment=store)

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "there is no Open MPI: tools/setup installs it")
    def test_open_mpi_trains_a_ring_and_with_servers_among_its_tasks(self):
        self.check_mpi("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")

    @unittest.skipUnless(MPIEXEC.exists(), "there is no MPICH: tools/setup --peers fetches it")
    def test_mpich_trains_a_ring_and_with_servers_among_its_tasks(self):
        self.check_mpi(str(MPIEXEC))

    # What surrounds a job that is told by flags, or that starts its own workers.
    SBATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "77",
              "SLURM_JOB_NODELIST": "n[7-8]"}
    SURROUNDINGS = (SBATCH, {**SBATCH, "SLURM_NTASKS": "4"}, {"RANK": "x"}, {"PMI_RANK": "1"},
                    {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1",
                     "OMPI_COMM_WORLD_RANK": "5"})

    def test_launch_trains_whatever_launcher_it_stands_in(self):
        """The batch script's SLURM_PROCID without a SLURM_NTASKS ended every worker with 2."""
        for surroundings in self.SURROUNDINGS:
            with self.subTest(surroundings):
                self.assert_trains("ring", LAUNCH, "--workers=2", "--", "--topology=ring", *TRAIN, environment=surroundings)
        self.assert_trains("ps", LAUNCH, "--workers=2", "--servers=1", "--", *TRAIN, environment=self.SBATCH)

    def test_workers_whose_flags_say_all_read_nothing_of_a_launcher(self):
        """--rank, --world_size and --master were given, and a variable that they do not need was refused."""
        for number, surroundings in enumerate(self.SURROUNDINGS):
            with self.subTest(surroundings):
                port_file = self.folder / f"store{number}"
                flags = [WORKER, "--topology=ring", "--world_size=2", *TRAIN]
                ranks = [self.start(*flags, "--rank=0", "--master=127.0.0.1:0", f"--port_file={port_file}",
                                    environment=surroundings)]
                self.wait_for("no port file", port_file.exists)
                ranks.append(self.start(*flags, "--rank=1", f"--master={port_file.read_text().strip()}"))
                self.assert_ends_well(*ranks)
                self.assertNotRegex(self.output(ranks[0]), "by (Slurm|torchrun|MPICH|Open MPI)")
                self.assert_ends_well(self.start(WORKER, "--world_size=1", *TRAIN, environment=surroundings))

    def test_a_worker_in_a_batch_script_is_alone_however_many_tasks_the_job_has(self):
        """It took itself for rank 0 of four, and waited for the others."""
        for surroundings in self.SURROUNDINGS[:2]:
            worker = self.start(WORKER, *TRAIN, environment=surroundings)
            self.assert_ends_well(worker)

    def test_a_launchers_complete_variables_count_beside_others_that_are_not(self):
        """srun --mpi=pmi2 sets PMI_* beside its own: it was taken for MPICH, which had told no local rank."""
        step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4",
                "MASTER_ADDR": "127.0.0.1"}
        for others in ({}, {"RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "7"}, {"PMI_SIZE": "2", "PMI_FD": "4"}):
            with self.subTest(others):
                port = free_port()
                ranks = []
                for rank in range(2):
                    environment = {**step, **others, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "MASTER_PORT": port}
                    if "PMI_SIZE" in others:
                        environment["PMI_RANK"] = str(rank)
                    ranks.append(self.start(WORKER, "--topology=ring", *TRAIN, environment=environment))
                self.assert_ends_well(*ranks)
                self.assertRegex(self.output(ranks[0]), r"by Slurm: local_rank=0, master=\S+, rank=0, run_id=77.3, world_size=2")

    def test_ranks_of_mpirun_in_a_pod_or_shell_of_one_worker_train_together(self):
        """RANK=0 WORLD_SIZE=1 won over mpirun's, and each trained alone as rank 0 of 1."""
        port = free_port()
        ranks = [self.start(WORKER, "--topology=ring", *TRAIN, environment={
            "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
            for rank in range(2)]
        self.assert_ends_well(*ranks)
        self.assertRegex(self.output(ranks[0]), r"by Open MPI: .*world_size=2")
        self.assertIn("WORLD_SIZE=1 and OMPI_COMM_WORLD_SIZE=2 contradict each other", self.output(ranks[0]))

    def test_one_of_several_workers_that_does_not_know_which_is_told_so(self):
        """It trained alone without a word."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7001"}
        for environment, missing in (({"WORLD_SIZE": "4", "LOCAL_RANK": "1", **place}, "RANK"),
                                     ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK"), ({"PMI_SIZE": "2"}, "PMI_RANK")):
            with self.subTest(missing):
                worker = self.start(WORKER, *TRAIN, environment=environment)
                output = self.finish(worker)
                self.assertEqual(worker.returncode, 2, output)
                self.assertEqual(output.count("\n"), 1, output)
                self.assertIn(f" {missing}: expected a whole number, as ", output)
        notice = "WORLD_SIZE=4 is set, but no RANK: this process trains alone\n"
        alone = self.start(WORKER, *TRAIN, environment={"WORLD_SIZE": "4"})
        self.assert_ends_well(alone)
        self.assertIn(notice, self.output(alone))
        told = self.start(WORKER, "--world_size=1", *TRAIN, environment={"WORLD_SIZE": "4"})
        self.assert_ends_well(told)
        self.assertNotIn(notice, self.output(told))

    def test_one_worker_needs_no_master_and_several_are_told_of_kubernetes(self):
        """Kubernetes sets MASTER_PORT for a service that is named master."""
        kubernetes = {"RANK": "0", "MASTER_PORT": "tcp://10.96.0.1:6379"}
        self.assert_ends_well(self.start(WORKER, *TRAIN, environment={**kubernetes, "WORLD_SIZE": "1"}))
        worker = self.start(WORKER, *TRAIN, environment={**kubernetes, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"})
        output = self.finish(worker)
        self.assertEqual(worker.returncode, 2, output)
        self.assertEqual(output.count("\n"), 1, output)
        self.assertIn("as Kubernetes sets it for a service named master", output)

    def test_who_is_not_what_its_task_should_be_is_told_before_it_waits(self):
        def slurm(task):
            return {"SLURM_PROCID": str(task), "SLURM_NTASKS": "3", "SLURM_LOCALID": str(task), "MASTER_ADDR": "127.0.0.1"}
        cases = (
            ([SERVER, "--server_tasks=1"], slurm(0), "so task 0 of 3 as a worker, found a server"),
            ([WORKER, "--topology=ps", "--server_tasks=1"], slurm(2), "so task 2 of 3 as a server, found a worker"),
            ([SERVER, "--server_tasks=3"], slurm(0), "fewer than the launcher's 3 tasks"),
            ([SERVER, "--server_tasks=1"], {}, "--server_tasks: expected srun, mpirun or torchrun"),
            ([WORKER, "--topology=ps", "--server_tasks=1"], {}, "--server_tasks: expected srun, mpirun or torchrun"),
            ([WORKER, "--topology=ps", "--server_tasks=1", "--num_servers=2"], slurm(0), "--num_servers: expected 1"),
            ([TASK, "--servers=3"], slurm(0), "task: --servers: expected at least 1 and fewer"),
            ([TASK], {}, "task: expected srun, mpirun or torchrun to have started this"),
            ([TASK, "--", "two"], slurm(0), "task: expected worker flags after --, found \"two\""),
        )
        for argv, environment, expected in cases:
            with self.subTest(argv):
                process = self.start(*argv, environment=environment)
                output = self.finish(process)
                self.assertEqual(process.returncode, 2, output)
                self.assertEqual(output.count("\n"), 1, output)
                self.assertIn(expected, output)

    @staticmethod
    def workers_of(pid):
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if b"worker" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]


if __name__ == "__main__":
    unittest.main()

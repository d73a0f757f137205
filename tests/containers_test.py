#!/usr/bin/python3
"""Jobs inside the limits of a container or a batch system: control groups, site profiles, limits of a user."""
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import unittest
import uuid

WORKER = "worker/worker"  # from the root of the runfiles, where tests start
LAUNCH = "tools/launch"
JOB = ["--model=mlp", "--batch_size=4", "--steps=2", "--warmup_steps=0"]
PATIENCE = 100


class ControlGroup:
    """A group of this test's own, in version 2 or in the controller's hierarchy of version 1; skips where none can be made."""

    def __init__(self, test, controller, **limits):
        version_2 = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
        if version_2.exists():
            parent = pathlib.Path("/sys/fs/cgroup")
        else:
            parent = pathlib.Path("/sys/fs/cgroup") / controller
        self.path = parent / f"gradsync-test-{os.getpid()}"
        try:
            if version_2.exists() and controller not in version_2.read_text().split():
                raise OSError(f"no controller {controller}")
            if version_2.exists():
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            self.path.mkdir()
            test.addCleanup(self.path.rmdir)
            for name, value in limits.items():
                files = {"memory": "memory.max" if version_2.exists() else "memory.limit_in_bytes",
                         "pids": "pids.max",
                         "quota": "cpu.max" if version_2.exists() else "cpu.cfs_quota_us"}
                (self.path / files[name]).write_text(str(value))
        except OSError as error:
            test.skipTest(f"no control group can be made here: {error}")

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


class ContainersTest(unittest.TestCase):
    def run_here(self, *argv, preexec_fn=None, **environment):
        return subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE, preexec_fn=preexec_fn, env=dict(os.environ, **environment))

    def inside(self, *command):
        """What to put in front of a program that is to run in namespaces of its own; skips where there can be none."""
        if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no namespaces of one's own here")
        return command

    # Both workers were bound to core 0, link threads too, without a word.
    def test_a_site_profile_for_openmp_binds_no_worker_to_a_core(self):
        for profile in ({"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "cores"}, {"GOMP_CPU_AFFINITY": "0"},
                        {"OMP_PROC_BIND": "spread", "OMP_PLACES": "{0}"}):
            with self.subTest(profile):
                worker = subprocess.Popen([WORKER, *JOB, "--steps=1000000", "--log_every=1"], text=True,
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          env=dict(os.environ, **profile))
                try:
                    for line in worker.stdout:
                        if re.match(r"step 3\b", line):  # all of its threads are there
                            break
                    masks = {os.sched_getaffinity(int(task)) == os.sched_getaffinity(0)
                             for task in os.listdir(f"/proc/{worker.pid}/task")}
                    self.assertEqual(masks, {True})
                finally:
                    worker.kill()
                    _, said = worker.communicate()
                for name, value in profile.items():
                    self.assertRegex(said, rf"worker: .*{name}={re.escape(value)}.* is left out")

    # Whoever loads OpenMP is bound, and so is what it starts: launch must not load it.
    def test_such_a_profile_binds_no_worker_of_launch_either(self):
        mark = f"GRADSYNC_TEST_MARK={uuid.uuid4()}"
        name, value = mark.split("=")
        profile = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", name: value}
        launch = subprocess.Popen([LAUNCH, "--workers=2", "--", *JOB, "--topology=ring", "--steps=1000000", "--log_every=1"],
                                  text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env=dict(os.environ, **profile))
        try:
            for line in launch.stdout:
                if re.search(r"step 3\b", line):
                    break
            bound, workers = [], 0
            for entry in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if mark.encode() not in (entry / "environ").read_bytes().split(b"\0"):
                        continue
                    workers += (entry / "comm").read_text().strip() == "worker"
                    bound += [task for task in os.listdir(entry / "task")
                              if os.sched_getaffinity(int(task)) != os.sched_getaffinity(0)]
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
            self.assertEqual(workers, 2)
            self.assertEqual(bound, [])
        finally:
            launch.terminate()
            launch.communicate()

    # A job that a group had no memory for was killed instead of refused.
    # By --link=auto they were to share memory, and refused each other.
    def test_ranks_of_two_users_on_one_host_train(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become two users")
        folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))  # where others can read
        self.addCleanup(shutil.rmtree, folder)
        for part in ("worker", "_solib_k8"):
            if pathlib.Path(part).exists():
                shutil.copytree(part, folder / part)
        folder.chmod(0o755)
        whole = self.run_here(LAUNCH, "--workers=2", "--", *JOB, "--topology=ring")
        job = [folder / WORKER, *JOB, "--topology=ring", "--world_size=2", "--timeout=60s"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            master = f"127.0.0.1:{free.getsockname()[1]}"
        other = subprocess.Popen([str(word) for word in (*job, "--rank=1", f"--master={master}")], stdin=subprocess.DEVNULL, user=1001)
        self.addCleanup(other.kill)
        first = self.run_here(*job, "--rank=0", f"--master={master}", preexec_fn=lambda: os.setuid(1002))
        self.assertEqual((first.returncode, other.wait(PATIENCE)), (0, 0), first.stderr)
        self.assertEqual(re.findall(r"params_sha256 \w+", first.stdout), re.findall(r"params_sha256 \w+", whole.stdout))

    # They stayed until it ended, and a container has only so many processes.
    def test_launch_as_the_first_process_reaps_those_that_lose_their_parent(self):
        script = pathlib.Path(os.environ["TEST_TMPDIR"]) / "leaves_an_orphan"
        script.write_text("#!/bin/sh\norphan=$(sh -c 'true & echo $!')\n"
                          f"for _ in $(seq 400); do [ -e /proc/$orphan ] || exec {os.path.abspath(WORKER)} \"$@\"; sleep 0.05; done\n"
                          "exit 3\n")
        script.chmod(0o755)
        inside = self.inside("unshare", "-r", "--pid", "--fork", "--mount-proc")
        launch = self.run_here(*inside, LAUNCH, f"--worker_binary={script}", "--workers=2", "--", *JOB)
        self.assertEqual(launch.returncode, 0, launch.stderr)

    # It was said that memory had run out.
    def test_a_box_without_random_numbers_is_what_is_named(self):
        inside = self.inside("unshare", "-rm", "sh", "-c", 'mount --bind /dev/null /dev/urandom && exec "$@"', "sh")
        worker = self.run_here(*inside, WORKER, *JOB)
        self.assertNotEqual(worker.returncode, 0)
        self.assertRegex(worker.stderr, r"expected that LibTorch makes the weights .*, found: .*/dev/urandom\n")

    def test_buckets_that_a_memory_limit_has_no_room_for_are_refused(self):
        group = ControlGroup(self, "memory", memory=1200 << 20)
        result = self.run_here(WORKER, "--model=vgg16", "--batch_size=1", "--steps=1", preexec_fn=group.enter)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertRegex(result.stderr, r"buckets: expected \d+ bytes of memory.*the memory limit of control group ")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    # OpenBLAS asks for its buffers for ever where it gets none: the worker stood still without a word.
    def test_what_a_limit_of_addresses_has_no_room_for_is_refused(self):
        def limited():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

        libraries = subprocess.run(["ldd", WORKER], capture_output=True, text=True).stdout
        if "libasan" in libraries or "libtsan" in libraries:
            self.skipTest("a sanitizer takes terabytes of addresses")
        if "openblas" in libraries:
            worker = self.run_here(WORKER, *JOB, "--threads=64", preexec_fn=limited)
            self.assertRegex(worker.stderr, r"--threads=64: OpenBLAS's buffers: expected 8590196736 bytes .* \(ulimit -v\) leaves\n")
        for topology, sizes in ("local", ["--model=gpt", "--gpt_width=1500"]), ("ring", ["--model=vgg16"]):
            with self.subTest(topology):
                worker = self.run_here(WORKER, *JOB, f"--topology={topology}", *sizes, "--batch_size=1", preexec_fn=limited)
                self.assertEqual(worker.returncode, 2, worker.stderr)
                self.assertRegex(worker.stderr, r": expected \d+ bytes of memory .*, which is all that the limit of this process's "
                                                r"addresses \(ulimit -v\) leaves\n")

    def test_a_quota_of_one_core_gives_each_worker_of_launch_one_thread(self):
        group = ControlGroup(self, "cpu", quota="100000")
        result = self.run_here(LAUNCH, "--workers=1", "--", *JOB, "--print_config", preexec_fn=group.enter)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"\bthreads: 1 ")

    # "terminate called after throwing an instance of std::system_error", exit code 134.
    def test_a_thread_that_may_not_start_ends_the_process_with_one_line_that_names_the_limit(self):
        group = ControlGroup(self, "pids", pids=9)
        # With few, a library's own thread is missing while it is loaded; with more, one of gRPC or of ours.
        for most, argv in ((2, [WORKER, *JOB]), (4, [WORKER, *JOB]),
                           (12, [LAUNCH, "--workers=2", "--", "--topology=ring", *JOB]),
                           (20, [LAUNCH, "--workers=2", "--", "--topology=ring", *JOB]),
                           (20, [LAUNCH, "--workers=2", "--servers=1", "--", "--link=grpc", *JOB]),
                           (40, [LAUNCH, "--workers=2", "--servers=1", "--", "--link=grpc", *JOB])):
            with self.subTest(most=most, argv=argv):
                (group.path / "pids.max").write_text(str(most))
                result = self.run_here(*argv, preexec_fn=group.enter)
                self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
                self.assertRegex(result.stderr, rf"thread: expected .*limited to {most} of control group \S+ \(pids.max\)")
                self.assertNotIn("terminate called", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/python3
"""What those see who run jobs and watch them: signals, exit codes, metrics, health, logs (docs/operate/operations.md)."""
import fcntl
import glob
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

try:
    import grpc
except ImportError:
    grpc = None

WORKER = "worker/worker"  # from the root of the runfiles, where tests start
SERVER = "ps_server/ps_server"
LAUNCH = "tools/launch"
JOB = ["--model=mlp", "--batch_size=4", "--threads=1", "--timeout=60s"]
FOR_EVER = ["--steps=1000000", "--log_every=1"]
PATIENCE = 100
# With address sanitizer: freed memory that is kept back counts as resident. Adds to what the caller asked for.
SMALL_QUARANTINE = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=8")))
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse


def scrape(address):
    """The page's samples, by name with labels, once it is sure that it is one that Prometheus can read."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as page:
        text = page.read().decode()
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            types[name] = kind
        elif not line.startswith("#"):
            name, value = re.fullmatch(r"([a-z_]+(?:\{[^}]*\})?) (\S+)", line).groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name.split("{")[0])
            assert types.get(name.split("{")[0]) or types[base] in ("histogram", "summary"), line
            samples[name] = float(value)
    for name, kind in types.items():
        assert (kind == "counter") == name.endswith("_total"), name
    return samples


def labelled(samples, name, **labels):
    found = [value for key, value in samples.items()
             if key.split("{")[0] == name and all(f'{label}="{text}"' in key for label, text in labels.items())]
    assert len(found) == 1, f"{name} {labels}: {len(found)} samples"
    return found[0]


class OperationsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.processes = []
        self.addCleanup(self.end)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def start(self, *argv, stdout=None):
        stem = self.folder / str(len(self.processes))
        with open(f"{stem}.err", "w") as err, open(stdout or f"{stem}.out", "w") as out:
            process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       start_new_session=True, env=dict(os.environ, ASAN_OPTIONS=SMALL_QUARANTINE))
        process.out = pathlib.Path(stdout or f"{stem}.out")
        process.err = pathlib.Path(f"{stem}.err")
        self.processes.append(process)
        return process

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            said = [process.err.read_text() for process in self.processes]
            self.assertLess(time.monotonic(), deadline, f"{what}; processes said {said}")
            time.sleep(0.01)

    def address(self, name):
        path = self.folder / name
        self.wait_for(f"nobody wrote {name}", path.exists)
        return path.read_text().strip()

    def workers(self, count, *flags):
        """The processes of a ring, one after the other, as the first says where the store is."""
        port_file = f"master{len(self.processes)}"
        common = [WORKER, *JOB, "--topology=ring", "--link=grpc", f"--world_size={count}", *flags]
        ranks = [self.start(*common, "--rank=0", "--master=127.0.0.1:0", f"--port_file={self.folder / port_file}")]
        master = self.address(port_file)
        return ranks + [self.start(*common, f"--rank={rank}", f"--master={master}") for rank in range(1, count)]

    def wait_for_step(self, process, step):
        self.wait_for(f"no step {step}", lambda: re.search(rf"^(\[.*\] *)?step {step}/", process.out.read_text(), re.M))

    def assert_ended(self, process, code, pattern):
        """Returns what the one group of `pattern` found in all that the process said on stderr, one line."""
        process.wait(PATIENCE)
        text = process.err.read_text()
        self.assertEqual(process.returncode, code, text)
        found = re.fullmatch(pattern + r"\n", text)
        self.assertIsNotNone(found, text)
        return found.groups()

    def sha(self, process):
        process.wait(PATIENCE)
        self.assertEqual(process.returncode, 0, process.err.read_text())
        return re.search(r"params_sha256 (\w{64})", process.out.read_text()).group(1)

    def test_a_job_whose_one_worker_is_told_to_end_drains_and_goes_on_later_with_the_bits_of_one_that_never_stopped(self):
        checkpoint = f"--checkpoint={self.folder / 'c'}"
        ranks = self.workers(2, *FOR_EVER, checkpoint, "--log_format=json", "--metrics_port=0",
                             f"--metrics_port_file={self.folder}/page{{rank}}", f"--metrics_json={self.folder}/m{{rank}}")
        self.wait_for_step(ranks[0], 20)
        pages = [scrape(self.address(f"page{rank}")) for rank in range(2)]
        self.tell_to_end_twice(ranks[1])
        steps = set()
        for rank, process in enumerate(ranks):
            process.wait(PATIENCE)
            line = json.loads(process.err.read_text())
            self.assertEqual(process.returncode, 128 + signal.SIGTERM, line)
            steps.add(line["step"])
            step = line["step"]
            self.assertEqual(line["message"], f"ended by SIGTERM to rank 1 after step {step}; the checkpoint of step {step} "
                             "has it, from which --resume=auto goes on")
            self.assertEqual((line["severity"], line["program"], line["rank"]), ("INFO", "worker", rank))
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual(len(steps), 1)
        self.check_pages(pages)
        more = f"--steps={steps.pop() + 10}"
        broken = self.workers(2, more, checkpoint, "--resume")
        unbroken = self.workers(2, more)
        self.assertEqual(self.sha(broken[0]), self.sha(unbroken[0]))

    def check_pages(self, pages):
        """What was shown while the job ran is what its records say at the end."""
        for rank, page in enumerate(pages):
            record = json.loads((self.folder / f"m{rank}").read_text())
            step = int(labelled(page, "gradsync_current_step"))
            self.assertGreaterEqual(step, 18)
            self.assertEqual(labelled(page, "gradsync_step_total", rank=rank), step)
            self.assertEqual(labelled(page, "gradsync_samples_total"), 4 * step)
            self.assertEqual(labelled(page, "gradsync_job_steps"), 1000000)
            self.assertAlmostEqual(labelled(page, "gradsync_loss"), record["loss"][step - 1], places=5)
            self.assertAlmostEqual(labelled(page, "gradsync_learning_rate"), record["lr"][step - 1], places=8)
            for part in "data", "forward", "backward", "exposed", "update":
                expected = sum(record[f"{part}_ms"][:step]) / 1000
                self.assertAlmostEqual(labelled(page, "gradsync_step_seconds_total", part=part), expected, delta=1e-4 + expected / 1e4)
            for direction, field in ("sent", "tx"), ("received", "rx"):
                shown = labelled(page, "gradsync_wire_bytes_total", direction=direction, link="grpc")
                one_step = record[f"wire_{field}_bytes_per_step"]
                # A chunk of the next step may have moved already.
                self.assertGreaterEqual(shown, 0.99 * step * one_step)
                self.assertLess(shown, 1.01 * (step + 1) * one_step)
            self.assertEqual(labelled(page, "gradsync_job_info", topology="ring", link="grpc", consistency="bsp"), 1)
            self.assertEqual(labelled(page, "gradsync_build_info", program="worker"), 1)
            self.assertEqual(labelled(page, "gradsync_staleness_steps_count"), 0)
            self.assertGreater(labelled(page, "process_resident_memory_bytes"), 1 << 20)
            self.assertLess(abs(labelled(page, "gradsync_last_step_timestamp_seconds") - time.time()), 3600)

    def test_launch_passes_a_signal_on_and_waits_until_workers_and_servers_have_ended_in_good_order(self):
        launch = self.start(LAUNCH, "--workers=2", "--servers=1", "--", *JOB, *FOR_EVER, "--consistency=asp", "--update=owner",
                            f"--checkpoint={self.folder / 'c'}")
        self.wait_for_step(launch, 5)
        launch.send_signal(signal.SIGINT)
        launch.wait(PATIENCE)
        text = launch.err.read_text()
        self.assertEqual(launch.returncode, 128 + signal.SIGINT, text)
        ended = re.findall(r"^\[worker \d\] worker: ended by SIGINT to .* after step (\d+); the checkpoint of step (\d+) has it",
                           text, re.M)
        self.assertEqual(len(ended), 2, text)
        self.assertEqual(len({step for pair in ended for step in pair}), 1, text)
        self.assertIn("[server 0] ps_server: ended by SIGINT after all workers said goodbye\n", text)
        self.assertEqual(len(glob.glob(str(self.folder / "c/latest/state.safetensors"))), 1)

    def test_signals_that_announce_the_end_leave_a_checkpoint(self):
        """SIGUSR1, as of sbatch --signal, and SIGHUP killed a worker without a checkpoint."""
        for told in signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP:
            with self.subTest(told):
                checkpoint = self.folder / told.name
                worker = self.start(WORKER, *JOB, *FOR_EVER, f"--checkpoint={checkpoint}")
                self.wait_for_step(worker, 3)
                worker.send_signal(told)
                step, saved = self.assert_ended(
                    worker, 128 + told, rf"worker: ended by {told.name} to rank 0 after step (\d+); the checkpoint of step (\d+) "
                    "has it, from which --resume=auto goes on")
                self.assertEqual(step, saved)
                self.assertTrue((checkpoint / "latest/state.safetensors").exists())

    def test_the_end_that_was_announced_is_no_hurry_when_it_comes(self):
        """SIGTERM at the time limit ended what SIGUSR1 had told to drain."""
        ranks = self.workers(2, *FOR_EVER, "--failure_timeout=100s", f"--checkpoint={self.folder / 'c'}")
        self.wait_for_step(ranks[0], 2)
        ranks[1].send_signal(signal.SIGSTOP)
        ranks[0].send_signal(signal.SIGUSR1)
        begin = time.monotonic()
        self.wait_for("a second does not pass", lambda: time.monotonic() > begin + 1.1)
        ranks[0].send_signal(signal.SIGTERM)
        self.wait_for_signal(ranks[0])
        ranks[1].send_signal(signal.SIGCONT)
        for rank in ranks:
            self.assert_ended(rank, 128 + signal.SIGUSR1, r"worker: ended by SIGUSR1 to rank 0 after .* goes on")

    def test_launch_and_servers_drain_by_them_too(self):
        for told in signal.SIGHUP, signal.SIGUSR1:
            with self.subTest(told):
                launch = self.start(LAUNCH, "--workers=2", "--servers=1", "--", *JOB, *FOR_EVER,
                                    f"--checkpoint={self.folder / told.name}")
                self.wait_for_step(launch, 3)
                launch.send_signal(told)
                launch.wait(PATIENCE)
                text = launch.err.read_text()
                self.assertEqual(launch.returncode, 128 + told, text)
                self.assertEqual(len(re.findall(rf"worker: ended by {told.name} to .*; the checkpoint of step", text)), 2, text)
                self.assertIn(f"[server 0] ps_server: ended by {told.name} after all workers said goodbye\n", text)

    def test_signals_that_a_parent_has_blocked_end_each_program_in_good_order(self):
        """A worker and launch inherited the mask, and SIGTERM came to nothing."""
        blocked = ["env", "--block-signal=TERM"]
        worker = self.start(*blocked, WORKER, *JOB, *FOR_EVER)
        server = self.start(*blocked, SERVER, "--master=127.0.0.1:1", "--timeout=100s")
        launch = self.start(*blocked, LAUNCH, "--workers=2", "--servers=1", "--", *JOB, *FOR_EVER)
        for process in worker, launch:
            self.wait_for_step(process, 3)
        # Its own threads show that it is past the beginning.
        self.wait_for("no threads", lambda: len(os.listdir(f"/proc/{server.pid}/task")) > 2)
        for process, text in ((worker, "worker: ended by SIGTERM "), (server, "ps_server: told to end by SIGTERM\n"),
                              (launch, "[server 0] ps_server: ended by SIGTERM after all workers said goodbye\n")):
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGTERM, process.err.read_text())
            self.assertIn(text, process.err.read_text())

    def test_what_is_started_by_nohup_outlives_its_terminal(self):
        """launch put a handler over the SIGHUP that nohup had ignored, and ended the job."""
        launch = self.start("nohup", LAUNCH, "--workers=2", "--servers=1", "--", *JOB, *FOR_EVER, "--log_every=1")
        self.wait_for_step(launch, 3)
        started = [int(pid) for pid in re.findall(r"started, pid (\d+)$", launch.out.read_text(), re.M)]
        self.assertEqual(len(started), 3)
        for pid in [launch.pid, *started]:
            os.kill(pid, signal.SIGHUP)
        newest = int(re.findall(r"step (\d+)/", launch.out.read_text())[-1])
        self.wait_for_step(launch, newest + 20)
        launch.send_signal(signal.SIGTERM)
        self.assertEqual(launch.wait(PATIENCE), 128 + signal.SIGTERM)

    # Those who noticed ended with 2, as for wrong flags, which nothing starts again.
    def test_launch_starts_a_job_again_that_lost_a_rank_in_set_up(self):
        worker = self.folder / "worker"
        # Rank 2 does not come, until the job is started again, so that there is time to lose rank 1.
        worker.write_text('#!/bin/sh\ncase "$*" in *--attempt=*) ;; *--rank=2*) exec sleep 1000 ;; esac\n'
                          f'exec {pathlib.Path(WORKER).absolute()} "$@"\n')
        worker.chmod(0o755)
        launch = self.start(LAUNCH, "--workers=3", "--max_restarts=1", f"--worker_binary={worker}", "--", *JOB, "--topology=ring",
                            "--steps=2", "--failure_timeout=2s")
        started = lambda: re.search(r"^\[worker 1\] started, pid (\d+)$", launch.out.read_text(), re.M)
        self.wait_for("rank 1 has not started", started)
        pid = int(started().group(1))
        self.wait_for("rank 1 does not come to the store", lambda: self.store_connections(pid) >= 1)
        time.sleep(0.3)  # one that has come to the store is watched soon after
        os.kill(pid, signal.SIGSTOP)
        launch.wait(PATIENCE)
        text = launch.err.read_text()
        self.assertEqual(launch.returncode, 0, text)
        # Where worker 0 takes long to end, the launcher, which looks at its processes too, may be first.
        self.assertRegex(text, r"(?m)^launch: (rank 1 lost: no sign of life for 2s \[worker 0 \(pid \d+\): exit code 1\]"
                               r"|worker 1 \(pid \d+\): stopped for 3s; stopping the rest)")
        self.assertIn("launch: restart 1 of 1\n", text)

    @staticmethod
    def store_connections(pid):
        """How many connections there are to the store that this worker was told of; rank 0 needs none."""
        master = re.search(rb"--master=127\.0\.0\.1:(\d+)", pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        if master is None:
            return 0
        lines = [line.split() for table in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        return sum(fields[3] == "01" and fields[2].endswith(f":{int(master.group(1)):04X}") for fields in lines)

    def wait_for_signal(self, process):
        """Until it has taken it: only then there can be a second."""
        status = pathlib.Path(f"/proc/{process.pid}/status")
        self.wait_for("the signal stays pending", lambda: "ShdPnd:\t0000000000000000" in status.read_text())

    def tell_to_end_twice(self, process):
        """As who ends a group of processes and a launcher that passes it on do, at about the same time."""
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        self.wait_for_signal(process)
        if time.monotonic() < begin + 0.5:  # else it would be a wish of its own
            process.send_signal(signal.SIGTERM)

    def test_a_second_signal_ends_a_worker_that_waits_for_another_at_once(self):
        ranks = self.workers(2, *FOR_EVER, "--failure_timeout=100s")
        self.wait_for_step(ranks[0], 2)
        ranks[1].send_signal(signal.SIGSTOP)
        ranks[0].send_signal(signal.SIGTERM)
        self.wait_for_signal(ranks[0])
        self.assertIsNone(ranks[0].poll())
        # Those within a second of the first are no other.
        self.wait_for("it goes on", lambda: ranks[0].poll() is not None or ranks[0].send_signal(signal.SIGTERM))
        self.assertEqual(ranks[0].wait(PATIENCE), 128 + signal.SIGTERM)

    def test_a_worker_that_waits_for_others_says_by_which_signal_it_ends(self):
        for number in signal.SIGTERM, signal.SIGUSR1:
            master = f"master{int(number)}"
            rank = self.start(WORKER, *JOB, "--topology=ring", "--world_size=2", "--rank=0", "--master=127.0.0.1:0",
                              f"--port_file={self.folder / master}")
            self.address(master)
            rank.send_signal(number)
            self.assert_ended(rank, -number,
                              f"worker: ended by {number.name} before the first step: nothing was trained()")

    def test_workers_that_were_told_no_topology_say_that_each_trains_by_itself(self):
        apart = "without --topology=ring or ps each of 2 workers trains a model of its own"
        for flags, said in ([], 1), (["--topology=local"], 0), (["--topology=ring"], 0):
            job = self.start(LAUNCH, "--workers=2", "--", *JOB, "--steps=1", *flags)
            self.sha(job)
            self.assertEqual(job.err.read_text().count(apart), said, flags)

    def test_a_worker_alone_ends_after_its_step_and_says_that_nothing_is_kept(self):
        worker = self.start(WORKER, *JOB, *FOR_EVER)
        self.wait_for_step(worker, 3)
        worker.send_signal(signal.SIGINT)
        self.assert_ended(worker, 128 + signal.SIGINT,
                          r"worker: ended by SIGINT to rank 0 after step (\d+); without --checkpoint nothing is kept of it")
        self.assertRegex(worker.out.read_text(), r"final loss \S+ params_sha256 \w{64}\n$")

    def health(self, address, request=b"", method="Check"):
        with grpc.insecure_channel(address) as channel:
            return channel.unary_unary(f"/grpc.health.v1.Health/{method}")(request, timeout=PATIENCE)

    @unittest.skipIf(grpc is None, "needs python3-grpcio, which tools/setup installs")
    def test_a_server_that_is_told_to_end_has_its_workers_stop_and_its_health_says_so(self):
        worker = self.start(WORKER, *JOB, *FOR_EVER, "--topology=ps", "--link=grpc", "--num_servers=1", "--master=127.0.0.1:0",
                            f"--port_file={self.folder}/master", "--failure_timeout=100s")
        master = self.address("master")
        server = self.start(SERVER, f"--master={master}", f"--port_file={self.folder}/server", "--metrics_port=0",
                            f"--metrics_port_file={self.folder}/page", f"--metrics_json={self.folder}/record",
                            "--failure_timeout=100s")
        address = self.address("server")
        self.wait_for_step(worker, 5)
        self.assertEqual(self.health(master), SERVING)
        self.assertEqual(self.health(address, b"\x0a\x04some"), SERVING)  # whatever service is named
        # Nobody has to read what is sent with the question.
        before = self.resident(server)
        for _ in range(5):
            try:
                self.health(address, bytes(60 << 20))
            except grpc.RpcError:
                pass
        self.assertLess(self.resident(server), before + (32 << 20))
        page = scrape(self.address("page"))
        with grpc.insecure_channel(address) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=PATIENCE)
            self.assertEqual(next(watch), SERVING)
            worker.send_signal(signal.SIGSTOP)  # so that the job cannot end yet
            self.tell_to_end_twice(server)
            self.assertEqual(next(watch), NOT_SERVING)
            self.assertEqual(self.health(address), NOT_SERVING)
            worker.send_signal(signal.SIGCONT)
        self.assert_ended(worker, 128 + signal.SIGTERM,
                          r"worker: ended by SIGTERM to server 0 \(" + re.escape(address) + r"\) after step (\d+); .*")
        self.assert_ended(server, 128 + signal.SIGTERM, "ps_server: ended by SIGTERM after all workers said goodbye")
        record = json.loads((self.folder / "record").read_text())
        steps = labelled(page, "gradsync_step_total", server=0)
        self.assertGreaterEqual(steps, 5)
        self.assertLessEqual(steps, record["steps"])  # equal where the step that was under way was the last
        self.assertEqual(labelled(page, "gradsync_shard_bytes"), record["shard_bytes"])
        self.assertEqual(labelled(page, "gradsync_job_workers"), 1)
        for direction, field in ("sent", "tx"), ("received", "rx"):
            shown = labelled(page, "gradsync_wire_bytes_total", direction=direction)
            self.assertGreaterEqual(shown, (steps - 1) * record[f"wire_{field}_bytes_per_step"])
            self.assertLessEqual(shown, record[f"wire_{field}_bytes"])

    def resident(self, process):
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    @unittest.skipIf(grpc is None, "needs python3-grpcio, which tools/setup installs")
    def test_a_server_describes_itself_only_when_it_is_told_to(self):
        symbol = b"gradsync.proto.FrameLink"
        question = b"\x22" + bytes([len(symbol)]) + symbol  # ServerReflectionRequest.file_containing_symbol
        for flags, name in ([], "plain"), (["--reflection"], "reflecting"):
            server = self.start(SERVER, *flags, f"--port_file={self.folder / name}")
            with grpc.insecure_channel(self.address(name)) as channel:
                method = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
                answers = method(iter([question]), timeout=PATIENCE)
                if flags:
                    answer = next(answers)
                    self.assertIn(b"proto/frame_link.proto", answer)  # the file's name, in its descriptor
                    self.assertNotIn(b"not found", answer)
                else:
                    with self.assertRaises(grpc.RpcError) as refused:
                        next(answers)
                    self.assertEqual(refused.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            server.send_signal(signal.SIGTERM)  # there is nobody to wait for
            self.assert_ended(server, 128 + signal.SIGTERM, "ps_server: CANCELLED: the server was told to end by SIGTERM")

    @unittest.skipIf(grpc is None, "needs python3-grpcio, which tools/setup installs")
    def test_a_server_that_dies_before_anybody_has_greeted_it_is_named_and_one_ends_with_the_rank_0_of_its_store(self):
        """Only a hello made a server a member: both were waited for as long as --timeout says, and nobody was named."""
        worker = [WORKER, *JOB, "--topology=ps", "--link=grpc", "--num_servers=3", "--rank=0", "--master=127.0.0.1:0"]
        for kill_server in True, False:
            jobs = self.folder / str(kill_server)
            jobs.mkdir()
            rank_0 = self.start(*worker, f"--port_file={jobs}/master")
            master = self.address(jobs / "master")
            servers = [self.start(SERVER, f"--master={master}", "--timeout=60s", f"--port_file={jobs}/{i}") for i in range(2)]
            addresses = [self.address(jobs / str(i)) for i in range(2)]
            for address in addresses:  # which serves once it is a member
                self.wait_for(f"{address} does not serve", lambda at=address: self.health(at) == SERVING)
            killed = servers[0] if kill_server else rank_0
            killed.kill()
            begin = time.monotonic()
            culprit = rf"server [01] \({re.escape(addresses[0])}\)" if kill_server else "rank 0"
            for process in [rank_0, *servers]:
                if process is not killed:
                    self.assert_ended(process, 1, rf"\w+: (?:\w+: )?{culprit}.* lost: .*")
            self.assertLess(time.monotonic() - begin, 20)

    def test_of_two_servers_that_serve_a_stage_each_the_one_that_dies_is_named(self):
        """Each thought that it was number 0, and gave its signs of life as that."""
        servers = [self.start(SERVER, f"--port_file={self.folder}/stage{i}") for i in range(2)]
        addresses = [self.address(f"stage{i}") for i in range(2)]
        common = [WORKER, *JOB, *FOR_EVER, "--topology=ps", "--link=grpc", "--mesh=pipeline=2", "--micro_batches=2",
                  f"--servers={','.join(addresses)}", "--world_size=2"]
        ranks = [self.start(*common, "--rank=0", "--master=127.0.0.1:0", f"--port_file={self.folder}/master")]
        ranks.append(self.start(*common, "--rank=1", f"--master={self.address('master')}"))
        self.wait_for_step(ranks[0], 3)
        servers[1].kill()
        for process in [*ranks, servers[0]]:
            self.assert_ended(process, 1, rf"\w+: \w+: server 1 \({re.escape(addresses[1])}\) lost: .*")

    def test_a_rank_that_never_comes_is_what_the_message_begins_with(self):
        rank_0 = self.start(WORKER, *JOB, "--topology=ring", "--rank=0", "--world_size=3", "--master=127.0.0.1:0",
                            "--timeout=2s")
        self.assert_ended(rank_0, 1, r"worker: DEADLINE_EXCEEDED: ranks 1, 2 of 3 have not come to .*")

    def test_a_result_that_stdout_does_not_take_is_a_failure_and_a_device_takes_a_record(self):
        for flag in "--steps=1", "--describe_model":
            worker = self.start(WORKER, *JOB, flag, stdout="/dev/full")
            self.assert_ended(worker, 1, "worker: stdout: expected it to take all output, found it closed or full")
        worker = self.start(WORKER, *JOB, "--steps=1", "--log_every=0", "--metrics_json=/dev/stdout")
        self.assertEqual(worker.wait(PATIENCE), 0, worker.err.read_text())
        text = worker.out.read_text()
        self.assertEqual(json.loads(text[text.index("{"):])["batch_size"], 4)

    # A worker was killed by SIGXFSZ.
    def test_a_process_that_may_write_no_file_says_which(self):
        limited = ["bash", "-c", '(ulimit -f 0; exec "$@") 2>&1 | cat; exit ${PIPESTATUS[0]}', "bash"]
        for flag, job in (("port_file", [LAUNCH, "--workers=2", "--", *JOB, "--topology=ring", "--steps=1"]),
                          ("metrics_json", [WORKER, *JOB, "--steps=1", f"--metrics_json={self.folder}/m.json"])):
            with self.subTest(flag):
                process = self.start(*limited, *job)
                self.assertEqual(process.wait(PATIENCE), 2)
                self.assertRegex(process.out.read_text(), rf"worker: .*--{flag}: expected a file that can be written, found .*: File too large")

    def start_into_a_pipe(self, *argv):
        """A program whose stdout is closed after its first line."""
        err = self.folder / f"{len(self.processes)}.err"
        with open(err, "w") as file:
            process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file,
                                       start_new_session=True, bufsize=0)
        # So that the program waits for this one, however slow that is.
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        process.err = err
        self.processes.append(process)
        process.stdout.readline()
        process.stdout.close()
        return process

    def test_a_stdout_that_is_closed_costs_no_checkpoint(self):
        """`worker ... | head -5` was killed by SIGPIPE."""
        lost = "stdout: expected it to take all output, found it closed or full"
        job = [*JOB, "--steps=300", "--log_every=1"]
        worker = self.start_into_a_pipe(WORKER, *job, f"--checkpoint={self.folder}/c")
        self.assert_ended(worker, 1, f"worker: {lost}")
        self.assertTrue((self.folder / "c/step_00000300/MANIFEST").exists())
        launch = self.start_into_a_pipe(LAUNCH, "--workers=2", "--servers=1", "--", *job, f"--checkpoint={self.folder}/d")
        self.assert_ended(launch, 1, f"launch: {lost}")
        self.assertTrue((self.folder / "d/step_00000300/MANIFEST").exists())
        server = self.start_into_a_pipe(SERVER, f"--port_file={self.folder}/server")
        worker = self.start(WORKER, *job, "--topology=ps", f"--servers={self.address('server')}")
        self.sha(worker)
        self.assert_ended(server, 1, f"ps_server: {lost}")
        # What only shows something ends with its reader.
        for program in WORKER, LAUNCH, SERVER:
            self.assertEqual(self.start_into_a_pipe(program, "--help").wait(PATIENCE) in (0, -signal.SIGPIPE), True)

    def test_launch_runs_what_needs_no_others(self):
        """It complained that worker 0 had ended before it said where it listens."""
        for flags in (["--check_data", "--model=mlp"], ["--topology=ring", "--describe_model", "--model=mlp"]):
            for servers in 0, 1:
                topology = [flag for flag in flags if servers == 0 or "topology" not in flag]
                launch = self.start(LAUNCH, "--workers=2", f"--servers={servers}", "--", *topology)
                launch.wait(PATIENCE)
                self.assertEqual((launch.returncode, launch.err.read_text()), (0, ""))
                self.assertIn("[worker 0] ", launch.out.read_text())

    # Debian's LibTorch is linked with OpenCV, which it does not use, and so with GDAL and Qt: a third of the time to start a worker.
    def test_a_worker_does_not_load_what_libtorch_is_only_linked_with(self):
        loaded = subprocess.run(["ldd", WORKER], check=True, capture_output=True, text=True).stdout
        if not re.search(r"libtorch_cpu\.so\S* => /(usr/)?lib/", loaded):
            self.skipTest("LibTorch is not Debian's")
        self.assertNotIn("libgdal", loaded)
        self.assertIn("libopencv_core", loaded)  # the empty one

    def test_flags_that_cannot_be_are_refused_in_one_line(self):
        server = self.start(SERVER, "--metrics_port=0", f"--metrics_port_file={self.folder}/page")
        port = self.address("page").split(":")[1]
        for program, flags, line in (
                (SERVER, ["--metrics_port=65536"], r'ps_server: --metrics_port: expected .*, found "65536"'),
                (SERVER, ["--metrics_port_file=x"], r'ps_server: --metrics_port_file: expected to be left out without .*, found "x"'),
                (SERVER, ["--log_format=xml"], r'ps_server: --log_format: expected text or json, found "xml"'),
                (SERVER, [f"--metrics_port={port}"], rf"ps_server: --metrics_port: .*127\.0\.0\.1:{port}.*taken.*"),
                (WORKER, [f"--metrics_port={port}"], rf"worker: .*--metrics_port: .*127\.0\.0\.1:{port}.*taken.*"),
                (WORKER, ["--log_format=xml"], r'worker: .*--log_format: expected text or json, found "xml"'),
        ):
            self.assert_ended(self.start(program, *flags), 2, line)
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(verbosity=2)

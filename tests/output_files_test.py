#!/usr/bin/python3
"""What a job writes, on the disks and in the folders that users have (docs/use/checkpoints.md)."""
import collections
import glob
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

WORKER = "worker/worker"  # from the root of the runfiles, where tests start
SERVER = "ps_server/ps_server"
LAUNCH = "tools/launch"
ODD_DISK = os.path.abspath("tests/odd_disk.so")
JOB = ["--model=mlp", "--batch_size=4", "--threads=1", "--timeout=60s"]
PATIENCE = 200
# Buckets whose optimizer state is more than the store takes as one value.
LARGE = ["--model=gpt", "--gpt_width=1216", "--gpt_layers=1", "--gpt_heads=4", "--gpt_context=16", "--batch_size=1",
         "--optimizer=adamw", "--bucket_bytes=1GiB", "--first_bucket_bytes=1GiB", "--timeout=60s"]


def events_of(path):
    """(step, whether it is a session's start, tags) of each event of a TensorBoard file."""
    def fields(message):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                value |= (message[at] & 127) << shift
                shift += 7
                at += 1
                if message[at - 1] < 128:
                    return value
        while at < len(message):
            key = varint()
            if key & 7 == 0:
                yield key >> 3, varint()
            else:
                size = {1: 8, 5: 4}.get(key & 7) or varint()
                yield key >> 3, message[at:at + size]
                at += size
    data, at = pathlib.Path(path).read_bytes(), 0
    while at + 12 <= len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        event = list(fields(data[at + 12:at + 12 + size]))
        at += 16 + size
        step = dict(event).get(2, 0)
        start = any(number == 7 and (1, 1) in list(fields(value)) for number, value in event)
        summary = dict(event).get(5, b"")
        yield step, start, [dict(fields(value))[1].decode() for number, value in fields(summary) if number == 1]


class OutputFilesTest(unittest.TestCase):
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

    def start(self, *argv, **environment):
        stem = self.folder / f"process{len(self.processes)}"
        with open(f"{stem}.err", "w") as err, open(f"{stem}.out", "w") as out:
            process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       start_new_session=True, env=dict(os.environ, **environment))
        process.out, process.err = pathlib.Path(f"{stem}.out"), pathlib.Path(f"{stem}.err")
        self.processes.append(process)
        return process

    def run_job(self, *argv, code=0, **environment):
        process = self.start(*argv, **environment)
        process.wait(PATIENCE)
        self.assertEqual(process.returncode, code, process.out.read_text() + process.err.read_text())
        return process

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            said = [process.err.read_text() for process in self.processes]
            self.assertLess(time.monotonic(), deadline, f"{what}; processes said {said}")
            time.sleep(0.01)

    def wait_for_step(self, process, step):
        self.wait_for(f"no step {step}", lambda: re.search(rf"^(\[.*\] *)?step {step}/", process.out.read_text(), re.M))

    def sha(self, process):
        return re.search(r"params_sha256 (\w{64})", process.out.read_text()).group(1)

    def assert_refused(self, argv, words, code=2):
        """In one line of stderr that has all words, before the first step."""
        process = self.start(*argv)
        process.wait(PATIENCE)
        said = process.err.read_text()
        self.assertEqual(process.returncode, code, said)
        lines = said.splitlines()
        if argv[0] != LAUNCH:
            self.assertEqual(len(lines), 1, said)
        for word in words:
            self.assertIn(str(word), lines[0])
        self.assertNotIn("step 1/", process.out.read_text())

    # A ring whose owners update could not write a checkpoint of it, nor could one under ZeRO.
    def test_large_optimizer_states_are_written_and_read(self):
        whole = self.sha(self.run_job(LAUNCH, "--workers=2", "--", *LARGE, "--topology=ring", "--steps=2"))
        job = [LAUNCH, "--workers=2", "--", *LARGE, "--topology=ring", f"--checkpoint={self.folder / 'c'}",
               "--checkpoint_keep=1"]
        self.run_job(*job, "--steps=1", "--update=owner")
        self.assertEqual(self.sha(self.run_job(*job, "--steps=2", "--zero=3", "--resume=auto")), whole)

    # It was found after the last step, when what was trained was lost with it.
    def test_what_cannot_be_written_is_found_before_the_first_step(self):
        file = self.folder / "file"
        file.write_text("kept")
        missing = self.folder / "missing" / "file"
        for flag, path in (("checkpoint", "/proc/nope"), ("checkpoint", file), ("checkpoint", file / "below"),
                           ("metrics_json", missing), ("metrics_json", self.folder), ("metrics_json", file / "below"),
                           ("metrics_json", "/proc/nope"), ("port_file", missing), ("write_config", missing),
                           ("tensorboard", file), ("tensorboard", "/proc/nope"), ("trace", missing),
                           ("trace", self.folder), ("metrics_port_file", missing)):
            with self.subTest(flag=flag, path=path):
                more = ["--metrics_port=0"] if flag == "metrics_port_file" else []
                more += ["--trace_steps=1-1"] if flag == "trace" else []
                self.assert_refused([WORKER, *JOB, "--steps=1", *more, f"--{flag}={path}"],
                                    [f"--{flag}: expected a f", "writ", path])
        for flag in ("metrics_json", "port_file", "event_log", "metrics_port_file"):
            with self.subTest(server=flag):
                self.assert_refused([SERVER, "--listen=127.0.0.1:0", "--metrics_port=0", f"--{flag}={missing}"],
                                    [f"--{flag}: expected a file that can be written", missing])
        for flag in (f"--checkpoint={file}", f"--metrics_json={missing}"):
            self.assert_refused([LAUNCH, "--workers=2", "--", *JOB, "--topology=ring", "--steps=1", flag],
                                [flag.split("=")[0], flag.split("=")[1]])
        self.assertEqual(file.read_text(), "kept")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir() if "process" not in path.name), ["file"])

    # A pipe was opened after the last step, which waited for its reader for ever; the others were found then.
    def test_what_takes_no_output_is_found_before_the_first_step(self):
        pipe, bound = self.folder / "pipe", self.folder / "socket"
        os.mkfifo(pipe)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(str(bound))
        listener.listen()
        for path, why in (pipe, "a pipe that nobody reads"), (bound, "a socket"), ("/dev/full", "No space left on device"):
            flags = (("metrics_json",), ("trace", "--trace_steps=1-1"), ("write_config",), ("port_file",),
                     ("metrics_port_file", "--metrics_port=0"))
            for flag, *more in flags if path == pipe else flags[:1]:
                with self.subTest(flag=flag, path=path):
                    self.assert_refused([WORKER, *JOB, "--steps=1", *more, f"--{flag}={path}"],
                                        [f"--{flag}: expected a file that can be written, found {path}: {why}"])
            for flag in ("event_log", "port_file", "metrics_json", "metrics_port_file"):
                with self.subTest(server=flag, path=path):
                    self.assert_refused([SERVER, "--listen=127.0.0.1:0", "--metrics_port=0", f"--{flag}={path}"],
                                        [f"--{flag}: expected a file that can be written, found", path, why])

    def test_a_pipe_that_somebody_reads_gets_the_record(self):
        job = f"{WORKER} {' '.join(JOB)} --steps=300 --log_every=0"
        fifo, copy = self.folder / "pipe", self.folder / "copy"
        os.mkfifo(fifo)
        for what in (f"exec 3<>{fifo}; cat {fifo} > {copy} 3>&- & {job} --metrics_json={fifo} && exec 3>&- && wait",
                     f"{job} --metrics_json=>(cat > {copy}; touch {copy}.whole) && until [ -e {copy}.whole ]; do sleep 0.01; done",
                     f"{job} --metrics_json=/dev/stdout | sed -n '/^{{/,$p' > {copy}"):
            with self.subTest(what):
                self.run_job("bash", "-c", f"set -o pipefail; {what}")
                record = json.loads(copy.read_text())
                self.assertEqual((record["batch_size"], len(record["loss"])), (4, 300))

    # The second one replaced the first after the last step.
    def test_a_file_takes_one_output_and_is_no_input(self):
        file, link, weights = self.folder / "file", self.folder / "link", self.folder / "c/latest/model.pt"
        link.symlink_to("file")
        self.run_job(WORKER, *JOB, "--steps=1", f"--checkpoint={self.folder / 'c'}")
        kept = weights.read_bytes()
        names = ["metrics_json", "metrics_port_file", "port_file", "write_config", "trace"]
        job = [WORKER, *JOB, "--steps=1", "--metrics_port=0"]
        steps = ["--trace_steps=1-1"]
        for first, second in zip(names, names[1:]):
            flags = [f"--{first}={file}", f"--{second}={link}"]
            with self.subTest(flags):
                self.assert_refused([*job, *(steps if second == "trace" else []), *flags],
                                    [f"--{second}: expected another file than --{first} names, found {link}"])
        for name in names:
            with self.subTest(name):
                self.assert_refused([*job, *(steps if name == "trace" else []), f"--init_from={weights}", f"--{name}={weights}"],
                                    [f"--{name}: expected another file than --init_from names, found {weights}"])
        self.assertEqual(weights.read_bytes(), kept)
        self.assert_refused([SERVER, f"--port_file={file}", f"--metrics_json={link}"],
                            [f"--metrics_json: expected another file than --port_file names, found {link}"])
        self.assertFalse(file.exists())
        for path in "/dev/null", "/dev/stdout":
            self.run_job(*job, *(f"--{name}={path}" for name in names if name != "trace"))

    # Which of them had the last word was a matter of chance.
    def test_ranks_that_were_told_one_file_leave_it_to_the_first(self):
        job = [LAUNCH, "--workers=3", "--", *JOB, "--topology=ring", "--steps=2"]
        for place in self.folder / "new.json", self.folder / "old.json":
            if place.name == "old.json":
                place.write_text("of a job before")
            said = self.run_job(*job, f"--metrics_json={place}").err.read_text()
            self.assertEqual(int(json.loads(place.read_text())["rank"]), 0)
            self.assertEqual(said.count(f"--metrics_json={place} is one file for 3 ranks, of which rank 0 writes it"), 1, said)
        said = self.run_job(*job, f"--metrics_json={self.folder}/of{{rank}}.json").err.read_text()
        self.assertNotIn("is one file", said)
        ranks = [int(json.loads((self.folder / f"of{rank}.json").read_text())["rank"]) for rank in range(3)]
        self.assertEqual(ranks, [0, 1, 2])

    # The job before removed what the new one wrote there.
    def test_a_checkpoint_is_no_folder_of_checkpoints(self):
        folder = self.folder / "c"
        self.run_job(WORKER, *JOB, "--steps=2", f"--checkpoint={folder}")
        files = sorted(folder.rglob("*"))
        (self.folder / "elsewhere").symlink_to("c/latest")
        for path, parent in ((folder / "latest", folder), (folder / "step_00000002", folder), (f"{folder}/latest/", folder),
                             (self.folder / "elsewhere", folder.resolve())):
            for resume in ([], ["--resume=auto"]):
                with self.subTest(path=path, resume=resume):
                    self.assert_refused([WORKER, *JOB, "--steps=1", f"--checkpoint={path}", *resume],
                                        [f"--checkpoint: expected a folder of checkpoints, found {path}, which is a checkpoint; "
                                         f"its folder is {parent}"])
        self.assertEqual(sorted(folder.rglob("*")), files)

    # The file that it named was overwritten.
    def test_a_lock_that_is_a_link_is_not_followed(self):
        folder, other = self.folder / "c", self.folder / "other"
        folder.mkdir()
        other.write_text("kept")
        (folder / ".lock").symlink_to(other)
        self.assert_refused([WORKER, *JOB, "--steps=1", f"--checkpoint={folder}"],
                            [f"--checkpoint: expected a folder that this job's checkpoints can be written to, found {folder}: expected a file "
                             f"of its own at {folder}/.lock, found a symbolic link"])
        self.assertEqual(other.read_text(), "kept")

    # Under topk each rank writes residuals; one that does not see rank 0's folder failed at the first checkpoint.
    def test_a_rank_that_does_not_see_the_folder_is_found_before_the_first_step(self):
        job = [WORKER, *JOB, "--topology=ps", "--world_size=2", "--steps=1", "--compression=topk:0.1",
               f"--checkpoint={self.folder / 'c'}"]
        port_file = self.folder / "master"
        first = self.start(*job, "--rank=0", "--master=127.0.0.1:0", f"--port_file={port_file}")
        self.wait_for("no store", port_file.exists)
        unshare = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs none {self.folder}/c && exec \"$@\"", "sh"]
        if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no mounts of one's own here")
        other = self.start(*unshare, *job, "--rank=1", f"--master={port_file.read_text().strip()}")
        for process in (first, other):
            process.wait(PATIENCE)
            self.assertIn("--checkpoint: expected rank 0's folder", process.err.read_text())
            self.assertNotIn("step 1/", process.out.read_text())
        self.assertEqual((first.returncode, other.returncode), (1, 2))

    def test_a_disk_without_room_for_one_checkpoint_is_found_before_the_first_step(self):
        job = f"exec {WORKER} {' '.join(JOB)} --steps=1 --checkpoint={self.folder}/c/d"
        self.assert_refused(["bash", "-c", f"ulimit -f 200; {job}"],
                            ["--checkpoint: expected a folder", f"{self.folder}/c/d", "ulimit -f"])
        (self.folder / "c").mkdir(exist_ok=True)
        small = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=1m none {self.folder}/c && {job}"]
        if subprocess.run(["unshare", "-rm", "true"], stderr=subprocess.DEVNULL).returncode == 0:
            self.assert_refused(small, ["--checkpoint: expected a folder", "a checkpoint takes 1.2 MB", "are free"])

    # A job on such a disk ended at its first checkpoint, which was whole.
    def test_a_file_system_without_links_locks_and_synced_folders_is_good_enough(self):
        odd = {"LD_PRELOAD": ODD_DISK,
               "ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))}
        whole = self.run_job(WORKER, *JOB, "--steps=8")
        folder = self.folder / "odd" / "c"
        job = [WORKER, *JOB, f"--checkpoint={folder}", "--checkpoint_every=2", "--checkpoint_keep=1"]
        first = self.run_job(*job, "--steps=4", "--checkpoint_best", **odd)
        for notice in ("no symbolic links there", "cannot lock"):
            self.assertEqual(first.out.read_text().count(notice), 1, first.out.read_text())
        self.assertEqual((folder / "latest").read_text(), "step_00000004\n")
        self.assertRegex((folder / "best").read_text(), r"\Astep_0000000[24]\n\Z")
        self.run_job(*job, "--steps=6", "--resume=auto", **odd)
        last = self.run_job(WORKER, *JOB, "--steps=8", f"--resume={folder / 'latest'}", **odd)
        self.assertIn("after step 6", last.out.read_text())
        self.assertEqual(self.sha(last), self.sha(whole))

    # The second one removed what the first was writing, which died of it.
    def test_a_folder_belongs_to_one_job_at_a_time(self):
        job = [*JOB, f"--checkpoint={self.folder / 'c'}", "--checkpoint_every=1", "--log_every=1"]
        first = self.start(WORKER, *job, "--steps=1000000")
        self.wait_for_step(first, 2)
        for resume in ([], ["--resume=auto"]):
            self.assert_refused([WORKER, *job, "--steps=1", *resume],
                                [f"--checkpoint: expected a folder that this job's checkpoints can be written to, found {self.folder}/c",
                                 f"in use by process {first.pid} on host {socket.gethostname()}"])
        self.assert_refused([LAUNCH, "--workers=2", "--", "--topology=ring", *job, "--steps=1", "--resume"],
                            [f"in use by process {first.pid}"])
        self.assertIsNone(first.poll())
        first.send_signal(signal.SIGKILL)  # leaves no lock behind
        first.wait()
        newest = max(int(path.name[5:]) for path in (self.folder / "c").glob("step_*"))
        for more in (2, 4):
            self.run_job(WORKER, *job, f"--steps={newest + more}", "--resume=auto")

    # Steps since the last checkpoint were drawn twice.
    def test_tensorboard_is_told_that_a_job_went_back_to_its_checkpoint(self):
        job = [WORKER, *JOB, f"--checkpoint={self.folder / 'c'}", "--log_every=1", f"--tensorboard={self.folder / 'events'}"]
        first = self.start(*job, "--steps=1000000", "--checkpoint_every=1000000")
        self.wait_for_step(first, 5)
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.run_job(*job, "--steps=3", "--resume=auto")  # nothing was kept: from the start
        self.run_job(*job, "--steps=6", "--resume=auto")
        # As TensorBoard has it: a START with a step ends what was before, from that step on.
        shown, starts = collections.Counter(), []
        for path in sorted(glob.glob(f"{self.folder}/events/*"), key=lambda path: os.stat(path).st_mtime_ns):
            for step, start, tags in events_of(path):
                if start:
                    starts.append(step)
                    for key in [key for key in shown if key[0] >= step]:
                        del shown[key]
                shown.update((step, tag) for tag in tags)
        self.assertEqual(starts, [1, 1, 4])
        self.assertEqual({key: count for key, count in shown.items() if count != 1}, {})
        self.assertEqual([step for step, tag in sorted(shown) if tag == "loss"], [1, 2, 3, 4, 5, 6])

    # The message named a flag that users of launch had not given, and no way out.
    def test_resuming_with_another_number_of_workers_names_the_ways_out(self):
        def job(workers, *flags):
            return [LAUNCH, f"--workers={workers}", "--", *JOB, "--topology=ring", *flags]
        folder = self.folder / "c"
        self.run_job(*job(2, "--steps=2", f"--checkpoint={folder}"))
        for workers in (1, 3):
            self.assert_refused(job(workers, "--steps=4", f"--checkpoint={folder}", "--resume"),
                                ["--world_size: expected 2 as in", f"found {workers}", "launch --workers=2",
                                 f"--init_from={folder}/step_00000002/model.pt"])
        self.run_job(*job(2, "--steps=4", f"--checkpoint={folder}", "--resume"))
        self.run_job(*job(3, "--steps=2", f"--init_from={folder}/step_00000002/model.pt",
                          f"--checkpoint={self.folder / 'other'}"))


if __name__ == "__main__":
    unittest.main()

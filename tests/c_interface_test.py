#!/usr/bin/env python3
"""The C interface, by a program in C and by what a Python program can load: libgradsync.so.

From the root of the repository, after `bazel build //gradsync:libgradsync.so //tests:c_rank //ps_server`.
"""
import ctypes
import os
import pathlib
import re
import socket
import subprocess
import unittest

HERE = pathlib.Path(".") if os.path.exists("tests/c_rank") else pathlib.Path("bazel-bin")
LIBRARY = HERE / "gradsync/libgradsync.so"
INVALID_ARGUMENT, FAILED_PRECONDITION, ABORTED, UNAVAILABLE = 3, 9, 10, 14


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("numel", ctypes.c_int64)]


class Library:
    """The shared library as a Python program loads it."""

    def __init__(self):
        self.c = ctypes.CDLL(os.path.abspath(LIBRARY))
        self.c.gradsync_error.restype = ctypes.c_char_p
        self.c.gradsync_bucket_gradients.restype = ctypes.POINTER(ctypes.c_float)
        self.c.gradsync_bucket_numel.restype = ctypes.c_int64
        self.group = ctypes.c_void_p()

    def error(self):
        return self.c.gradsync_error().decode()

    def join(self, *options):
        texts = (ctypes.c_char_p * (len(options) + 1))(*[option.encode() for option in options], None)
        return self.c.gradsync_join(texts, ctypes.byref(self.group))

    def bind(self, tensors):
        array = (Tensor * len(tensors))(*[Tensor(name.encode(), numel) for name, numel in tensors])
        return self.c.gradsync_bind(self.group, array, ctypes.c_int64(len(tensors)), ctypes.c_int64(0))


class CInterfaceTest(unittest.TestCase):
    def start(self, how, steps, ranks, *options, odd=(-1, "", 0), environment=False):
        """`ranks` processes of the program in C. `odd`: a rank, and how and after how many steps it ends."""
        master = f"127.0.0.1:{free_port()}"
        processes = []
        for rank in range(ranks):
            own = list(options)
            variables = {name: value for name, value in os.environ.items()
                         if not re.match("RANK|WORLD_SIZE|MASTER_|SLURM_|OMPI_|PMI", name)}
            if environment:
                host, port = master.split(":")
                variables.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR=host, MASTER_PORT=port, LOCAL_RANK=str(rank),
                                 LOCAL_WORLD_SIZE=str(ranks))
            else:
                own += [f"rank={rank}", f"world_size={ranks}", f"master={master}"]
            end = odd[1:] if rank == odd[0] else (how, steps)
            process = subprocess.Popen([HERE / "tests/c_rank", *map(str, end), *own], text=True,
                                       env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(self.end, process)
            processes.append(process)
        return processes

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def answers(self, processes):
        return [process.communicate(timeout=120)[0].strip() for process in processes]

    def assert_all_train(self, *options, ranks=3, environment=False):
        answers = self.answers(self.start("leaves", 4, ranks, *options, environment=environment))
        self.assertEqual(set(answers), {answers[0]})
        self.assertRegex(answers[0], r"^ok -?\d+")

    def test_rings_leave_the_mean_everywhere(self):
        self.assert_all_train("topology=ring", "link=shm")
        self.assert_all_train("topology=ring", "link=grpc", "timeout=60s")
        self.assert_all_train("topology=ring")

    def test_a_launchers_environment_says_who_a_rank_is(self):
        self.assert_all_train("topology=ring", environment=True)

    def test_servers_in_workers_leave_the_mean_everywhere(self):
        self.assert_all_train("topology=ps", "link=grpc")
        self.assert_all_train("topology=ps", "owners=2")

    def test_a_server_of_its_own_leaves_the_mean_everywhere(self):
        server = subprocess.Popen([HERE / "ps_server/ps_server", "--listen=127.0.0.1:0"], text=True, stdout=subprocess.PIPE)
        self.addCleanup(self.end, server)
        address = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline()).group()
        self.assert_all_train("topology=ps", f"servers={address}")
        self.assertEqual(server.wait(timeout=60), 0)

    def test_one_process_needs_nobody(self):
        self.assertRegex(self.answers(self.start("leaves", 2, 1, "topology=local"))[0], "^ok ")

    def test_ranks_with_other_tensors_are_told_the_difference(self):
        for answer in self.answers(self.start("leaves", 1, 2, "topology=ring", odd=(1, "other", 1))):
            self.assertRegex(answer, rf"^error ({FAILED_PRECONDITION}|{ABORTED}) .*scale")

    def test_others_are_told_who_died_failed_or_went(self):
        for how, said in [("dies", "rank 1"), ("fails", "rank 1.*the loss is not a number"),
                          ("frees", "rank 1.*freed before it had left")]:
            with self.subTest(how):
                answers = self.answers(self.start("leaves", 1000000, 3, "topology=ring", odd=(1, how, 3)))
                for rank in (0, 2):
                    self.assertRegex(answers[rank], rf"^error ({ABORTED}|{UNAVAILABLE}) .*{said}")

    def test_options_that_are_wrong_are_named(self):
        library = Library()
        for options, said in [
                (["colour=red"], 'expected the name of an option .*"colour"'),
                (["topology"], 'options: expected name=value, found "topology"'),
                (["topology=star"], "--topology: expected .*star"),
                (["rank=two"], '--rank: expected a number, found "two"'),
                (["timeout=5"], '--timeout: expected a time such as 30s, found "5"'),
                (["timeout=-1s"], "--timeout: expected a time above 0"),
                (["insecure=maybe"], '--insecure: expected true or false, found "maybe"'),
                (["rank=2", "world_size=2", "master=127.0.0.1:1"], "--rank: expected 0 to 1"),
                (["link=gloo"], "--link=gloo: this program links no Gloo"),
                (["device=cuda"], "--device=cuda: this program links no GPU"),
        ]:
            with self.subTest(options):
                self.assertNotEqual(library.join(*options), 0)
                self.assertRegex(library.error(), said)

    def test_a_python_program_averages_with_itself(self):
        library = Library()
        self.assertEqual(library.join("topology=local"), 0, library.error())
        self.assertEqual(library.c.gradsync_launch(library.group, 0), FAILED_PRECONDITION)
        self.assertIn("gradsync_bind() comes first", library.error())
        self.assertEqual(library.bind([("weight", 0)]), INVALID_ARGUMENT)
        self.assertIn("weight", library.error())
        self.assertEqual(library.bind([("weight", 3), ("bias", 2)]), 0, library.error())
        self.assertEqual(library.bind([("weight", 3)]), FAILED_PRECONDITION)
        self.assertIn("found one that has a model", library.error())
        self.assertEqual(library.c.gradsync_buckets(library.group), 1)
        gradients = library.c.gradsync_bucket_gradients(library.group, 0)
        gradients[0] = 2.5
        self.assertEqual(library.c.gradsync_wait(library.group, 0), FAILED_PRECONDITION)
        self.assertEqual(library.c.gradsync_launch(library.group, 0), 0)
        self.assertEqual(library.c.gradsync_wait(library.group, 0), 0)
        self.assertEqual(gradients[0], 2.5)
        self.assertEqual(library.c.gradsync_launch(library.group, 1), INVALID_ARGUMENT)
        self.assertIn("bucket: expected 0 to 0, found 1", library.error())
        self.assertFalse(library.c.gradsync_bucket_gradients(library.group, 7))
        self.assertEqual(library.c.gradsync_leave(library.group), 0, library.error())
        self.assertEqual(library.c.gradsync_leave(library.group), 0, library.error())
        library.c.gradsync_free(library.group)

    def test_the_library_shows_its_functions_alone_and_links_no_libtorch(self):
        shown = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
        # nm marks what nobody outside can use by a small letter.
        names = {line.split()[-1] for line in shown.splitlines() if line.split()[-2].isupper()}
        self.assertIn("gradsync_join", names)
        self.assertEqual({name for name in names if not name.startswith("gradsync_")}, set())
        linked = subprocess.run(["ldd", LIBRARY], check=True, capture_output=True, text=True).stdout
        self.assertNotRegex(linked, "libtorch|libc10")  # addresses may have c10 too


if __name__ == "__main__":
    unittest.main()

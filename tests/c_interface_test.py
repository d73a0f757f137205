#!/usr/bin/env python3
"""The C interface, by a program in C and by what a Python program can load: libgradsync.so.

From the root of the repository, after `bazel build //gradsync:libgradsync.so //tests:c_rank //ps_server`.
"""
import ctypes
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
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


FLOAT32, INT64, BOOL = 0, 8, 9
SUM, AVG, MAX, BAND = 0, 1, 4, 5
Listening = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def array(kind, values):
    return (kind * len(values))(*values)


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
        return self.c.gradsync_join(self.texts(options), ctypes.byref(self.group))

    def join_with(self, on_listening, *options):
        return self.c.gradsync_join_with(self.texts(options), Listening(on_listening), None, ctypes.byref(self.group))

    def texts(self, options):
        return (ctypes.c_char_p * (len(options) + 1))(*[option.encode() for option in options], None)

    # Collective calls. Integers that are 64 bits wide have to be told to ctypes.
    def all_reduce(self, data, kind, op):
        return self.c.gradsync_all_reduce(self.group, data, ctypes.c_int64(len(data)), kind, op)

    def broadcast(self, data, root):
        return self.c.gradsync_broadcast_bytes(self.group, data, ctypes.c_int64(ctypes.sizeof(data)), root)

    def all_gather(self, data, output):
        return self.c.gradsync_all_gather(self.group, data, output, ctypes.c_int64(ctypes.sizeof(data)))

    def reduce_scatter(self, data, output, kind, op):
        return self.c.gradsync_reduce_scatter(self.group, data, output, ctypes.c_int64(len(output)), kind, op)

    def all_to_all(self, data, data_bytes, output, output_bytes):
        return self.c.gradsync_all_to_all(self.group, data, array(ctypes.c_int64, data_bytes), output,
                                          array(ctypes.c_int64, output_bytes))

    def send(self, data, to):
        return self.c.gradsync_send(self.group, data, ctypes.c_int64(ctypes.sizeof(data)), to)

    def recv(self, data, sender):
        return self.c.gradsync_recv(self.group, data, ctypes.c_int64(ctypes.sizeof(data)), sender)

    def barrier(self):
        return self.c.gradsync_barrier(self.group)

    def bind(self, tensors):
        array = (Tensor * len(tensors))(*[Tensor(name.encode(), numel) for name, numel in tensors])
        return self.c.gradsync_bind(self.group, array, ctypes.c_int64(len(tensors)), ctypes.c_int64(0))


class Rank:
    """A process of its own, which this program starts for some tests: tells its results, or its first error, and ends.

    Rank 0 takes any free port and prints its address; the others read it.
    """

    def __init__(self, rank, ranks, options):
        self.rank, self.ranks, self.options = rank, ranks, options

    def join(self):
        library = Library()

        def tell(address, _context):
            print(address.decode(), flush=True)
            return 0

        master = "127.0.0.1:0" if self.rank == 0 else sys.stdin.readline().strip()
        self.expect(library, library.join_with(tell, f"rank={self.rank}", f"world_size={self.ranks}", f"master={master}",
                                               *self.options))
        return library

    def expect(self, library, code):
        if code != 0:
            print("error", code, library.error(), flush=True)
            library.c.gradsync_free(library.group)
            os._exit(1)

    def same(self, found, expected):
        if list(found) != list(expected):
            print("wrong: expected", list(expected), "found", list(found), flush=True)
            os._exit(2)

    def call_all(self, library):
        rank, n = self.rank, self.ranks
        for count in (0, 1, 1000, 300000):
            data = array(ctypes.c_float, [rank + 1.0] * count)
            self.expect(library, library.all_reduce(data, FLOAT32, SUM))
            self.same(data, [n * (n + 1) / 2] * count)
        data = array(ctypes.c_int64, [rank, -rank])
        self.expect(library, library.all_reduce(data, INT64, MAX))
        self.same(data, [n - 1, 0])
        data = array(ctypes.c_uint8, [1, rank == 0])
        self.expect(library, library.all_reduce(data, BOOL, BAND))
        self.same(data, [1, n == 1])
        data = array(ctypes.c_int64, [rank] * 5)
        self.expect(library, library.broadcast(data, n - 1))
        self.same(data, [n - 1] * 5)
        output = (ctypes.c_int64 * n)()
        self.expect(library, library.all_gather(array(ctypes.c_int64, [7 * rank]), output))
        self.same(output, [7 * other for other in range(n)])
        output = (ctypes.c_float * 2)()
        self.expect(library, library.reduce_scatter(array(ctypes.c_float, [float(i) for i in range(2 * n)]), output, FLOAT32, AVG))
        self.same(output, [2 * rank, 2 * rank + 1])
        output = (ctypes.c_int64 * (n * (rank + 1)))()  # each rank gets as many of each as its number says, and one
        self.expect(library, library.all_to_all(
            array(ctypes.c_int64, [rank] * sum(other + 1 for other in range(n))), [8 * (other + 1) for other in range(n)],
            output, [8 * (rank + 1)] * n))
        self.same(output, [other for other in range(n) for _ in range(rank + 1)])
        if n > 1:
            data = array(ctypes.c_int64, [rank])
            self.expect(library, library.send(data, (rank + 1) % n))
            self.expect(library, library.recv(data, (rank + n - 1) % n))
            self.same(data, [(rank + n - 1) % n])
        self.expect(library, library.barrier())

    def leave(self, library):
        self.expect(library, library.c.gradsync_leave(library.group))
        library.c.gradsync_free(library.group)

    def calls(self):
        library = self.join()
        self.call_all(library)
        # Another thread may go on, and gradients be exchanged as well.
        thread = threading.Thread(target=self.call_all, args=[library])
        thread.start()
        thread.join()
        self.expect(library, library.bind([("weight", 3)]))
        gradients = library.c.gradsync_bucket_gradients(library.group, 0)
        gradients[0] = self.rank
        self.expect(library, library.c.gradsync_launch(library.group, 0))
        self.call_all(library)
        self.expect(library, library.c.gradsync_wait(library.group, 0))
        self.same([gradients[0]], [(self.ranks - 1) / 2])
        self.leave(library)

    def two_groups(self):
        first, second = self.join(), self.join()
        self.call_all(first)
        self.call_all(second)
        self.leave(first)
        self.call_all(second)
        self.leave(second)

    def differs(self):
        library = self.join()
        data = array(ctypes.c_float, [0.0] * 3)
        self.expect(library, library.barrier() if self.rank == 1 else library.all_reduce(data, FLOAT32, SUM))

    def dies(self):
        library = self.join()
        data = array(ctypes.c_float, [0.0] * 300000)
        for i in range(10**9):
            if self.rank == 1 and i == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            self.expect(library, library.all_reduce(data, FLOAT32, SUM))


class CInterfaceTest(unittest.TestCase):
    def start_ranks(self, how, ranks, *options, groups=1):
        """`ranks` processes, each a Rank, that do what its method `how` does, in so many groups."""
        processes = []
        for rank in range(ranks):
            process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "rank", how, str(rank), str(ranks),
                                        *options], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(self.end, process)
            processes.append(process)
        for _ in range(groups):
            address = processes[0].stdout.readline()
            self.assertRegex(address, r"^127\.0\.0\.1:\d+$")
            for process in processes[1:]:
                process.stdin.write(address)
                process.stdin.flush()
        return processes

    def assert_all_end(self, processes):
        for process in processes:
            self.assertEqual((process.communicate(timeout=120)[0].strip(), process.returncode), ("", 0))

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

    def test_collective_calls_over_each_link_and_topology(self):
        for options in (["topology=ring"], ["topology=ring", "link=grpc"], ["topology=ps", "link=grpc"],
                        ["topology=ps", "link=grpc", "owners=1"]):
            with self.subTest(options):
                self.assert_all_end(self.start_ranks("calls", 3, *options))

    def test_a_process_may_have_two_groups(self):
        self.assert_all_end(self.start_ranks("two_groups", 2, groups=2))

    def test_collective_calls_that_differ_are_named_on_all_ranks(self):
        for link in ("shm", "grpc"):
            for process in self.start_ranks("differs", 3, f"link={link}"):
                self.assertRegex(process.communicate(timeout=120)[0],
                                 rf"^error {FAILED_PRECONDITION} .*rank 1 call 1, barrier\(\)")

    def test_collective_calls_end_when_a_rank_is_killed(self):
        for link in ("shm", "grpc"):
            processes = self.start_ranks("dies", 3, f"link={link}")
            for rank in (0, 2):
                self.assertRegex(processes[rank].communicate(timeout=120)[0], rf"^error ({ABORTED}|{UNAVAILABLE}) .*rank 1")

    def test_collective_calls_of_one_process(self):
        library = Library()
        self.assertEqual(library.join("topology=local"), 0, library.error())
        Rank(0, 1, []).call_all(library)
        data = array(ctypes.c_float, [1.0])
        self.assertEqual(library.all_reduce(data, 10, SUM), INVALID_ARGUMENT)
        self.assertIn("type of elements: expected 0 to 9", library.error())
        self.assertEqual(library.send(data, 0), INVALID_ARGUMENT)
        self.assertIn("expected another rank", library.error())
        self.assertEqual(library.c.gradsync_leave(library.group), 0, library.error())
        library.c.gradsync_free(library.group)

    def test_a_join_ends_when_nobody_can_be_told_the_address(self):
        library = Library()
        self.assertEqual(library.join_with(lambda address, context: 1, "rank=0", "world_size=2", "master=127.0.0.1:0"), ABORTED)
        self.assertRegex(library.error(), r"could not tell anybody of 127\.0\.0\.1:\d+")

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
    if sys.argv[1:2] == ["rank"]:
        getattr(Rank(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]), sys.argv[2])()
    else:
        unittest.main()

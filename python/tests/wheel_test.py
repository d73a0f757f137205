#!/usr/bin/env python3
"""The wheel as a file, and how the package behaves without PyTorch and numpy.

From the root of the repository, after `bazel build //python:wheel`: python/tests/wheel_test.py
"""
import base64
import csv
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from installed import PYTHON, Environment, wheel  # noqa: E402

EVERYWHERE = {"ld-linux-x86-64.so.2", "libc.so.6", "libgcc_s.so.1", "libm.so.6", "libstdc++.so.6"}


class WheelFileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(cls.folder.cleanup)
        cls.wheel = wheel()
        with zipfile.ZipFile(cls.wheel) as archive:
            archive.extractall(cls.folder.name)
            cls.members = archive.infolist()
        if cls.wheel.name.endswith("-linux_x86_64.whl"):
            raise unittest.SkipTest("a build with a sanitizer, which is for this system alone")

    def libraries(self):
        return [member.filename for member in self.members if ".so" in member.filename]

    def binaries(self):
        return [*self.libraries(), os.path.join("gradsync", "_bin", "ps_server")]

    def read(self, program, *arguments):
        return subprocess.run([program, *arguments], cwd=self.folder.name, check=True, capture_output=True, text=True).stdout

    def test_libraries_need_each_other_and_what_every_linux_has(self):
        own = {os.path.basename(name) for name in self.libraries()}
        for name in self.binaries():
            needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", self.read("readelf", "-dW", name)))
            self.assertEqual(needed - own - EVERYWHERE, set(), name)
        self.assertFalse([name for name in own if re.match(r"lib(grpc|protobuf|absl|re2|ssl|crypto|cares|z)\b", name)])

    def test_the_library_shows_its_functions_alone(self):
        shown = self.read("nm", "-D", "--defined-only", "gradsync/libgradsync.so").splitlines()
        # nm marks what nobody outside can use by a small letter.
        names = {line.split()[-1] for line in shown if line.split()[-2].isupper()}
        self.assertIn("gradsync_join_with", names)
        self.assertEqual({name for name in names if not name.startswith("gradsync_")}, set())

    def test_no_symbol_is_one_for_the_whole_process(self):
        for name in self.binaries():
            shown = self.read("nm", "-D", "--defined-only", name)
            self.assertFalse(re.search(r"^\w+ u ", shown, re.MULTILINE), name)

    def test_its_name_says_for_which_systems_it_is(self):
        platform = re.match(r"gradsync-[\d.]+-py3-none-manylinux_2_(\d+)_x86_64\.whl$", self.wheel.name)
        self.assertTrue(platform, self.wheel.name)
        asked = [int(minor) for name in self.binaries()
                 for minor in re.findall(r"Name: GLIBC_2\.(\d+)", self.read("readelf", "-VW", name))]
        self.assertGreaterEqual(int(platform[1]), max(asked))
        with open(os.path.join(self.folder.name, self.about("WHEEL")), encoding="utf-8") as file:
            self.assertIn(f"Tag: py3-none-manylinux_2_{platform[1]}_x86_64\n", file.read())

    def about(self, name):
        return next(member.filename for member in self.members if member.filename.endswith(f".dist-info/{name}"))

    def test_its_record_has_every_file(self):
        with open(os.path.join(self.folder.name, self.about("RECORD")), encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        self.assertEqual({row[0] for row in rows}, {member.filename for member in self.members})
        for name, digest, size in rows:
            if name == self.about("RECORD"):
                continue
            with open(os.path.join(self.folder.name, name), "rb") as file:
                content = file.read()
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, size), ("sha256=" + expected, str(len(content))), name)

    def test_the_same_files_make_the_same_wheel(self):
        self.assertEqual({member.date_time for member in self.members}, {(1980, 1, 1, 0, 0, 0)})

    def test_it_carries_licences(self):
        names = [member.filename for member in self.members]
        for library in ("", "absl", "c-ares", "grpc", "prometheus-cpp-core", "protobuf", "re2", "ssl"):
            pattern = rf"\.dist-info/licenses/lib{library}[\d+.-]*" if library else r"\.dist-info/LICENSE$"
            self.assertTrue([name for name in names if re.search(pattern, name)], library)

    def test_binaries_alone_may_be_executed(self):
        self.assertEqual({member.filename for member in self.members if member.external_attr >> 16 & 0o111}, set(self.binaries()))

    def test_its_version_is_the_librarys(self):
        with open("gradsync/version.h", encoding="utf-8") as file:
            self.assertIn(f'#define GRADSYNC_VERSION "{self.wheel.name.split("-")[1]}"', file.read())


RANK = """
import array, sys
import gradsync
rank, size, master, topology = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
servers = sys.argv[5:] or None

def say(address):
    print(address, flush=True)

with gradsync.Group(rank=rank, world_size=size, master=master, topology=topology, servers=servers, timeout=60.0,
                    on_listening=say) as group:
    assert (group.rank, group.world_size) == (rank, size)
    for code in "fdbBhil":
        values = array.array(code, [rank + 1, 2, 3])
        group.all_reduce(values, op="sum")
        assert list(values) == [sum(range(1, size + 1)), 2 * size, 3 * size], (code, values)
    values = array.array("d", [rank + 1.0])
    group.all_reduce(values, op="avg")
    assert values[0] == (size + 1) / 2
    values = array.array("q", [rank])
    group.all_reduce(values, op="max")
    assert values[0] == size - 1
    values = bytearray(b"abc" if rank == size - 1 else b"xyz")
    group.broadcast(values, root=size - 1)
    assert values == b"abc"
    everything = array.array("f", [0] * (2 * size))
    group.all_gather(array.array("f", [rank, -rank]), everything)
    assert list(everything) == [value for other in range(size) for value in (other, -other)]
    part = array.array("f", [0, 0])
    group.reduce_scatter(array.array("f", range(2 * size)), part, op="sum")
    assert list(part) == [2 * rank * size, (2 * rank + 1) * size]
    taken = bytearray(size)
    group.all_to_all(bytes([rank * 10 + other for other in range(size)]), taken)
    assert list(taken) == [other * 10 + rank for other in range(size)]
    # Rank r sends s bytes to rank s.
    taken = bytearray(size * rank)
    group.all_to_all(bytes([rank]) * sum(range(size)), taken, list(range(size)), [rank] * size)
    assert list(taken) == [other for other in range(size) for _ in range(rank)]
    if rank == 0:
        group.send(b"hello", 1)
    elif rank == 1:
        taken = bytearray(5)
        group.recv(taken, 0)
        assert taken == b"hello"
    group.barrier()
    group.all_reduce(bytearray())
    exchange = group.bind([("weight", 5), ("bias", 3)], bucket_bytes=16)
    assert (exchange.tensors, exchange.buckets) == (2, 2)
    for tensor, values in enumerate([[1.0, 2, 3, 4, 5], [6, 7, 8.0]]):
        bucket, offset = exchange.place(tensor)
        parameters = exchange.parameters(bucket)
        for index, value in enumerate(values):
            parameters[offset + index] = value if rank == 0 else 0
    exchange.broadcast()
    bucket, offset = exchange.place(1)
    assert list(exchange.parameters(bucket)[offset:offset + 3]) == [6, 7, 8]
    for step in range(3):
        for tensor, numel in enumerate([5, 3]):
            bucket, offset = exchange.place(tensor)
            gradients = exchange.gradients(bucket)
            for index in range(numel):
                gradients[offset + index] = rank + index + step
        for bucket in range(exchange.buckets):
            exchange.launch(bucket)
        for bucket in range(exchange.buckets):
            exchange.wait(bucket)
        bucket, offset = exchange.place(0)
        assert list(exchange.gradients(bucket)[offset:offset + 5]) == [(size - 1) / 2 + index + step for index in range(5)]
    last = exchange.gradients(0)
del group, exchange
last[0] = 1.0  # the memory lives as long as somebody looks at it
print("done", flush=True)
"""

ODD = """
import sys, time
import gradsync
rank, master, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
group = gradsync.Group(rank=rank, world_size=3, master=master, timeout=60.0, on_listening=lambda address: print(address, flush=True))
values = bytearray(1000)
for step in range(1000000):
    if rank == 2 and step == 3:
        if how == "raises":
            raise ValueError("the loss is not a number")
        with group:
            raise KeyError("weight")
    group.all_reduce(values)
"""


class WithoutTorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.environment = Environment()
        cls.addClassCleanup(cls.environment.close)

    def ranks(self, script, size, *arguments):
        """(exit code, output, errors) of each rank; rank 0 says where it listens."""
        first = self.environment.start(["-c", script, *self.order(0, size, "127.0.0.1:0", arguments)])
        address = first.stdout.readline().strip()
        others = [self.environment.start(["-c", script, *self.order(rank, size, address, arguments)]) for rank in range(1, size)]
        results = []
        for process in [first, *others]:
            try:
                output, error = process.communicate(timeout=120)
            finally:
                process.kill()
            results.append((process.returncode, output, error))
        return results

    def order(self, rank, size, master, arguments):
        return [rank, size, master, *arguments] if arguments[0] in ("ring", "ps") else [rank, master, *arguments]

    def test_importing_it_imports_nothing_else(self):
        code, output, error = self.environment.run(["-c", """
import sys, gradsync
assert "torch" not in sys.modules and "numpy" not in sys.modules and "gradsync.group" not in sys.modules
print(gradsync.__version__, gradsync.Error(5, "text").code.name, gradsync.Group.__name__, "torch" in sys.modules)
assert set(gradsync.__all__) <= set(dir(gradsync))
try:
    gradsync.colour
except AttributeError as error:
    print(error)
"""])
        self.assertEqual((code, error), (0, ""))
        self.assertRegex(output, r"^\d+\.\d+\.\d+ NOT_FOUND Group False\nmodule 'gradsync' has no attribute 'colour'\n$")

    def test_the_backend_without_torch_says_so_and_raises_nothing(self):
        code, _, error = self.environment.run(["-c", "import gradsync.torch"])
        self.assertEqual(code, 0, error)
        self.assertIn("gradsync: torch.distributed does not take its backend: No module named 'torch'", error)

    def test_ranks_combine_buffers_over_a_ring(self):
        for code, output, error in self.ranks(RANK, 3, "ring"):
            self.assertEqual((code, output.split()[-1:]), (0, ["done"]), error)

    def test_ranks_combine_buffers_with_servers_in_them(self):
        for code, output, error in self.ranks(RANK, 2, "ps"):
            self.assertEqual((code, output.split()[-1:]), (0, ["done"]), error)

    def test_ranks_combine_buffers_with_a_server_of_its_own(self):
        with self.environment.server() as (server, address):
            for code, output, error in self.ranks(RANK, 2, "ps", address):
                self.assertEqual((code, output.split()[-1:]), (0, ["done"]), error)
            output, error = server.communicate(timeout=60)
        self.assertEqual((server.returncode, error), (0, ""))
        self.assertRegex(output, r"^served 3 steps to 2 workers: ")

    def test_a_server_that_waits_ends_when_it_is_told_to(self):
        with self.environment.server() as (server, _):
            server.terminate()
            output, error = server.communicate(timeout=60)
        self.assertEqual((server.returncode, output), (128 + signal.SIGTERM, ""))
        self.assertRegex(error, r"^ps_server: .*told to end by SIGTERM\n$")

    def test_a_servers_flags_are_those_of_the_program(self):
        for command in (["-m", "gradsync.server"], ["-m", "gradsync", "server"], [self.environment.path / "bin/gradsync", "server"]):
            with self.subTest(command):
                code, output, error = self.environment.run([*command, "--listen=here"])
                self.assertEqual((code, output), (2, ""))
                self.assertRegex(error, r"^ps_server: --listen: expected .*\n$")
                code, output, error = self.environment.run([*command, "--version"])
                self.assertEqual((code, error), (0, ""))
                self.assertRegex(output, r"^ps_server of gradsync \d")

    def test_a_server_that_is_not_there_is_named(self):
        code, output, error = self.environment.run(["-c", """
import sys
from gradsync import server
server.PROGRAM = server.PROGRAM.with_name("none")
sys.exit(server.main(["--help"]))
"""])
        self.assertEqual((code, output), (2, ""))
        self.assertRegex(error, r"^gradsync: /.*/none: expected the program of an installed wheel, found: No such file or directory\n$")

    def test_ranks_are_told_which_one_an_exception_has_left(self):
        for how, said in [("raises", "rank 2.*ValueError: the loss is not a number"), ("leaves", "rank 2.*KeyError: 'weight'")]:
            with self.subTest(how):
                results = self.ranks(ODD, 3, how)
                for code, _, error in results[:2]:
                    self.assertEqual(code, 1)
                    self.assertRegex(error, rf"gradsync\._library\.Error: .*{said}")

    def test_what_does_not_fit_is_named(self):
        code, _, error = self.environment.run(["-c", """
import array, gradsync

def refused(said, call, kind):
    try:
        call()
    except kind as error:
        assert said in str(error), error
        return error
    raise AssertionError("expected: " + said)

error = refused('expected the name of an option', lambda: gradsync.Group(colour="red"), gradsync.Error)
assert error.code == gradsync.Code.INVALID_ARGUMENT
refused("--topology: expected", lambda: gradsync.Group(topology="star"), gradsync.Error)
with gradsync.Group(topology="local") as group:
    refused("expected a buffer that can be written to", lambda: group.broadcast(b"abc"), ValueError)
    refused("expected a contiguous buffer", lambda: group.broadcast(memoryview(bytearray(4))[::2]), ValueError)
    refused("op: expected sum, avg", lambda: group.all_reduce(array.array("f", [1]), op="mean"), ValueError)
    refused("expected elements of float32", lambda: group.all_reduce(array.array("u", "a")), ValueError)
    refused("target: expected 2 bytes, found 3", lambda: group.all_gather(b"ab", bytearray(3)), ValueError)
    refused("bucket: expected 0 to 0, found 1", lambda: group.bind([("weight", 3)]).gradients(1), IndexError)
    refused("found one that has a model", lambda: group.bind([("weight", 3)]), gradsync.Error)
"""])
        self.assertEqual((code, error), (0, ""))

    def test_every_python_takes_the_same_wheel(self):
        """Those that are there: the package says 3.10 and newer."""
        pythons = [PYTHON, *filter(None, (shutil.which(f"python3.{minor}") for minor in range(10, 15)))]
        for python in pythons:
            if subprocess.run([python, "--version"], capture_output=True, check=False).returncode != 0:
                continue
            with self.subTest(python):
                result = subprocess.run([python, "-c", "import gradsync; gradsync.Group(topology='local').leave()"],
                                        env={"PYTHONPATH": str(self.environment.packages)}, capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_it_lives_beside_another_grpc_and_protobuf(self):
        """Debian's, loaded for all of the process, before and after."""
        for before in (True, False):
            with self.subTest(before=before):
                code, output, error = self.environment.run(["-c", f"""
import ctypes, gradsync._library

def others():
    for name in ("libgrpc++.so.1.51", "libprotobuf.so.32"):
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)

if {before}:
    others()
group = gradsync.Group(rank=0, world_size=1, master="127.0.0.1:0")
if not {before}:
    others()
group.leave()
used = {{line.split()[-1].split("/")[-1] for line in open("/proc/self/maps") if "protobuf.so.32" in line}}
assert len(used) == 2, used
print("side by side")
"""])
                self.assertEqual((code, output), (0, "side by side\n"), error)


if __name__ == "__main__":
    unittest.main()

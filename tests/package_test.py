#!/usr/bin/env python3
"""The installed library, as a user's project finds it: its files, its symbols, and the examples, built by CMake and run on two ranks.

  bazel test //tests:package_test                          what //packaging:tarball installs
  tests/package_test.py --prefix=DIR                       what is installed below DIR

Without CMake most of it is skipped; without LibTorch, what needs LibTorch. tools/setup installs both.
"""
import difflib
import filecmp
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path.cwd()  # of the repository, or of the test's runfiles
TARBALL = ROOT / "packaging/gradsync.tar.gz"
DEB = ROOT / "packaging" / "libgradsync-dev.deb"
PATIENCE = 240

# How two ranks exchange gradients; all end with the same bits.
JOBS = {"ring over shared memory": ("ring", "shm"), "ring over gRPC": ("ring", "grpc"), "parameter servers": ("ps", "grpc")}

PROJECT = """\
cmake_minimum_required(VERSION 3.24)
project(examples LANGUAGES C CXX)
find_package(gradsync 0.1 REQUIRED OPTIONAL_COMPONENTS ddp)
add_subdirectory({root}/examples/exchange_c exchange_c)
if(gradsync_ddp_FOUND)
  add_subdirectory({root}/examples/gan gan)
  add_subdirectory({root}/examples/mnist_loop mnist_loop)
  add_subdirectory({root}/examples/own_model own_model)
endif()
"""

# Says why there is no gradsync::ddp.
NEEDS_DDP = """\
cmake_minimum_required(VERSION 3.24)
project(needs_ddp LANGUAGES CXX)
find_package(gradsync REQUIRED COMPONENTS ddp)
"""


def output_of(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode} of {' '.join(map(str, command))}\n{done.stdout[-6000:]}")
    return done.stdout


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def free_port():
    """One that is free, as the one after the next is: that is for a second group (examples/gan)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 2))
            except (OSError, OverflowError):
                continue
            return port


class Installed:
    """Where the library is installed: set before any test runs."""
    folder = None  # for all files of this test
    prefix = None
    given = None  # --prefix

    @classmethod
    def library(cls):
        found = [path for folder in ("lib", "lib64", "lib/*") for path in cls.prefix.glob(f"{folder}/libgradsync.so.1")]
        if not found:
            raise unittest.SkipTest("a static library: it has no symbols of its own, and examples need more of CMake")
        return found[0]


def setUpModule():
    Installed.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    if Installed.given:
        Installed.prefix = pathlib.Path(Installed.given).resolve()
    else:
        Installed.prefix = Installed.folder / "installed"
        with tarfile.open(TARBALL) as archive:
            archive.extractall(Installed.prefix)
    needed = output_of("objdump", "-p", Installed.library())
    if re.search(r"NEEDED +lib(a|t|ub)san", needed):
        raise unittest.SkipTest("a library with a sanitizer, which programs without one cannot load")


def tearDownModule():
    shutil.rmtree(Installed.folder)


class FilesTest(unittest.TestCase):
    def test_the_library_shows_its_own_names_alone(self):
        lines = output_of("nm", "-DC", "--defined-only", Installed.library()).splitlines()
        names = [re.sub(r"@@?GRADSYNC_1$", "", line.split(" ", 2)[2]) for line in lines]
        strangers = [name for name in names if not re.search(r"\bgradsync(_|::)", name) and name != "GRADSYNC_1"]
        self.assertEqual(strangers, [])
        self.assertIn("gradsync_join", names)
        self.assertTrue(any(name.startswith("gradsync::Group::Join(") for name in names))

    def test_the_library_has_a_name_with_its_version(self):
        self.assertRegex(output_of("objdump", "-p", Installed.library()), r"SONAME +libgradsync\.so\.1\n")

    def test_headers_are_few_and_include_libtorch_at_most(self):
        headers = sorted((Installed.prefix / "include/gradsync").rglob("*.h"))
        self.assertIn(len(headers), range(1, 16))
        own = {str(path.relative_to(Installed.prefix / "include")) for path in headers}
        for path in headers:
            for name in re.findall(r'^#\s*include [<"]([^">]+)[">]', path.read_text(), re.MULTILINE):
                self.assertTrue(name in own or re.match(r"(ATen|c10|torch)/|\w+(\.h)?$", name), f"{path.name} includes {name}")

    @unittest.skipUnless(shutil.which("dpkg-deb") and DEB.exists(), "there is no dpkg-deb, or nothing built: //packaging:deb")
    def test_the_package_of_debian_has_the_same_files(self):
        if Installed.given:
            self.skipTest("compares with the tarball")
        root = Installed.folder / "deb"
        output_of("dpkg-deb", "--extract", DEB, root)
        plain = {file for file in files_below(root / "usr") if not file.startswith("share/doc/libgradsync-dev/")}
        self.assertEqual({re.sub(r"^lib/[^/]+-linux-gnu/", "lib/", file) for file in plain}, files_below(Installed.prefix))
        fields = output_of("dpkg-deb", "--field", DEB, "Depends", "Version")
        self.assertRegex(fields, r"Depends: .*\blibc6 \(>= [\d.]+\).*\blibabsl-dev \(>= ")

    @unittest.skipUnless(shutil.which("cmake"), "there is no cmake; tools/setup installs it")
    def test_cmake_installs_the_same(self):
        if Installed.given:
            self.skipTest("compares with the tarball")
        build, prefix = Installed.folder / "build", Installed.folder / "by_cmake"
        output_of("cmake", "-S", ROOT, "-B", build, "-DCMAKE_INSTALL_LIBDIR=lib")
        output_of("cmake", "--install", build, "--component", "dev", "--prefix", prefix)
        library = {"lib/libgradsync.so", "lib/libgradsync.so.1"}
        self.assertEqual(files_below(prefix), files_below(Installed.prefix) - library)
        for file in files_below(prefix):
            self.assertTrue(filecmp.cmp(prefix / file, Installed.prefix / file, shallow=False), file)

    def test_a_plain_loop_differs_by_five_lines(self):
        before, after = ((ROOT / "examples/mnist_loop" / name).read_text().splitlines() for name in ("before.cc", "after.cc"))
        changed = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
        self.assertLessEqual(len(changed), 5, "\n".join(changed))


class ExamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("cmake") is None:
            raise unittest.SkipTest("there is no cmake; tools/setup installs it")
        source, cls.build = Installed.folder / "project", Installed.folder / "examples"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT))
        output_of("cmake", "-S", source, "-B", cls.build, f"-Dgradsync_ROOT={Installed.prefix}")
        output_of("cmake", "--build", cls.build, "--parallel", "2")
        cls.without_ddp = None if (cls.build / "gan/gan").exists() else cls.why_without_ddp()

    @classmethod
    def why_without_ddp(cls):
        source, build = Installed.folder / "needs_ddp", Installed.folder / "needs_ddp_build"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(NEEDS_DDP)
        done = subprocess.run(["cmake", "-S", source, "-B", build, f"-Dgradsync_ROOT={Installed.prefix}"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return " ".join(done.stdout.split())  # CMake breaks lines

    def program(self, name):
        path = self.build / name
        if not path.exists():
            # Anything else that keeps gradsync::ddp from being there is a failure.
            self.assertRegex(self.without_ddp or f"there is no {path}", r"no TorchConfig\.cmake|expected one of the C\+\+11 ABI")
            self.skipTest("there is no LibTorch that fits; tools/setup installs one")
        return path

    def hashes(self, program, *arguments):
        """Of the parameters that two ranks end with."""
        port = free_port()
        plain = {name: value for name, value in os.environ.items()
                 if not re.match("RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|PMI", name)}
        ranks = []
        for rank in range(2):
            variables = dict(plain, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
            ranks.append(subprocess.Popen([program, *arguments], env=variables, text=True, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        outputs = []
        try:
            outputs = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(outputs))
        found = [re.search(r"^params_sha256 ([0-9a-f]{64})\s*\Z", output, re.MULTILINE) for output in outputs]
        self.assertNotIn(None, found, "\n".join(outputs))
        return {match.group(1) for match in found}

    def assert_equal_bits(self, name, arguments):
        program = self.program(name)
        found = set()
        for job, (topology, link) in JOBS.items():
            with self.subTest(job):
                found |= self.hashes(program, *arguments(topology, link))
        self.assertEqual(len(found), 1)

    def test_a_module_of_your_own(self):
        self.assert_equal_bits("own_model/own_model", lambda topology, link: (topology, f"link={link}"))

    def test_a_plain_loop(self):
        self.assertIn("epoch 1: loss ", output_of(self.program("mnist_loop/before"), "1"))
        self.assert_equal_bits("mnist_loop/after", lambda topology, link: ("1", f"topology={topology}", f"link={link}"))

    def test_two_models_and_two_groups(self):
        self.assert_equal_bits("gan/gan", lambda topology, link: (f"topology={topology}", f"link={link}"))

    def test_c_without_libtorch(self):
        self.assert_equal_bits("exchange_c/exchange_c", lambda topology, link: (f"topology={topology}", f"link={link}"))

    @unittest.skipUnless(shutil.which("pkg-config"), "there is no pkg-config; tools/setup installs it")
    def test_without_cmake_but_by_pkg_config(self):
        folder = Installed.library().parent
        flags = output_of("pkg-config", "--cflags", "--libs", "gradsync", "libcrypto", env=dict(os.environ, PKG_CONFIG_PATH=str(folder / "pkgconfig")))
        program = Installed.folder / "by_pkg_config"
        output_of("gcc", "-o", program, ROOT / "examples/exchange_c/exchange_c.c", *flags.split(), f"-Wl,-rpath,{folder}")
        self.assertEqual(len(self.hashes(program, "topology=ring")), 1)


if __name__ == "__main__":
    for argument in [argument for argument in sys.argv if argument.startswith("--prefix=")]:
        Installed.given = argument.removeprefix("--prefix=")
        sys.argv.remove(argument)
    unittest.main()

#!/usr/bin/env python3
"""Runs get_cifar10 on small local archives and on one of the real size; no network."""
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "get_cifar10"
FILE_BYTES = 30730000
NAMES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


def make_archive(path, sizes, extra=()):
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, size in list(sizes.items()) + list(extra):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    return hashlib.md5(path.read_bytes()).hexdigest()


class GetCifar10Test(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.folder = pathlib.Path(self.temporary.name)
        self.archive = self.folder / "archive.tar.gz"
        self.out = self.folder / "out"
        self.data = self.out / "cifar-10-batches-bin"

    def tearDown(self):
        self.temporary.cleanup()

    def run_tool(self, *flags, url=None):
        environment = {k: v for k, v in os.environ.items() if k != "BUILD_WORKING_DIRECTORY"}
        return subprocess.run(
            [sys.executable, str(TOOL), str(self.out), f"--url={url or self.archive.as_uri()}", *flags],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)

    def assert_fails(self, result, *words):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(self.out.exists() and list(self.out.iterdir()), "left something behind")

    def test_unpacks_the_data_files_and_nothing_else_then_does_nothing(self):
        sizes = {f"cifar-10-batches-bin/{n}": FILE_BYTES for n in NAMES}
        sizes["cifar-10-batches-bin/batches.meta.txt"] = 61
        md5 = make_archive(self.archive, sizes, extra=[("cifar-10-batches-bin/readme.html", 10), ("../evil", 5)])
        result = self.run_tool(f"--md5={md5}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"--data=cifar10:{self.out}", result.stdout)
        self.assertEqual(sorted(p.name for p in self.data.iterdir()), sorted(NAMES + ["batches.meta.txt"]))
        self.assertEqual([p.name for p in self.out.iterdir()], ["cifar-10-batches-bin"])
        self.assertFalse((self.folder / "evil").exists())

        self.archive.unlink()
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("complete already", result.stdout)

    def test_truncated_data_is_fetched_again(self):
        md5 = make_archive(self.archive, {f"cifar-10-batches-bin/{n}": FILE_BYTES for n in NAMES})
        self.data.mkdir(parents=True)
        (self.data / "test_batch.bin").write_bytes(b"short")
        result = self.run_tool(f"--md5={md5}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.data / "test_batch.bin").stat().st_size, FILE_BYTES)

    def test_wrong_md5_is_refused(self):
        md5 = make_archive(self.archive, {"cifar-10-batches-bin/test_batch.bin": 100})
        self.assert_fails(self.run_tool(), "expected MD5 c32a1d4ab5d03f1284b67883e8d87530", f"found {md5}")

    def test_file_of_the_wrong_size_is_refused(self):
        sizes = {f"cifar-10-batches-bin/{n}": 100 for n in NAMES}
        md5 = make_archive(self.archive, sizes)
        self.assert_fails(self.run_tool(f"--md5={md5}"), "data_batch_1.bin of 30730000 bytes, found 100")

    def test_missing_file_is_refused(self):
        md5 = make_archive(self.archive, {"other": 1})
        self.assert_fails(self.run_tool(f"--md5={md5}"), "data_batch_1.bin", "no such file")

    def test_not_an_archive_is_refused(self):
        self.archive.write_bytes(b"<html>moved</html>")
        md5 = hashlib.md5(self.archive.read_bytes()).hexdigest()
        self.assert_fails(self.run_tool(f"--md5={md5}"), "cannot unpack")

    def test_unreachable_url_is_named(self):
        url = "http://127.0.0.1:1/archive.tar.gz"
        self.assert_fails(self.run_tool(url=url), url, "--url=file:///")

    def test_url_that_is_none_is_named(self):
        self.assert_fails(self.run_tool(url="nonsense"), "nonsense")

    def test_missing_directory_is_a_usage_error(self):
        result = subprocess.run([sys.executable, str(TOOL)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 2)


if __name__ == "__main__":
    unittest.main()

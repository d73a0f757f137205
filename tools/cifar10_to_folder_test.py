#!/usr/bin/env python3
"""Runs cifar10_to_folder on files of a few images."""
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

TOOL = pathlib.Path(__file__).resolve().parent / "cifar10_to_folder"
NAMES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def planes_of(png):
    """The planes of a PNG of 32x32 pixels of three bytes each, whose rows are not filtered."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at:at + 8])
        data = png[at + 8:at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length:at + 12 + length])[0] == zlib.crc32(name + data)
        chunks[name] = data
        at += 12 + length
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (32, 32, 8, 2, 0, 0, 0)
    rows = zlib.decompress(chunks[b"IDAT"])
    assert len(rows) == 32 * 97 and not any(rows[::97])
    pixels = b"".join(rows[97 * y + 1:97 * (y + 1)] for y in range(32))
    return pixels[0::3] + pixels[1::3] + pixels[2::3]


class Cifar10ToFolderTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.folder = pathlib.Path(self.temporary.name)
        self.source = self.folder / "cifar"
        self.out = self.folder / "out"
        (self.source / "cifar-10-batches-bin").mkdir(parents=True)
        draw = random.Random(1)
        self.images = {}
        for i, name in enumerate(NAMES):
            # Two images a file, of two classes each.
            self.images[name] = [(label, draw.randbytes(3072)) for label in (i, 9)]
            self.file(name).write_bytes(b"".join(bytes([label]) + planes for label, planes in self.images[name]))

    def tearDown(self):
        self.temporary.cleanup()

    def file(self, name):
        return self.source / "cifar-10-batches-bin" / name

    def run_tool(self):
        environment = {k: v for k, v in os.environ.items() if k != "BUILD_WORKING_DIRECTORY"}
        return subprocess.run([sys.executable, str(TOOL), str(self.source), str(self.out)], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)

    def assert_fails(self, *words):
        result = self.run_tool()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_every_image_is_in_its_class_pixel_by_pixel(self):
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"--data=imagefolder:{self.out}", result.stdout)
        self.assertEqual(sorted(p.name for p in self.out.iterdir()), ["test", "train"])
        self.assertEqual(len(list(self.out.glob("*/*/*.png"))), 12)
        for split, names in [("train", NAMES[:5]), ("test", NAMES[5:])]:
            for number, (label, planes) in enumerate(image for name in names for image in self.images[name]):
                path = self.out / split / CLASSES[label] / f"{number:05}.png"
                self.assertEqual(planes_of(path.read_bytes()), planes, path)

    def test_what_is_damaged_or_missing_is_named_and_nothing_is_left(self):
        self.file("data_batch_3.bin").write_bytes(bytes(3074))
        self.assert_fails("data_batch_3.bin", "3073", "3074")
        self.assertEqual(list(self.out.iterdir()) if self.out.exists() else [], [])
        self.file("data_batch_3.bin").write_bytes(bytes([10]) + bytes(3072))
        self.assert_fails("data_batch_3.bin", "labels 0 to 9", "10")
        self.file("data_batch_3.bin").unlink()
        self.assert_fails("data_batch_3.bin", "get_cifar10")
        self.file("data_batch_3.bin").write_bytes(bytes(3073))
        self.file("test_batch.bin").unlink()
        self.assert_fails("test_batch.bin")
        self.assertFalse(self.out.exists())

    def test_folders_that_are_there_are_not_touched(self):
        (self.out / "train").mkdir(parents=True)
        self.assert_fails(str(self.out / "train"))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Looks at the worker of --config=cuda, which is carried to machines that have LibTorch from pip and little else."""
import pathlib
import re
import subprocess
import unittest

WORKER = pathlib.Path("worker/worker.stripped")  # from the root of the runfiles, where tests start

# What such a machine has: LibTorch's and CUDA's libraries, and those of the C and C++ languages.
EXPECTED = re.compile(r"lib(torch(_cpu|_cuda)?|c10(_cuda)?|cudart|nccl|stdc\+\+|gcc_s|atomic|pthread|dl|rt|m|c)\.so(\.\d+)?"
                      r"|ld-linux-x86-64\.so\.2")
MOST_BYTES = 64 << 20


class PortableWorkerTest(unittest.TestCase):
    def test_needs_no_library_that_only_debian_has(self):
        headers = subprocess.run(["objdump", "-p", str(WORKER)], check=True, stdout=subprocess.PIPE,
                                 universal_newlines=True).stdout
        needed = re.findall(r"^ *NEEDED +(\S+)$", headers, re.MULTILINE)
        self.assertIn("libtorch_cpu.so", needed)
        self.assertEqual([library for library in needed if not EXPECTED.fullmatch(library)], [])

    def test_is_small_enough_to_be_carried(self):
        self.assertLess(WORKER.stat().st_size, MOST_BYTES)

    def test_its_protocol_buffers_stay_inside(self):
        symbols = subprocess.run(["nm", "-DC", "--defined-only", str(WORKER)], check=True, stdout=subprocess.PIPE,
                                 universal_newlines=True).stdout
        # Strong symbols, which LibTorch's own library of that name would bind to.
        self.assertEqual(re.findall(r"^\S+ [TDB] google::protobuf::.*$", symbols, re.MULTILINE), [])


if __name__ == "__main__":
    unittest.main()

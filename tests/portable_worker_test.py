#!/usr/bin/env python3
"""Looks at the worker of --config=cuda, which is carried to machines that have LibTorch from pip and little else."""
import glob
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

    def refusal(self, *flags):
        result = subprocess.run([str(WORKER), "--topology=ring", "--model=mlp", "--steps=1", *flags], timeout=60,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result.returncode, result.stderr

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "there is a GPU")
    def test_without_a_gpu_it_ends_with_a_line_that_says_so(self):
        for link in "nccl", "shm":
            status, text = self.refusal(f"--link={link}", "--device=cuda")
            self.assertEqual(status, 2)
            self.assertIn("--device=cuda: this machine has no driver for NVIDIA GPUs", text)
        status, text = self.refusal("--link=nccl", "--device=auto")
        self.assertEqual(status, 2)
        self.assertIn("--link=nccl: expected a GPU", text)

    def test_nccl_without_gpus_is_refused(self):
        status, text = self.refusal("--link=nccl", "--device=cpu")
        self.assertEqual(status, 2)
        self.assertIn("--link=nccl: expected a GPU (--device=cuda), found none", text)

    def test_its_protocol_buffers_stay_inside(self):
        symbols = subprocess.run(["nm", "-DC", "--defined-only", str(WORKER)], check=True, stdout=subprocess.PIPE,
                                 universal_newlines=True).stdout
        # Strong symbols, which LibTorch's own library of that name would bind to.
        self.assertEqual(re.findall(r"^\S+ [TDB] google::protobuf::.*$", symbols, re.MULTILINE), [])


if __name__ == "__main__":
    unittest.main()

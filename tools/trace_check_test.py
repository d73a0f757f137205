#!/usr/bin/env python3
"""Runs trace_check on traces of a few events, as Kineto writes them."""
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "trace_check"
COMPUTE, SIDE, INPUT, NCCL = 7, 20, 24, 30


def on_gpu(category, name, stream, begin, end, correlation=0, device=0):
    return {"ph": "X", "cat": category, "name": name, "pid": device, "tid": stream, "ts": begin, "dur": end - begin,
            "args": {"device": device, "stream": stream, "correlation": correlation}}


def kernel(begin, end, stream=COMPUTE, name="gemm", device=0):
    return on_gpu("kernel", name, stream, begin, end, device=device)


def copy(begin, end, stream=SIDE, correlation=0):
    return on_gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", stream, begin, end, correlation)


def call(name, begin, end, correlation=0, thread=1, category="cuda_runtime"):
    return {"ph": "X", "cat": category, "name": name, "pid": 99, "tid": thread, "ts": begin, "dur": end - begin,
            "args": {"correlation": correlation}}


def upload(begin, end, thread=1):
    return {"ph": "X", "cat": "user_annotation", "name": "gradsync::upload", "pid": 99, "tid": thread, "ts": begin,
            "dur": end - begin}


class TraceCheckTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.path = pathlib.Path(self.temporary.name) / "trace.json"

    def tearDown(self):
        self.temporary.cleanup()

    def run_tool(self, events, *flags):
        noise = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "GPU 0"}},
                 {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 0, "pid": 99, "tid": 1, "id": 1},
                 {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 99, "tid": 1, "ts": -50, "dur": 5000},
                 {"ph": "i", "name": "Record Window End", "ts": 5000, "s": "g"}]
        self.path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": noise + events}))
        return self.run_on_file(*flags)

    def run_on_file(self, *flags):
        return subprocess.run([sys.executable, TOOL, *flags, self.path], capture_output=True, text=True)

    def report(self, events):
        result = self.run_tool(events, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def assert_times(self, report, **milliseconds):
        for name, expected in milliseconds.items():
            self.assertAlmostEqual(report[name + "_ms"], expected, msg=name)

    def test_kernels_are_summed_by_name_the_longest_first(self):
        events = [kernel(0, 100, name="a"), kernel(100, 400, name="b"), kernel(400, 650, name="a"), kernel(650, 660, name="c")]
        self.assertEqual(self.report(events)["kernels"], [
            {"name": "a", "count": 2, "ms": 0.35}, {"name": "b", "count": 1, "ms": 0.3}, {"name": "c", "count": 1, "ms": 0.01}])
        printed = self.run_tool(events, "--kernels=2").stdout
        self.assertRegex(printed, r"kernel +0\.350 ms +53\.0 %  2 times a\nkernel +0\.300 ms +45\.5 %  1 times b\nhost waits")
        self.assertNotIn("times", self.run_tool(events).stdout)

    def test_communication_is_hidden_as_far_as_kernels_run_beside_it(self):
        report = self.report([
            kernel(1000, 2000), kernel(2500, 4000), kernel(1500, 1700, stream=8),
            kernel(1800, 2200, stream=NCCL, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
            copy(2100, 2600), copy(3900, 4000)])
        self.assertEqual(report["compute_stream"], COMPUTE)
        # Communication 1800-2600 and 3900-4000; compute 1000-2000 and 2500-4000.
        self.assert_times(report, window=3, compute=2.5, communication=0.9, overlap=0.4, exposed=0.5, idle=0.5, input=0)
        self.assertEqual(report["gaps"], [{"at_ms": 1.0, "ms": 0.5}])
        self.assertEqual({row["stream"]: (row["busy_ms"], row["what"]) for row in report["streams"]},
                         {COMPUTE: (2.5, {"kernels": 2}), 8: (0.2, {"kernels": 1}), NCCL: (0.4, {"nccl": 1}),
                          SIDE: (0.6, {"copies": 2})})

    def test_copies_of_the_compute_stream_are_work_and_no_communication(self):
        report = self.report([kernel(0, 100), copy(100, 200, stream=COMPUTE), kernel(200, 300)])
        self.assert_times(report, communication=0, compute=0.2, idle=0)

    def test_copies_of_input_are_counted_apart(self):
        report = self.report([
            kernel(0, 1000), upload(10, 30), call("cudaMemcpyAsync", 12, 14, correlation=5),
            copy(100, 300, stream=INPUT, correlation=5),
            # Beside the scope, or within it but on another thread: an exchange.
            call("cudaMemcpyAsync", 31, 32, correlation=6), copy(400, 500, correlation=6),
            call("cudaMemcpyAsync", 15, 16, correlation=7, thread=2), copy(500, 550, correlation=7)])
        self.assert_times(report, input=0.2, communication=0.15)

    def test_what_lies_outside_of_the_kernels_does_not_count(self):
        report = self.report([copy(0, 150), kernel(100, 200), kernel(300, 400), copy(350, 900),
                              call("cudaDeviceSynchronize", 10, 20), call("cudaDeviceSynchronize", 400, 500)])
        self.assert_times(report, window=0.3, communication=0.1, idle=0.1)
        self.assertEqual(report["waits"], [])

    def test_waits_of_the_host_are_counted_by_name(self):
        events = [kernel(0, 100), kernel(900, 1000), call("cudaEventSynchronize", 10, 60),
                  call("cudaEventSynchronize", 70, 80, thread=2), call("cudaMemcpy", 100, 120),
                  call("cudaMemcpyAsync", 130, 140), call("cudaStreamWaitEvent", 150, 160), call("cudaEventQuery", 1, 2),
                  call("cuStreamSynchronize_ptsz", 200, 210, category="cuda_driver")]
        self.assertEqual([(wait["call"], wait["count"]) for wait in self.report(events)["waits"]],
                         [("cuStreamSynchronize_ptsz", 1), ("cudaEventSynchronize", 2), ("cudaMemcpy", 1)])
        result = self.run_tool(events)
        self.assertEqual(result.returncode, 0)
        self.assertIn("host waits: cudaEventSynchronize 2 times, 0.060 ms", result.stdout)
        result = self.run_tool(events, "--expect_no_sync")
        self.assertEqual(result.returncode, 1)
        self.assertIn("expected no call that waits for the GPU, found 4", result.stderr)

    def test_without_waits_the_check_passes(self):
        result = self.run_tool([kernel(0, 100), kernel(150, 250)], "--expect_no_sync")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("host waits: none", result.stdout)
        self.assertIn("gap of 0.050 ms at 0.100", result.stdout)

    def test_the_gpu_with_most_kernels_is_looked_at(self):
        report = self.report([kernel(0, 100, device=1), kernel(100, 200, device=1), kernel(0, 5000, device=0)])
        self.assertEqual(report["device"], 1)
        self.assert_times(report, window=0.2)

    def test_a_packed_trace_is_read_too(self):
        self.path.write_bytes(gzip.compress(json.dumps({"traceEvents": [kernel(0, 100)]}).encode()))
        self.assertEqual(self.run_on_file().returncode, 0)

    def test_what_is_no_trace_of_a_gpu_is_refused_in_one_line(self):
        for text, words in (("{", "cannot be read"), ("3", "traceEvents"), ('{"traceEvents": []}', "has no kernel"),
                            (json.dumps({"traceEvents": [kernel(0, 1, name="ncclKernel")]}), "NCCL's")):
            self.path.write_text(text)
            result = self.run_on_file()
            self.assertEqual(result.returncode, 2, text)
            self.assertRegex(result.stderr, r"\Atrace_check: [^\n]*%s[^\n]*\n\Z" % words)
        self.path.unlink()
        self.assertEqual(self.run_on_file().returncode, 2)


if __name__ == "__main__":
    unittest.main()

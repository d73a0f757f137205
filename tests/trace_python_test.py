#!/usr/bin/env python3
"""A job's trace and event file, read by Perfetto's and by TensorBoard's own Python classes.

Each of the two is checked where it can be imported; where it cannot, the test says so and passes. docs/use/traces.md says how to
get them.
"""
import glob
import importlib.util
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

LAUNCH = "tools/launch"  # from the root of the runfiles, where tests start
PICTURE = "tools/report/trace_picture"
STEPS = 5
# The picture is drawn with Debian's modules. What the readers bring, on PYTHONPATH, may not fit them.
DEBIAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.trace = cls.folder / "job.pftrace"
        flags = ["--topology=ps", "--model=mlp", "--batch_size=4", f"--steps={STEPS}", f"--trace={cls.trace}",
                 "--trace_steps=2-4", "--trace_bandwidth=1gbit", "--link=grpc", f"--tensorboard={cls.folder}/events",
                 f"--metrics_json={cls.folder}/metrics{{rank}}.json"]
        done = subprocess.run([LAUNCH, "--workers=2", "--servers=1", "--", *flags], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100)
        assert done.returncode == 0, done.stdout

    def test_a_step_can_be_drawn(self):
        for more, processes in ((["--step=3"], ["worker 0", "worker 1", "server 0"]),
                                (["--predicted"], ["predicted: worker 0", "predicted: server 0"])):
            picture = self.folder / "step.svg"
            subprocess.run([PICTURE, self.trace, picture, *more], check=True, timeout=60, env=DEBIAN)
            for process in processes:
                self.assertIn(f">{process}  ", picture.read_text())
            self.assertEqual("predicted: worker 0  " in picture.read_text(), "--predicted" in more)

    def test_a_step_that_is_not_there_is_refused(self):
        done = subprocess.run([PICTURE, self.trace, self.folder / "none.svg", "--step=5"], stderr=subprocess.PIPE,
                              text=True, timeout=60, env=DEBIAN)
        self.assertEqual(done.returncode, 2)
        self.assertIn("expected step 5 of worker 0, found steps [2, 3, 4]", done.stderr)

    @unittest.skipUnless(has("perfetto"), "no Python module perfetto: see docs/use/traces.md")
    def test_perfetto_reads_the_trace(self):
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
        trace = Trace()
        trace.ParseFromString(self.trace.read_bytes())
        processes, lanes, events, flows = {}, {}, {}, {}
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                if track.HasField("process"):
                    processes[track.uuid] = track.process.process_name
                else:
                    self.assertIn(track.parent_uuid, processes)
                    lanes[track.uuid] = (processes[track.parent_uuid], track.name)
                continue
            self.assertTrue(packet.HasField("track_event"), packet)
            event = packet.track_event
            self.assertIn(event.track_uuid, {**lanes, **processes})
            for flow in event.flow_ids:
                flows[flow] = flows.get(flow, 0) + 1
            if event.type in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END):
                events.setdefault(event.track_uuid, []).append(
                    (packet.timestamp, event.type == TrackEvent.TYPE_SLICE_BEGIN))
        self.assertEqual(sorted(processes.values()), [
            "predicted: server 0", "predicted: worker 0", "predicted: worker 1", "server 0", "worker 0", "worker 1"])
        self.assertTrue(flows)
        self.assertEqual(set(flows.values()), {2})
        spans = {lanes[track]: self.spans_of(of_track) for track, of_track in events.items()}
        for rank in (0, 1):
            self.assert_gaps_are_what_was_exposed(spans, rank)

    def spans_of(self, events):
        """(begin, end) of a lane's outermost slices. In the file's order slices must nest, and times not fall."""
        spans, open_since = [], []
        for before, (time, begins) in zip([(0, True), *events], events):
            self.assertLessEqual(before[0], time)
            if begins:
                open_since.append(time)
                continue
            self.assertTrue(open_since, "an end without a begin")
            begin = open_since.pop()
            if not open_since:
                spans.append((begin, time))
        self.assertFalse(open_since, "a begin without an end")
        return spans

    def assert_gaps_are_what_was_exposed(self, spans, rank):
        metrics = json.loads((self.folder / f"metrics{rank}.json").read_text())
        steps = spans[f"worker {rank}", "steps"]
        self.assertEqual(len(steps), 3)
        for step, (begin, end) in zip((2, 3, 4), steps):
            computed = sum(b - a for a, b in spans[f"worker {rank}", "compute"] if begin <= a < end)
            exposed = metrics["exposed_ms"][step - 1 - metrics.get("warmup_steps", 0)]
            self.assertAlmostEqual(1e-6 * (end - begin - computed), exposed, delta=0.02 * exposed, msg=f"step {step}")

    @unittest.skipUnless(has("tensorboard"), "no Python module tensorboard: see docs/use/traces.md")
    def test_tensorboard_reads_as_many_events_as_were_written(self):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        files = glob.glob(f"{self.folder}/events/*")
        self.assertEqual(len(files), 1)
        events = list(EventFileLoader(files[0]).Load())
        self.assertEqual(len(events), 2 + STEPS)
        self.assertEqual((events[1].step, events[1].session_log.status), (1, 1))  # a START
        self.assertEqual([event.step for event in events[2:]], list(range(1, STEPS + 1)))
        tags = {value.tag for value in events[-1].summary.value}
        self.assertLessEqual({"loss", "lr", "exposed_ms", "step_ms", "data_ms", "samples_per_second"}, tags)


if __name__ == "__main__":
    unittest.main(verbosity=2)

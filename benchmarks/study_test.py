#!/usr/bin/python3
"""Studies over records that are there already, so that nothing is measured."""
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import mesh_study
import network_sweep
import split_sweep


def ran(samples_per_s, invalid="", mesh="data=2,pipeline=1", **more):
    return {"topology": "ring", "mesh": mesh, "samples_per_s": samples_per_s, "step_ms_p50": 1e3 / samples_per_s,
            "invalid": invalid, **more}


class StudyTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def keep(self, name, runs, predictions):
        (self.folder / name).write_text(json.dumps({"runs": runs, "predictions": predictions}))

    def run_study(self, study, *flags):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = study.main([f"--out={self.folder}", *flags])
        return code, out.getvalue(), err.getvalue()

    def advice(self, *flags):
        (self.folder / "vgg16.json").write_text("{}")
        (self.folder / "advised_1_0.txt").write_text("For gpt on 2 workers at 1gbit use data=2,pipeline=1, ring: 9 samples per s.")
        return self.run_study(mesh_study, "--studies=advice", "--draws=1", *flags)

    def test_regret_is_of_the_fastest_that_could_be_measured(self):
        self.keep("advice_1_0.json", [ran(8), ran(10, mesh="data=1,pipeline=2"),
                                       ran(100, invalid="80 % of the cores were busy", mesh="data=1,tensor=2")], [ran(9), ran(8), ran(7)])
        code, out, _ = self.advice()
        self.assertEqual(code, 0)
        self.assertIn("1 of 3 measurements are invalid and left out, such as: 80 % of the cores were busy", out)
        self.assertIn("2 measurements, from the simulator: median 18.1%, worst 25.0%", out)
        self.assertIn("regret, of 1 jobs: median 25.0%", out)

    def test_advice_that_could_not_be_measured_is_no_success(self):
        self.keep("advice_1_0.json", [ran(8, invalid="late"), ran(10, mesh="data=1,pipeline=2")], [ran(9), ran(8)])
        code, out, err = self.advice()
        self.assertEqual(code, 1)
        self.assertIn("1 of 2 measurements are invalid", out)
        self.assertIn("no advised mesh could be measured", err)

    def test_records_of_other_flags_are_not_taken_for_these(self):
        self.keep("advice_1_0.json", [ran(8)], [ran(8)])
        self.assertEqual(self.advice("--steps=3")[0], 0)
        self.assertEqual(self.advice("--steps=3")[0], 0)
        code, _, err = self.advice("--steps=4")
        self.assertEqual(code, 1)
        self.assertIn("has records of --steps=3, found --steps=4; give another --out", err)

    def test_a_sweep_counts_no_error_of_what_is_invalid(self):
        def replayed(predicted, measured, invalid=""):
            more = {"bandwidth": "1gbit", "pipeline_schedule": "gpipe", "batch_size": 20}
            return ran(measured, invalid, **more), ran(predicted, **more)

        pairs = [replayed(10, 11), replayed(10, 20, invalid="late")]
        lines = split_sweep.replayed_table({"runs": [made for made, _ in pairs], "predictions": [said for _, said in pairs]})
        self.assertRegex(lines[2], r"\+100.0%  invalid$")
        self.assertEqual(lines[3:], ["1 of 2 measurements are invalid and left out, such as: late", "median 10.0%, worst 10.0%"])

    def sweep_networks(self, *flags):
        for number, invalid in enumerate(("", "80 % of the cores were busy", "")):
            made = {"library": "gradsync", "time_us_p50": 1000, "model_us": 990 + 20 * number, "simulated_us": 1000, "peer_ratio": 0.97,
                    "chunk_bytes": 32768, "cpu_share": 0.5, "invalid": invalid}
            (self.folder / f"drawn_{number}.json").write_text(json.dumps({"runs": [{**made, "library": "tcp_stream"}, made]}))
        return self.run_study(network_sweep, "--count=3", *flags)

    def test_a_sweep_over_networks_says_how_far_predictions_of_what_is_valid_are_off(self):
        code, out, _ = self.sweep_networks()
        self.assertEqual(code, 0)
        self.assertIn("1 of 3 measurements are invalid and left out, such as: 80 % of the cores were busy", out)
        self.assertIn("closed form: 0.990 to 1.030, median 1.010, of 2 configurations", out)
        self.assertIn("bare TCP: 0.970 to 0.970", out)

    def test_a_sweep_over_networks_draws_the_same_again_and_nothing_beyond_its_limits(self):
        args = network_sweep.parse(["--out=x", "--seed=7", "--count=50", "--longest=2"])
        configurations = network_sweep.drawn(args)
        self.assertEqual(configurations, network_sweep.drawn(args))
        self.assertEqual(len(configurations), 50)
        self.assertEqual({placement for _, _, placement, _, _ in configurations}, {"ring", "dedicated", "colocated", "mixed"})
        for workers, servers, placement, bandwidth, megabytes in configurations:
            self.assertLessEqual(network_sweep.load(workers, servers, placement) * 8 * megabytes / 0.955 / bandwidth, 2)
            self.assertLessEqual(servers, workers)
        code, _, err = self.run_study(network_sweep, "--count=3", "--longest=0.001")
        self.assertEqual(code, 1)
        self.assertIn("only 0 of 3 configurations are within --longest=0.001 and --most=4.5", err)


if __name__ == "__main__":
    unittest.main()

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


if __name__ == "__main__":
    unittest.main()

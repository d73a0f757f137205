#!/usr/bin/python3
"""Makes pages and looks at them as a browser would; and calls the tool as a user would."""
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from test_runs import FOLDER, parse, run, sweep

try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
    MISSING = ""
except ImportError as error:
    MISSING = f"{error.name} is not installed for {sys.executable}; tools/setup installs it"

TOOL = pathlib.Path(__file__).absolute().parent / "report.py"
# benchmarks/results/compare_default_2core_epyc.json, from before there were predictions and networks.
OLD_FILE = FOLDER / "testdata" / "two_workers.json"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(html.parser.HTMLParser):
    """Every element is closed in order; collects attributes by element."""

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.errors = [], [], []

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"{tag} closes nothing at {self.getpos()}")


@unittest.skipIf(MISSING, MISSING)
class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import page
        cls.render = staticmethod(page.render)
        cls.sweep_text = page.render(parse_value(sweep()))
        cls.old_text = page.render(parse_value(json.loads(OLD_FILE.read_text())))

    def texts(self):
        return {"sweep": self.sweep_text, "old file": self.old_text}.items()

    def test_it_is_well_formed(self):
        for name, text in self.texts():
            with self.subTest(name):
                checker = Checker()
                checker.feed(text)
                checker.close()
                self.assertEqual(checker.errors, [])
                self.assertEqual(checker.open, [])
                ElementTree.fromstring(text)
                ids = [attributes["id"] for _, attributes in checker.attributes if "id" in attributes]
                self.assertEqual(len(ids), len(set(ids)))
                links = [value[1:] for _, attributes in checker.attributes for key, value in attributes.items()
                         if key in ("href", "xlink:href")]
                labels = [i for _, a in checker.attributes for i in a.get("aria-labelledby", "").split()]
                used = re.findall(r"url\(#([^)]*)\)", text)
                self.assertEqual(set(links + labels + used) - set(ids), set())

    def test_nothing_is_fetched_or_run(self):
        for name, text in self.texts():
            with self.subTest(name):
                checker = Checker()
                checker.feed(text)
                for tag, attributes in checker.attributes:
                    self.assertNotIn(tag, ("script", "link", "iframe", "img", "image", "object", "embed", "base"))
                    for key, value in attributes.items():
                        self.assertFalse(key.startswith("on") or key in ("src", "srcset", "data", "action"), (tag, key))
                        if key.endswith("href"):
                            self.assertTrue(value.startswith("#"), value)
                self.assertEqual(set(re.findall(r"url\((.)", text)), {"#"})
                self.assertEqual(re.findall(r".{,40}(?:@import|https?://).{,40}", text), [])

    def test_each_plot_has_words_and_a_table(self):
        for name, text in self.texts():
            root = ElementTree.fromstring(text)
            figures = list(root.iter("figure"))
            self.assertEqual(len(figures), len(list(root.iter("svg"))))
            self.assertGreaterEqual(len(figures), 10)
            for figure in figures:
                svg = figure.find("svg")
                with self.subTest(name, title=svg.find("title").text):
                    self.assertEqual(svg.get("role"), "img")
                    title, description = svg.get("aria-labelledby").split()
                    self.assertEqual((svg.find("title").get("id"), svg.find("desc").get("id")), (title, description))
                    self.assertGreater(len(svg.find("desc").text), 30)
                    self.assertGreater(len(figure.findall(".//details//tbody/tr")), 0)

    def test_all_quantities_are_plotted_where_there_is_data_for_them(self):
        new = {"Training loss", "Test accuracy", "Staleness"}
        titles = [{svg.find("title").text.split(",")[0] for svg in ElementTree.fromstring(text).iter("svg")}
                  for text in (self.sweep_text, self.old_text)]
        self.assertEqual(titles[1], {"Samples per second", "Scaling efficiency", "Seconds to finish", "Parts of a step",
                                     "Bytes at the busiest node"})
        self.assertEqual(titles[0], titles[1] | new)
        headings = [heading.text for heading in ElementTree.fromstring(self.sweep_text).iter("h2")]
        for bandwidth in ("200 Mbit/s", "1,000 Mbit/s"):
            for kind in ("weak", "strong"):
                self.assertTrue(any(title.startswith(f"{bandwidth}, {kind} scaling") for title in headings), headings)
        for words in ("capacity in a step", "predict"):
            self.assertEqual([words in text for text in (self.sweep_text, self.old_text)], [True, False], words)

    def test_light_and_dark_are_one_page_and_contrast_is_enough(self):
        import plots
        self.assertEqual(self.old_text.count("@media screen and (prefers-color-scheme:dark)"), 1)
        root = ElementTree.fromstring(self.old_text)
        for svg in root.iter("svg"):
            drawn = ElementTree.tostring(svg, encoding="unicode")
            self.assertEqual(("var(--ink)" in drawn, re.findall(r"#[0-9a-fA-F]{6}\b", drawn)), (True, []))
        for scheme in (0, 1):
            background = plots.COLOURS["bg"][scheme]
            for name, colours in plots.COLOURS.items():
                needed = {"bg": 1, "grid": 1, "box": 1, "ink": 7, "muted": 4.5}.get(name, 3)
                with self.subTest(name, scheme=scheme):
                    self.assertGreaterEqual(contrast(colours[scheme], background), needed)

    def test_invalid_runs_are_struck_and_say_why(self):
        rows = [row for row in ElementTree.fromstring(self.sweep_text).iter("tr") if row.get("class") == "bad"]
        self.assertEqual(len(rows), 4)
        for row in rows:
            self.assertIn("CPU share of 0.93 is above 0.70", "".join(row.itertext()))
            self.assertIsNotNone(row.find(".//s"))
        figures = "".join("".join(f.itertext()) for f in ElementTree.fromstring(self.sweep_text).iter("figure"))
        self.assertFalse("98,765" in figures)

    def test_text_of_the_input_is_text_of_the_page(self):
        evil = '<script src="http://example.invalid/">$x_1$ & "quotes"'
        text = self.render(parse(run("ring", 2, 100, model=evil, straggler=evil, link=evil, consistency=evil),
                                 run("ps", 2, 120, model=evil, invalid=evil), command=evil,
                                 machine={"cpu": evil, "versions": {evil: evil}}))
        ElementTree.fromstring(text)
        self.assertFalse("<script" in text)

    def test_a_prediction_belongs_to_its_configuration(self):
        import series
        right = {"topology": "ring", "workers": 2, "bandwidth": "400mbit", "step_ms_p50": 90, "samples_per_s": 700,
                 "bucket_bytes": 2e7}
        for field, value in (("workers", 4), ("bandwidth", "200mbit"), ("topology", "ps"), ("link", "shm"),
                             ("compression", "fp16"), ("update", "owner"), ("batch_size", 16), ("straggler", "0:2"),
                             ("global_batch_size", 64), ("bucket_bytes", 1e9), ("compute_scale", 2), ("profile", "x"),
                             ("mesh", "pipeline=2"), ("pipeline_schedule", "gpipe"), ("micro_batches", 4), ("split", "8"),
                             ("zero", 1)):
            found = parse(run("ring", 2, 100, bandwidth="400mbit", bucket_bytes=26214400),
                          predictions=[dict(right, **{field: value}), right])
            pairs = series.pairs(found)
            self.assertEqual([(p.step_ms_p50, id(p)) for _, p in pairs], [(90, id(found.predictions[1]))], field)

    def test_runs_without_exchange_stand_beside_all_buckets(self):
        import series
        found = series.sections(parse(run("ring", 2, 100, bucket_bytes=1e6), run("ring", 2, 100, bucket_bytes=2e6),
                                      run("local", 2, 90, link="", bucket_bytes=0)))
        self.assertEqual([[r.topology for r in section.runs] for section in found], [["ring", "local"]] * 2)

    def test_rows_on_gpus_say_on_which_and_what_nccl_chose(self):
        gpu = {"device": "NVIDIA H200", "precision": "bf16", "channels_last": True, "wire_tx_bytes_max_node": 0}
        nccl = {"link": "nccl", "nccl_version": "2.28.9", "nccl_asked": "NCCL_ALGO=Ring",
                "nccl_chosen": "AllReduce RING/SIMPLE", **gpu}
        text = self.render(parse(run("ring", 2, 50, **nccl), run("ring", 2, 60, link="shm", **gpu),
                                 run("ps", 2, 100, link="shm")))
        for words in ("device NVIDIA H200", "device cpu"):
            self.assertNotIn(words, text)  # that is a column, since rows differ in it
        for words in (">device</th>", "<td>NVIDIA H200</td>", "<td>cpu</td>", "<td>NCCL</td>", "bf16, channels-last",
                      "2.28.9 asked for NCCL_ALGO=Ring chose AllReduce RING/SIMPLE"):
            self.assertIn(words, text)
        # One device in all rows is a column all the same, unless it is the CPU.
        self.assertIn("<td>NVIDIA H200</td>", self.render(parse(run("ring", 2, 50, **gpu), run("ps", 2, 60, **gpu))))
        self.assertNotIn(">device</th>", self.render(parse(run("ring", 2, 50), run("ps", 2, 60))))

    def test_bandwidth_comes_first_with_what_is_measured_in_rounds_beside_what_is_predicted(self):
        rounds = {"bandwidth": "400mbit", "round_samples_per_s": [95, 96, 99], "samples_per_s_low": 95,
                  "samples_per_s_high": 99}
        predictions = [{"topology": "ring", "workers": 3, "bandwidth": bandwidth, "step_ms_p50": 90, "batch_size": 32,
                        "samples_per_s": rate} for bandwidth, rate in (("100mbit", 30), ("400mbit", 97), ("1gbit", 200))]
        runs = [run("ring", 3, 1000, **rounds), run("ps", 2, 120), run("ring", 2, 100)]
        text = self.render(parse(*runs, predictions=predictions))
        root = ElementTree.fromstring(text)
        self.assertEqual(next(root.iter("section")).get("id"), "bandwidth")
        rows = [[cell.text for cell in row] for row in next(root.iter("section")).iter("tr")]
        self.assertIn(["ring", "400", "96.0", "95.0–99.0", "97.0"], rows)
        self.assertIn(["ring", "1,000", "–", "–", "200"], rows)
        # Without a network everything is predicted, and the page says why.
        text = self.render(parse(*runs[1:], predictions=predictions, no_network="not allowed here"))
        self.assertIn("All of it is predicted", text)
        self.assertIn("not allowed here", text)
        self.assertNotIn('id="bandwidth"', self.render(parse(*runs)))

    def test_odd_runs_have_a_page(self):
        for name, runs in {
                "one": [run("ring", 1, 100)], "invalid": [run("ring", 2, 100, invalid="x")],
                "bare": [{"workers": 2, "samples_per_s": 5, "step_ms_p50": 3}],
                "nan": [run("ps", 2, 100, final_loss="NaN", curve=[{"seconds": 1, "loss": "NaN"}] * 2)],
                "peer": [run("ring", 2, 100, library="pytorch_ddp", link="gloo"), run("ps", 2, 100)],
                "many": [run("ps", n, 100 + n, k) for n in (2, 3, 4, 9) for k in range(1, 10)],
                "failed": [run("ring", 2, 100), {"workers": 2, "failure": "exit code 1"}]}.items():
            with self.subTest(name):
                ElementTree.fromstring(self.render(parse(*runs)))


def parse_value(value):
    return parse(*value["runs"], **{key: value[key] for key in value if key != "runs"})


def contrast(one, other):
    """As WCAG 2 defines it."""
    def luminance(colour):
        channels = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class ToolTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def call(self, *arguments, **environment):
        return subprocess.run(["/usr/bin/python3", str(TOOL), *map(str, arguments)], cwd="/",
                              env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True)

    def assert_refused(self, result, *words):
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("report: "))
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.suffix == ".html"], [])

    @unittest.skipIf(MISSING, MISSING)
    def test_the_page_comes_beside_the_file_or_where_out_says(self):
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ring", 2, 100), run("ps", 2, 150)]}))
        result = self.call("compare.json", BUILD_WORKING_DIRECTORY=str(self.folder))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "wrote report.html\n", ""))
        result = self.call(self.folder / "compare.json", f"--out={self.folder}/other.html")
        self.assertEqual(result.returncode, 0, result.stderr)
        pages = [(self.folder / name).read_text() for name in ("report.html", "other.html")]
        self.assertEqual(pages[0], pages[1])
        self.assertTrue("the ring was 50\u00a0% faster" in pages[0])

    @unittest.skipIf(MISSING, MISSING)
    def test_the_same_input_gives_the_same_bytes(self):
        for seed in "12":
            result = self.call(OLD_FILE, f"--out={self.folder}/{seed}.html", PYTHONHASHSEED=seed)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.folder / "1.html").read_bytes() == (self.folder / "2.html").read_bytes())

    @unittest.skipIf(MISSING, MISSING)
    def test_a_folder_that_is_not_there_is_an_error_of_output(self):
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ring", 2, 100)]}))
        result = self.call(self.folder / "compare.json", "--out=/nonexistent/report.html")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr,
                         "report: /nonexistent/report.html: cannot be written: No such file or directory\n")

    @unittest.skipIf(MISSING, MISSING)
    def test_a_figure_is_one_picture_with_words(self):
        (self.folder / "compare.json").write_text(json.dumps(sweep()))
        pictures = []
        for name in ("one.svg", "two.svg", "three.png"):
            result = self.call(self.folder / "compare.json", f"--figure={self.folder / name}")
            self.assertEqual(result.returncode, 0, result.stderr)
            pictures.append((self.folder / name).read_bytes())
        self.assertEqual(pictures[0], pictures[1])
        self.assertTrue(pictures[2].startswith(b"\x89PNG"))
        svg = ElementTree.fromstring(pictures[0])
        text = "".join(svg.itertext())
        self.assertTrue(svg.tag.endswith("}svg"), svg.tag)
        for word in ("200 Mbit/s: ring ", "prefers-color-scheme:dark", "ps, 2 dedicated", "samples/s"):
            self.assertIn(word, text)
        self.assert_refused(self.call(self.folder / "compare.json", "--figure=x.jpg"), ".svg or .png", "x.jpg")

    @unittest.skipIf(MISSING, MISSING)
    def test_a_figure_of_learning_has_loss_and_accuracy(self):
        (self.folder / "compare.json").write_text(json.dumps(sweep()))
        picture = self.folder / "learning.svg"
        result = self.call(self.folder / "compare.json", f"--figure={picture}", "--figure_of=learning")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
        for word in ("Training loss", "Test accuracy", "seconds since the first step", "ssp:3"):
            self.assertIn(word, text)
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ps", 2, 100)]}))
        self.assert_refused(self.call(self.folder / "compare.json", "--figure=x.svg", "--figure_of=learning"),
                            "expected runs with a curve")

    @unittest.skipIf(MISSING, MISSING)
    def test_a_figure_of_split_has_a_panel_for_each_network_and_a_line_for_each_schedule(self):
        def stages(size, step_ms, **changes):
            made = run("ring", 2, 100, mesh="pipeline=2", pipeline_schedule="gpipe", split="8", batch_size=size,
                       micro_batches=120 // size, global_batch_size=120, bandwidth="100mbit")
            made.update({"step_ms_p50": step_ms, "step_ms_p10": step_ms - 1, "step_ms_p90": step_ms + 1}, **changes)
            return made
        measured = [stages(size, 1000 + size, bandwidth=bandwidth, pipeline_schedule=schedule)
                    for size in (1, 20, 60) for bandwidth in ("100mbit", "1gbit") for schedule in ("gpipe", "1f1b")]
        value = {"runs": measured, "predictions": [stages(size, 990 + size) for size in (1, 20, 60)]}
        (self.folder / "compare.json").write_text(json.dumps(value))
        picture = self.folder / "split.svg"
        result = self.call(self.folder / "compare.json", f"--figure={picture}", "--figure_of=split")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
        for word in ("samples per micro-batch", "s per step of 120 samples", "100 Mbit/s", "1,000 Mbit/s",
                     "pipeline=2, 1f1b", "gpipe 1.00 at 1, 1.02 at 20, 1.06 at 60"):
            self.assertIn(word, text)
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ps", 2, 100)]}))
        self.assert_refused(self.call(self.folder / "compare.json", "--figure=x.svg", "--figure_of=split"),
                            "expected runs of --mesh")

    @unittest.skipIf(MISSING, MISSING)
    def test_a_figure_of_bandwidth_has_a_line_for_each_topology(self):
        (self.folder / "compare.json").write_text(json.dumps(sweep()))
        picture = self.folder / "bandwidth.svg"
        result = self.call(self.folder / "compare.json", f"--figure={picture}", "--figure_of=bandwidth")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
        for word in ("of 8 workers", "Mbit/s", "ring", "ps, 8 colocated", "ps, 1 dedicated"):
            self.assertIn(word, text)
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ps", 2, 100, bandwidth="1gbit")]}))
        self.assert_refused(self.call(self.folder / "compare.json", "--figure=x.svg", "--figure_of=bandwidth"),
                            "expected runs or predictions at two bandwidths")

    @unittest.skipIf(MISSING, MISSING)
    def test_a_figure_of_time_is_of_steps_with_as_many_samples_on_any_number_of_workers(self):
        value = sweep()
        for made in value["runs"]:
            if made["topology"] == "ring" and made["workers"] == 1:
                made["link"] = "shm"  # as --link=auto chooses for one worker
        (self.folder / "compare.json").write_text(json.dumps(value))
        picture = self.folder / "time.svg"
        result = self.call(self.folder / "compare.json", f"--figure={picture}", "--figure_of=time")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
        # 120 ms on one worker: perfect scaling takes 15 ms on eight.
        for word in ("ms per step of 64 samples", "200 Mbit/s", "ps, n dedicated", "perfect scaling", "15.0 at 8",
                     "ring 120 at 1, 230 at 2"):
            self.assertIn(word, text)
        self.assertNotIn("shared memory", text)
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ring", 2, 100)]}))
        self.assert_refused(self.call(self.folder / "compare.json", "--figure=x.svg", "--figure_of=time"),
                            "expected runs with --global_batch_size")

    @unittest.skipIf(MISSING, MISSING)
    def test_a_figure_of_epochs_has_a_line_for_each_job(self):
        def metrics(first):
            return {"rank": 0, "world_size": 2, "loss": [first - 0.01 * step for step in range(100)],
                    "epochs": [{"epoch": e, "steps": 50, "samples": 1600, "loss": first - 0.5 * e, "accuracy": 0.1 * e,
                                "global_loss": first - 0.5 * e, "global_accuracy": 0.2 * e} for e in (1, 2)]}
        files = [self.folder / "warm.json", self.folder / "cold.json"]
        for file, first in zip(files, (2.5, 3.5)):
            file.write_text(json.dumps(metrics(first)))
        picture = self.folder / "epochs.svg"
        result = self.call(*files, f"--figure={picture}", "--figure_of=epochs")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
        for word in ("Training loss", "Training accuracy, %", "epochs", "warm from 20.0 to 40.0", "cold from 3."):
            self.assertIn(word, text)
        self.assert_refused(self.call(*files, "--figure=x.svg"), "expected one COMPARE.JSON", "found 2")
        self.assert_refused(self.call(*files, "--figure_of=epochs"), "expected --figure=FILE too")
        files[0].write_text(json.dumps({"runs": []}))
        self.assert_refused(self.call(*files, "--figure=x.svg", "--figure_of=epochs"), "world_size")

    @unittest.skipIf(MISSING, MISSING)
    def test_panels_of_a_figure_share_their_logarithmic_scale(self):
        import plots
        with plots.Canvas("x", 3, 7) as canvas:
            panels = [("a", [("l", [(1, 1, 1, 1), (2, 500, 500, 500)], [])]),
                      ("b", [("l", [(1, 20, 20, 20), (2, 30, 30, 30)], [])])]
            plots.draw_strip(canvas, panels, plots.styles(["l"]), ["l"], "y")
            limits = {axes.get_ylim() for axes in canvas.figure.axes[:2]}
        self.assertEqual(len(limits), 1)

    def test_stages_have_the_samples_of_their_replica_and_all_micro_batches(self):
        import series
        mesh = {"mesh": "data=2,pipeline=4", "micro_batches": 3, "batch_size": 8, "steps": 5}
        (found,) = series.sections(parse(run("ring", 8, 100, **mesh)))
        self.assertEqual(series.samples(found), 5 * 2 * 3 * 8)
        (found,) = series.sections(parse(run("ring", 8, 100, batch_size=8, steps=5)))
        self.assertEqual(series.samples(found), 5 * 8 * 8)

    def test_losses_are_means_over_neighbours_in_time(self):
        import series
        points = [(i, 2 * i) for i in range(1, 8)]
        self.assertEqual(series.means_of_groups(points, 7), points)
        self.assertEqual(series.means_of_groups(points, 3), [(3, 4), (6, 10), (7, 14)])

    def test_bins_of_staleness_widen_where_there_are_many(self):
        import series
        self.assertEqual(series.staleness_bins(2), [(0, 0), (1, 1), (2, 2)])
        bins = series.staleness_bins(1000)
        self.assertLess(len(bins), 15)
        self.assertEqual(bins[:5], [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8)])
        self.assertGreaterEqual(bins[-1][1], 1000)
        self.assertTrue(all(low == high + 1 for (_, high), (low, _) in zip(bins, bins[1:])))

    def test_bad_input_is_one_line_and_exit_code_2(self):
        bad = self.folder / "bad.json"
        self.assert_refused(self.call(bad), "bad.json: cannot be read: No such file")
        bad.write_text("no json")
        self.assert_refused(self.call(bad), "expected JSON")
        bad.write_bytes(b"\xff\xfe")
        self.assert_refused(self.call(bad), "UTF-8")
        bad.write_text('{"runs": []}')
        self.assert_refused(self.call(bad), "found none")
        self.assert_refused(self.call(), "COMPARE.JSON")
        self.assert_refused(self.call(bad, "--colour"), "--colour")
        self.assert_refused(self.call(self.folder), "cannot be read")

    def test_missing_modules_are_named_with_what_installs_them(self):
        (self.folder / "compare.json").write_text(json.dumps({"runs": [run("ring", 2, 100)]}))
        for module in ("matplotlib", "jinja2"):
            (self.folder / f"{module}.py").write_text("raise ImportError")
        self.assert_refused(self.call(self.folder / "compare.json", PYTHONPATH=str(self.folder)),
                            "needs python3-matplotlib and python3-jinja2", "tools/setup")


if __name__ == "__main__":
    unittest.main()

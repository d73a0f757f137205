#!/usr/bin/env python3
"""Job files: those of configs/, what a run writes and takes back, and the processes of the Kubernetes manifest."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))

import slurm_cluster  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path.cwd()  # of the runfiles, where tests start
WORKER = str(ROOT / "worker/worker")
PROGRAMS = ("worker/worker", "ps_server/ps_server", "tools/launch", "tools/task")
SMALL = ["--model=mlp", "--data=synthetic", "--batch_size=4", "--steps=2", "--warmup_steps=0", "--lr_warmup_steps=0"]
PATIENCE = 100


def sha_of(output):
    return re.findall(r"params_sha256 (\w{64})", output)


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def run_here(self, *argv, **environment):
        return subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE, cwd=self.folder, env={**os.environ, **environment})

    def train(self, *argv, **environment):
        result = self.run_here(*argv, **environment)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout


class JobFilesTest(Case):
    def test_the_files_of_the_published_experiments_are_taken(self):
        files = sorted((ROOT / "configs").rglob("*.yaml"))
        self.assertGreaterEqual(len(files), 6)
        for file in files:
            with self.subTest(file.name):
                # With a model and data that take no time; the rest is the file's.
                output = self.train(WORKER, f"--config={file}", "--topology=local", "--print_config", *SMALL)
                self.assertRegex(output, rf"\nweight_decay: 0.0001  # {re.escape(str(file))}\n")
                self.assertRegex(output, r"\nmodel: \"mlp\"  # command line\n")
                self.assertRegex(output, r"\nseed: 0  # default\n")
                self.assertEqual(len(sha_of(output)), 1)

    def test_a_file_says_what_flags_would_and_a_written_one_gives_the_same_run(self):
        flags = ["--model=mlp", "--batch_size=3", "--steps=3", "--lr=0.05", "--schedule=step", "--lr_milestones=1,2",
                 "--nesterov", "--bucket_bytes=64KiB", "--chunk_bytes=4KiB", "--seed=7"]
        self.folder.joinpath("job.yaml").write_text(
            "what:\n  model: mlp\n  batch_size: 3\n  steps: 3\n"
            "how: {lr: 0.5, schedule: step, lr_milestones: [1, 2], nesterov: true}\n"
            "bucket_bytes: 64KiB\nchunk_bytes: 4KiB\nseed: 7\n")
        by_flags = sha_of(self.train(WORKER, *flags))
        output = self.train(WORKER, "--config=job.yaml", "--lr=0.05", "--write_config=written.yaml",
                            "--metrics_json=metrics{rank}.json")
        self.assertEqual(sha_of(output), by_flags)
        self.assertNotEqual(sha_of(self.train(WORKER, "--config=job.yaml")), by_flags)  # --lr did count
        self.assertRegex(output, r"flags .*by command line: [^;]*lr=0.05, ")
        self.assertRegex(output, r"flags .*by job.yaml: [^;]*seed=7")
        self.assertEqual(sha_of(self.train(WORKER, "--config=written.yaml")), by_flags)
        written = (self.folder / "written.yaml").read_text()
        self.assertIn("\nlr_milestones: [1, 2]\n", written)
        for flag in ("rank", "master", "config", "write_config", "metrics_json"):
            self.assertNotIn(f"\n{flag}:", written)
        metrics = json.loads((self.folder / "metrics0.json").read_text())
        recorded = {flag["name"]: (flag["value"], flag["origin"]) for flag in metrics["flags"]}
        self.assertEqual(recorded["lr"], ("0.05", "command line"))
        self.assertEqual(recorded["batch_size"], ("3", "job.yaml"))
        self.assertEqual(recorded["momentum"], ("0.9", "default"))
        self.assertRegex(metrics["gradsync_version"], r"^gradsync [\d.]+, commit [\w+]+$")

    def test_launch_leaves_to_the_file_what_the_file_says(self):
        (self.folder / "job.yaml").write_text("model: mlp\nbatch_size: 4\nsteps: 2\nthreads: 2\ntimeout: 50s\n")
        output = self.train(ROOT / "tools/launch", "--workers=1", "--servers=1", "--", "--config", "job.yaml",
                            "--print_config")
        self.assertIn("threads: 2  # job.yaml\n", output)
        self.assertIn("timeout: \"50s\"  # job.yaml\n", output)
        output = self.train(ROOT / "tools/launch", "--workers=1", "--timeout=40s", "--", "--config=job.yaml",
                            "--print_config")
        self.assertIn("timeout: \"40s\"  # command line\n", output)

    def test_mistakes_are_one_line_with_file_and_line(self):
        cases = (("lr: 0.1\nmodle: mlp\n", "job.yaml:2: modle: expected a flag of this program, found an unknown name; "
                                           "did you mean model?"),
                 ("steps: many\n", "job.yaml:1: steps: expected an integer, found \"many\""),
                 ("a: {lr: 1}\nb: {lr: 1}\n", "job.yaml:2: lr: expected once in the file, found again after line 1"))
        for text, expected in cases:
            with self.subTest(text):
                (self.folder / "job.yaml").write_text(text)
                result = self.run_here(WORKER, "--config=job.yaml")
                self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", expected + "\n"))
        result = self.run_here(WORKER, "--model=a\nworker: b\x1b[2J")
        self.assertEqual((result.returncode, result.stderr.count("\n"), "\x1b" in result.stderr), (2, 1, False))
        self.assertIn(r"a\nworker: b\x1b[2J", result.stderr)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for flag in ("--config", "--data=text:", "--init_from", "--secret_file", "--tls_cert"):
            with self.subTest(flag):
                kind, _, prefix = flag.partition("=")
                job = ["--model=gpt"] if prefix else ["--model=mlp"]
                result = self.run_here(WORKER, *job, "--steps=1", f"{kind}={prefix}{pipe}")
                self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                self.assertIn("a pipe, expected a regular file", result.stderr)
        result = self.run_here(WORKER, "--config=absent.yaml")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "absent.yaml: expected a YAML file, found: No such file or directory\n")

    def test_yamls_words_for_true_reach_the_server_that_task_becomes(self):
        """`insecure: yes` reached the workers alone."""
        task_1_of_2 = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"}
        for word in "yes", "1", "True", "on", "no", "off":
            with self.subTest(word):
                (self.folder / "job.yaml").write_text(f"insecure: {word}\n")
                output = self.train(ROOT / "tools/task", "--servers=1", "--server_binary=/bin/echo", "--", "--config=job.yaml",
                                    **task_1_of_2)
                self.assertIn("--server_tasks=1", output)
                self.assertEqual("--insecure" in output, word not in ("no", "off"), output)

    def test_a_plain_no_or_true_is_no_path_and_a_merge_key_is_named(self):
        """`checkpoint: no` made a folder of that name, and `resume: true` looked for one."""
        for text, expected in (
                ("checkpoint: no\n", "job.yaml:1: checkpoint: expected a text, found no, a boolean or an empty value to YAML; "),
                ("steps: 1\nresume: true\n", "job.yaml:2: resume: expected a text, found true, a boolean"),
                ("metrics_json: Off\n", "job.yaml:1: metrics_json: expected a text, found Off, a boolean"),
                ("init_from: ~\n", "job.yaml:1: init_from: expected a value (\"\" for an empty text), found nothing"),
                ("base: &base {lr: 0.1}\njob:\n  <<: *base\n", "job.yaml:3: <<: expected the name of a flag or of a section, "),
        ):
            for program in ([WORKER], [ROOT / "tools/launch", "--"]):
                with self.subTest(text, program=program[0]):
                    (self.folder / "job.yaml").write_text(text)
                    result = self.run_here(*program, "--config=job.yaml", *SMALL)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertIn(expected, result.stderr)
                    self.assertEqual([path.name for path in self.folder.iterdir()], ["job.yaml"])
        (self.folder / "job.yaml").write_text("checkpoint: 'no'\nnesterov: on\n")
        self.assertIn("nesterov=true", self.train(WORKER, "--config=job.yaml", *SMALL))
        self.assertTrue((self.folder / "no/latest").exists())

    def test_flags_on_the_wrong_side_of_the_dashes_and_names_of_other_programs_are_led_to_the_right_place(self):
        """They were unknown names."""
        for words, expected in (
                ([ROOT / "tools/launch", "--topology=ring"], "found one of the workers: put it behind --, as in -- --topology=..."),
                ([ROOT / "tools/launch", "--nproc_per_node=2"], "did you mean --workers?"),
                ([ROOT / "tools/launch", "-n", "2"], "did you mean --workers?"),
                ([ROOT / "tools/launch", "--learning-rate=1"], "did you mean --lr of the workers? It stands behind --"),
                ([ROOT / "tools/launch", "--", "--workers=2"], "launch: --workers: expected before --, as it is no flag of the"),
                ([ROOT / "tools/task", "--model=mlp"], "found one of the workers: put it behind --, as in -- --model=..."),
                ([WORKER, "--learning_rate=1"], "did you mean --lr?"),
                ([WORKER, "--batch-size=1"], "did you mean --batch_size?"),
                ([WORKER, "--num-epochs", "1"], "did you mean --epochs?"),
                ([WORKER, "-j", "4"], "did you mean --loader_threads or --world_size?"),
        ):
            with self.subTest(words):
                result = self.run_here(*words)
                self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
                self.assertIn(expected, result.stderr)

    def test_a_tilde_is_the_home_folder_in_files_and_behind_equals_signs(self):
        """A folder `~` was made."""
        home = self.folder / "home"
        home.mkdir()
        (home / "job.yaml").write_text("checkpoint: ~/c\nmetrics_json: ~/record{rank}\n")
        self.train(ROOT / "tools/launch", "--workers=2", "--", "--config=~/job.yaml", "--topology=ring",
                   "--tensorboard=~/tb", "--write_config=~/written.yaml", *SMALL, HOME=str(home))
        for name in "c/latest", "record0", "record1", "tb", "written.yaml":
            self.assertTrue((home / name).exists(), name)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["home"])
        (home / "text").write_text("to be or not to be " * 50)
        gpt = ["--model=gpt", "--gpt_width=16", "--gpt_layers=1", "--gpt_heads=1", "--gpt_context=8", "--batch_size=1", "--steps=1"]
        self.train(WORKER, "--data=text:~/text", *gpt, HOME=str(home))
        result = self.run_here(WORKER, "--data=text:~nobody_has_this_name/text", *gpt)
        self.assertEqual(result.returncode, 2)
        self.assertIn("~nobody_has_this_name/text", result.stderr)

    def test_every_program_says_its_version(self):
        for program in PROGRAMS:
            with self.subTest(program):
                name = program.split("/")[-1]
                libtorch = r"LibTorch \d+\.\d+\S*\n" if name == "worker" else ""
                self.assertRegex(self.train(ROOT / program, "--version"),
                                 rf"^{name} of gradsync \d\S*\ncommit [\w+]+\n{libtorch}gRPC 1\.\d+\S*\n"
                                 r"Protocol Buffers \d+\.\d+\S*\ncompiler \w+ .*\n$")


@unittest.skipIf(yaml is None, "there is no python3-yaml: tools/setup installs it")
class KubernetesTest(Case):
    """What the manifest starts, with what a cluster would fill in, as processes of this machine."""

    FIELDS = {"metadata.labels['jobset.sigs.k8s.io/jobset-name']": "gradsync",
              "metadata.labels['jobset.sigs.k8s.io/restart-attempt']": "1"}
    SECRETS = {("gradsync", "secret"): "0123456789abcdef0123456789abcdef"}
    INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

    def value_of(self, variable, fields):
        if "value" in variable:
            return variable["value"]
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            return self.SECRETS[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
        return fields[source["fieldRef"]["fieldPath"]]

    def pods(self, job, port):
        template = job["template"]["spec"]
        self.assertEqual(template["parallelism"], template["completions"])
        container = template["template"]["spec"]["containers"][0]
        for index in range(template["completions"]):
            fields = {**self.FIELDS, self.INDEX: str(index)}
            environment = {each["name"]: self.value_of(each, fields) for each in container["env"]}
            words = [re.sub(r"\$\((\w+)\)", lambda match: environment[match.group(1)], word)
                     for word in container["command"] + container["args"]]
            # The only name of a host, as the JobSet forms it from its own, the job's and two indices.
            rank_0 = "gradsync-worker-0-0.gradsync"
            words = [word.replace(f"{rank_0}:29500", f"127.0.0.1:{port}").replace("0.0.0.0", "127.0.0.1") for word in words]
            if "MASTER_ADDR" in environment:
                self.assertEqual((environment["MASTER_ADDR"], environment["MASTER_PORT"]), (rank_0, "29500"))
                environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                self.assertEqual(environment["WORLD_SIZE"], str(template["completions"]))
            yield [str(ROOT / words[0].replace("/gradsync/", "")), *words[1:]], environment

    def test_the_manifests_pods_are_one_job(self):
        manifest = yaml.safe_load((ROOT / "examples/kubernetes/jobset.yaml").read_text())
        self.assertEqual((manifest["kind"], manifest["metadata"]["name"], manifest["spec"]["network"]["subdomain"]),
                         ("JobSet", "gradsync", "gradsync"))
        port = str(slurm_cluster.free_ports(1)[0])
        processes = []
        for job in manifest["spec"]["replicatedJobs"]:
            for words, environment in self.pods(job, port):
                output = self.folder / f"output{len(processes)}"
                with output.open("w") as file:
                    processes.append((output, subprocess.Popen(
                        words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=file,
                        stderr=subprocess.STDOUT)))
                self.addCleanup(processes[-1][1].kill)
        self.assertEqual(len(processes), 3)
        for output, process in processes:
            self.assertEqual(process.wait(timeout=PATIENCE), 0, output.read_text())
        self.assertIn("by torchrun: ", processes[0][0].read_text())
        self.assertEqual(len(sha_of(processes[0][0].read_text())), 1)


if __name__ == "__main__":
    unittest.main()

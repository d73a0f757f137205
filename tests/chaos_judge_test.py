#!/usr/bin/python3
"""Whether //tests:chaos sees what it is to see, in rounds that are made up."""
import pathlib
import shutil
import sys
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chaos_draw  # noqa: E402
import chaos_faults  # noqa: E402
import chaos_job  # noqa: E402
import chaos_judge  # noqa: E402

OPTIONS = types.SimpleNamespace(failure_timeout=3.0, slack=0.0, extra=0.1, verbose=False)
KILLED = "worker: ABORTED: rank 1 lost: its process has ended"


class ChaosJudgeTest(unittest.TestCase):

    def broken(self, fault="kill", moment="step", launched=False):
        """Worker 1 of two is the victim, and all processes ended when it was time."""
        draw = chaos_draw.Draw("ps", "grpc", "bsp", "owner", 2, 1, launched, fault, moment, "worker 1", "server 0", 0.5)
        job = chaos_job.Job(draw, OPTIONS)
        self.addCleanup(shutil.rmtree, job.folder)
        for name in ("worker 0", "worker 1", "server 0"):
            job.processes[name] = chaos_job.Process(name, 0)
            job.processes[name].ended_at = 101.0
            job.processes[name].code = None if launched else 1
            job.processes[name].err = [KILLED]
        if launched:
            job.children["launch"] = types.SimpleNamespace(returncode=137)
            job.launch_err = ["launch: worker 1 (pid 7): killed by signal 9 (SIGKILL); stopping the rest"]
            job.launch_failed_at = 100.5
        made = chaos_faults.Fault(job)
        made.injected_at = 100.0
        return made

    def verdicts(self, fault):
        return {name: verdict for name, verdict, *_ in chaos_judge.Judge(fault.job, fault).judge()}

    def verdict(self, fault, of="worker 0"):
        return self.verdicts(fault)[of]

    def test_who_names_the_culprit_is_right(self):
        for launched in (False, True):
            self.assertEqual(set(self.verdicts(self.broken(launched=launched)).values()), {"right"})

    def test_who_waited_is_judged_by_what_it_said_of_the_failure(self):
        fault = self.broken()
        fault.job.processes["worker 0"].err.append("worker: waiting for bucket 3 of step 120 for 5s so far")
        self.assertEqual(self.verdict(fault), "right")

    # It waits for --timeout, as it may.
    def test_who_came_when_rank_0_had_no_descriptors_left_has_met_nobody(self):
        for said, strangers in (("worker: ABORTED: rank 0 " + chaos_faults.NOBODY_NEW, {"worker 2"}), (KILLED, set())):
            fault = self.broken("descriptors", "setup")
            fault.job.late = 2
            fault.job.processes["worker 2"] = chaos_job.Process("worker 2", 0)
            fault.job.children["worker 2"] = types.SimpleNamespace(poll=lambda: None)
            fault.job.processes["worker 0"].err = [said]
            fault.look_for_ends()
            self.assertEqual(fault.strangers, strangers)
            self.assertEqual({process.name for process in fault.survivors()}, {"server 0", "worker 0", "worker 2"} - strangers)

    # All of these were taken for done.
    def test_who_ends_without_a_word_has_not_finished(self):
        for moment in chaos_draw.MOMENTS:
            for launched in (False, True):
                fault = self.broken(moment=moment, launched=launched)
                fault.job.processes["worker 0"].err = []
                self.assertEqual(self.verdict(fault), "nobody", (moment, launched))

    def test_who_ends_with_0_in_the_middle_is_seen_whatever_it_says(self):
        for moment in chaos_draw.MOMENTS:
            for words in ([], [KILLED]):
                fault = self.broken(moment=moment)
                fault.job.processes["worker 0"].code, fault.job.processes["worker 0"].err = 0, words
                self.assertEqual(self.verdict(fault), "zero", (moment, words))

    def test_who_did_its_last_step_and_ended_with_0_is_done(self):
        for moment in ("evaluation", "shutdown"):
            for launched in (False, True):
                fault = self.broken(moment=moment, launched=launched)
                for process in fault.job.processes.values():
                    process.code, process.err, process.has_result = None if launched else 0, [], True
                self.assertEqual(self.verdict(fault), "done", (moment, launched))
                fault.job.processes["worker 0"].err = ["worker: ABORTED: rank 0 lost"]
                fault.job.processes["worker 0"].code = None if launched else 1
                self.assertEqual(self.verdict(fault), "wrong", (moment, launched))

    def test_a_server_ends_with_0_when_its_workers_have_drained_and_they_do_not(self):
        fault = self.broken(fault="term")
        for process in (fault.job.processes["server 0"], fault.job.processes["worker 0"]):
            process.code, process.err, process.has_result = 0, [], True
        self.assertEqual(self.verdict(fault, "server 0"), "zero")
        fault.job.processes["server 0"].out = ["served 40 steps to 2 workers: 1.0 MB received, 1.0 MB sent"]
        self.assertEqual(self.verdict(fault, "server 0"), "done")
        self.assertEqual(self.verdict(fault, "worker 0"), "zero")

    def test_launch_ends_with_0_only_if_all_are_done(self):
        fault = self.broken(moment="shutdown", launched=True)
        fault.job.children["launch"].returncode = 0
        self.assertEqual(self.verdict(fault, "launch"), "zero")
        for process in fault.job.processes.values():
            process.has_result = True
        self.assertEqual(self.verdict(fault, "launch"), "done")

    def test_a_launcher_may_end_who_has_met_nobody(self):
        fault = self.broken(moment="setup", launched=True)
        fault.job.processes["worker 0"].ended_at = 103.6
        for said in [], ["worker: ended by SIGTERM before the first step: nothing was trained"]:
            fault.job.processes["worker 0"].err = said
            self.assertEqual(self.verdict(fault), "done")
        fault.job.processes["worker 0"].ended_at = 101.0
        self.assertEqual(self.verdict(fault), "nobody")
        fault.job.launch_err = ["launch: worker: no file descriptors left [worker 1 (pid 7): exit code 2]; stopping the rest"]
        self.assertEqual(self.verdict(fault), "done")
        fault.job.processes["worker 0"].ended_at = 99.5
        self.assertEqual(self.verdict(fault), "nobody")

    def test_a_launcher_may_end_who_has_met_others_for_less_than_the_failure_timeout(self):
        for connected_at, expected in ((101.0, "done"), (100.0, "nobody")):
            fault = self.broken(moment="setup", launched=True)
            process = fault.job.processes["worker 0"]
            process.err = ["worker: ended by SIGTERM to server 0 (127.0.0.1:40) after step 233"]
            process.connected_at, process.ended_at = connected_at, 103.6
            self.assertEqual(self.verdict(fault), expected, connected_at)

    def test_a_half_closed_connection_is_the_fault_of_its_ends_alone(self):
        for words, expected in (("rank 1 lost", "right"), ("server 0 (127.0.0.1:40) lost", "right"), ("rank 0 lost", "wrong"),
                                ("link rank 1 - server 0: no sign", "right"), ("link rank 0 - server 0: no sign", "wrong"),
                                ("ranks 0, 1 did not come", "wrong"), ("the stream has ended", "nobody")):
            fault = self.broken(fault="halfclose")
            fault.peer = "server 0"
            fault.job.processes["worker 0"].err = [f"worker: ABORTED: {words}"]
            self.assertEqual(self.verdict(fault), expected, words)

    def test_a_job_must_end_by_a_thread_that_is_held_and_by_a_disk_that_is_full(self):
        for kind in chaos_draw.FAULTS:
            self.assertEqual(self.broken(fault=kind).draw.is_harmless(), kind in ("descriptors", "halfclose"), kind)

    def test_who_runs_on_hangs_and_who_ends_late_is_late(self):
        fault = self.broken()
        fault.job.processes["worker 0"].ended_at = None
        self.assertEqual(self.verdict(fault), "hang")
        fault.job.processes["worker 0"].ended_at = 102.5
        self.assertEqual(self.verdict(fault), "late")


if __name__ == "__main__":
    unittest.main()

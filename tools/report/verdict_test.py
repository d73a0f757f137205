#!/usr/bin/python3
"""What the report says of constructed runs. Needs only Python's standard library."""
import unittest

from test_runs import HASH, OTHER_HASH, parse, run

import decision
import records
import verdict


class SentenceTest(unittest.TestCase):
    def sentence(self, *runs):
        return verdict.sentence(parse(*runs).runs)

    def test_the_faster_one_wins_with_the_lead_and_its_spread(self):
        text = self.sentence(run("ring", 4, 100, bandwidth="400mbit"), run("ps", 4, 150, 2, bandwidth="400mbit"))
        self.assertIn("With 4 workers at 400 Mbit/s the ring was 50 % faster (44 % to 56 % over the steps' p10–p90) "
                      "than 2 dedicated parameter servers, 1,280 against 853 samples/s", text)
        self.assertTrue(text.endswith("; both runs that must end with the same parameters did, bit for bit."), text)

    def test_parameter_servers_can_win_and_the_best_of_them_is_named(self):
        text = self.sentence(run("ring", 4, 150), run("ps", 4, 180, 1), run("ps", 4, 100, 4))
        self.assertIn("4 dedicated parameter servers were 50 % faster", text)
        self.assertIn(" than the ring, 1,280 against 853 samples/s", text)

    def test_mixed_servers_are_the_dedicated_ones_and_one_beside_each_worker(self):
        text = self.sentence(run("ring", 4, 150), run("ps", 4, 100, 1, placement="mixed"))
        self.assertIn("1 dedicated parameter server and one beside each worker were 50 % faster", text)

    def test_a_lead_of_a_factor_is_a_factor(self):
        self.assertIn("the ring was 3.0 times as fast (2.9 to 3.1 over the steps' p10–p90) as 1 dedicated",
                      self.sentence(run("ring", 4, 100), run("ps", 4, 300)))

    def test_a_median_within_the_others_spread_is_noise(self):
        wide = run("ring", 2, 100, step_ms_p10=95, step_ms_p90=110)
        text = self.sentence(wide, run("ps", 2, 106, step_ms_p10=104, step_ms_p90=109))
        self.assertIn("it is not decided between", text)
        self.assertIn("a lead of 6 %, −5 % to 15 %", text)

    def test_medians_that_are_as_good_as_equal_are_noise_however_narrow_the_spread(self):
        text = self.sentence(run("ring", 2, 100, step_ms_p10=100, step_ms_p90=100),
                             run("ps", 2, 100.5, step_ms_p10=100.5, step_ms_p90=100.5))
        self.assertIn("it is not decided between", text)

    def test_spreads_that_only_overlap_are_a_win_and_the_notes_say_so(self):
        runs = parse(run("ring", 2, 100, step_ms_p10=98, step_ms_p90=113),
                     run("ps", 2, 116, step_ms_p10=112, step_ms_p90=125))
        self.assertNotIn("noise", verdict.sentence(runs.runs))
        self.assertTrue(any("overlap" in note for note in verdict.notes(runs.runs, runs.machine)))

    # Medians that differed won, though in one of three rounds it was the other way round.
    def test_rounds_that_disagree_decide_nothing_and_say_how_many_more_might(self):
        runs = (run("ring", 3, 100, round_samples_per_s=[900, 960, 990]),
                run("ps", 3, 90, round_samples_per_s=[910, 950, 1090]))
        text = self.sentence(*runs)
        self.assertIn("With 3 workers on one machine, with no network emulated, it is not decided between ", text)
        self.assertRegex(text, r", at least \d+ rounds more, ")
        self.assertIn(", interval over 3 rounds)", text)
        self.assertIn("Of 100 pages at most 5 say", verdict.notes(parse(*runs).runs, parse(*runs).machine)[0])

    def test_rounds_that_agree_show_a_difference_however_their_steps_overlap(self):
        text = self.sentence(run("ring", 3, 100, step_ms_p90=300, round_samples_per_s=[900, 960, 990]),
                             run("ps", 3, 90, step_ms_p90=300, round_samples_per_s=[990, 1057, 1088]))
        self.assertRegex(text, r"1 dedicated parameter server was 10 % faster \(\d+ % to 1\d %, interval over 3 rounds\) than "
                               "the ring")

    def test_rounds_that_agree_on_one_are_equal_within_the_margin(self):
        text = self.sentence(run("ring", 3, 100, round_samples_per_s=[1000, 1000, 1000, 1000]),
                             run("ps", 3, 100, round_samples_per_s=[1001, 999, 1002, 998]))
        self.assertIn("were equal within 2 %", text)

    # The page and the terminal (benchmarks/comparison/decision_test.cc) decide alike.
    def test_decisions_are_those_of_the_terminal(self):
        found = decision.decide([1.4, 1.5, 1.6], 3)
        self.assertEqual((found.outcome, f"{found.ratio:.3f} {found.low:.3f} {found.high:.3f}"),
                         ("faster", "1.498 1.115 2.011"))
        found = decision.decide([0.9, 1.1, 1.2], 2)
        self.assertEqual((found.outcome, found.open_words()), ("not decided", "at least 34 rounds more"))
        self.assertEqual(decision.decide([1.001, 0.999, 1.002, 0.998], 3).outcome, "equal")
        self.assertAlmostEqual(decision.student_quantile(0.025, 2), 4.30265, places=4)

    def test_sentences_are_those_of_the_terminal(self):
        for ratios, decisions, said in [
                ([1.29, 1.31, 1.30], 1, "ps was 30 % faster than ring"),
                ([1 / 2.51, 1 / 2.49, 1 / 2.50], 1, "ring was 2.5 times as fast as ps"),
                ([1.0021, 1.0022, 1.0021], 1, "ps was 0.2 % faster than ring"),
                ([1.001, 0.999, 1.002, 0.998], 3, "ps and ring are equal within 2 %"),
                ([2.0], 1, "not decided between ps and ring: at least 1 round more"),
                ([3.0, 0.3334], 1, "not decided between ps and ring: more than 1000 rounds more")]:
            self.assertEqual(decision.decide(ratios, decisions).describe("ps", "ring"), said)

    def test_a_wider_margin_takes_more_for_equal(self):
        ratios = [1.03, 0.98, 1.02, 0.99]
        self.assertEqual(decision.decide(ratios, 1).outcome, "not decided")
        self.assertEqual(decision.decide(ratios, 1, margin=0.05).describe("ring", "ps"), "ring and ps are equal within 5 %")

    def test_on_a_network_servers_on_the_same_hosts_and_on_more_are_two_contests(self):
        network = {"bandwidth": "200mbit"}
        runs = parse(run("ring", 3, 100, round_samples_per_s=[960, 960], **network),
                     run("ps", 3, 100, 3, placement="colocated", round_samples_per_s=[970, 950], **network),
                     run("ps", 3, 75, 3, round_samples_per_s=[1290, 1290], **network)).runs
        self.assertEqual([(c.more_hosts, c.noise) for c in verdict.contests(runs)], [(False, True), (True, False)])
        text = verdict.sentence(runs)
        self.assertIn("it is not decided between", text)
        self.assertIn("3 dedicated parameter servers were 34 % faster", text)

    def test_a_run_whose_rounds_end_with_other_bits_differs(self):
        found = verdict.bits(parse(run("ring", 3, 100, round_params_sha256=[HASH, OTHER_HASH])).runs)
        self.assertFalse(found.agree)

    def test_bits_that_differ_are_said_with_who_differs(self):
        text = self.sentence(run("ring", 2, 100), run("ps", 2, 150, 1), run("ps", 2, 150, 2, params_sha256=OTHER_HASH))
        self.assertIn("but the parameters DIFFER with 2 workers: 2 dedicated parameter servers over gRPC against ",
                      text)

    def test_stages_end_with_the_bits_of_their_replicas_and_topologies_are_compared_mesh_by_mesh(self):
        whole = {"mesh": "data=2", "micro_batches": 4}
        stages = {"mesh": "data=2,pipeline=2", "micro_batches": 4, "pipeline_schedule": "1f1b", "split": "5"}
        alone = {"mesh": "pipeline=2", "micro_batches": 4, "pipeline_schedule": "1f1b", "split": "5"}
        runs = [run("ring", 2, 100, **whole), run("ring", 4, 120, **stages), run("ps", 4, 90, 2, **stages),
                run("ring", 4, 60, **{**stages, "pipeline_schedule": "gpipe"}),
                run("ring", 2, 200, params_sha256=OTHER_HASH, **alone),
                run("ring", 2, 200, params_sha256="02" * 32, data_parallel=2)]
        found = verdict.bits(parse(*runs).runs)
        self.assertEqual((found.agree, found.compared), (True, 4))
        contests = verdict.contests(parse(*runs).runs)
        self.assertEqual([(c.winner.topology, c.loser.topology, c.loser.pipeline_schedule) for c in contests],
                         [("ps", "ring", "1f1b")])
        text = self.sentence(*runs)
        self.assertIn("(data=2,pipeline=2, 1f1b, 4 micro-batches, cut before 5)", text)
        runs[1]["params_sha256"] = OTHER_HASH
        self.assertIn("DIFFER with 2 replicas: the ring over gRPC (data=2,pipeline=2, 1f1b, ", self.sentence(*runs))

    def test_runs_that_need_not_agree_are_not_compared(self):
        found = verdict.bits(parse(
            run("ring", 3, 100), run("ring", 3, 100, link="gloo", own_order=True, params_sha256=OTHER_HASH),
            run("local", 3, 90, link="", params_sha256="01" * 32),
            run("ring", 3, 100, compression="fp16", params_sha256="02" * 32),
            run("ps", 3, 100, compression="fp16", params_sha256="03" * 32),
            run("ps", 3, 100, consistency="asp", params_sha256="04" * 32),
            run("ps", 3, 100), run("ring", 2, 100, params_sha256="05" * 32)).runs)
        self.assertTrue(found.agree)
        self.assertEqual(found.compared, 2)

    def test_nccl_and_gpus_need_not_agree(self):
        gpu = {"device": "NVIDIA H200"}
        found = verdict.bits(parse(
            run("ring", 3, 100), run("ps", 3, 100),
            run("ring", 3, 100, link="nccl", own_order=True, params_sha256=OTHER_HASH),
            run("ring", 2, 100, **gpu), run("ps", 2, 100, params_sha256=OTHER_HASH, **gpu)).runs)
        self.assertTrue(found.agree)
        self.assertEqual(found.compared, 2)
        self.assertFalse(verdict.bits(parse(
            run("ring", 2, 100), run("ring", 2, 100, link="nccl", own_order=True, params_sha256=OTHER_HASH)).runs).agree)

    # A ring over NCCL that beat servers of the host was called the faster topology.
    def test_topologies_are_compared_through_the_host(self):
        gpu = {"device": "NVIDIA H200"}
        ring, servers = run("ring", 2, 100, link="shm", **gpu), run("ps", 2, 80, link="shm", **gpu)
        nccl = run("ring", 2, 200, link="nccl", **gpu)
        contests = verdict.contests(parse(ring, servers, nccl).runs)
        self.assertEqual([(c.winner.link, c.loser.link) for c in contests], [("shm", "shm")])
        self.assertEqual(verdict.contests(parse(servers, nccl).runs), [])

    def test_runs_on_other_devices_or_in_other_precisions_are_other_jobs(self):
        for other in ({"device": "NVIDIA H200"}, {"precision": "bf16"}, {"channels_last": True}):
            found = parse(run("ring", 2, 100), run("ps", 2, 50, params_sha256=OTHER_HASH, **other)).runs
            self.assertEqual(verdict.contests(found), [], other)
            self.assertTrue(verdict.bits(found).agree, other)

    def test_the_same_codec_on_one_topology_must_agree(self):
        found = verdict.bits(parse(run("ps", 2, 100, 1, compression="fp16"),
                                   run("ps", 2, 100, 2, compression="fp16", params_sha256=OTHER_HASH)).runs)
        self.assertFalse(found.agree)

    def test_replayed_steps_have_no_bits(self):
        text = self.sentence(run("ring", 2, 100, params_sha256=""), run("ps", 2, 150, params_sha256=""))
        self.assertIn("bits were not compared", text)

    def test_replayed_steps_agree_within_one_place_of_the_update(self):
        replayed = {"profile": "resnet50"}
        found = verdict.bits(parse(run("ring", 2, 100, **replayed), run("ps", 2, 100, **replayed),
                                   run("ring", 2, 100, update="owner", params_sha256=OTHER_HASH, **replayed)).runs)
        self.assertEqual((found.agree, found.compared, found.left_out), (True, 2, 1))

    def test_wrong_results_are_said_first(self):
        text = self.sentence(run("ring", 2, 100), run("ps", 2, 150, wrong=7))
        self.assertIn(", but results were WRONG: 7 elements of 1 dedicated parameter server over gRPC with 2 workers.",
                      text)

    def test_other_buckets_and_other_computation_are_other_jobs(self):
        for field, value in (("bucket_bytes", 1e6), ("compute_scale", 0.5), ("straggler", "0:2"), ("threads", 2)):
            self.assertEqual(verdict.contests(parse(run("ring", 2, 100), run("ps", 2, 150, **{field: value})).runs), [])

    def test_invalid_runs_neither_win_nor_lose_and_are_counted(self):
        runs = parse(run("ring", 4, 10, invalid="CPU share of 0.9 is above 0.7", params_sha256=OTHER_HASH),
                     run("ring", 4, 120), run("ps", 4, 100), run("ps", 4, 400, 2, invalid="CPU"))
        text = verdict.sentence(runs.runs)
        self.assertIn("1 dedicated parameter server was 20 % faster", text)
        self.assertNotIn("DIFFER", text)
        self.assertIn("2 runs of 4 are marked invalid", verdict.notes(runs.runs, runs.machine)[0])

    def test_only_invalid_runs_leave_no_winner(self):
        self.assertIn("No run is valid", self.sentence(run("ring", 2, 10, invalid="x"), run("ps", 2, 10, invalid="x")))

    def test_each_bandwidth_has_its_winner(self):
        text = self.sentence(run("ring", 4, 100, bandwidth="1gbit"), run("ps", 4, 150, bandwidth="1gbit"),
                             run("ring", 4, 300, bandwidth="200mbit"), run("ps", 4, 200, 4, bandwidth="200mbit"))
        self.assertTrue(text.startswith("With 4 workers, at 200 Mbit/s 4 dedicated parameter servers"), text)
        self.assertIn("; at 1,000 Mbit/s the ring was 50 % faster", text)

    def test_no_network_is_only_said_of_runs_without_one(self):
        here = [run("ring", 2, 100), run("ps", 2, 150, 2)]
        emulated = [run("ring", 3, 100, bandwidth="400mbit"), run("ps", 3, 150, 3, bandwidth="400mbit")]
        for runs, begins in ((here, "All processes share one machine: servers use the workers' cores and no network"),
                             (here + emulated, "Where no network was emulated, all processes share one machine: ")):
            parsed = parse(*runs)
            notes = verdict.notes(parsed.runs, parsed.machine)
            self.assertTrue(any(note.startswith(begins) for note in notes), notes)

    def test_the_same_winner_at_several_bandwidths_is_one_clause(self):
        text = self.sentence(*(run(topology, 4, step * factor, 4, bandwidth=bandwidth)
                               for bandwidth, factor in (("1gbit", 1), ("200mbit", 3), ("400mbit", 2))
                               for topology, step in (("ring", 150 + 10 * factor), ("ps", 100))))
        self.assertIn("With 4 workers, 4 dedicated parameter servers were faster than the ring, at 200 Mbit/s by 80 % "
                      "(73 % to 87 % over the steps' p10–p90), at 400 Mbit/s by 70 % (63 % to 77 %) and at 1,000 Mbit/s "
                      "by 60 % (54 % to 67 %); ", text)

    def test_the_verdict_is_of_the_job_with_most_runs(self):
        others = [run("ring", 8, 100, model="mlp"), run("ps", 8, 200, model="mlp")]
        text = self.sentence(*others, run("ring", 4, 150), run("ps", 4, 130, 1), run("ps", 4, 100, 4))
        self.assertIn("With 4 workers", text)

    def test_weak_and_strong_scaling_are_not_mixed(self):
        runs = parse(run("ring", 2, 100), run("ps", 2, 150), run("ring", 2, 60, global_batch_size=64, batch_size=32),
                     run("ps", 2, 50, global_batch_size=64, batch_size=32)).runs
        self.assertEqual(len(verdict.contests(runs)), 2)
        self.assertIn("the ring was 50 % faster", verdict.sentence(runs))

    def test_one_topology_alone_wins_nothing(self):
        self.assertIn("only ring ran", self.sentence(run("ring", 2, 100), run("ring", 2, 90, link="shm")))
        self.assertIn("One worker has nobody to exchange with", self.sentence(run("ring", 1, 100), run("ps", 1, 90)))

    def test_the_contest_with_most_workers_is_the_verdict(self):
        text = self.sentence(run("ring", 2, 100), run("ps", 2, 150), run("ring", 8, 200), run("ps", 8, 100, 8))
        self.assertTrue(text.startswith("With 8 workers"), text)

    def test_other_consistencies_do_not_stand_for_parameter_servers(self):
        text = self.sentence(run("ring", 4, 100), run("ps", 4, 120), run("ps", 4, 50, consistency="asp"))
        self.assertIn("the ring was 20 % faster", text)


class RecordsTest(unittest.TestCase):
    def refused(self, text):
        with self.assertRaises(records.BadInput) as caught:
            records.parse(text, "f.json")
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_what_is_wrong_is_said_with_where_and_what_was_expected(self):
        self.assertIn("f.json: expected JSON", self.refused("{"))
        self.assertIn("f.json: expected an object with \"runs\"", self.refused("[1]"))
        self.assertIn("f.json: expected at least one run, found none", self.refused('{"runs": []}'))
        self.assertIn('f.json.runs: expected a list, found "x"', self.refused('{"runs": "x"}'))
        self.assertIn('f.json.runs[0]: expected an object, found 3', self.refused('{"runs": [3]}'))
        self.assertIn('f.json.runs[0].workers: expected a whole number, found "2"',
                      self.refused('{"runs": [{"workers": "2"}]}'))
        self.assertIn('f.json.runs[0].workers: expected a whole number, found 1.5',
                      self.refused('{"runs": [{"workers": 1.5}]}'))
        self.assertIn('f.json.runs[0].step_ms_p50: expected a number, found true',
                      self.refused('{"runs": [{"workers": 2, "step_ms_p50": true}]}'))
        self.assertIn('f.json.runs[0].breakdown_ms: expected an object, found [1]',
                      self.refused('{"runs": [{"workers": 2, "breakdown_ms": [1]}]}'))
        self.assertIn('f.json.runs[0].workers: expected at least 1, found 0', self.refused('{"runs": [{}]}'))
        self.assertIn('f.json.runs[0].samples_per_s: expected a finite number',
                      self.refused('{"runs": [{"workers": 2, "samples_per_s": "NaN"}]}'))
        self.assertIn("expected runs that trained", self.refused('{"runs": [{"workers": 2, "time_us_p50": 5}]}'))

    def test_what_is_not_known_or_null_is_no_error(self):
        found = parse(run("ring", 2, 100, new_field={"a": 1}, curve=None, final_loss="NaN"), predictions=None)
        self.assertEqual(found.runs[0].curve, [])
        self.assertNotEqual(found.runs[0].final_loss, found.runs[0].final_loss)
        self.assertEqual(found.runs[0].params_sha256, HASH)

    def test_bandwidths_are_read_as_compare_writes_them(self):
        self.assertEqual(records.bytes_per_s("400mbit"), 50e6)
        self.assertEqual(records.bytes_per_s("2.5Gbit"), 312.5e6)
        self.assertEqual(records.bytes_per_s(""), 0)
        self.assertEqual(records.bytes_per_s("fast"), 0)


if __name__ == "__main__":
    unittest.main()

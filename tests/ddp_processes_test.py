#!/usr/bin/env python3
"""Programs of users whose ranks are processes, as a launcher starts them: uneven inputs, and two groups with one master.

A second Group::Join() of a process found the first one's master at its port.
"""
import os
import re
import socket
import subprocess
import unittest

RANK = "tests/ddp_rank"  # from the root of the runfiles, where tests start
PLACES = [("ring", "shm"), ("ring", "grpc"), ("ring", "gloo"), ("ps", "grpc"), ("ps", "shm")]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


class DdpProcessesTest(unittest.TestCase):
    def run_ranks(self, ranks, *argv):
        """Returns what each rank has printed, and its exit code."""
        port = free_port()
        processes = []
        for rank in range(ranks):
            variables = {name: value for name, value in os.environ.items()
                         if not re.match("RANK|WORLD_SIZE|MASTER_|SLURM_|OMPI_|PMI", name)}
            variables.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
            process = subprocess.Popen([RANK, *argv], text=True, env=variables, stdout=subprocess.PIPE)
            self.addCleanup(self.end, process)
            processes.append(process)
        return [(process.communicate(timeout=120)[0], process.returncode) for process in processes]

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def assert_equal_hashes(self, what, ranks, hashes):
        for place in PLACES:
            with self.subTest(place):
                answers = self.run_ranks(ranks, what, *place)
                for output, code in answers:
                    self.assertEqual(code, 0, output)
                    self.assertEqual(len(re.findall("params_sha256 [0-9a-f]{64}", output)), hashes)
                    self.assertEqual(output, answers[0][0])

    def test_ranks_with_different_numbers_of_batches_end_with_equal_parameters(self):
        self.assert_equal_hashes("uneven", 3, hashes=1)

    def test_two_models_train_over_two_groups_with_one_master(self):
        self.assert_equal_hashes("gan", 2, hashes=2)

    def test_a_rank_that_dies_is_named_to_one_that_has_no_batches_left(self):
        for place in PLACES:
            with self.subTest(place):
                answers = self.run_ranks(2, "dies", *place)
                self.assertEqual(answers[1][1], 9)
                self.assertEqual(answers[0][1], 1)
                self.assertRegex(answers[0][0], "error: .*rank 1")


if __name__ == "__main__":
    unittest.main()

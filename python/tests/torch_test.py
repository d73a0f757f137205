#!/usr/bin/env python3
"""The backend of torch.distributed and gradsync.DistributedDataParallel, under torchrun, with the wheel in a fresh environment.

Skipped where tools/setup --python has not put PyTorch. --test_env=GRADSYNC_TORCH=2.6.0 takes another version than the newest there.
From the root of the repository, after `bazel build //python:wheel`: python/tests/torch_test.py
"""
import os
import re
import socket
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from installed import TESTS, torch_environment, torch_folder  # noqa: E402

PATIENCE = 280


class TorchTest(unittest.TestCase):
    """What its subclasses share, of which each is a shard's."""

    @classmethod
    def setUpClass(cls):
        cls.environment = torch_environment()
        cls.addClassCleanup(cls.environment.close)

    def torchrun(self, ranks, script, *arguments, **variables):
        """(exit code, standard output, standard error) of all ranks."""
        return self.environment.run(["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d",
                                     "--rdzv-endpoint=127.0.0.1:0", TESTS / script, *arguments], PATIENCE, **variables)

    def said(self, ranks, script, *arguments, **variables):
        """What ranks print, which may come without an end of line between."""
        code, output, error = self.torchrun(ranks, script, *arguments, **variables)
        self.assertEqual(code, 0, error[-6000:])
        return sorted(re.findall(r"equal|epoch \d+ loss [\d.]{11}|rank \d like one process|rank \d (?:backend \w+ )?weights [0-9a-f]{64}",
                                 output))


class CollectivesTest(TorchTest):
    def test_two_ranks_get_what_gloo_gives_them(self):
        self.assertEqual(self.said(2, "collectives.py"), ["equal"] * 2)

    def test_three_ranks_over_sockets_get_what_gloo_gives_them(self):
        self.assertEqual(self.said(3, "collectives.py", GRADSYNC_LINK="grpc"), ["equal"] * 3)

    def test_two_ranks_with_servers_in_them_get_what_gloo_gives_them(self):
        self.assertEqual(self.said(2, "collectives.py", GRADSYNC_TOPOLOGY="ps"), ["equal"] * 2)


class TrainingTest(TorchTest):
    def test_an_unmodified_script_ends_with_equal_bits(self):
        """Two ranks' sum is the same in any order, and so all that follows."""
        expected = self.said(2, "train.py", "--backend=gloo")
        self.assertEqual(len(expected), 5)
        for topology, link in [("ring", "auto"), ("ring", "grpc"), ("ps", "auto")]:
            with self.subTest(topology=topology, link=link):
                found = self.said(2, "train.py", "--backend=gradsync", GRADSYNC_TOPOLOGY=topology, GRADSYNC_LINK=link)
                self.assertEqual([line.replace("gradsync", "gloo") for line in found], expected)
        with self.subTest("gradsync.DistributedDataParallel"):
            weights = [line.replace(" backend gloo", "") for line in expected if "weights" in line]
            for topology in ("ring", "ps"):
                found = self.said(2, "parallel_train.py", f"topology={topology}")
                self.assertEqual([line for line in found if "weights" in line], weights, topology)
            with self.environment.server() as (server, address):
                found = self.said(2, "parallel_train.py", "topology=ps", f"servers={address}")
                self.assertEqual([line for line in found if "weights" in line], weights)
                self.assertEqual(server.wait(PATIENCE), 0)

    def test_losses_of_three_ranks_agree(self):
        losses = [[float(line.split()[-1]) for line in self.said(3, "train.py", f"--backend={backend}") if "loss" in line]
                  for backend in ("gloo", "gradsync")]
        self.assertEqual(len(losses[0]), 3)
        for one, other in zip(*losses):
            # Sums of three ranks are rounded in another order, here by as much as the CPU's kernels make of it.
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_fsdp_trains_like_one_process(self):
        if torch_folder().name == "torch-2.6.0":
            self.skipTest("FSDP2 of PyTorch 2.6 does not run on CPUs")
        self.assertEqual(self.said(2, "sharded.py", "gradsync"), [f"rank {rank} like one process" for rank in range(2)])

    def test_a_process_that_has_not_destroyed_its_group_ends(self):
        self.assertEqual(len(self.said(2, "train.py", "--backend=gradsync", "--epochs=1", "--end=leave it")), 3)

    def test_options_that_are_wrong_are_named_on_all_ranks(self):
        _, _, error = self.torchrun(2, "train.py", "--backend=gradsync", GRADSYNC_TOPOLOGY="star")
        self.assertRegex(error, "gradsync: init_process_group: .*--topology: expected")


class FailureTest(TorchTest):
    def answers(self, how, where):
        """What ranks 0 and 1 of three say when rank 2 ends: without torchrun, which would end them before they have spoken."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        processes = [self.environment.start([TESTS / "failures.py", how, where], RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank),
                                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)) for rank in range(3)]
        results = []
        for process in processes:
            try:
                results.append((process.communicate(timeout=PATIENCE)[1], process.returncode))
            finally:
                process.kill()
        return results

    def check(self, how, said, where="ddp"):
        for error, code in self.answers(how, where)[:2]:
            self.assertEqual(code, 1, error[-3000:])
            self.assertRegex(error, rf"DistBackendError: gradsync: all_reduce: .*{said}")

    def test_a_killed_rank_is_named_in_backward(self):
        self.check("killed", "rank 2")

    def test_a_killed_rank_is_named_in_a_collective(self):
        self.check("killed", "rank 2", where="alone")

    def test_an_exception_that_ends_a_rank_is_told_to_the_others(self):
        self.check("raises", "rank 2.*ValueError: the loss is not a number")

    def test_a_rank_that_aborts_is_named(self):
        self.check("aborts", "rank 2.*abort")

    def test_an_interrupt_ends_a_rank_and_so_the_others(self):
        self.check("interrupted", "rank 2.*KeyboardInterrupt")


class DiscoveryTest(TorchTest):
    def test_importing_torch_tells_it_the_name_and_loads_nothing_more(self):
        code, output, error = self.environment.run(["-W", "error::UserWarning:gradsync", "-c", """
import sys, torch, torch.distributed as dist
known = "GRADSYNC" in dist.Backend._plugins
import gradsync.torch
gradsync.torch.register()
print(known, "GRADSYNC" in dist.Backend._plugins, "gradsync._c10d" in sys.modules)
"""])
        self.assertEqual((code, output), (0, "True True False\n"), error)

    def test_options_of_the_script_win_and_unknown_ones_are_refused(self):
        code, output, error = self.environment.run(["-c", """
import torch.distributed as dist
from gradsync._engine import options_of
import os
os.environ["GRADSYNC_TOPOLOGY"] = "ps"
os.environ["GRADSYNC_LINK"] = ""
print(options_of(None), options_of({"topology": "ring", "connections": 2}))
for wrong in ({"colour": "red"}, object):
    try:
        options_of(wrong)
    except ValueError as error:
        print(str(error).split(", conn")[0])
dist.init_process_group("gradsync", store=dist.HashStore(), rank=0, world_size=1, pg_options={"topology": "ring"})
dist.barrier()
print(dist.get_backend(), dist.get_world_size())
dist.destroy_process_group()
"""])
        self.assertEqual(code, 0, error)
        self.assertEqual(output.splitlines(), [
            "{'topology': 'ps'} {'topology': 'ring', 'connections': 2}",
            *["gradsync: pg_options: expected a dict with topology, link, owners"] * 2, "gradsync 1"])


if __name__ == "__main__":
    unittest.main()

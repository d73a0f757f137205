#!/usr/bin/env python3
"""What the Python package gains in PyTorch: steps of data-parallel training, and all-reduce alone, beside Gloo in the same processes.

  benchmarks/python_ddp_bench.py --rounds=9 --json=out.json
  benchmarks/python_ddp_bench.py --link=grpc --bytes=4KiB,1MiB,100MB --rounds=5

Needs an interpreter with PyTorch 2.6 or newer and the wheel of //python:wheel. Starts the ranks itself, on this machine. Each rank has
all contestants, which take turns within a round, so that whatever else the machine does falls on all of them alike:

  alone      the module without any exchange: nothing can be faster
  gloo       torch.nn.parallel.DistributedDataParallel over Gloo
  gradsync   the same over the backend "gradsync"
  module     gradsync.DistributedDataParallel, over a ring of its own

Prints for each the median of the rounds, and of the ratios to Gloo in the same round, with the smallest and the largest; --json also
writes every round. The sums of all-reduces are compared with exact ones, and gradients of the contestants with each other's.
"""
import argparse
import importlib
import json
import os
import pathlib
import platform
import re
import socket
import statistics
import subprocess
import sys
import time

SIZES = "4KiB,64KiB,1MiB,4MiB,25MiB,100MB"
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "KB": 1000, "MB": 1000000}


def bytes_of(text):
    match = re.fullmatch(r"(\d+)(\w*)", text)
    if match is None or match[2] not in UNITS or int(match[1]) * UNITS[match[2]] % 4 != 0:
        raise argparse.ArgumentTypeError(f"expected a multiple of four bytes such as 4KiB, found {text!r}")
    return int(match[1]) * UNITS[match[2]]


def arguments_of(command):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes (2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant (5)")
    parser.add_argument("--steps", type=int, default=10, help="steps in a turn (10); 0: no training")
    parser.add_argument("--model", default="resnet18", help="resnet18, or MODULE:FUNCTION, which returns a module (resnet18)")
    parser.add_argument("--batch_size", type=int, default=64, help="images of each rank and step (64)")
    parser.add_argument("--image_size", type=int, default=32, help="pixels of an image's side (32)")
    parser.add_argument("--bytes", default=SIZES, help=f"sizes of all-reduces alone, of fp32; empty: none ({SIZES})")
    parser.add_argument("--topology", default="ring", help="of gradsync: ring or ps (ring)")
    parser.add_argument("--link", default="auto", help="of gradsync: auto, shm, grpc or tcp (auto)")
    parser.add_argument("--threads", type=int, default=0, help="of each rank; 0: its share of the cores (0)")
    parser.add_argument("--json", type=pathlib.Path, help="file for all that was measured")
    arguments = parser.parse_args(command)
    arguments.sizes = [bytes_of(text) for text in arguments.bytes.split(",") if text]
    if arguments.threads == 0:
        arguments.threads = max(1, len(os.sched_getaffinity(0)) // arguments.ranks)
    return arguments


def make_resnet18(classes=10):
    """ResNet-18 (He et al., 2015), as torchvision has it, for ten classes: 11.2 million parameters."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before, channels, stride):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
                                      nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))
            self.shortcut = nn.Sequential() if stride == 1 and before == channels else nn.Sequential(
                nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

        def forward(self, value):
            return nn.functional.relu(self.body(value) + self.shortcut(value))

    layers, before = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, channels, stride), Block(channels, channels, 1)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Rank:
    def __init__(self, arguments):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.arguments = torch, dist, arguments
        torch.set_num_threads(arguments.threads)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        os.environ.update(GRADSYNC_TOPOLOGY=arguments.topology, GRADSYNC_LINK=arguments.link)
        self.groups = {"gloo": dist.group.WORLD, "gradsync": dist.new_group(backend="gradsync")}

    def timed(self, call, count):
        """Seconds of each of `count` calls that begin together, on the slowest rank."""
        self.dist.barrier(group=self.groups["gloo"])
        begin = time.perf_counter()
        for _ in range(count):
            call()
        took = self.torch.tensor((time.perf_counter() - begin) / count, dtype=self.torch.float64)
        self.dist.all_reduce(took, self.dist.ReduceOp.MAX, group=self.groups["gloo"])
        return took.item()

    def all_reduces(self):
        """{bytes: {group: [seconds by round]}}"""
        measured = {}
        for size in self.arguments.sizes:
            values = {name: self.torch.empty(size // 4) for name in self.groups}
            count = max(3, min(200, (64 << 20) // size))
            times = {name: [] for name in self.groups}
            for round_number in range(-1, self.arguments.rounds):  # the first one warms up
                for name, group in self.groups.items():
                    value = values[name]
                    value.fill_(self.rank + 1)
                    self.dist.all_reduce(value, group=group)
                    expected = self.size * (self.size + 1) / 2
                    if not bool((value == expected).all()):
                        sys.exit(f"{name}, {size} bytes: expected sums of {expected}, found others")
                    value.zero_()
                    seconds = self.timed(lambda: self.dist.all_reduce(value, group=group), count)
                    if round_number >= 0:
                        times[name].append(seconds)
            measured[size] = times
        return measured

    def make_module(self):
        self.torch.manual_seed(1)
        if self.arguments.model == "resnet18":
            return make_resnet18()
        home, function = self.arguments.model.split(":")
        return getattr(importlib.import_module(home), function)()

    def own_group(self):
        """A ring for gradsync.DistributedDataParallel: rank 0 says through PyTorch's store where it listens."""
        import gradsync

        store = self.dist.distributed_c10d._get_default_store()
        place = {"rank": self.rank, "world_size": self.size, "topology": self.arguments.topology, "link": self.arguments.link}
        if self.rank == 0:
            return gradsync.Group(master="127.0.0.1:0", on_listening=lambda address: store.set("bench", address), **place)
        return gradsync.Group(master=store.get("bench").decode(), **place)

    def contestants(self):
        import gradsync

        wrap = self.torch.nn.parallel.DistributedDataParallel
        modules = {"alone": self.make_module(), "gloo": wrap(self.make_module(), process_group=self.groups["gloo"]),
                   "gradsync": wrap(self.make_module(), process_group=self.groups["gradsync"]),
                   "module": gradsync.DistributedDataParallel(self.make_module(), group=self.own_group())}
        return {name: (module, self.torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)) for name, module in modules.items()}

    def training(self):
        """{contestant: [samples a second of all ranks, by round]}"""
        torch, arguments = self.torch, self.arguments
        torch.manual_seed(100 + self.rank)
        inputs = torch.randn(arguments.batch_size, 3, arguments.image_size, arguments.image_size)
        targets = torch.randint(10, (arguments.batch_size,))
        contestants = self.contestants()

        def step(module, optimizer):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()

        measured = {name: [] for name in contestants}
        for round_number in range(-1, arguments.rounds):
            for name, (module, optimizer) in contestants.items():
                seconds = self.timed(lambda: step(module, optimizer), arguments.steps if round_number >= 0 else 3)
                if round_number >= 0:
                    measured[name].append(arguments.batch_size * self.size / seconds)
        expected = list(contestants["gloo"][0].parameters())
        for name in ("gradsync", "module"):
            for one, other in zip(expected, contestants[name][0].parameters()):
                torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4, msg=lambda text: f"{name} and gloo: {text}")
        contestants["module"][0].leave()
        return measured

    def run(self):
        measured = {"torch": self.torch.__version__, "all_reduce": self.all_reduces()}
        measured["training"] = self.training() if self.arguments.steps > 0 else {}
        self.dist.destroy_process_group()
        if self.rank == 0:
            print(json.dumps(measured), flush=True)


def spread(values, form):
    return f"{form(statistics.median(values))} [{form(min(values))}, {form(max(values))}]"


def print_report(measured, arguments):
    print(f"{arguments.ranks} ranks on {measured['machine']}, {arguments.threads} threads each; PyTorch {measured['torch']}; "
          f"{arguments.topology}, link {arguments.link}; {arguments.rounds} rounds: median [smallest, largest]")
    if measured["training"]:
        print(f"\n{arguments.model}, {arguments.batch_size} samples of each rank and step\n"
              f"{'':10}{'samples/s':>24}{'over gloo':>24}")
        for name, rates in measured["training"].items():
            ratios = [rate / other for rate, other in zip(rates, measured["training"]["gloo"])]
            print(f"{name:10}{spread(rates, '{:.1f}'.format):>24}{spread(ratios, '{:.3f}'.format):>24}")
    if measured["all_reduce"]:
        print(f"\nall-reduce, ms\n{'bytes':>12}{'gloo':>28}{'gradsync':>28}{'gloo/gradsync':>24}")
        for size, times in measured["all_reduce"].items():
            ratios = [other / own for own, other in zip(times["gradsync"], times["gloo"])]
            cells = [spread([1000 * seconds for seconds in times[name]], "{:.3f}".format) for name in ("gloo", "gradsync")]
            print(f"{size:>12}{cells[0]:>28}{cells[1]:>28}{spread(ratios, '{:.2f}'.format):>24}")


def machine():
    try:
        model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        model = None
    return f"{len(os.sched_getaffinity(0))} cores of {model[1] if model else platform.machine()}"


def main():
    command = sys.argv[1:]
    arguments = arguments_of(command)
    if "GRADSYNC_BENCH_RANK" in os.environ:
        Rank(arguments).run()
        return 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    place = {**os.environ, "GRADSYNC_BENCH_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
             "WORLD_SIZE": str(arguments.ranks), "OMP_NUM_THREADS": str(arguments.threads)}
    ranks = [subprocess.Popen([sys.executable, __file__, *command], text=True, stdout=subprocess.PIPE,
                              env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(arguments.ranks)]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        print("python_ddp_bench: a rank failed; its messages are above", file=sys.stderr)
        return 1
    measured = {"command": command, "machine": machine(), **json.loads(outputs[0].splitlines()[-1])}
    print_report(measured, arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

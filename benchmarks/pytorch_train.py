#!/usr/bin/env python3
"""Trains torchvision's ResNet in Python PyTorch, a few steps at a time, for //benchmarks:peers --train.

One process, or one rank of DistributedDataParallel over Gloo. Rank 0 of several first prints "store HOST:PORT". Then it prints
"ready" and the versions, or "cannot run" and why. From there on it reads lines with a number of steps, and answers each with
the turn's first and last microsecond on the host's monotonic clock. Ends at end of file.

The step is what a user would write: forward, loss, zero_grad(set_to_none=True), backward, SGD with momentum and weight
decay. Batches are made before the first step, so loading data costs nothing here.
"""

import argparse
import datetime
import os
import sys
import time


def microseconds():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e3


def join_group(args, torch):
    store = torch.distributed.TCPStore(
        "127.0.0.1",
        int(args.master.rsplit(":", 1)[1]) if args.master else 0,
        args.world_size,
        args.rank == 0,
        timeout=datetime.timedelta(seconds=120),
        wait_for_workers=False,
    )
    if args.rank == 0:
        print(f"store 127.0.0.1:{store.port}", flush=True)
    torch.distributed.init_process_group("gloo", store=store, rank=args.rank, world_size=args.world_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world_size", type=int, default=1)
    parser.add_argument("--master", default="", help="HOST:PORT that rank 0 printed")
    args = parser.parse_args()
    try:
        import torch
        import torchvision
    except ImportError as error:
        print(f"cannot run: {error}; install python3-torch and python3-torchvision", flush=True)
        return 1
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.rank)
    model = getattr(torchvision.models, args.model)(num_classes=10)
    model.train()
    if args.world_size > 1:
        join_group(args, torch)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    batches = [(torch.randn(args.batch_size, 3, 32, 32), torch.randint(10, (args.batch_size,))) for _ in range(4)]
    print(f"ready torch {torch.__version__} torchvision {torchvision.__version__}", flush=True)

    done = 0
    for line in sys.stdin:
        begin = microseconds()
        for _ in range(int(line)):
            images, labels = batches[done % len(batches)]
            done += 1
            loss = loss_function(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            loss.item()
            optimizer.step()
        print(f"{begin:.1f} {microseconds():.1f}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # the group needs no farewell: other ranks end in their own time


if __name__ == "__main__":
    sys.exit(main())

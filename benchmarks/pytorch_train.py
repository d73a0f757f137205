#!/usr/bin/env python3
"""Trains torchvision's ResNet in Python PyTorch, a few steps at a time, for //benchmarks:peers --train.

Reads lines with a number of steps on standard input; answers each with the wall-clock time of every step in milliseconds,
separated by spaces. Ends at end of file. The first line it prints names the versions, or why it cannot run.

The step is what a user would write: forward, loss, zero_grad(set_to_none=True), backward, SGD with momentum and weight
decay. Batches are made before the first step, so loading data costs nothing here.
"""

import argparse
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    try:
        import torch
        import torchvision
    except ImportError as error:
        print(f"cannot run: {error}; install python3-torch and python3-torchvision", flush=True)
        return 1
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = getattr(torchvision.models, args.model)(num_classes=10)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    batches = [(torch.randn(args.batch_size, 3, 32, 32), torch.randint(10, (args.batch_size,))) for _ in range(4)]
    print(f"torch {torch.__version__} torchvision {torchvision.__version__}", flush=True)

    done = 0
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            images, labels = batches[done % len(batches)]
            done += 1
            start = time.perf_counter()
            loss = loss_function(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            loss.item()
            optimizer.step()
            times.append(1e3 * (time.perf_counter() - start))
        print(" ".join(f"{t:.3f}" for t in times), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

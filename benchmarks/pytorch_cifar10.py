#!/usr/bin/env python3
"""The published CIFAR-10 runs in Python PyTorch, to put beside those of configs/cifar10.

Trains torchvision's ResNet-18 on the images of `tools/get_cifar10` with the flags' defaults of the published experiment: 256
images per worker and step, SGD with Nesterov's momentum 0.9 and weight decay 1e-4, five epochs, learning rate 0.01, or 0.02
from four workers on. Prints, for each epoch, loss and training accuracy of rank 0 and of all ranks, over the samples as they
were trained on.

Workers are one process: a step runs their batches one after the other, each with the images that DistributedSampler gives its
rank, and averages the gradients. That is what DistributedDataParallel computes. BatchNorm normalises each batch by itself, as
it does on ranks of their own; running statistics, which training never reads, are of all batches.

    tools/get_cifar10 cifar10
    benchmarks/pytorch_cifar10.py cifar10 --workers=4
"""

import argparse
import os
import time

import numpy
import torch
import torchvision
from torch.utils.data import DistributedSampler

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
PADDING = 4


def read_cifar10(folder):
    """Images, bytes of N x 3 x 32 x 32, and their classes."""
    inner = os.path.join(folder, "cifar-10-batches-bin")
    folder = inner if os.path.isdir(inner) else folder
    files = [numpy.fromfile(os.path.join(folder, f"data_batch_{k}.bin"), dtype=numpy.uint8) for k in range(1, 6)]
    records = torch.from_numpy(numpy.concatenate(files)).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def augmented(images):
    """Each cropped at random from itself in a black frame, flipped or not, and normalised."""
    count, _, height, width = images.shape
    framed = torch.nn.functional.pad(images.float() / 255, [PADDING] * 4)
    top, left = torch.randint(0, 2 * PADDING + 1, (2, count, 1))
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    cropped = framed[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    return ((cropped - mean) / std).contiguous()


class Tally:
    def __init__(self):
        self.samples = self.correct = 0
        self.loss = 0.0

    def add(self, output, labels, loss):
        self.samples += len(labels)
        self.correct += (output.argmax(1) == labels).sum().item()
        self.loss += loss.item() * len(labels)

    def __str__(self):
        return f"loss {self.loss / self.samples:.4f} accuracy {100 * self.correct / self.samples:.3f} %"


def train_epoch(args, epoch, images, labels, model, optimizer, samplers):
    rank_0, everyone = Tally(), Tally()
    for sampler in samplers:
        sampler.set_epoch(epoch)
    orders = [torch.tensor(list(sampler)) for sampler in samplers]
    for begin in range(0, len(orders[0]), args.batch_size):
        optimizer.zero_grad(set_to_none=True)
        for rank, order in enumerate(orders):
            batch = order[begin:begin + args.batch_size]
            output = model(augmented(images[batch]))
            loss = torch.nn.functional.cross_entropy(output, labels[batch])
            (loss / args.workers).backward()
            for tally in (rank_0, everyone) if rank == 0 else (everyone,):
                tally.add(output, labels[batch], loss)
        optimizer.step()
    return rank_0, everyone


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="with CIFAR-10's binary version")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=256, help="per worker")
    parser.add_argument("--lr", type=float, help="default: 0.01, or 0.02 from four workers on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lr = args.lr or (0.02 if args.workers >= 4 else 0.01)

    torch.manual_seed(args.seed)
    images, labels = read_cifar10(args.folder)
    model = torchvision.models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    samplers = [DistributedSampler(images, args.workers, rank, seed=args.seed) for rank in range(args.workers)]
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, {args.workers} workers x {args.batch_size} "
          f"images, learning rate {lr:g}, seed {args.seed}", flush=True)
    began = time.monotonic()
    for epoch in range(args.epochs):
        rank_0, everyone = train_epoch(args, epoch, images, labels, model, optimizer, samplers)
        print(f"epoch {epoch + 1} of rank 0: {rank_0}; of all ranks: {everyone}; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

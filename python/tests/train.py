"""Trains a small convolutional network in data-parallel, after the pattern of PyTorch's DDP tutorial. Knows nothing of gradsync: the
backend's name is an argument. For torch_test.py."""
import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 32), nn.ReLU(),
                         nn.Linear(32, 10))


def make_data():
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(256, 3, 8, 8, generator=generator), torch.randint(10, (256,), generator=generator))


def fingerprint(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


class Trainer:
    def __init__(self, model, data, optimizer):
        self.model, self.data, self.optimizer = model, data, optimizer

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets in self.data:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--end", choices=["destroy", "leave it"], default="destroy")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    dataset = make_data()
    data = DataLoader(dataset, batch_size=16, shuffle=False, sampler=DistributedSampler(dataset))
    model = DistributedDataParallel(make_model())
    trainer = Trainer(model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for epoch in range(arguments.epochs):
        mean = torch.tensor(trainer.run_epoch(epoch))
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.9f}", flush=True)
    print(f"rank {os.environ['RANK']} backend {dist.get_backend()} weights {fingerprint(model)}", flush=True)
    if arguments.end == "destroy":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains the network of train.py by gradsync.DistributedDataParallel: for torch_test.py."""
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import gradsync
from train import Trainer, fingerprint, make_data, make_model


def check_accumulation(model, inputs, targets):
    """Gradients of two halves, of which the first does not exchange, are those of the whole."""
    loss = nn.MSELoss()
    parts = [(inputs[:4], targets[:4]), (inputs[4:], targets[4:])]
    model.zero_grad()
    loss(model(inputs), targets).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    for set_to_none in (True, False):
        model.zero_grad(set_to_none=set_to_none)
        with model.no_sync():
            (loss(model(parts[0][0]), parts[0][1]) / 2).backward()
        (loss(model(parts[1][0]), parts[1][1]) / 2).backward()
        for one, other in zip(whole, model.parameters()):
            torch.testing.assert_close(other.grad, one)


def check_accumulated_means(rank):
    with gradsync.Group(topology="local", rank=0, world_size=1) as group:
        model = gradsync.DistributedDataParallel(nn.Linear(3, 2), group=group)
        generator = torch.Generator().manual_seed(rank)
        inputs, targets = torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)
        check_accumulation(model, inputs, targets)
        assert set(model.state_dict()) == {"weight", "bias"}, model.state_dict().keys()


def check_refusals():
    for module, said in [(nn.Linear(2, 2).double(), "weight: expected a dense fp32 tensor on the CPU, found torch.float64"),
                         (nn.ReLU(), "module: expected a trainable parameter")]:
        try:
            gradsync.DistributedDataParallel(module, topology="local", rank=0, world_size=1)
        except ValueError as error:
            assert said in str(error), error
        else:
            sys.exit(f"expected to be refused: {said}")

    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, value):
            return self.used(value)

    model = gradsync.DistributedDataParallel(Partly(), topology="local", rank=0, world_size=1)
    try:
        model(torch.ones(1, 2)).sum().backward()
    except gradsync.Error as error:
        assert "found none for unused.bias, unused.weight" in str(error), error
    else:
        sys.exit("expected an error for parameters without gradients")


def main():
    options = dict(option.split("=", 1) for option in sys.argv[1:])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check_accumulated_means(rank)
    check_refusals()
    torch.manual_seed(100 + rank)  # rank 0's parameters count
    module = make_model()
    if rank > 0:
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
    model = gradsync.DistributedDataParallel(module, bucket_cap_mb=0.01, **options)
    dataset = make_data()
    data = DataLoader(dataset, batch_size=16, shuffle=False, sampler=DistributedSampler(dataset, size, rank))
    trainer = Trainer(model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for epoch in range(3):
        print(f"epoch {epoch} loss {trainer.run_epoch(epoch):.9f}", flush=True)
    print(f"rank {rank} weights {fingerprint(module)}", flush=True)
    model.leave()


if __name__ == "__main__":
    main()

"""Trains with PyTorch's FSDP2, on CPUs: for torch_test.py. Every rank's parameters end as those of one process."""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model, inputs, targets):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def main():
    backend = sys.argv[1]
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(4)
    inputs, targets = torch.randn(8 * size, 16, generator=generator), torch.randn(8 * size, 4, generator=generator)
    reference = make_model()
    train(reference, inputs, targets)
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.float32)):
        model = make_model()
        mesh = init_device_mesh("cpu", (size,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        train(model, inputs.chunk(size)[rank], targets.chunk(size)[rank])
        exact = policy.param_dtype is None
        for one, other in zip(reference.parameters(), model.parameters()):
            torch.testing.assert_close(other.full_tensor(), one, rtol=1e-5 if exact else 0.1, atol=1e-6 if exact else 0.05)
    print(f"rank {rank} like one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

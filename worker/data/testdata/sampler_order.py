#!/usr/bin/python3
"""What PyTorch's DistributedSampler gives, for //data:sampler_python_test.

Reads lines of dataset size, world size, rank, seed, epoch and drop_last (0 or 1) and answers each by a line of indices. Exits
with 77 where python3-torch is missing.
"""
import sys

try:
    from torch.utils.data import DistributedSampler
except ImportError as error:
    print(f"{sys.executable}: {error}", file=sys.stderr)
    sys.exit(77)

for line in sys.stdin:
    size, world_size, rank, seed, epoch, drop_last = map(int, line.split())
    sampler = DistributedSampler(range(size), world_size, rank, shuffle=True, seed=seed, drop_last=bool(drop_last))
    sampler.set_epoch(epoch)
    print(*sampler)

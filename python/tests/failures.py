"""A rank of a job in which one rank, the last, ends in a way of its own: for torch_test.py."""
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    how, where = sys.argv[1:3]
    dist.init_process_group("gradsync", timeout=timedelta(seconds=60))
    odd = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(torch.nn.Linear(256, 256)) if where == "ddp" else None
    value = torch.ones(1000)
    for step in range(1000000):
        if odd and step == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "raises":
                raise ValueError("the loss is not a number")
            elif how == "aborts":
                dist.group.WORLD.abort()
                return
            elif how == "interrupted":
                signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
                os.kill(os.getpid(), signal.SIGINT)
        if how == "interrupted" and step > 3:
            dist.all_reduce(value, async_op=True).wait()
        elif model is not None:
            model(torch.ones(4, 256)).sum().backward()
        else:
            dist.all_reduce(value)


if __name__ == "__main__":
    main()

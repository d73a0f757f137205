#!/usr/bin/env python3
"""Trains torchvision's ResNet in Python PyTorch, a few steps at a time, for //benchmarks:peers --train.

One process, or one rank of DistributedDataParallel over Gloo, on GPUs over NCCL (with one rank too). Rank 0 of a group first
prints "store HOST:PORT". Then it prints "ready VERSIONS|DEVICE|NCCL'S VERSION|WHAT NCCL WAS ASKED FOR", or "cannot run" and
why. From there on it reads lines with a number of steps, and answers each with the turn's first and last microsecond on the
host's monotonic clock. Ends at end of file.

The step is what a user would write: forward, loss, zero_grad(set_to_none=True), backward, SGD with momentum and weight
decay. Batches are made before the first step, so loading data costs nothing here; on a GPU each step copies its batch from
pinned memory, no step waits for the GPU but for GradScaler's in fp16, and a turn ends when it has done everything.
"""

import argparse
import datetime
import os
import sys
import time


def microseconds():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e3


def device_of(args, torch):
    """As //worker's --device: the GPU of the local rank unless it has a number."""
    if args.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("this Python's torch has no CUDA, or finds no GPU")
    return torch.device(args.device if ":" in args.device else f"cuda:{args.local_rank}")


def describe(args, device, torch):
    """What follows the versions in the line "ready"."""
    if device.type == "cpu":
        return "cpu||"
    version = ".".join(map(str, torch.cuda.nccl.version()))
    asked = " ".join(f"{name}={os.environ[name]}" for name in ("NCCL_ALGO", "NCCL_PROTO") if os.environ.get(name))
    return f"{device} ({torch.cuda.get_device_name(device)})|{version}|{asked}"


def join_group(args, device, torch):
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
    backend = "gloo" if device.type == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=store, rank=args.rank, world_size=args.world_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--tf32", action="store_true")
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
    try:
        device = device_of(args, torch)
    except RuntimeError as error:
        print(f"cannot run: {error}", flush=True)
        return 1
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.rank)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    model = getattr(torchvision.models, args.model)(num_classes=10).to(device=device, memory_format=layout)
    model.train()
    if args.world_size > 1 or on_gpu:
        join_group(args, device, torch)
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    grad_scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    scaler = grad_scaler(enabled=args.precision == "fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    shape = (args.batch_size, 3, args.pixels, args.pixels)
    batches = [(torch.randn(shape).contiguous(memory_format=layout), torch.randint(10, shape[:1])) for _ in range(4)]
    if on_gpu:
        batches = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    versions = f"torch {torch.__version__} torchvision {torchvision.__version__}"
    print(f"ready {versions}|{describe(args, device, torch)}", flush=True)

    done = 0
    for line in sys.stdin:
        begin = microseconds()
        for _ in range(int(line)):
            images, labels = batches[done % len(batches)]
            done += 1
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_function(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            if not on_gpu:
                loss.item()
            scaler.step(optimizer)
            scaler.update()
        if on_gpu:
            torch.cuda.synchronize(device)
        print(f"{begin:.1f} {microseconds():.1f}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # the group needs no farewell: other ranks end in their own time


if __name__ == "__main__":
    sys.exit(main())

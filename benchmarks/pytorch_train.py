#!/usr/bin/env python3
"""Trains torchvision's ResNet in Python PyTorch, a few steps at a time, for //benchmarks:peers --train.

One process, or one rank of DistributedDataParallel over Gloo, on GPUs over NCCL (with one rank too). Rank 0 of a group first
prints "store HOST:PORT". Then it prints "ready VERSIONS|DEVICE|NCCL'S VERSION|WHAT NCCL WAS ASKED FOR|SETTINGS IN FORCE", or
"cannot run" and why, in one line. From there on it reads lines with a number of steps, and answers each with the turn's first
and last microsecond on the host's monotonic clock. Ends at end of file.

The step is what a user would write: forward, loss, zero_grad(set_to_none=True), backward, SGD with momentum and weight
decay. Batches are made before the first step, so loading data costs nothing here; on a GPU each step copies its batch from
pinned memory, no step waits for the GPU but for GradScaler's in fp16, and a turn ends when it has done everything.

What a user would add to make it faster is added by --settings, a list of

  bucket_view      DDP: gradients are views of the buckets
  no_buffers       DDP: BatchNorm's statistics are not broadcast in each step
  static_graph     DDP: told that the graph never changes
  bucket_mib=N     DDP: buckets of so many MiB (bucket_cap_mb)
  fused            the optimizer in one kernel, or foreach where this version or device has no such kernel
  cudnn_benchmark  cuDNN tries its algorithms
  prefetch         batches are bytes, and another stream brings and normalises the next one during a step
  compile          torch.compile
  max_autotune     which measures kernels, too, and chooses
  graph            the whole step is captured as a CUDA graph and replayed (experimental)

Where one changes nothing (no GPU, no DDP), it is left out and not named as in force; compile and graph cannot run there.
All kernels are chosen, compiled and captured in warm-up steps before "ready".
"""

import argparse
import contextlib
import datetime
import inspect
import os
import re
import sys
import time

DDP_SETTINGS = {"bucket_view": "gradient_as_bucket_view", "static_graph": "static_graph"}
BUCKETS = "bucket_mib="
SETTINGS = (*DDP_SETTINGS, "no_buffers", "fused", "cudnn_benchmark", "prefetch", "compile", "max_autotune", "graph")


class CannotRun(Exception):
    """What was asked for is not to be had here."""


def microseconds():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e3


def device_of(args, torch):
    """As //worker's --device: the GPU of the local rank unless it has a number."""
    if args.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise CannotRun("this Python's torch has no CUDA, or finds no GPU")
    return torch.device(args.device if ":" in args.device else f"cuda:{args.local_rank}")


def describe(args, device, torch):
    """What follows the versions in the line "ready"."""
    if device.type == "cpu":
        return "cpu||"
    name = f"{device} ({torch.cuda.get_device_name(device)})"
    if backend_of(args, device) != "nccl":
        return f"{name}||"
    version = ".".join(map(str, torch.cuda.nccl.version()))
    asked = " ".join(f"{name}={os.environ[name]}" for name in ("NCCL_ALGO", "NCCL_PROTO") if os.environ.get(name))
    return f"{name}|{version}|{asked}"


def backend_of(args, device):
    if args.backend != "auto":
        return args.backend
    return "gloo" if device.type == "cpu" else "nccl"


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
    torch.distributed.init_process_group(
        backend_of(args, device), store=store, rank=args.rank, world_size=args.world_size
    )


def optimizer_of(parameters, settings, on_gpu, torch):
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    if "fused" in settings:
        settings.remove("fused")
        known = inspect.signature(torch.optim.SGD.__init__).parameters
        for name in ("fused", "foreach") if on_gpu else ("foreach",):
            if name in known:
                options[name] = True
                settings.add(name)
                break
    return torch.optim.SGD(parameters, **options)


class Batches:
    """Batches that were made beforehand; each step takes the next one."""

    def __init__(self, args, device, layout, torch):
        shape = (args.batch_size, 3, args.pixels, args.pixels)
        self.device, self.done = device, 0
        self.host = [self.make(shape, layout, torch) for _ in range(4)]
        if device.type == "cuda":
            self.host = [(images.pin_memory(), labels.pin_memory()) for images, labels in self.host]

    def make(self, shape, layout, torch):
        return torch.randn(shape).contiguous(memory_format=layout), torch.randint(10, shape[:1])

    def upload(self):
        images, labels = self.host[self.done % len(self.host)]
        self.done += 1
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def next(self):
        return self.upload()


class PrefetchedBatches(Batches):
    """As bytes, one step ahead, on a stream of their own, normalised on the GPU."""

    def __init__(self, args, device, layout, torch):
        super().__init__(args, device, layout, torch)
        self.torch, self.layout = torch, layout
        self.stream = torch.cuda.Stream(device)
        with torch.no_grad():
            self.mean = 255 * torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
            self.scale = 1 / (255 * torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1))
        self.stream.wait_stream(torch.cuda.current_stream())
        self.fetch()

    def make(self, shape, layout, torch):
        images = torch.randint(0, 256, shape, dtype=torch.uint8)
        return images.contiguous(memory_format=layout), torch.randint(10, shape[:1])

    def fetch(self):
        with self.torch.cuda.stream(self.stream), self.torch.no_grad():
            images, labels = self.upload()
            self.ahead = images.float().sub_(self.mean).mul_(self.scale), labels

    def next(self):
        current = self.torch.cuda.current_stream()
        current.wait_stream(self.stream)
        images, labels = self.ahead
        for tensor in (images, labels):
            tensor.record_stream(current)
        self.fetch()
        return images, labels


class Training:
    """A model that trains, step by step."""

    def __init__(self, args, device, settings, torch, torchvision):
        self.args, self.device, self.torch, self.settings = args, device, torch, settings
        self.on_gpu = device.type == "cuda"
        layout = torch.channels_last if args.channels_last else torch.contiguous_format
        self.dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
        torch.backends.cudnn.benchmark = "cudnn_benchmark" in settings
        model = getattr(torchvision.models, args.model)(num_classes=10).to(device=device, memory_format=layout)
        model.train()
        self.side = torch.cuda.Stream(device) if "graph" in settings else None
        # A capture demands that DDP was made, and has run, on another stream than the usual one.
        with self.on_side_stream():
            self.model = self.wrap(model)
        grad_scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        self.scaler = grad_scaler(enabled=args.precision == "fp16")
        self.optimizer = optimizer_of(self.model.parameters(), settings, self.on_gpu, torch)
        self.loss_function = torch.nn.CrossEntropyLoss()
        self.batches = (PrefetchedBatches if "prefetch" in settings else Batches)(args, device, layout, torch)
        self.graph = None

    @contextlib.contextmanager
    def on_side_stream(self):
        if self.side is None:
            yield
            return
        current = self.torch.cuda.current_stream()
        self.side.wait_stream(current)
        with self.torch.cuda.stream(self.side):
            yield
        current.wait_stream(self.side)

    def wrap(self, model):
        torch, ddp = self.torch, self.args.world_size > 1 or self.on_gpu
        whole = ddp and self.args.world_size > 1  # compiled with its hooks, cut where buckets end
        if "compile" in self.settings and not whole:
            model = self.compiled(model)
        if ddp:
            options = {name: setting in self.settings for setting, name in DDP_SETTINGS.items()}
            options["broadcast_buffers"] = "no_buffers" not in self.settings
            for setting in self.settings:
                if setting.startswith(BUCKETS):
                    options["bucket_cap_mb"] = int(setting[len(BUCKETS) :])
            model = torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[self.device.index] if self.on_gpu else None, **options
            )
        return self.compiled(model) if "compile" in self.settings and whole else model

    def compiled(self, model):
        # Not a mode with CUDA graphs of its own, which end where the optimizer begins: graph captures the whole step.
        mode = "max-autotune-no-cudagraphs" if "max_autotune" in self.settings else None
        return self.torch.compile(model, mode=mode, dynamic=False)

    def compute(self, images, labels):
        """One step on the current stream."""
        with self.torch.autocast(
            self.device.type, dtype=self.dtype or self.torch.bfloat16, enabled=self.dtype is not None
        ):
            loss = self.loss_function(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if not self.on_gpu:
            loss.item()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def step(self):
        images, labels = self.batches.next()
        if self.graph is None:
            self.compute(images, labels)
            return
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()

    def capture(self):
        torch = self.torch
        self.images, self.labels = (tensor.clone() for tensor in self.batches.next())
        torch.cuda.synchronize(self.device)
        # Else a query of an event by one of NCCL's threads would end the capture.
        known = inspect.signature(torch.cuda.graph.__init__).parameters
        options = {"capture_error_mode": "thread_local"} if "capture_error_mode" in known else {}
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=self.side, **options):
            self.compute(self.images, self.labels)
        self.graph = graph

    def warm_up(self):
        # DDP settles its buckets in the first steps, and PyTorch's documentation asks for eleven
        # before a capture.
        steps = self.args.warmup_steps or (12 if self.on_gpu else 3)
        with self.on_side_stream():
            for _ in range(max(steps, 12) if self.side else steps):
                self.step()
        if self.side is not None:
            self.capture()
            for _ in range(3):
                self.step()
        self.synchronize()

    def synchronize(self):
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)


def settings_of(args, device, torch):
    """Those of --settings that mean something here. Raises CannotRun for one that demands what is not there."""
    settings = set(filter(None, args.settings.split(",")))
    sizes = {setting for setting in settings if re.fullmatch(BUCKETS + "[1-9][0-9]*", setting)}
    if settings - sizes - set(SETTINGS) or len(sizes) > 1:
        raise CannotRun(f"--settings: expected some of {','.join(SETTINGS)},{BUCKETS}N, found {args.settings}")
    on_gpu = device.type == "cuda"
    if "compile" in settings and not hasattr(torch, "compile"):
        raise CannotRun(f"torch {torch.__version__} has no torch.compile")
    if "max_autotune" in settings and "compile" not in settings:
        raise CannotRun("max_autotune is of compile, found it alone")
    for name in ("compile", "graph"):
        if name in settings and not on_gpu:
            raise CannotRun(f"{name} is only tried on a GPU, found a CPU")
    if "graph" in settings and args.precision == "fp16":
        raise CannotRun("a step whose loss is scaled asks the GPU whether it overflowed, which no graph can hold")
    if "graph" in settings and backend_of(args, device) != "nccl":
        raise CannotRun(f"a graph cannot hold what {backend_of(args, device)} does on the host")
    if not on_gpu:
        settings -= {"cudnn_benchmark", "prefetch"}
        if args.world_size == 1:
            settings -= {*DDP_SETTINGS, "no_buffers", *sizes}
    return settings


def turns(training):
    """Answers the lines of standard input."""
    for line in sys.stdin:
        begin = microseconds()
        for _ in range(int(line)):
            training.step()
        training.synchronize()
        print(f"{begin:.1f} {microseconds():.1f}", flush=True)
    sys.stdout.flush()


def run(args):
    # torch.set_num_threads does not reach OpenBLAS, which would take all cores for every matrix product.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)
    try:
        import torch
        import torchvision
    except ImportError as error:
        raise CannotRun(f"{error}; install python3-torch and python3-torchvision") from error
    device = device_of(args, torch)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    settings = settings_of(args, device, torch)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.rank)
    if "graph" in settings:
        # Its watchdog would ask the device while a step is captured.
        os.environ["NCCL_ASYNC_ERROR_HANDLING"] = os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    if args.world_size > 1 or device.type == "cuda":
        join_group(args, device, torch)
    training = Training(args, device, settings, torch, torchvision)
    training.warm_up()
    versions = f"torch {torch.__version__} torchvision {torchvision.__version__}"
    in_force = " ".join(sorted(settings))
    print(f"ready {versions}|{describe(args, device, torch)}|{in_force}", flush=True)
    turns(training)


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
    parser.add_argument("--settings", default="", help="list, see above")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: gloo, on a GPU nccl")
    parser.add_argument("--warmup_steps", type=int, default=0, help="before \"ready\"; 0: 12 on a GPU, 3 on a CPU")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world_size", type=int, default=1)
    parser.add_argument("--master", default="", help="HOST:PORT that rank 0 printed")
    args = parser.parse_args()
    try:
        run(args)
    except Exception as error:  # a row of a table that has others
        reason = str(error) if isinstance(error, CannotRun) else f"{type(error).__name__}: {error}"
        print(f"cannot run: {' '.join(reason.split())[:500]}", flush=True)
        os._exit(1)  # the group may be stuck in what failed
    os._exit(0)  # the group needs no farewell: other ranks end in their own time


if __name__ == "__main__":
    main()

"""Data-parallel training of a PyTorch module over what torch.distributed has no words for: parameter servers, and rings that average
gradients in the library's own memory while backward still computes.

    model = gradsync.DistributedDataParallel(model, topology="ps")      # under torchrun: joins by itself
    optimizer = torch.optim.AdamW(model.parameters())                   # any one
    for inputs, targets in batches_of_this_rank:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()                         # gradients are the mean of all ranks'
        optimizer.step()
"""
import collections
import contextlib
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from .group import Group


class DistributedDataParallel(nn.Module):
    """Wraps a module on the host whose trainable parameters are fp32. Collective: all ranks wrap the same one, and then have rank 0's
    parameters and buffers.

    After each backward() every parameter's .grad is the mean over ranks, and a view of the library's memory. A backward() that adds to
    gradients which were not zeroed works as in one process. Every trainable parameter must get a gradient in each backward() that is
    not under no_sync(). state_dict() and load_state_dict() are the module's own, without a prefix.

    `group`: a Group that has no model yet; without one it joins one with `options`, those of Group. `bucket_cap_mb`: about how many MiB
    are exchanged at a time; None: 25, after a first 1. `broadcast_buffers`: each forward() in training begins with rank 0's buffers.

    Raises ValueError naming a parameter that does not fit, and Error, also in backward(), naming a rank that failed or was lost.
    """

    def __init__(self, module: nn.Module, *, group: Group | None = None, bucket_cap_mb: float | None = None,
                 broadcast_buffers: bool = True, **options):
        super().__init__()
        if group is not None and options:
            raise ValueError(f"options: expected none beside a group, found {', '.join(options)}")
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise ValueError("module: expected a trainable parameter, found none")
        for name, parameter in named:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu" or parameter.layout != torch.strided:
                raise ValueError(f"{name}: expected a dense fp32 tensor on the CPU, found {parameter.dtype} on {parameter.device}, "
                                 f"{parameter.layout}")
        self.module = module
        self.group = Group(**options) if group is None else group
        # Gradients become ready about in the reverse of the order in which parameters are registered.
        named.reverse()
        self._names = [name for name, _ in named]
        self._trainable = [parameter for _, parameter in named]
        self._exchange = self.group.bind([(name, parameter.numel()) for name, parameter in named],
                                         int((bucket_cap_mb or 0) * (1 << 20)))
        self._views = self._views_of([self._exchange.gradients(bucket) for bucket in range(self._exchange.buckets)])
        self._start_alike()
        self._broadcast_buffers = broadcast_buffers
        self._exchanging = True  # not under no_sync()
        self._tensors_of = collections.Counter(self._exchange.place(number)[0] for number in range(self._exchange.tensors))
        self._begin()
        for number, parameter in enumerate(self._trainable):
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _views_of(self, buckets: list[memoryview]) -> list[torch.Tensor]:
        """For each parameter a tensor over its place."""
        flats = [torch.frombuffer(bucket, dtype=torch.float32) for bucket in buckets]
        views = []
        for number, parameter in enumerate(self._trainable):
            bucket, offset = self._exchange.place(number)
            views.append(flats[bucket][offset:offset + parameter.numel()].view(parameter.shape))
        return views

    @torch.no_grad()
    def _start_alike(self) -> None:
        places = self._views_of([self._exchange.parameters(bucket) for bucket in range(self._exchange.buckets)])
        for place, parameter in zip(places, self._trainable):
            place.copy_(parameter)
        self._exchange.broadcast()
        for place, parameter in zip(places, self._trainable):
            parameter.copy_(place)
        frozen = [parameter for parameter in self.module.parameters() if not parameter.requires_grad]
        self._take_from_first([*frozen, *self.module.buffers()])

    @torch.no_grad()
    def _take_from_first(self, tensors: list[torch.Tensor]) -> None:
        """Makes them rank 0's, all at once."""
        tensors = [tensor for tensor in tensors if tensor.numel() > 0]
        if not tensors:
            return
        flat = torch.cat([tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
        self.group.broadcast(flat.numpy())
        offset = 0
        for tensor in tensors:
            part = flat[offset:offset + tensor.nbytes].clone()  # so that it is aligned
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
            offset += tensor.nbytes

    # ---- A step

    def _begin(self) -> None:
        self._missing = [self._tensors_of[bucket] for bucket in range(self._exchange.buckets)]
        self._arrived = [False] * self._exchange.tensors
        self._launched = 0
        self._under_way = False

    def _hook(self, number: int):
        this = weakref.ref(self)  # parameters keep their hooks, and would keep this

        def arrived(parameter: torch.Tensor) -> None:
            ddp = this()
            if ddp is not None and ddp._exchanging:
                ddp._on_gradient(number, parameter)

        return arrived

    def _on_gradient(self, number: int, parameter: torch.Tensor) -> None:
        if not self._under_way:
            self._under_way = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if self._arrived[number]:
            raise RuntimeError(f"{self._names[number]}: expected one gradient in each backward(), found a second")
        self._arrived[number] = True
        view = self._views[number]
        if parameter.grad is not view:
            with torch.no_grad():
                view.copy_(parameter.grad)
            parameter.grad = view
        self._missing[self._exchange.place(number)[0]] -= 1
        while self._launched < self._exchange.buckets and self._missing[self._launched] == 0:
            self._exchange.launch(self._launched)
            self._launched += 1

    def _finish(self) -> None:
        """At the end of backward(), before that returns."""
        if self._launched < self._exchange.buckets:
            unused = [name for name, arrived in zip(self._names, self._arrived) if not arrived]
            failure = self.group.fail(f"expected a gradient for each trainable parameter, found none for {', '.join(sorted(unused))}")
            raise failure
        for bucket in range(self._exchange.buckets):
            self._exchange.wait(bucket)
        self._begin()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, a backward() only adds to gradients; the first one after it exchanges the sum. Divide losses by the number of
        micro-batches, as with PyTorch's no_sync()."""
        before, self._exchanging = self._exchanging, False
        try:
            yield
        finally:
            self._exchanging = before

    def forward(self, *inputs, **named):
        if self._under_way:
            raise RuntimeError("forward(): expected the backward() before it to have ended, found one that broke off")
        if self._broadcast_buffers and self._exchanging and self.training and torch.is_grad_enabled():
            self._take_from_first(list(self.module.buffers()))
        return self.module(*inputs, **named)

    def leave(self) -> None:
        """Leaves the group in good order, when all ranks do."""
        self.group.leave()

    def state_dict(self, *arguments, **named):
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, *arguments, **named):
        return self.module.load_state_dict(*arguments, **named)

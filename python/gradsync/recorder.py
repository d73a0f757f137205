"""Records the steps of a PyTorch module of yours as a step profile, from which //benchmarks:predict predicts and which
//benchmarks:train_bench replays.

    with gradsync.record("mine.json", model, optimizer, batch_size=32):
        for inputs, targets in batches:  # some twenty steps, as you train anyway
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
"""
import contextlib
import json
import os
import pathlib
import shlex
import statistics
import sys
import time
from collections.abc import Iterator

import torch
from torch import nn

from ._machine import machine

MOST_ELEMENTS = 2**31 - 1  # of a tensor, in the file


class _Step:
    def __init__(self):
        self.begin = time.perf_counter()
        self.forward = self.backward = self.update = 0.0
        self.ready: dict[str, float] = {}

    def since_begin(self) -> float:
        return 1e6 * (time.perf_counter() - self.begin)


class _Recorder:
    """Follows the steps of a module by hooks. A step begins with forward(), and ends with the optimizer's step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self._names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._step: _Step | None = None
        self._update_began = 0.0
        self.steps: list[_Step] = []
        self._hooks = [model.register_forward_pre_hook(self._on_begin), model.register_forward_hook(self._on_output),
                       optimizer.register_step_pre_hook(self._on_update), optimizer.register_step_post_hook(self._on_end),
                       *(parameter.register_post_accumulate_grad_hook(self._on_gradient) for parameter in self._names)]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def numel(self) -> dict[str, int]:
        return {name: parameter.numel() for parameter, name in self._names.items()}

    def _on_begin(self, model, inputs) -> None:
        if not torch.is_grad_enabled():
            return
        if self._step is not None and self._step.ready:
            raise RuntimeError("gradsync.record: expected one forward() and one backward() in each step of the optimizer, found a second "
                               "forward()")
        self._step = _Step()

    def _on_output(self, model, inputs, output) -> None:
        if self._step is not None and torch.is_grad_enabled():
            self._step.forward = self._step.since_begin()

    def _on_gradient(self, parameter) -> None:
        step, name = self._step, self._names[parameter]
        if step is None:
            return
        if name in step.ready:
            raise RuntimeError(f"gradsync.record: {name}: expected one gradient in each step of the optimizer, found a second")
        if not step.ready:
            torch.autograd.Variable._execution_engine.queue_callback(self._on_backward)
        step.ready[name] = step.since_begin()

    def _on_backward(self) -> None:
        if self._step is not None:
            self._step.backward = self._step.since_begin() - self._step.forward

    def _on_update(self, optimizer, arguments, named) -> None:
        self._update_began = time.perf_counter()

    def _on_end(self, optimizer, arguments, named) -> None:
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("gradsync.record: expected forward() and backward() before a step of the optimizer, found none")
        step.update = 1e6 * (time.perf_counter() - self._update_began)
        unused = sorted(set(self._names.values()) - set(step.ready))
        if unused:
            raise RuntimeError(f"gradsync.record: expected a gradient for each trainable parameter in each step, found none for "
                               f"{', '.join(unused)}")
        self.steps.append(step)


def _profile(recorder: _Recorder, steps: list[_Step], about: dict[str, object]) -> dict[str, object]:
    """The median step; fields are those of proto/step_profile.proto."""
    def rounded(value):
        return round(value, 1)  # as train_bench --record has it

    forward = rounded(statistics.median(step.forward for step in steps))
    end = rounded(statistics.median(step.forward + step.backward for step in steps))
    ready = sorted((rounded(statistics.median(step.ready[name] for step in steps)), order, name)
                   for order, name in enumerate(steps[-1].ready))
    numel = recorder.numel()
    end = max([end, *(at for at, _, _ in ready)])
    backward = rounded(end - forward)
    while forward + backward < end:  # by a rounding: no gradient is ready after the end
        backward += 0.1
    return {**about, "forward_us": forward, "backward_us": rounded(backward),
            "update_us": rounded(statistics.median(step.update for step in steps)),
            "tensors": [{"name": name, "numel": numel[name], "ready_us": at} for at, _, name in ready]}


def _check(model, batch_size, warmup_steps) -> None:
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("model: expected a trainable parameter, found none")
    for name, parameter in trainable:
        if parameter.device.type != "cpu":
            raise ValueError(f"{name}: expected a parameter on the CPU, whose times the host knows, found one on {parameter.device}")
        if not 1 <= parameter.numel() <= MOST_ELEMENTS:
            raise ValueError(f"{name}: expected 1 to {MOST_ELEMENTS} elements, found {parameter.numel()}")
    if type(model).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
        raise ValueError(f"model: expected the module itself, found {type(model).__name__}, whose backward() exchanges too")
    for name, value, least in (("batch_size", batch_size, 1), ("warmup_steps", warmup_steps, 0)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, found {value}")


@contextlib.contextmanager
def record(path: str | os.PathLike, model: nn.Module, optimizer: torch.optim.Optimizer, *, batch_size: int, warmup_steps: int = 3,
           name: str | None = None) -> Iterator[None]:
    """Within, the module is trained as usual, on the CPU and in this process alone; at the end the file `path` gets the profile of the
    median step, of all but the first `warmup_steps`. `batch_size`: samples of a step. `name`: of the model; None: its class.

    The file has no blocks, which only meshes with stages and --zero=3 need. Each step has one forward() of the module, one backward() that
    gives each trainable parameter a gradient, and one step of the optimizer. The loss counts as backward.

    Raises ValueError naming what does not fit, before anything is trained; RuntimeError in a step that is another one; OSError where the
    file cannot be written. After an exception within there is no file.
    """
    _check(model, batch_size, warmup_steps)
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder {path.parent}, found none")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a file, found a folder")
    part = path.with_name(path.name + ".part")
    part.touch()  # what cannot be written is found before anything is trained
    try:
        recorder = _Recorder(model, optimizer)
        try:
            yield
        finally:
            recorder.remove()
        steps = recorder.steps[warmup_steps:]
        if not steps:
            raise ValueError(f"{path}: expected more than warmup_steps={warmup_steps} steps, found {len(recorder.steps)}")
        parameters = sum(recorder.numel().values())
        about = {
            "model": name or type(model).__name__, "origin": "measured",
            "note": f"{parameters} parameters; medians of {len(steps)} steps after {warmup_steps} others, one process; by gradsync.record()",
            "machine": machine(torch=torch.__version__), "command": shlex.join(sys.argv), "batch_size": batch_size,
            "threads": torch.get_num_threads()}
        part.write_text(json.dumps(_profile(recorder, steps, about), indent=1) + "\n", encoding="utf-8")
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise

"""What a rank of `gradsync compare` runs before its script, which knows nothing of it and is not changed.

compare puts a folder with a sitecustomize.py first in PYTHONPATH, which loads this file by its path. It imports neither PyTorch nor
gradsync: it waits until the script does, makes init_process_group() use the backend that is compared, notes when each step of the
optimizer ends, ends the script after so many steps, and leaves a file of JSON for compare. A process that the script starts finds no
orders, and runs as it would without.
"""
import atexit
import ctypes
import functools
import hashlib
import importlib.abc
import importlib.util
import inspect
import json
import os
import pathlib
import sys
import time

# Orders by compare: JSON of an object with "backend", "" being that of the script; "steps", 0 being all; "folder".
ORDERS = "GRADSYNC_COMPARE"


def result_path(folder, rank) -> pathlib.Path:
    return pathlib.Path(folder) / f"rank-{rank}.json"


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each of some modules, when that has just been imported for the first time."""

    def __init__(self, calls):
        self._calls = dict(calls)

    def find_spec(self, name, path=None, target=None):
        call = self._calls.pop(name, None)  # the other finders find it, since this one no longer knows it
        spec = None if call is None else importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            call(module)

        spec.loader.exec_module = exec_module
        return spec


class Rank:
    """This process, from before its script to the script's end."""

    def __init__(self, orders):
        self._backend, self._steps, self._folder = orders["backend"], orders["steps"], orders["folder"]
        self._process = os.getpid()
        self._asked = None  # the backend that the script named
        self._groups = 0
        self._first = None  # the optimizer whose steps count: of several the one that ends a step first
        self._optimizers = {}
        self._ends = []
        self._on_gpu = False
        self._error = None
        self._finished = False

    def start(self):
        sys.meta_path.insert(0, AfterImport({"torch.distributed.distributed_c10d": self._on_distributed,
                                             "torch.optim.optimizer": self._on_optimizers}))
        before = sys.excepthook

        def excepthook(kind, value, trace):
            text = " ".join(str(value).split())
            self._error = (time.time(), f"{kind.__name__}: {text}" if text else kind.__name__)
            before(kind, value, trace)

        sys.excepthook = excepthook
        atexit.register(self._finish)

    # ---- The backend

    def _on_distributed(self, module):
        init_process_group, new_group = module.init_process_group, module.new_group

        @functools.wraps(init_process_group)
        def init(*arguments, **named):
            bound = inspect.signature(init_process_group).bind(*arguments, **named)
            self._asked = bound.arguments.get("backend")
            self._groups += 1
            if self._backend:
                self._replace(bound, self._backend)
            return init_process_group(*bound.args, **bound.kwargs)

        @functools.wraps(new_group)
        def new(*arguments, **named):
            bound = inspect.signature(new_group).bind(*arguments, **named)
            asked = bound.arguments.get("backend")
            # A backend that is another one than the first group's has a purpose of its own.
            if self._backend and (asked is None or str(asked).lower() == str(self._asked).lower()):
                self._replace(bound, None)
            return new_group(*bound.args, **bound.kwargs)

        module.init_process_group, module.new_group = init, new

    def _replace(self, bound, backend):
        """Options and a device to connect at once are for the backend that the script has named."""
        if self._backend == "gradsync":
            import gradsync.torch  # where the entry point is not looked for
        bound.arguments["backend"] = backend
        for name in ("pg_options", "device_id"):
            bound.arguments.pop(name, None)

    # ---- Steps

    def _on_optimizers(self, module):
        module.register_optimizer_step_post_hook(self._on_step)

    def _on_step(self, optimizer, arguments, named):
        if os.getpid() != self._process:
            return
        self._optimizers.setdefault(id(optimizer), optimizer)
        if self._first is None:
            self._first = optimizer
            self._on_gpu = any(parameter.is_cuda for parameter in self._parameters())
        if optimizer is not self._first or self._finished:
            return
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())
        if self._steps and len(self._ends) == self._steps:
            self._finish(stopped=True)
            raise SystemExit(0)

    def _parameters(self):
        """Of all optimizers that have made a step, each once."""
        found = {id(parameter): parameter for optimizer in self._optimizers.values() for group in optimizer.param_groups
                 for parameter in group["params"]}
        return found.values()

    def _hash(self):
        digest = hashlib.sha256()
        for parameter in self._parameters():
            value = parameter.detach()
            if hasattr(value, "to_local"):  # a DTensor: this rank's part
                value = value.to_local()
            value = value.cpu().contiguous()
            if value.nbytes > 0:
                digest.update((ctypes.c_char * value.nbytes).from_address(value.data_ptr()))
        return digest.hexdigest()

    # ---- The end

    def _finish(self, stopped=False):
        if self._finished or os.getpid() != self._process:
            return
        self._finished = True
        torch = sys.modules.get("torch")
        result = {"rank": int(os.environ["RANK"]), "asked": None if self._asked is None else str(self._asked), "groups": self._groups,
                  "steps": len(self._ends), "stopped": stopped, "device": "cpu", "torch": str(getattr(torch, "__version__", "")),
                  "step_ms": [1000 * (end - begin) for begin, end in zip(self._ends, self._ends[1:])], "error": self._error,
                  "threads": 0 if torch is None else torch.get_num_threads()}
        if self._error is None and self._ends:
            result["params_sha256"] = self._hash()
            if self._on_gpu:
                result["device"] = torch.cuda.get_device_name()
        path = result_path(self._folder, result["rank"])
        part = path.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.rename(path)


def start() -> None:
    """In a rank of compare: follows its orders, and takes them out of the environment. Elsewhere: nothing."""
    if ORDERS in os.environ and "RANK" in os.environ:
        Rank(json.loads(os.environ.pop(ORDERS))).start()

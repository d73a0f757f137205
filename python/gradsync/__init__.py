"""gradsync: gradients of several processes averaged by ring-allreduce or parameter servers.

  Group                    a process that joins a job: collectives over numpy arrays and other buffers
  Exchange                 the gradients of one model, in buckets of the library's memory
  DistributedDataParallel  a PyTorch module whose gradients an Exchange averages
  record                   writes the step profile of a PyTorch module, from which //benchmarks:predict predicts
  Error                    what all of these raise, with the library's code and one line of text

PyTorch programs need none of them: once the package is installed, torch.distributed.init_process_group("gradsync") works. Nothing
here imports PyTorch or numpy before it is used.
"""
from ._library import Code, Error

__version__ = "0.1.0"

__all__ = ["Code", "DistributedDataParallel", "Error", "Exchange", "Group", "record"]

_HOMES = {"DistributedDataParallel": "parallel", "Exchange": "group", "Group": "group", "record": "recorder"}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'gradsync' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("." + _HOMES[name], __name__), name)


def __dir__():
    return sorted({*globals(), *__all__})

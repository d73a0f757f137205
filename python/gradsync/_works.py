"""What calls of torch.distributed return: a Work, done or on its way."""
import datetime
import sys
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

# Before 2.7 C++ keeps the half of a work that is in C++, but not the one in Python, which it asks: without that it waits for ever.
KEEP_WORKS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)


def asked_by_cpp() -> bool:
    """Whether the caller of this package is not the Python of torch.distributed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(__package__ + "."):
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") != dist.distributed_c10d.__name__


class Work(dist.Work):
    """A call that was made: done, with an error if it failed, or on its way."""

    kept: dict["Work", int] = {}  # where KEEP_WORKS: those that C++ has, with how often it is going to wait

    def __init__(self, what: str, result: list[torch.Tensor], source: int = -1):
        super().__init__()
        self.what = what
        self._result = result
        self._source = source
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._first: torch.futures.Future | None = None  # completed when this is over
        self._future = None  # which has the result or the error, and follows it
        if KEEP_WORKS and asked_by_cpp():
            Work.kept[self] = len(result)

    def finish(self, error: BaseException | None) -> None:
        """Called once, without locks: what waits for the future runs on the calling thread."""
        self._error = error
        with self._lock:
            self._over.set()
            first = self._first
        if first is not None:
            first.set_result(None)

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Blocks until it is done, for at most `timeout` where that is above zero. Raises what it failed by."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._over.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"gradsync: {self.what}: expected to be done within {seconds:g} s, found it on its way")
        if Work.kept and Work.kept.get(self, 0) <= 1:
            Work.kept.pop(self, None)
        elif Work.kept:
            Work.kept[self] -= 1
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self):
        """Its value is the list of tensors. What it failed by is an error for C++ too: only a future that follows another can have
        one from Python."""
        with self._lock:
            made = self._first is None
            if made:
                devices = sorted({tensor.device for tensor in self._result if tensor.is_cuda}, key=str)
                self._first = torch.futures.Future(devices=devices)
                self._future = self._first.then(self._outcome)
            over = self._over.is_set()
        if made and over:
            self._first.set_result(None)
        Work.kept.pop(self, None)
        return self._future

    def _outcome(self, _):
        if self._error is not None:
            raise self._error
        return self._result


class Passing(dist.Work):
    """A tensor on its way between two ranks. Gloo's own work comes when the two have met."""

    def __init__(self, what: str, tensor: torch.Tensor, source: int):
        super().__init__()
        self.what = what
        self._tensor = tensor
        self._source = source
        self._begun = threading.Event()
        self._inner: dist.Work | None = None
        self._after: Callable[[], None] | None = None
        self._error: Exception | None = None

    def begin(self, start: Callable[[], tuple[dist.Work, Callable[[], None] | None]]) -> None:
        try:
            self._inner, self._after = start()
        except Exception as error:
            self._error = self._named(error)
        self._begun.set()

    def _named(self, error: Exception) -> Exception:
        return dist.DistBackendError(f"gradsync: {self.what}: " + " ".join(str(error).split()))

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        seconds = timeout.total_seconds() if timeout else 0
        if not self._begun.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"gradsync: {self.what}: expected the other rank within {seconds:g} s, found none")
        if self._error is None:
            try:
                self._inner.wait(timeout) if seconds > 0 else self._inner.wait()
            except Exception as error:
                self._error = self._named(error)
        if self._error is not None:
            raise self._error
        after, self._after = self._after, None
        if after is not None:
            after()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._begun.is_set() and (self._error is not None or self._inner.is_completed())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return [self._tensor]

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


class Together(dist.Work):
    """Several calls as one."""

    def __init__(self, works: list[Work | Passing]):
        super().__init__()
        self._works = works

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        return all([work.wait(timeout) for work in self._works])

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((work.exception() for work in self._works if work.exception() is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self):
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(lambda _: self.result())

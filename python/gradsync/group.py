"""Collectives, and the exchange of a model's gradients, over any buffers: numpy arrays, array.array, bytearray, memoryview.

    with gradsync.Group(topology="ring") as group:      # under torchrun, Slurm or MPI, which say who this process is
        values = numpy.arange(4.0) * group.rank
        group.all_reduce(values, op="avg")              # in place

Buffers are contiguous, in this process's memory, and of the same size on all ranks where nothing else is said. All calls block
until they are done here, are made in the same order by all ranks, and raise Error when a rank fails or is lost, naming it; then
the group is over. A group is used by one thread at a time, but for fail().
"""
import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence

from . import _library
from ._library import BYTES, Op, Tensor, Type, check, library

# By the struct module's names of what elements are.
_FORMATS = {"f": Type.FLOAT32, "d": Type.FLOAT64, "e": Type.FLOAT16, "b": Type.INT8, "B": Type.UINT8, "c": Type.UINT8,
            "h": Type.INT16, "i": Type.INT32, "?": Type.BOOL}
_SIGNED = "bhilqn"


def _bytes_of(what: str, buffer, writable: bool) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError(f"{what}: expected a contiguous buffer, found one with strides {view.strides}")
    if writable and view.readonly:
        raise ValueError(f"{what}: expected a buffer that can be written to, found one that cannot")
    return view


def _address(view: memoryview):
    """The memory of a contiguous view, as ctypes passes it on; where it cannot be written to, a copy of it."""
    if view.nbytes == 0:
        return None
    array = ctypes.c_char * view.nbytes
    return array.from_buffer_copy(view) if view.readonly else array.from_buffer(view)


def _type_of(what: str, view: memoryview, dtype) -> Type:
    if dtype is not None:
        name = str(getattr(dtype, "name", dtype)).upper()
        if name not in Type.__members__:
            raise ValueError(f"{what}: expected a dtype of {', '.join(Type.__members__).lower()}, found {dtype}")
        return Type[name]
    letter = view.format.lstrip("@=<")
    if letter in _FORMATS:
        return _FORMATS[letter]
    if letter and letter in _SIGNED:
        return {8: Type.INT64, 4: Type.INT32}[view.itemsize]
    raise ValueError(f"{what}: expected elements of {', '.join(Type.__members__).lower()}, found the format {view.format!r}; "
                     "dtype= says what they are")


def _op_of(op: str) -> Op:
    if str(op).upper() not in Op.__members__:
        raise ValueError(f"op: expected {', '.join(Op.__members__).lower()}, found {op!r}")
    return Op[str(op).upper()]


def ending() -> str | None:
    """Why this process ends, if that is an exception that nobody caught; None while it does not."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return None
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Life:
    """Whether a group is over, and its end when nobody has ended it: apart from the group, which is not there then."""

    def __init__(self, group):
        self.group = group
        self.process = os.getpid()
        self.over = False

    def end(self):
        if os.getpid() != self.process:
            return  # a fork, which has none of the library's threads
        if not self.over:
            reason = ending()
            if reason is None:
                library().gradsync_leave(self.group)
            else:
                library().gradsync_fail(self.group, reason.encode())
        library().gradsync_free(self.group)


class Group:
    """A process that has joined a job.

    `options` are those of gradsync/options.h, with the same defaults: rank, world_size and master (the launcher's environment says
    them if they are not given), topology, link, servers, num_servers, owners, compression, connections, timeout, failure_timeout,
    interface, secret, insecure, run_id; times are numbers of seconds, timedeltas or text such as "30s". `on_listening` is called on
    rank 0, with the address that it listens at: what the others give as `master` where rank 0 gives port 0. Blocks until all ranks
    have come, for at most `timeout`.

    As a context manager it leaves in good order, or, where an exception leaves it, fails the group with that as the reason. The
    same happens to one that is still there when the process ends.
    """

    def __init__(self, *, on_listening: Callable[[str], None] | None = None, **options):
        self._group = _library.join(options, on_listening)
        self._life = _Life(self._group)
        self._exchange = None
        weakref.finalize(self, self._life.end)

    @property
    def rank(self) -> int:
        return library().gradsync_rank(self._group)

    @property
    def world_size(self) -> int:
        return library().gradsync_world_size(self._group)

    def all_reduce(self, buffer, op: str = "sum", dtype=None) -> None:
        """Combines all ranks' elements, in place: op is sum, avg, product, min, max, band, bor or bxor."""
        view = _bytes_of("buffer", buffer, writable=True)
        kind = _type_of("buffer", view, dtype)
        check(library().gradsync_all_reduce(self._group, _address(view), view.nbytes // BYTES[kind], kind, _op_of(op)))

    def broadcast(self, buffer, root: int = 0) -> None:
        """Copies the buffer of `root` to all ranks."""
        view = _bytes_of("buffer", buffer, writable=True)
        check(library().gradsync_broadcast_bytes(self._group, _address(view), view.nbytes, root))

    def all_gather(self, source, target) -> None:
        """Copies all ranks' `source`, in the order of ranks, to `target`, which has room for them. The source may be this rank's place
        there."""
        given = _bytes_of("source", source, writable=False)
        taken = _bytes_of("target", target, writable=True)
        if taken.nbytes != given.nbytes * self.world_size:
            raise ValueError(f"target: expected {given.nbytes * self.world_size} bytes, found {taken.nbytes}")
        check(library().gradsync_all_gather(self._group, _address(given), _address(taken), given.nbytes))

    def reduce_scatter(self, source, target, op: str = "sum", dtype=None) -> None:
        """Combines all ranks' `source`, and leaves the rank-th of as many equal parts in `target`, which may be that part."""
        given = _bytes_of("source", source, writable=False)
        taken = _bytes_of("target", target, writable=True)
        if given.nbytes != taken.nbytes * self.world_size:
            raise ValueError(f"source: expected {taken.nbytes * self.world_size} bytes, found {given.nbytes}")
        kind = _type_of("target", taken, dtype)
        check(library().gradsync_reduce_scatter(self._group, _address(given), _address(taken), taken.nbytes // BYTES[kind], kind,
                                                _op_of(op)))

    def all_to_all(self, source, target, source_bytes: Sequence[int] | None = None,
                   target_bytes: Sequence[int] | None = None) -> None:
        """Sends the r-th part of `source` to rank r, and receives the r-th part of `target` from it: of as many bytes as the lists
        say, or equal parts."""
        given = _bytes_of("source", source, writable=False)
        taken = _bytes_of("target", target, writable=True)
        ranks = self.world_size
        parts = []
        for what, view, sizes in [("source", given, source_bytes), ("target", taken, target_bytes)]:
            sizes = [view.nbytes // ranks] * ranks if sizes is None else list(sizes)
            if len(sizes) != ranks or sum(sizes) != view.nbytes or min(sizes) < 0:
                raise ValueError(f"{what}_bytes: expected {ranks} sizes, {view.nbytes} bytes in all, found {sizes}")
            parts.append((ctypes.c_int64 * ranks)(*sizes))
        check(library().gradsync_all_to_all(self._group, _address(given), parts[0], _address(taken), parts[1]))

    def send(self, buffer, to: int) -> None:
        """Sends to a rank, which receives as many bytes."""
        view = _bytes_of("buffer", buffer, writable=False)
        check(library().gradsync_send(self._group, _address(view), view.nbytes, to))

    def recv(self, buffer, source: int) -> None:
        """Receives what a rank sends."""
        view = _bytes_of("buffer", buffer, writable=True)
        check(library().gradsync_recv(self._group, _address(view), view.nbytes, source))

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        check(library().gradsync_barrier(self._group))

    def bind(self, tensors: Iterable[tuple[str, int]], bucket_bytes: int = 0) -> "Exchange":
        """The exchange of one model's gradients, once per group: names and sizes in elements, in the order in which gradients become
        ready. `bucket_bytes`: about how many are exchanged at a time; 0: 25 MiB, after a first bucket of 1 MiB."""
        named = [(name.encode(), numel) for name, numel in tensors]
        array = (Tensor * len(named))(*[Tensor(name, numel) for name, numel in named])
        check(library().gradsync_bind(self._group, array, len(named), bucket_bytes))
        self._exchange = Exchange(self, len(named))
        return self._exchange

    def fail(self, reason: str) -> _library.Error:
        """Ends the job for all ranks, from any thread. Returns what the group agreed on, which names the first cause."""
        self._life.over = True
        code = library().gradsync_fail(self._group, " ".join(reason.split()).encode())
        return _library.Error(code, library().gradsync_error().decode("utf-8", "replace"))

    def leave(self) -> None:
        """Leaves in good order, when all ranks do."""
        self._life.over = True
        check(library().gradsync_leave(self._group))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self._life.over:
            return
        if error is None:
            self.leave()
        else:
            self.fail(f"{kind.__name__}: {error}")


class Exchange:
    """The gradients of one model, in buckets: memory of the library, where ranks average them while backward still computes.

        exchange = group.bind([("weight", 4096), ("bias", 64)])
        each step:  write to exchange.gradient(i); exchange.launch(b) for each bucket in order, as it is complete;
                    exchange.wait(b) for each: then its gradients are the mean of all ranks'
    """

    def __init__(self, group: Group, tensors: int):
        self._owner = group
        self._group = group._group
        self.buckets: int = library().gradsync_buckets(self._group)
        self.tensors = tensors
        self._places = [self._place(tensor) for tensor in range(tensors)]

    def _place(self, tensor: int) -> tuple[int, int]:
        bucket, offset = ctypes.c_int(), ctypes.c_int64()
        check(library().gradsync_place(self._group, tensor, ctypes.byref(bucket), ctypes.byref(offset)))
        return bucket.value, offset.value

    def place(self, tensor: int) -> tuple[int, int]:
        """In which bucket a tensor lies, by its number in bind()'s list, and from which element on."""
        return self._places[tensor]

    def _view(self, address: int, bucket: int) -> memoryview:
        array = (ctypes.c_float * library().gradsync_bucket_numel(self._group, bucket)).from_address(address)
        array.owner = self._owner  # whoever has the memory has the group
        return memoryview(array).cast("B").cast("f")

    def _check(self, bucket: int) -> None:
        if not 0 <= bucket < self.buckets:
            raise IndexError(f"bucket: expected 0 to {self.buckets - 1}, found {bucket}")

    def gradients(self, bucket: int) -> memoryview:
        """A bucket's gradients, fp32. What lies between tensors stays zero. numpy.asarray() and torch.frombuffer() take it."""
        self._check(bucket)
        return self._view(library().gradsync_bucket_gradients(self._group, bucket), bucket)

    def parameters(self, bucket: int) -> memoryview:
        """A bucket's parameters, for broadcast()."""
        self._check(bucket)
        return self._view(library().gradsync_bucket_parameters(self._group, bucket), bucket)

    def broadcast(self) -> None:
        """Between steps: all ranks' parameters become rank 0's."""
        check(library().gradsync_broadcast(self._group))

    def launch(self, bucket: int) -> None:
        """Begins to exchange a bucket whose gradients are complete: in order, each once a step. Waits for nobody."""
        check(library().gradsync_launch(self._group, bucket))

    def wait(self, bucket: int) -> None:
        """Blocks until the bucket's gradients are the mean of all ranks'."""
        check(library().gradsync_wait(self._group, bucket))

"""The backend of torch.distributed: a process group whose collectives are the library's.

It is a subclass of torch.distributed.ProcessGroup in Python, which C++ (DistributedDataParallel's reducer, functional collectives)
calls by PyTorch's own trampolines, under the old names of methods and, from 2.13 on, the new ones. So one file serves every version
of PyTorch, and nothing here is compiled against any.

A group's collectives run in the order of their calls: on a thread of the group, without the interpreter's lock, or, where the caller
waits anyhow and nothing is before it, on the caller's. What two ranks send each other goes over Gloo.
"""
import collections
import ctypes
import datetime
import hashlib
import logging
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from . import _library
from ._library import Op, Type, check, library
from .group import ending
from .torch import NAME

# Options of the library that a user chooses, by GRADSYNC_TOPOLOGY and so on or by a dict as pg_options. The others follow from what
# PyTorch says of the group.
OPTIONS = ("topology", "link", "owners", "connections", "interface", "failure_timeout")

# How long the end of a process that has not destroyed its groups waits for the other ranks to come to theirs.
EXIT_PATIENCE = datetime.timedelta(seconds=10)

TYPES = {torch.float32: Type.FLOAT32, torch.float64: Type.FLOAT64, torch.float16: Type.FLOAT16, torch.bfloat16: Type.BFLOAT16,
         torch.int8: Type.INT8, torch.uint8: Type.UINT8, torch.int16: Type.INT16, torch.int32: Type.INT32, torch.int64: Type.INT64,
         torch.bool: Type.BOOL}
LINEAR = (Op.SUM, Op.AVG)

# Before 2.7 C++ keeps the half of a work that is in C++, but not the one in Python, which it asks: without that it waits for ever.
KEEP_WORKS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)

log = logging.getLogger("gradsync")


class Calls:
    """Runs calls one after the other. Thread-safe."""

    def __init__(self, name: str):
        self._changed = threading.Condition()
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, call: Callable[[], None]) -> None:
        """Has the thread run it, after those before it."""
        with self._changed:
            self._waiting.append(call)
            self._changed.notify()

    def run(self, call: Callable[[], None]) -> None:
        """The same, but on this thread where nothing is before it."""
        with self._changed:
            if self._busy or self._waiting:
                self._waiting.append(call)
                self._changed.notify()
                return
            self._busy = True
        try:
            call()
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify()

    def close(self, last: Callable[[], None]) -> None:
        """Ends the thread once it has run all calls, and `last` after them."""

        def end():
            last()
            raise SystemExit  # ends the thread alone, without a word

        self.add(end)

    def are_mine(self) -> bool:
        """Whether they run on the calling thread."""
        return threading.current_thread() is self._thread

    def join(self, patience: float) -> None:
        if not self.are_mine():
            self._thread.join(patience)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._waiting:
                    self._changed.wait()
                call = self._waiting.popleft()
                self._busy = True
            try:
                call()
            finally:
                call = None  # what it has is not kept until the next one
                with self._changed:
                    self._busy = False


class Ranks:
    """The library's side of a group. One thread at a time, but for fail()."""

    def __init__(self, options: Mapping[str, object], on_listening: Callable[[str], None] | None = None):
        self._group = _library.join(options, on_listening)
        self.key = hashlib.sha256(str(options["secret"]).encode()).hexdigest()[:16]  # of no other group

    def all_reduce(self, data: torch.Tensor, kind: Type, op: Op) -> None:
        check(library().gradsync_all_reduce(self._group, data.data_ptr(), data.numel(), kind, op))

    def broadcast(self, data: torch.Tensor, root: int) -> None:
        check(library().gradsync_broadcast_bytes(self._group, data.data_ptr(), data.nbytes, root))

    def all_gather(self, source: torch.Tensor, target: torch.Tensor) -> None:
        check(library().gradsync_all_gather(self._group, source.data_ptr(), target.data_ptr(), source.nbytes))

    def reduce_scatter(self, source: torch.Tensor, target: torch.Tensor, kind: Type, op: Op) -> None:
        check(library().gradsync_reduce_scatter(self._group, source.data_ptr(), target.data_ptr(), target.numel(), kind, op))

    def all_to_all(self, source: torch.Tensor, source_bytes: list[int], target: torch.Tensor, target_bytes: list[int]) -> None:
        sizes = ctypes.c_int64 * len(source_bytes)
        check(library().gradsync_all_to_all(self._group, source.data_ptr(), sizes(*source_bytes), target.data_ptr(),
                                            sizes(*target_bytes)))

    def barrier(self) -> None:
        check(library().gradsync_barrier(self._group))

    def fail(self, reason: str) -> None:
        library().gradsync_fail(self._group, reason.encode())

    def leave(self) -> None:
        check(library().gradsync_leave(self._group))

    def free(self) -> None:
        library().gradsync_free(self._group)


class Alone:
    """The same of a group of one rank, which has nobody to meet."""

    def all_reduce(self, data, kind, op):
        pass

    def broadcast(self, data, root):
        pass

    def all_gather(self, source, target):
        target.view(-1).copy_(source.view(-1))

    def reduce_scatter(self, source, target, kind, op):
        target.view(-1).copy_(source.view(-1))

    def all_to_all(self, source, source_bytes, target, target_bytes):
        target.view(-1).copy_(source.view(-1))

    def barrier(self):
        pass

    def fail(self, reason):
        pass

    leave = free = barrier


def asked_by_cpp() -> bool:
    """Whether the caller of this module is not the Python of torch.distributed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") != dist.distributed_c10d.__name__


class Work(dist.Work):
    """A call that was made: done, with an error if it failed, or on its way."""

    kept: dict["Work", int] = {}  # where KEEP_WORKS: those that C++ has, with how often it is going to wait

    def __init__(self, what: str, result: list[torch.Tensor], source: int = -1):
        super().__init__()
        self._what = what
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
            raise dist.DistBackendError(f"gradsync: {self._what}: expected to be done within {seconds:g} s, found it on its way")
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


class Together(Work):
    """Several calls as one."""

    def __init__(self, works: list[Work]):
        super().__init__("coalesced calls", [tensor for work in works for tensor in work.result()])
        self._works = works
        self._left = len(works) + 1
        for work in works:
            work.get_future().then(lambda _: self._count())
        self._count()

    def _count(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self.finish(next((work.exception() for work in self._works if work.exception() is not None), None))


class Passing(dist.Work):
    """A tensor on its way between two ranks. Gloo's own work comes when the two have met."""

    def __init__(self, what: str, tensor: torch.Tensor, source: int):
        super().__init__()
        self._what = what
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
        return dist.DistBackendError(f"gradsync: {self._what}: " + " ".join(str(error).split()))

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        seconds = timeout.total_seconds() if timeout else 0
        if not self._begun.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"gradsync: {self._what}: expected the other rank within {seconds:g} s, found none")
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


def connected_anew(store: dist.Store) -> dist.Store:
    """The store under prefixes, with a connection of its own where it is one over TCP, on which a thread that waits for a key holds up
    all others."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return dist.TCPStore(store.host, store.port, is_master=False, timeout=store.timeout, wait_for_workers=False)
    return store


class Pair:
    """This rank and another one: Gloo between the two, from the first time that both have something for the other. A thread meets,
    so that ranks which send and receive in both directions, or round a ring, do not wait for each other."""

    def __init__(self, store: dist.Store, key: str, rank: int, other: int, timeout: datetime.timedelta):
        low, high = sorted((rank, other))
        self._store = store
        self._key = f"gradsync/{key}/{low}/{high}"
        self._rank = int(rank == high)
        self._timeout = timeout
        self._gloo = None
        self._calls = Calls(f"gradsync to rank {other}")

    def pass_on(self, work: Passing, start: Callable[[object, int], tuple[dist.Work, Callable[[], None] | None]]) -> None:
        def begin():
            if self._gloo is None:
                store = dist.PrefixStore(self._key, connected_anew(self._store))
                self._gloo = dist.ProcessGroupGloo(store, self._rank, 2, timeout=self._timeout)
            return start(self._gloo, 1 - self._rank)

        self._calls.add(lambda: work.begin(begin))

    def close(self) -> None:
        def drop():
            self._gloo = None

        self._calls.close(drop)
        self._calls.join(EXIT_PATIENCE.total_seconds())


class Engine:
    """What a group runs on, apart from the object that PyTorch knows, so that its end comes when nobody has that any more."""

    def __init__(self, name: str):
        self.calls = Calls(name)
        self.ranks: Ranks | Alone = Alone()
        self.pairs: dict[int, Pair] = {}
        self.over = ""  # why no more calls are taken
        self._process = os.getpid()

    def submit(self, work: Work, call: Callable[[], None], here: bool = False) -> Work:
        """Runs `call` after all calls before it; `here`: the caller waits for it, so this thread may."""

        if self.over:
            work.finish(dist.DistBackendError(f"gradsync: {work._what}: {self.over}"))
            return work

        def run():
            error = None
            try:
                with torch.no_grad():
                    call()
            except _library.Error as failure:
                error = dist.DistBackendError(f"gradsync: {work._what}: {failure}")
            except BaseException as failure:
                error = failure
            work.finish(error)

        (self.calls.run if here else self.calls.add)(run)
        return work

    def leave(self, patience: datetime.timedelta | None = None) -> None:
        """Leaves in good order, when all ranks do, for which it waits for `patience`; then it fails the group instead."""
        if self._end("the process group was destroyed"):
            return
        left = threading.Event()

        def leave():
            try:
                self.ranks.leave()
            except _library.Error as error:
                log.warning("gradsync: the group did not end in good order: %s", error)
            left.set()

        if self.calls.are_mine():  # the last who had the process group was a call
            leave()
        else:
            self.calls.add(leave)
        if not left.wait(None if patience is None else patience.total_seconds()):
            self.ranks.fail("this rank has ended, and had waited for the others to leave too")
        self._close()

    def abort(self, reason: str) -> None:
        """Ends the group for all ranks."""
        if self._end("the process group was aborted: " + reason):
            return
        self.ranks.fail(" ".join(reason.split()))
        self._close()

    def end(self) -> None:
        """When the process group is gone or the process ends, and nobody has destroyed it. (torch.distributed before 2.7 tells a
        group in Python nothing when it is destroyed, but drops it.)"""
        if os.getpid() != self._process or self.over:
            return  # a fork has none of the threads
        reason = ending()
        if reason is not None:
            self.abort(reason)
        else:
            self.leave(None if threading.main_thread().is_alive() else EXIT_PATIENCE)

    def _end(self, why: str) -> bool:
        earlier, self.over = self.over, self.over or why
        return bool(earlier)

    def _close(self) -> None:
        # A thread must not be in Gloo when the interpreter ends.
        for pair in self.pairs.values():
            pair.close()
        self.calls.close(self.ranks.free)
        self.calls.join(EXIT_PATIENCE.total_seconds())


def reduction_of(options) -> tuple[Op, object]:
    """The operation, and what each rank's elements are multiplied by before it; None: nothing."""
    if options is None:
        return Op.SUM, None
    kind, factor = options.reduceOp.__getstate__()
    if kind.name == "PREMUL_SUM":
        return Op.SUM, factor
    if kind.name not in Op.__members__:
        raise ValueError(f"gradsync: expected an operation of {', '.join(Op.__members__)} and PREMUL_SUM, found {kind.name}")
    return Op[kind.name], None


def type_of(what: str, tensor: torch.Tensor, op: Op) -> Type:
    """What the library takes the tensor's elements for: a complex one is two."""
    dtype = tensor.dtype
    if dtype.is_complex and op in LINEAR:
        dtype = dtype.to_real()
    if tensor.layout != torch.strided or dtype not in TYPES:
        raise ValueError(f"gradsync: {what}: expected a dense tensor of {', '.join(str(each)[6:] for each in TYPES)}, or for sums a "
                         f"complex one, found {tensor.dtype}" + ("" if tensor.layout == torch.strided else f", {tensor.layout}"))
    return TYPES[dtype]


def dense(what: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(f"gradsync: {what}: expected a dense tensor, found {tensor.layout}")


def is_flat(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it, contiguous and on the host."""
    return tensor if is_flat(tensor) else tensor.detach().to("cpu").contiguous()


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or as much room on the host."""
    return tensor if is_flat(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)


def bring_back(host: torch.Tensor, tensor: torch.Tensor) -> None:
    if host is not tensor:
        tensor.copy_(host)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def multiplied(tensor: torch.Tensor, factor) -> torch.Tensor:
    """A new tensor, unless there is no factor."""
    if factor is None:
        return tensor
    return tensor * (factor.to("cpu") if isinstance(factor, torch.Tensor) else factor)


class ProcessGroup(dist.ProcessGroup):
    """What init_process_group("gradsync") and new_group() make. Methods are those of torch.distributed.ProcessGroup; each returns a
    Work, whose wait() raises DistBackendError, with the library's text, which names a rank that failed or was lost."""

    # Asked of a backend, which this is too.
    supports_splitting = False
    supports_coalescing = False

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, options: Mapping[str, object]):
        super().__init__(rank, size)
        self._own_rank, self._own_size = rank, size
        self._own_store, self._own_timeout = store, timeout
        self._own_name = ""
        self._made = 0
        self._together: list[Work] | None = None
        self._engine = Engine("gradsync")
        self._pair_lock = threading.Lock()
        if size > 1:
            engine = self._engine

            def meet():
                engine.ranks = meet_others(store, rank, size, timeout, options)

            # On its thread: a signal ends the wait here.
            engine.submit(Work("init_process_group", []), meet).wait()
        weakref.finalize(self, self._engine.end)

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._own_name = name

    def getGroupName(self) -> str:
        return self._own_name

    @property
    def group_name(self) -> str:
        return self._own_name

    def _get_backend(self, device=None) -> "ProcessGroup":
        return self

    def get_backend(self, device=None) -> "ProcessGroup":
        return self

    def supports_tensor_alloc(self, device) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._made

    def _set_sequence_number_for_group(self) -> None:
        pass

    def set_timeout(self, timeout) -> None:
        raise NotImplementedError("gradsync: the timeout is what init_process_group() or new_group() was given")

    def shutdown(self) -> None:
        self._engine.leave()

    def abort(self) -> None:
        self._engine.abort("abort() was called")

    # ---- How calls are made

    def _submit(self, what: str, call: Callable[[], None], result: list[torch.Tensor], options, tensors=()) -> Work:
        """`tensors`: others that the call reads. Those on a GPU are ready when the caller's stream comes to this point, and what the
        call has written to them is there when it is over."""
        self._made += 1
        devices = {tensor.device for tensor in [*result, *tensors] if tensor.is_cuda}
        if devices:
            call = self._after_streams(call, devices)
        work = Work(what, result)
        here = self._together is None and getattr(options, "asyncOp", True) is False
        self._engine.submit(work, call, here)
        if self._together is not None:
            self._together.append(work)
        return work

    @staticmethod
    def _after_streams(call: Callable[[], None], devices: set[torch.device]) -> Callable[[], None]:
        events = [torch.cuda.current_stream(device).record_event() for device in devices]

        def run():
            for event in events:
                event.synchronize()
            call()
            for device in devices:
                torch.cuda.current_stream(device).synchronize()

        return run

    def _start_coalescing(self, device=None) -> None:
        self._together = []

    def _end_coalescing(self, device=None) -> Work:
        works, self._together = self._together or [], None
        return Together(works)

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # ---- Collectives

    def _reduce(self, tensor: torch.Tensor, kind: Type, op: Op, factor) -> None:
        host = on_host(tensor)
        flat = as_real(host)
        if factor is not None:
            flat.copy_(multiplied(flat, factor))
        self._engine.ranks.all_reduce(flat, kind, op)
        bring_back(host, tensor)

    def allreduce(self, tensors, opts=None):
        op, factor = reduction_of(opts)
        kinds = [type_of("all_reduce", tensor, op) for tensor in tensors]

        def call():
            for tensor, kind in zip(tensors, kinds):
                self._reduce(tensor, kind, op, factor)

        return self._submit("all_reduce", call, tensors, opts)

    def allreduce_coalesced(self, tensors, opts=None):
        """Those of a type in one."""
        op, factor = reduction_of(opts)
        kinds = [type_of("all_reduce_coalesced", tensor, op) for tensor in tensors]

        def call():
            if len(tensors) == 1:
                self._reduce(tensors[0], kinds[0], op, factor)
                return
            by_kind: dict[Type, list[torch.Tensor]] = {}
            for tensor, kind in zip(tensors, kinds):
                by_kind.setdefault(kind, []).append(tensor)
            for kind, alike in by_kind.items():
                hosts = [on_host(tensor) for tensor in alike]
                flat = multiplied(torch.cat([as_real(host).reshape(-1) for host in hosts]), factor)
                self._engine.ranks.all_reduce(flat, kind, op)
                for tensor, part in zip(alike, flat.split([as_real(host).numel() for host in hosts])):
                    as_real(tensor).copy_(part.view(as_real(tensor).shape))

        return self._submit("all_reduce_coalesced", call, tensors, opts)

    def broadcast(self, tensors, opts=None):
        root = 0 if opts is None else opts.rootRank
        for tensor in tensors:
            dense("broadcast", tensor)

        def call():
            for tensor in tensors:
                host = on_host(tensor)
                self._engine.ranks.broadcast(host, root)
                bring_back(host, tensor)

        return self._submit("broadcast", call, tensors, opts)

    def _gather_all(self, targets: list[torch.Tensor], source: torch.Tensor) -> None:
        """A tensor of each rank; where their sizes differ, one after the other."""
        ranks = self._engine.ranks
        if any(target.numel() != targets[0].numel() for target in targets):
            bring_back(source, targets[self._own_rank])
            for root, target in enumerate(targets):
                host = on_host(target)
                ranks.broadcast(host, root)
                bring_back(host, target)
            return
        flat = torch.empty(source.numel() * len(targets), dtype=source.dtype)
        ranks.all_gather(on_host(source), flat)
        for target, part in zip(targets, flat.split(source.numel()) if source.numel() else ()):
            target.copy_(part.view(target.shape))

    def _check_lists(self, what: str, lists, tensors, whole: str) -> None:
        if len(lists) != len(tensors) or any(len(each) != self._own_size for each in lists):
            raise ValueError(f"gradsync: {what}: expected {self._own_size} {whole} for each tensor, found {[len(each) for each in lists]}")
        for each, tensor in zip(lists, tensors):
            for other in [tensor, *each]:
                dense(what, other)
                if other.dtype != tensor.dtype:
                    raise ValueError(f"gradsync: {what}: expected tensors of one type, found {tensor.dtype} and {other.dtype}")

    def allgather(self, output_tensors, input_tensors, opts=None):
        self._check_lists("all_gather", output_tensors, input_tensors, "outputs")
        for targets, source in zip(output_tensors, input_tensors):
            if targets[self._own_rank].numel() != source.numel():
                raise ValueError(f"gradsync: all_gather: expected an output of {source.numel()} elements for this rank, found "
                                 f"{targets[self._own_rank].numel()}")

        def call():
            for targets, source in zip(output_tensors, input_tensors):
                self._gather_all(targets, source)

        return self._submit("all_gather", call, [tensor for each in output_tensors for tensor in each], opts, input_tensors)

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        return self.allgather([list(each) for each in zip(*output_lists)], input_list, opts)

    def _check_sizes(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        dense(what, whole)
        dense(what, part)
        if whole.numel() != part.numel() * self._own_size or whole.dtype != part.dtype:
            raise ValueError(f"gradsync: {what}: expected {part.numel() * self._own_size} elements of {part.dtype} for {self._own_size} "
                             f"ranks, found {whole.numel()} of {whole.dtype}")

    def all_gather_single_coalesced(self, output_tensors, input_tensors, opts=None):
        for target, source in zip(output_tensors, input_tensors):
            self._check_sizes("all_gather_into_tensor", target, source)

        def call():
            for target, source in zip(output_tensors, input_tensors):
                host = room_for(target)
                # Memory that they share is this rank's part of the target.
                self._engine.ranks.all_gather(on_host(source), host)
                bring_back(host, target)

        return self._submit("all_gather_into_tensor", call, output_tensors, opts, input_tensors)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output_tensor, input_tensor, opts=None):
        return self.all_gather_single_coalesced([output_tensor], [input_tensor], opts)

    _allgather_base = all_gather_single

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        op, factor = reduction_of(opts)
        self._check_lists("reduce_scatter", input_tensors, output_tensors, "inputs")
        kinds = [type_of("reduce_scatter", tensor, op) for tensor in output_tensors]

        def call():
            ranks = self._engine.ranks
            for target, sources, kind in zip(output_tensors, input_tensors, kinds):
                parts = [multiplied(as_real(on_host(source)), factor).reshape(-1) for source in sources]
                if all(part.numel() == parts[0].numel() for part in parts):
                    flat = torch.empty(parts[0].numel(), dtype=parts[0].dtype)
                    ranks.reduce_scatter(torch.cat(parts), flat, kind, op)
                else:
                    for part in (parts := [part.clone() for part in parts]):
                        ranks.all_reduce(part, kind, op)
                    flat = parts[self._own_rank]
                as_real(target).copy_(flat.view(as_real(target).shape))

        return self._submit("reduce_scatter", call, output_tensors, opts, [tensor for each in input_tensors for tensor in each])

    def reduce_scatter_single_coalesced(self, output_tensors, input_tensors, opts=None):
        op, factor = reduction_of(opts)
        for target, source in zip(output_tensors, input_tensors):
            self._check_sizes("reduce_scatter_tensor", source, target)
        kinds = [type_of("reduce_scatter_tensor", tensor, op) for tensor in output_tensors]

        def call():
            for target, source, kind in zip(output_tensors, input_tensors, kinds):
                host = room_for(target)  # or this rank's part of the source
                self._engine.ranks.reduce_scatter(multiplied(as_real(on_host(source)), factor), as_real(host), kind, op)
                bring_back(host, target)

        return self._submit("reduce_scatter_tensor", call, output_tensors, opts, input_tensors)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output_tensor, input_tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output_tensor], [input_tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce(self, tensors, opts=None):
        """An all-reduce, of which only the root takes the result."""
        op, factor = reduction_of(opts)
        root = 0 if opts is None else opts.rootRank
        kinds = [type_of("reduce", tensor, op) for tensor in tensors]

        def call():
            for tensor, kind in zip(tensors, kinds):
                self._reduce(tensor if self._own_rank == root else tensor.detach().clone(), kind, op, factor)

        return self._submit("reduce", call, tensors, opts)

    def _exchange(self, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """A tensor to and from each rank; with no elements: none."""
        hosts = [as_real(on_host(source)).reshape(-1).view(torch.uint8) for source in sources]
        flat = torch.empty(sum(target.nbytes for target in targets), dtype=torch.uint8)
        self._engine.ranks.all_to_all(torch.cat(hosts), [host.numel() for host in hosts], flat, [target.nbytes for target in targets])
        for target, part in zip(targets, flat.split([target.nbytes for target in targets])):
            if target.numel():
                real = as_real(target)
                real.copy_(part.clone().view(real.dtype).view(real.shape))  # cloned, so that it is aligned

    def _nothing(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.new_empty(0) for _ in range(self._own_size)]

    def gather(self, output_tensors, input_tensors, opts=None):
        root = 0 if opts is None else opts.rootRank
        source = input_tensors[0]
        if self._own_rank == root:
            self._check_lists("gather", output_tensors, input_tensors, "outputs")
        targets = list(output_tensors[0]) if self._own_rank == root else self._nothing(source)

        def call():
            sources = self._nothing(source)
            sources[root] = source
            self._exchange(targets, sources)

        return self._submit("gather", call, targets if self._own_rank == root else [], opts, [source])

    def gather_single(self, output_tensor, input_tensor, opts=None):
        lists = []
        if self._own_rank == (0 if opts is None else opts.rootRank):
            self._check_sizes("gather_into_tensor", output_tensor, input_tensor)
            if not output_tensor.is_contiguous():
                raise ValueError("gradsync: gather_into_tensor: expected a contiguous output, found another")
            lists = [list(output_tensor.view(self._own_size, *input_tensor.shape).unbind(0))]
        return self.gather(lists, [input_tensor], opts)

    gather_into_tensor = gather_single

    def scatter(self, output_tensors, input_tensors, opts=None):
        root = 0 if opts is None else opts.rootRank
        target = output_tensors[0]
        if self._own_rank == root:
            self._check_lists("scatter", input_tensors, output_tensors, "inputs")
        sources = list(input_tensors[0]) if self._own_rank == root else self._nothing(target)

        def call():
            targets = self._nothing(target)
            targets[root] = target
            self._exchange(targets, sources)

        return self._submit("scatter", call, output_tensors, opts, sources)

    def all_to_all_single(self, output_tensor, input_tensor, output_split_sizes=(), input_split_sizes=(), opts=None):
        bytes_of = []
        for what, tensor, sizes in [("output", output_tensor, output_split_sizes), ("input", input_tensor, input_split_sizes)]:
            dense("all_to_all_single", tensor)
            rows = tensor.size(0) if tensor.dim() else 0
            sizes = list(sizes) or [rows // self._own_size] * self._own_size
            if len(sizes) != self._own_size or sum(sizes) != rows:
                raise ValueError(f"gradsync: all_to_all_single: {what}: expected {self._own_size} parts of {rows} rows in all, found {sizes}")
            bytes_of.append([size * (tensor.nbytes // rows if rows else 0) for size in sizes])

        def call():
            host = torch.empty_like(output_tensor, device="cpu", memory_format=torch.contiguous_format) if share_memory(
                output_tensor, input_tensor) else room_for(output_tensor)
            self._engine.ranks.all_to_all(on_host(input_tensor), bytes_of[1], host, bytes_of[0])
            bring_back(host, output_tensor)

        return self._submit("all_to_all_single", call, [output_tensor], opts, [input_tensor])

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors, input_tensors, opts=None):
        for tensors in (output_tensors, input_tensors):
            if len(tensors) != self._own_size:
                raise ValueError(f"gradsync: all_to_all: expected {self._own_size} tensors, found {len(tensors)}")
            for tensor in tensors:
                dense("all_to_all", tensor)

        def call():
            self._exchange(output_tensors, input_tensors)

        return self._submit("all_to_all", call, output_tensors, opts, input_tensors)

    def barrier(self, opts=None):
        return self._submit("barrier", lambda: self._engine.ranks.barrier(), [], opts)

    # ---- Between two ranks

    def _pair(self, what: str, other: int) -> Pair:
        if not 0 <= other < self._own_size or other == self._own_rank:
            raise ValueError(f"gradsync: {what}: expected another rank of 0 to {self._own_size - 1}, found {other}")
        if self._engine.over:
            raise dist.DistBackendError(f"gradsync: {what}: {self._engine.over}")
        with self._pair_lock:
            if other not in self._engine.pairs:
                self._engine.pairs[other] = Pair(self._own_store, self._engine.ranks.key, self._own_rank, other, self._own_timeout)
            return self._engine.pairs[other]

    def send(self, tensors, destination, tag=0):
        what, tensor = f"send to rank {destination}", tensors[0]
        dense(what, tensor)
        pair = self._pair(what, destination)
        host = on_host(tensor)  # now: the caller's stream has it
        work = Passing(what, tensor, self._own_rank)
        pair.pass_on(work, lambda gloo, other: (gloo.send([host.detach()], other, tag), None))
        return work

    def recv(self, tensors, source, tag=0):
        what, tensor = f"recv from rank {source}", tensors[0]
        dense(what, tensor)
        pair = self._pair(what, source)
        host = room_for(tensor)
        work = Passing(what, tensor, source)

        def take():
            with torch.no_grad():
                bring_back(host, tensor)

        pair.pass_on(work, lambda gloo, other: (gloo.recv([host.detach()], other, tag), take))
        return work

    def recv_anysource(self, tensors, tag=0):
        raise NotImplementedError("gradsync: recv: expected the rank that sends, found none")


def options_of(backend_options) -> dict[str, object]:
    """What the user has chosen: by the environment, and before that by pg_options."""
    options: dict[str, object] = {name: os.environ["GRADSYNC_" + name.upper()] for name in OPTIONS
                                  if os.environ.get("GRADSYNC_" + name.upper())}
    if backend_options is not None:
        if not isinstance(backend_options, Mapping) or not set(backend_options) <= set(OPTIONS):
            raise ValueError(f"gradsync: pg_options: expected a dict with {', '.join(OPTIONS)}, found {backend_options!r}")
        options.update(backend_options)
    return options


def host_of_process() -> str:
    """The same for two processes that reach each other by the loopback interface."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return secrets.token_hex(16)  # who knows


def share_a_host(store: dist.Store, rank: int, size: int) -> bool:
    """Rank 0's answer counts: whether all ranks are on its host. The others tell, and return at once."""
    if rank == 0:
        store.set("host", host_of_process())
        return store.get("elsewhere") == b"0"
    elsewhere = int(store.get("host").decode() != host_of_process())
    store.add("count elsewhere", elsewhere)
    if store.add("count", 1) == size - 1:
        store.set("elsewhere", str(int(store.add("count elsewhere", 0) > 0)))
    return elsewhere == 0


def meet_others(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, options: Mapping[str, object]) -> Ranks:
    """Joins the library's job for this group: rank 0 listens, and tells the others where, and a secret, through PyTorch's store."""
    # A group that is made again, after it was destroyed, finds what the earlier one has left there.
    store = dist.PrefixStore(f"gradsync/{store.add(f'gradsync/made/{rank}', 1)}", store)
    options = {**options, "rank": rank, "world_size": size, "timeout": timeout}
    one_host = share_a_host(store, rank, size)
    if rank == 0:
        secret = secrets.token_hex(16)
        try:
            return Ranks({**options, "master": "127.0.0.1:0" if one_host else "0.0.0.0:0", "secret": secret},
                         lambda address: store.set("meet", f"at {address} {secret}"))
        except Exception as error:
            store.set("meet", f"failed {error}")
            raise
    how, _, rest = store.get("meet").decode().partition(" ")
    if how == "failed":
        raise dist.DistBackendError(f"gradsync: init_process_group: rank 0: {rest}")
    address, secret = rest.split(" ")
    return Ranks({**options, "master": address, "secret": secret})


def create(options, backend_options) -> ProcessGroup:
    """What torch.distributed calls for each group that this process is of. Returns when all its ranks have come."""
    return ProcessGroup(options.store, options.group_rank, options.group_size, options.timeout, options_of(backend_options))

"""What a process group runs on: the library's group, the thread that makes its calls, how its ranks meet, and how it ends."""
import collections
import ctypes
import datetime
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from . import _library
from ._library import Op, Type, check, library
from ._works import Passing, Work
from .group import ending

# Options of the library that a user chooses, by GRADSYNC_TOPOLOGY and so on or by a dict as pg_options. The others follow from what
# PyTorch says of the group.
OPTIONS = ("topology", "link", "owners", "connections", "interface", "failure_timeout")

# How long the end of a process that has not destroyed its groups waits for the other ranks to come to theirs.
EXIT_PATIENCE = datetime.timedelta(seconds=10)

log = logging.getLogger("gradsync")


class Calls:
    """Runs calls one after the other. Thread-safe."""

    def __init__(self, name: str):
        self._changed = threading.Condition()
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, call: Callable[[], None]) -> bool:
        """Has the thread run it, after those before it. False after close(): nobody will run it."""
        with self._changed:
            if self._closed:
                return False
            self._waiting.append(call)
            self._changed.notify()
            return True

    def run(self, call: Callable[[], None]) -> bool:
        """The same, but on this thread where nothing is before it."""
        with self._changed:
            if self._closed:
                return False
            if self._busy or self._waiting:
                self._waiting.append(call)
                self._changed.notify()
                return True
            self._busy = True
        try:
            call()
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify()
        return True

    def close(self, last: Callable[[], None]) -> None:
        """Ends the thread once it has run all calls, and `last` after them."""

        def end():
            last()
            raise SystemExit  # ends the thread alone, without a word

        with self._changed:
            self._waiting.append(end)
            self._closed = True
            self._changed.notify()

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

        def refuse():
            raise dist.DistBackendError("the process group has ended")

        if not self._calls.add(lambda: work.begin(begin)):
            work.begin(refuse)

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

        def refuse():
            work.finish(dist.DistBackendError(f"gradsync: {work.what}: {self.over}"))

        if self.over:
            refuse()
            return work

        def run():
            error = None
            try:
                with torch.no_grad():
                    call()
            except _library.Error as failure:
                error = dist.DistBackendError(f"gradsync: {work.what}: {failure}")
            except BaseException as failure:
                error = failure
            work.finish(error)

        # Another thread may have ended the group meanwhile.
        if not (self.calls.run if here else self.calls.add)(run):
            refuse()
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

    def give_up(self) -> None:
        """Where the ranks have not met: if they do later, the others are told."""
        self.over = "the ranks have not met"
        self.calls.close(lambda: self.ranks.free())

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
    store = dist.PrefixStore("gradsync", store)
    store = dist.PrefixStore(str(store.add(f"made/{rank}", 1)), store)
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

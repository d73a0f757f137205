"""The backend of torch.distributed: a process group whose collectives are the library's.

It is a subclass of torch.distributed.ProcessGroup in Python, which C++ (DistributedDataParallel's reducer, functional collectives)
calls by PyTorch's own trampolines, under the old names of methods and, in newer versions, others. So one file serves every version
of PyTorch, and nothing here is compiled against any.

A group's collectives run in the order of their calls: on a thread of the group, without the interpreter's lock, or, where the caller
waits anyhow and nothing is before it, on the caller's. What two ranks send each other goes over Gloo.
"""
import datetime
import threading
import weakref
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from ._engine import Engine, Pair, meet_others, options_of
from ._library import Op, Type
from ._works import Passing, Together, Work
from .torch import NAME

TYPES = {torch.float32: Type.FLOAT32, torch.float64: Type.FLOAT64, torch.float16: Type.FLOAT16, torch.bfloat16: Type.BFLOAT16,
         torch.int8: Type.INT8, torch.uint8: Type.UINT8, torch.int16: Type.INT16, torch.int32: Type.INT32, torch.int64: Type.INT64,
         torch.bool: Type.BOOL}
LINEAR = (Op.SUM, Op.AVG)


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
        self._together: list[Work | Passing] | None = None
        self._engine = Engine("gradsync")
        self._pair_lock = threading.Lock()
        if size > 1:
            engine = self._engine

            def meet():
                engine.ranks = meet_others(store, rank, size, timeout, options)

            # On its thread: a signal ends the wait here.
            try:
                engine.submit(Work("init_process_group", []), meet).wait()
            except BaseException:
                engine.give_up()
                raise
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
        here = self._together is None and getattr(options, "asyncOp", True) is False
        return self._collected(self._engine.submit(Work(what, result), call, here))

    def _collected(self, work):
        """The work, also among those that _end_coalescing() returns as one."""
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

    def _end_coalescing(self, device=None) -> Together:
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
                raise ValueError(f"gradsync: all_to_all_single: {what}: expected {self._own_size} parts of {rows} rows in all, found "
                                 f"{sizes}")
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
        return self._collected(work)

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
        return self._collected(work)

    def recv_anysource(self, tensors, tag=0):
        raise NotImplementedError("gradsync: recv: expected the rank that sends, found none")


def create(options, backend_options) -> ProcessGroup:
    """What torch.distributed calls for each group that this process is of. Returns when all its ranks have come."""
    return ProcessGroup(options.store, options.group_rank, options.group_size, options.timeout, options_of(backend_options))

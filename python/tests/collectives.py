"""A rank that makes every collective of torch.distributed over Gloo and over gradsync, and compares: for torch_test.py."""
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

SUMS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
WHOLE = [torch.int8, torch.uint8, torch.int32, torch.int64]
BEYOND_GLOO = [torch.int16, torch.bool]


class Comparison:
    """What a function leaves in its tensors over the one group, and over the other."""

    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.gloo, self.ours = dist.group.WORLD, dist.new_group(backend="gradsync")
        self.made = 0

    def values(self, *shape, dtype=torch.float32, scale=8):
        """Small whole numbers, of which sums are exact, other ones on each rank and each time."""
        self.made += 1
        generator = torch.Generator().manual_seed(1000 * self.made + self.rank)
        low = 0 if dtype in (torch.uint8, torch.bool) else -scale
        return torch.randint(low, scale, shape, generator=generator).to(dtype)

    def check(self, what, function, *tensors):
        """`function(group, tensors)` changes tensors in place."""
        answers = []
        for group in (self.gloo, self.ours):
            copies = [tensor.clone(memory_format=torch.preserve_format) for tensor in tensors]
            function(group, *copies)
            answers.append(copies)
        for expected, found in zip(*answers):
            if not torch.equal(expected, found):
                sys.exit(f"{what}: expected {expected}, found {found}")

    def expect(self, what, expected, found):
        if not torch.equal(expected, found):
            sys.exit(f"{what}: expected {expected}, found {found}")

    def expect_mean(self, what, expected, found):
        """A mean is the sum times 1/n, which need not be exact."""
        torch.testing.assert_close(found, expected, msg=lambda text: f"{what}: {text}")


def gathered(c, tensor):
    """All ranks' tensor, by Gloo."""
    given = tensor.contiguous().view(-1).view(torch.uint8)
    parts = [torch.empty_like(given) for _ in range(c.size)]
    dist.all_gather(parts, given, group=c.gloo)
    return torch.stack([part.view(tensor.dtype).view(tensor.shape) for part in parts])


def check_all_reduce(c):
    for dtype in SUMS:
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
            for shape in ((0,), (1,), (7, 5), (1030,)):
                value = c.values(*shape, dtype=dtype, scale=3)
                c.check(f"all_reduce of {dtype}, {op}", lambda group, t: dist.all_reduce(t, op, group=group), value)
    for dtype in WHOLE:
        for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            c.check(f"all_reduce of {dtype}, {op}", lambda group, t: dist.all_reduce(t, op, group=group), c.values(33, dtype=dtype))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        value = c.values(65, dtype=dtype)
        mean = value.clone()
        dist.all_reduce(mean, ReduceOp.AVG, group=c.ours)
        c.expect_mean(f"mean of {dtype}", (gathered(c, value).double().sum(0) / c.size).to(dtype), mean)
    value = c.values(65)
    expected = (gathered(c, value) * 0.25).sum(0)
    dist.all_reduce(value, dist._make_nccl_premul_sum(0.25), group=c.ours)
    c.expect("sum of products", expected, value)
    value = c.values(65, dtype=torch.int16)
    expected = gathered(c, value)
    for op, result in ((ReduceOp.SUM, expected.sum(0)), (ReduceOp.MAX, expected.amax(0))):
        dist.all_reduce(found := value.clone(), op, group=c.ours)
        c.expect(f"all_reduce of int16, {op}", result.to(torch.int16), found)
    flags = c.values(9, dtype=torch.bool, scale=2)
    any_of, all_of = flags.clone(), flags.clone()
    dist.all_reduce(any_of, ReduceOp.MAX, group=c.ours)
    dist.all_reduce(all_of, ReduceOp.MIN, group=c.ours)
    c.expect("any", gathered(c, flags.int()).amax(0).bool(), any_of)
    c.expect("all", gathered(c, flags.int()).amin(0).bool(), all_of)
    c.check("all_reduce of complex", lambda group, t: dist.all_reduce(t, group=group), torch.complex(c.values(5), c.values(5)))
    c.check("all_reduce of a transposed tensor", lambda group, t: dist.all_reduce(t, group=group), c.values(4, 6).t())
    c.check("all_reduce that is waited for", lambda group, t: dist.all_reduce(t, group=group, async_op=True).wait(), c.values(12))
    work = dist.all_reduce(value := c.values(3), group=c.ours, async_op=True)
    (result,) = work.get_future().wait()
    assert work.is_completed() and work.is_success() and result.data_ptr() == value.data_ptr()

    def coalesced(group, *tensors):
        with dist._coalescing_manager(group=group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)

    values = [c.values(3), c.values(2, 2), c.values(5)]
    expected = [gathered(c, value).sum(0) for value in values]
    coalesced(c.ours, *values)
    for one, other in zip(expected, values):
        c.expect("coalesced all_reduce", one, other)


def check_copies(c):
    for root in range(c.size):
        c.check("broadcast", lambda group, t: dist.broadcast(t, root, group=group), c.values(11))
    for dtype in SUMS + BEYOND_GLOO + [torch.complex64]:
        expected = gathered(c, value := c.values(11, dtype=dtype, scale=2))[c.size - 1]
        dist.broadcast(value, c.size - 1, group=c.ours)
        c.expect(f"broadcast of {dtype}", expected, value)
    c.check("broadcast of a transposed tensor", lambda group, t: dist.broadcast(t, 0, group=group), c.values(3, 5).t())

    def all_gather(group, given, *taken):
        dist.all_gather(list(taken), given, group=group)

    for shape in ((6,), (2, 3), (0,)):
        c.check("all_gather", all_gather, c.values(*shape), *[torch.zeros(shape) for _ in range(c.size)])
    uneven = [torch.zeros(rank + 1) for rank in range(c.size)]
    own = c.values(c.rank + 1)
    dist.all_gather(uneven, own, group=c.ours)
    c.expect("uneven all_gather", own, uneven[c.rank])
    single = torch.zeros(c.size * 4)
    own = c.values(4)
    dist.all_gather_into_tensor(single, own, group=c.ours)
    c.expect("all_gather_into_tensor", gathered(c, own).view(-1), single)
    single.zero_()
    single[4 * c.rank:4 * c.rank + 4] = own
    dist.all_gather_into_tensor(single, single[4 * c.rank:4 * c.rank + 4], group=c.ours)
    c.expect("all_gather_into_tensor in place", gathered(c, own).view(-1), single)
    for root in range(c.size):
        c.check("gather", lambda group, given, *taken: dist.gather(given, list(taken) if c.rank == root else None, root, group=group),
                c.values(3), *[torch.zeros(3) for _ in range(c.size)])
        c.check("scatter", lambda group, taken, *given: dist.scatter(taken, list(given) if c.rank == root else None, root, group=group),
                torch.zeros(3), *[c.values(3) for _ in range(c.size)])
    objects = [None] * c.size
    dist.all_gather_object(objects, {"rank": c.rank}, group=c.ours)
    assert objects == [{"rank": rank} for rank in range(c.size)], objects
    sent = [c.rank, "text"]
    dist.broadcast_object_list(sent, src=0, group=c.ours)
    assert sent == [0, "text"], sent


def check_reduce(c):
    for root in range(c.size):
        value = c.values(9)
        before, total = value.clone(), gathered(c, value).sum(0)
        dist.reduce(value, root, group=c.ours)
        c.expect("reduce", total if c.rank == root else before, value)
    for op, reference in ((ReduceOp.SUM, lambda all_of: all_of.sum(0)), (ReduceOp.AVG, lambda all_of: all_of.sum(0) / c.size),
                          (ReduceOp.MAX, lambda all_of: all_of.amax(0))):
        for dtype in (torch.float32, torch.bfloat16):
            parts = [c.values(2, 3, dtype=dtype) for _ in range(c.size)]
            expected = reference(gathered(c, torch.stack(parts)).float()).to(dtype)[c.rank]
            taken = torch.zeros(2, 3, dtype=dtype)
            check = c.expect_mean if op == ReduceOp.AVG else c.expect
            dist.reduce_scatter(taken, parts, op, group=c.ours)
            check(f"reduce_scatter of {dtype}, {op}", expected, taken)
            taken.zero_()
            whole = torch.cat(parts)
            dist.reduce_scatter_tensor(taken, whole, op, group=c.ours)
            check(f"reduce_scatter_tensor of {dtype}, {op}", expected, taken)
            c.expect("its input", torch.cat(parts), whole)
    whole = c.values(c.size * 2)
    expected = (gathered(c, whole).sum(0) * 0.5).view(c.size, 2)[c.rank]
    taken = torch.zeros(2)
    dist.reduce_scatter_tensor(taken, whole, dist._make_nccl_premul_sum(0.5), group=c.ours)
    c.expect("reduce_scatter of products", expected, taken)


def check_all_to_all(c):
    whole = c.values(c.size * 2, 3)
    expected = torch.cat([part.view(c.size, 2, 3)[c.rank] for part in gathered(c, whole)])
    taken = torch.zeros(c.size * 2, 3)
    dist.all_to_all_single(taken, whole, group=c.ours)
    c.expect("all_to_all_single", expected, taken)
    # Rank r sends s + 1 rows to rank s.
    rows = [rank + 1 for rank in range(c.size)]
    given = torch.full((sum(rows), 2), float(c.rank))
    taken = torch.zeros(c.size * (c.rank + 1), 2)
    dist.all_to_all_single(taken, given, [c.rank + 1] * c.size, rows, group=c.ours)
    c.expect("uneven all_to_all_single", torch.arange(c.size).repeat_interleave(c.rank + 1).view(-1, 1).expand(-1, 2).float(), taken)
    lists = [torch.zeros(3) for _ in range(c.size)]
    dist.all_to_all(lists, [torch.full((3,), 10.0 * c.rank + rank) for rank in range(c.size)], group=c.ours)
    c.expect("all_to_all", torch.tensor([10.0 * rank + c.rank for rank in range(c.size)]), torch.stack(lists)[:, 0])


def check_functional(c):
    """What DTensor and torch.compile call, from C++."""
    value = c.values(c.size * 2)
    everything = gathered(c, value)
    c.expect("functional all_reduce", everything.sum(0), functional.all_reduce(value, "sum", c.ours) + 0)
    c.expect("functional all_gather", everything.view(-1), functional.all_gather_tensor(value, 0, c.ours) + 0)
    c.expect("functional reduce_scatter", everything.sum(0).view(c.size, 2)[c.rank],
             functional.reduce_scatter_tensor(value, "sum", 0, c.ours) + 0)
    c.expect("functional broadcast", everything[0], functional.broadcast(value, 0, c.ours) + 0)
    c.expect("functional all_to_all", torch.cat([part.view(c.size, 2)[c.rank] for part in everything]),
             functional.all_to_all_single(value, None, None, c.ours) + 0)
    for one, other in zip((everything.sum(0), everything.sum(0)), functional.all_reduce_coalesced([value, value], "sum", c.ours)):
        c.expect("functional all_reduce_coalesced", one, other + 0)


def check_between_two(c):
    other, before = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    big = torch.full((1 << 20,), float(c.rank))
    taken = torch.zeros(1 << 20)
    # Everybody sends first, and more than any socket holds.
    works = [dist.isend(big, other, group=c.ours), dist.irecv(taken, before, group=c.ours)]
    for work in works:
        work.wait()
    c.expect("isend and irecv", torch.full((1 << 20,), float(before)), taken)
    taken.zero_()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, taken, before, group=c.ours),
                                        dist.P2POp(dist.isend, big, other, group=c.ours)]):
        work.wait()
    c.expect("batch_isend_irecv", torch.full((1 << 20,), float(before)), taken)
    taken.zero_()
    value = c.values(5)
    first = gathered(c, value)[0]
    # As PyTorch batches them for GPUs.
    with dist._coalescing_manager(group=c.ours, device=torch.device("cpu"), async_ops=True) as coalesced:
        dist.irecv(taken, before, group=c.ours)
        dist.isend(big, other, group=c.ours)
        dist.broadcast(value, 0, group=c.ours, async_op=True)
    coalesced.wait()
    c.expect("coalesced isend and irecv", torch.full((1 << 20,), float(before)), taken)
    c.expect("coalesced broadcast", first, value)
    if c.rank == 0:
        sent = [dist.isend(torch.tensor([float(tag)]), 1, group=c.ours, tag=tag) for tag in (5, 6)]
        for work in sent:
            work.wait()
    elif c.rank == 1:
        first, second = torch.zeros(1), torch.zeros(2).t()
        dist.recv(second[:1], 0, group=c.ours, tag=6)
        dist.recv(first, 0, group=c.ours, tag=5)
        assert (first.item(), second[0].item()) == (5.0, 6.0), (first, second)


def check_groups(c):
    """Groups of some ranks, made while others are there, and again."""
    for _ in range(2):
        evens = dist.new_group(list(range(0, c.size, 2)), backend="gradsync")
        alone = dist.new_group([c.size - 1], backend="gradsync")
        if c.rank % 2 == 0:
            value = torch.ones(3)
            dist.all_reduce(value, group=evens)
            c.expect("a subgroup's sum", torch.full((3,), float(len(range(0, c.size, 2)))), value)
        if c.rank == c.size - 1:
            dist.all_reduce(value := torch.ones(3), ReduceOp.AVG, group=alone)
            c.expect("a sum of one", torch.ones(3), value)
            dist.all_gather([value], torch.full((3,), 2.0), group=alone)
            c.expect("all_gather of one", torch.full((3,), 2.0), value)
            dist.barrier(group=alone)
        for group in (evens, alone):
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)


def check_refusals(c):
    for what, said, call in [
            ("type", "expected a dense tensor of float32",
             lambda: dist.all_reduce(torch.zeros(1, dtype=torch.float8_e4m3fn), group=c.ours)),
            ("layout", "expected a dense tensor", lambda: dist.all_reduce(torch.eye(2).to_sparse(), group=c.ours)),
            ("rank", "expected another rank", lambda: c.ours.send([torch.zeros(1)], c.rank, 0)),
            ("sender", "expected the rank that sends", lambda: dist.recv(torch.zeros(1), group=c.ours)),
    ]:
        try:
            call()
        except (ValueError, NotImplementedError, RuntimeError) as error:
            assert said in str(error), f"{what}: {error}"
        else:
            sys.exit(f"{what}: expected an error")


def main():
    c = Comparison()
    dist.barrier(group=c.ours)
    for check in (check_all_reduce, check_copies, check_reduce, check_all_to_all, check_functional, check_between_two, check_groups,
                  check_refusals):
        check(c)
        dist.barrier(group=c.ours)
    dist.destroy_process_group()
    print("equal")


if __name__ == "__main__":
    main()

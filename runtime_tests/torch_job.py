"""One rank of a torch job: every collective of the backend `teccl` against gloo's; DDP, FSDP and functional collectives
too. Rank 0 prints what it found as one JSON object."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

warnings.simplefilter("ignore")
torch.set_num_threads(1)


def tensor(size: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * size + rank)
    return (torch.rand(size, generator=generator) * 8 + 1).to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), rtol=2e-2 if one.element_size() == 2 else 1e-5)


def tensors(
    gloo: dist.ProcessGroup, group: dist.ProcessGroup | None, how: str, note: Callable[[str, bool], None]
) -> None:
    """Every dtype and awkward sizes."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for size in (0, 1, 2, 1001):
            given = tensor(size, dtype, rank)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
                ours, theirs = given.clone(), given.clone()
                dist.all_reduce(ours, op, group=group)
                dist.all_reduce(theirs, op, group=gloo)
                note(f"allreduce{how}", same(ours, theirs))
            outputs = [torch.empty(n * size, dtype=dtype) for _ in range(2)]
            for output, each in zip(outputs, (group, gloo), strict=True):
                dist.all_gather_into_tensor(output, given, group=each)
            note(f"allgather{how}", torch.equal(*outputs))
            lists = [[torch.empty(size, dtype=dtype) for _ in range(n)] for _ in range(2)]
            for row, each in zip(lists, (group, gloo), strict=True):
                dist.all_gather(row, given, group=each)
            note(f"allgather of a list{how}", all(map(torch.equal, *lists)))
            summed = torch.empty(size, dtype=dtype)
            whole = tensor(n * size, dtype, rank)
            dist.reduce_scatter_tensor(summed, whole, group=group)
            theirs = whole.clone()
            dist.all_reduce(theirs, group=gloo)
            note(f"reduce_scatter{how}", same(summed, theirs.view(n, size)[rank]))
            outputs = [torch.empty(n * size, dtype=dtype) for _ in range(2)]
            for output, each in zip(outputs, (group, gloo), strict=True):
                dist.all_to_all_single(output, whole, group=each)
            note(f"alltoall{how}", torch.equal(*outputs))
            ours = given.clone()
            dist.broadcast(ours, 1, group=group)
            note(f"broadcast{how}", torch.equal(ours, tensor(size, dtype, 1)))
            ours, theirs = given.clone(), given.clone()
            dist.reduce(ours, 1, group=group)
            dist.all_reduce(theirs, group=gloo)
            note(f"reduce{how}", same(ours, theirs) if rank == 1 else torch.equal(ours, given))
            rows = [torch.empty(size, dtype=dtype) for _ in range(n)] if rank == 1 else None
            dist.gather(given, rows, 1, group=group)
            note(f"gather{how}", rows is None or all(torch.equal(rows[r], tensor(size, dtype, r)) for r in range(n)))
            ours = torch.empty(size, dtype=dtype)
            dist.scatter(ours, [tensor(size, dtype, 7 + r) for r in range(n)] if rank == 1 else None, 1, group=group)
            note(f"scatter{how}", torch.equal(ours, tensor(size, dtype, 7 + rank)))
    for dtype in (torch.int16, torch.complex64, torch.int64):
        ours = torch.full((5,), rank + 1).to(dtype)
        dist.all_reduce(ours, group=group)
        note(f"other dtypes{how}", torch.equal(ours, torch.full((5,), n * (n + 1) // 2).to(dtype)))
    ours = torch.full((5,), 1 << rank)
    dist.all_reduce(ours, dist.ReduceOp.BOR, group=group)
    note(f"bitwise{how}", torch.equal(ours, torch.full((5,), (1 << n) - 1)))
    longer = [torch.full((r + 1,), float(r)) for r in range(n)]
    lists = [torch.empty(r + 1) for r in range(n)]
    dist.all_gather(lists, longer[rank], group=group)
    note(f"allgather of a list{how}", all(map(torch.equal, lists, longer)))
    ours = torch.empty(rank + 1)
    dist.reduce_scatter(ours, longer, group=group)
    note(f"reduce_scatter{how}", torch.equal(ours, n * longer[rank]))
    received = [torch.empty(r + 1 + rank) for r in range(n)]
    dist.all_to_all(received, [torch.full((rank + 1 + r,), float(rank)) for r in range(n)], group=group)
    note(
        f"alltoall{how}",
        all(torch.equal(each, torch.full((r + 1 + rank,), float(r))) for r, each in enumerate(received)),
    )
    coalesced = [torch.full((k + 1,), float(rank)) for k in range(3)]
    with dist._coalescing_manager(group or dist.group.WORLD):
        for each in coalesced:
            dist.all_reduce(each, group=group)
    note(
        f"coalesced{how}",
        all(torch.equal(each, torch.full((k + 1,), n * (n - 1) / 2)) for k, each in enumerate(coalesced)),
    )


def collectives(gloo: dist.ProcessGroup) -> dict[str, bool]:
    rank, n = dist.get_rank(), dist.get_world_size()
    right: dict[str, bool] = {}

    def note(name: str, good: bool) -> None:
        right[name] = right.get(name, True) and good

    tensors(gloo, None, "", note)
    os.environ["TECCL_SHARED_MEMORY"] = "0"
    tensors(gloo, dist.new_group(backend="teccl"), " by messages", note)
    os.environ.pop("TECCL_SHARED_MEMORY")
    each = torch.full((7,), float(rank))
    dist.all_reduce(each, dist.ReduceOp.AVG)
    note("average", same(each, torch.full((7,), (n - 1) / 2)))
    each = torch.full((5,), 1.0)
    dist.all_reduce(each, dist._make_nccl_premul_sum(0.5))
    note("premultiplied", same(each, torch.full((5,), n / 2)))
    column = torch.arange(12.0).view(3, 4).t()[1:]  # not contiguous
    dist.all_reduce(column)
    note("strides", same(column, n * torch.arange(12.0).view(3, 4).t()[1:]))
    fp8 = torch.full((9,), float(rank)).to(torch.float8_e4m3fn)
    gathered = torch.empty(9 * n, dtype=torch.float8_e4m3fn)
    dist.all_gather_into_tensor(gathered, fp8)
    note("fp8", all((gathered.float().view(n, 9) == torch.arange(float(n))[:, None]).flatten().tolist()))
    works = [dist.all_reduce(torch.full((1000,), float(k)), async_op=True) for k in range(20)]
    note("asynchronous", all(work.wait() or True for work in works))
    splits = [1, *[2] * (n - 1)]
    mine = splits[rank]
    uneven = torch.empty(mine * n)
    dist.all_to_all_single(uneven, torch.full((sum(splits),), float(rank)), [mine] * n, splits)
    note("uneven splits", same(uneven.view(n, mine)[:, 0], torch.arange(float(n))))
    words = [None] * n
    dist.all_gather_object(words, f"rank {rank}")
    note("objects", words == [f"rank {r}" for r in range(n)])
    pair = dist.new_group([0, n - 1], backend="teccl")
    if rank in (0, n - 1):
        each = torch.ones(3) * rank
        dist.all_reduce(each, group=pair)
        note("sub-group", same(each, torch.ones(3) * (n - 1)))
    import torch.distributed._functional_collectives as functional

    many = [functional.all_reduce(torch.ones(3) * k, "sum", dist.group.WORLD) for k in range(30)]
    note("functional", all(same(torch.as_tensor(total.wait()), torch.ones(3) * k * n) for k, total in enumerate(many)))
    given = torch.ones(6) * rank
    total = functional.all_reduce(given, "sum", dist.group.WORLD)
    note("functional", same(torch.as_tensor(total.wait()), torch.ones(6) * sum(range(n))))
    compiled = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
    note("compiled", same(compiled(torch.ones(4) * rank), torch.ones(4) * (n * (n - 1) + 1)))
    rows = functional.reduce_scatter_tensor(torch.ones(2 * n), "sum", 0, dist.group.WORLD)
    note("functional", same(torch.as_tensor(rows.wait()), torch.ones(2) * n))
    note("distributed tensors", distributed_tensors())
    dist.barrier()
    return right


def distributed_tensors() -> bool:
    """A product of sharded matrices, put together in two ways."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(3)
    left, right = torch.rand(2 * n, 3 * n), torch.rand(3 * n, 5)
    inner = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])  # partial sums
    outer = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(right, mesh, [Replicate()])
    whole = left @ right
    resharded = outer.redistribute(mesh, [Shard(1)]).full_tensor()
    return all(torch.allclose(each, whole, rtol=1e-5) for each in (inner.full_tensor(), outer.full_tensor(), resharded))


def losses(group: dist.ProcessGroup | None, how: str) -> list[float]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(17, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    elif how == "fsdp":
        model = FullyShardedDataParallel(model, process_group=group, device_id=torch.device("cpu"))
    else:
        fully_shard(model, mesh=DeviceMesh.from_group(group or dist.group.WORLD, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    found = []
    for _ in range(4):
        loss = model(torch.rand(8, 17)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def example_losses(group: dist.ProcessGroup | None) -> list[float]:
    """The example's training, of a small model."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from train_transformer import Transformer, train

    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(Transformer(width=24, layers=2, heads=2), process_group=group)
    return train(model, 4, 2, torch.device("cpu"), seed=dist.get_rank())[0]


def main() -> None:
    dist.init_process_group("teccl", timeout=timedelta(seconds=20))  # with no import of ours where torch finds it
    gloo = dist.new_group(backend="gloo")
    if sys.argv[1] == "die":
        dist.all_reduce(torch.ones(1000))
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(3):
                dist.all_reduce(torch.ones(1000))
        except RuntimeError as error:
            if dist.get_rank() == 0:
                print(json.dumps({"error": str(error)}), flush=True)
            os._exit(3)
        os._exit(0)
    if sys.argv[1] == "found":
        assert "teccl_msccl.torch" in sys.modules  # by torch, at its own import
        dist.all_reduce(torch.ones(2))
        why = sys.modules["teccl_msccl.torch"].stats()["why"]
        print(json.dumps({"backend": dist.get_backend(), "why": why}), flush=True)
        return
    right = collectives(gloo)
    trained = {how: [losses(None, how), losses(gloo, how)] for how in ("ddp", "fsdp", "fsdp2")}
    trained["example"] = [example_losses(None), example_losses(gloo)]
    if dist.get_rank() == 0:
        import teccl_msccl.torch

        print(json.dumps({"right": right, "losses": trained, "stats": teccl_msccl.torch.stats()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] != "found":  # then torch finds the backend by its entry point
        import teccl_msccl.torch  # noqa: F401

    main()

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
    rows = functional.reduce_scatter_tensor(torch.ones(2 * n), "sum", 0, dist.group.WORLD)
    note("functional", same(torch.as_tensor(rows.wait()), torch.ones(2) * n))
    dist.barrier()
    return right


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


def main() -> None:
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=20))  # with no import of ours where torch finds it
    gloo = dist.new_group(backend="gloo")
    if sys.argv[2] == "die":
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
    import teccl_msccl.torch

    right = collectives(gloo)
    trained = {how: [losses(None, how), losses(gloo, how)] for how in ("ddp", "fsdp", "fsdp2")}
    if dist.get_rank() == 0:
        print(json.dumps({"right": right, "losses": trained, "stats": teccl_msccl.torch.stats()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import teccl_msccl.torch  # noqa: F401 (registers the backend where the package is not installed)

    main()

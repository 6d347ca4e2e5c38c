"""The process group `teccl`: torch's collectives as programs, the rest delegated to an inner group."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import ledger
from .execution import Execution
from .reductions import irreducible, is_premultiplied, reduction_of, scale_after, scale_before
from .tensors import as_bytes, flat, in_rows, listed, overlap, rows_into
from .works import Job, Pending, Worker, on_stream

Tensor = Any
Work = Any

_groups: weakref.WeakSet[TecclGroup] = weakref.WeakSet()


class TecclGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch is Any here
    """A process group whose collectives run programs, one after the other in the order of the calls, asynchronously: of
    CPU tensors on a thread, of CUDA tensors on a stream. What it cannot run is delegated to the inner group, counted
    with its reason (`teccl_msccl.torch.stats`). An error (a peer that is gone, or silent for the timeout) breaks the
    group: every later call says so at once."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, world: bool = True, job_rank: int | None = None
    ) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._inner = dist.ProcessGroupGloo(dist.PrefixStore("teccl-inner", store), rank, size, timeout)
        self._nccl: Any = None
        if torch.cuda.is_available() and dist.is_nccl_available():
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("teccl-nccl", store), rank, size, timeout)
        ours = dist.PrefixStore("teccl", store)
        self._execution = Execution(
            self._inner, self._nccl, ours, rank, size, timeout, world, rank if job_rank is None else job_rank
        )
        self._worker = Worker(f"teccl-{rank}")
        self._streams: dict[Any, Any] = {}  # by device: on which its collectives go
        self._pending: dict[int, Pending] = {}
        self._group_name = self._group_desc = ""
        _groups.add(self)

    # -- what torch asks of a group -----------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "teccl"

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupDesc(self) -> str:
        return self._group_desc

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def shutdown(self) -> None:
        if self._worker.close():
            self._execution.close()

    abort = shutdown

    # -- collectives that are programs --------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.AllreduceOptions()
        tensors, reduction = listed(tensors), reduction_of(opts)

        def job() -> Any:
            for tensor in tensors:
                with flat(tensor) as row:
                    scale_before(row, opts)
                    self._execution.run("allreduce", row, row, row.numel(), reduction)
                    scale_after(row, opts, self._size)
            return list(tensors)

        return self._collective("allreduce", tensors, job, lambda group: group.allreduce(tensors, opts), reduction)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts if opts is not None else dist.AllreduceCoalescedOptions())

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.BroadcastOptions()
        tensors = listed(tensors)

        def job() -> Any:
            for tensor in tensors:
                with flat(tensor) as row:
                    self._execution.run("broadcast", as_bytes(row), as_bytes(row), row.nbytes, root=opts.rootRank)
            return list(tensors)

        return self._collective("broadcast", tensors, job, lambda group: group.broadcast(tensors, opts))

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.ReduceOptions()
        tensors, reduction = listed(tensors), reduction_of(opts)

        def job() -> Any:
            for tensor in tensors:
                given = tensor.detach().contiguous().view(-1)
                if is_premultiplied(opts):
                    given = given.clone()
                    scale_before(given, opts)
                total = torch.empty_like(given)  # only the root's tensor changes, though others may add up on the way
                self._execution.run("reduce", given, total, given.numel(), reduction, opts.rootRank)
                if self._rank == opts.rootRank:
                    scale_after(total, opts, self._size)
                    tensor.detach().copy_(total.view(tensor.shape))
            return list(tensors)

        return self._collective("reduce", tensors, job, lambda group: group.reduce(tensors, opts), reduction)

    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [source], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        def job() -> Any:
            for output, source in zip(outputs, sources, strict=True):
                with flat(output) as row:
                    given = as_bytes(source.detach().contiguous().view(-1))
                    self._execution.run("allgather", given, as_bytes(row), given.numel())
            return list(outputs)

        return self._collective(
            "allgather", [*outputs, *sources], job, lambda group: _each(group._allgather_base, outputs, sources, opts)
        )

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather(self, output_lists: Any, sources: Any, opts: Any = None) -> Work:
        def job() -> Any:
            for outputs, source in zip(output_lists, sources, strict=True):
                longest = max(output.nbytes for output in outputs)  # the same on all ranks
                given, whole = in_rows([source], longest), in_rows(outputs, longest, filled=False)
                self._execution.run("allgather", given, whole, longest)
                rows_into(outputs, whole, longest)
            return [list(outputs) for outputs in output_lists]

        everything = [*(tensor for outputs in output_lists for tensor in outputs), *sources]
        options = opts or dist.AllgatherOptions()
        return self._collective(
            "allgather", everything, job, lambda group: group.allgather(output_lists, sources, options)
        )

    def allgather_coalesced(self, output_lists: Any, sources: Any, opts: Any = None) -> Work:
        return self.allgather([list(row) for row in zip(*output_lists, strict=True)], sources, opts)

    def gather(self, output_lists: Any, sources: Any, opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.GatherOptions()

        def job() -> Any:
            (source,) = sources
            given, outputs = as_bytes(source.detach().contiguous().view(-1)), output_lists[0] if output_lists else []
            whole = in_rows(outputs, given.numel(), filled=False, like=given)
            self._execution.run("gather", given, whole, given.numel(), root=opts.rootRank)
            rows_into(outputs, whole, given.numel())
            return list(outputs)

        everything = [*(tensor for outputs in output_lists for tensor in outputs), *sources]
        return self._collective("gather", everything, job, lambda group: group.gather(output_lists, sources, opts))

    def scatter(self, outputs: Any, source_lists: Any, opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.ScatterOptions()

        def job() -> Any:
            (output,) = outputs
            with flat(output) as row:
                given = in_rows(source_lists[0] if source_lists else [], row.nbytes, like=as_bytes(row))
                self._execution.run("scatter", given, as_bytes(row), row.nbytes, root=opts.rootRank)
            return list(outputs)

        everything = [*(tensor for sources in source_lists for tensor in sources), *outputs]
        return self._collective("scatter", everything, job, lambda group: group.scatter(outputs, source_lists, opts))

    def _reduce_scatter_base(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [source], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        reduction = reduction_of(opts)

        def job() -> Any:
            for output, source in zip(outputs, sources, strict=True):
                given = source.detach().contiguous().view(-1)
                if is_premultiplied(opts) and given.data_ptr() == source.data_ptr():
                    given = given.clone()
                with flat(output) as row:
                    self._reduce_scatter(row, given, opts, reduction)
            return list(outputs)

        everything = [*outputs, *sources]
        return self._collective(
            "reduce_scatter",
            everything,
            job,
            lambda group: _each(group._reduce_scatter_base, outputs, sources, opts),
            reduction,
        )

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_scatter(self, outputs: Any, source_lists: Any, opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        reduction = reduction_of(opts)

        def job() -> Any:
            for output, sources in zip(outputs, source_lists, strict=True):
                longest = max(source.nbytes for source in sources)  # the same on all ranks
                given = in_rows(sources, longest).view(output.dtype)
                mine = given.new_empty(longest // output.element_size())
                self._reduce_scatter(mine, given, opts, reduction)
                output.detach().copy_(mine[: output.numel()].view(output.shape))
            return list(outputs)

        everything = [*outputs, *(tensor for sources in source_lists for tensor in sources)]
        return self._collective(
            "reduce_scatter",
            everything,
            job,
            lambda group: group.reduce_scatter(outputs, source_lists, opts),
            reduction,
        )

    def _reduce_scatter(self, row: Tensor, given: Tensor, opts: Any, reduction: str) -> None:
        scale_before(given, opts)
        if overlap(row, given):
            given = given.clone()
        self._execution.run("reduce_scatter", given, row, row.numel(), reduction)
        scale_after(row, opts, self._size)

    def alltoall_base(
        self, output: Tensor, source: Tensor, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Work:
        def job() -> Any:
            with flat(output) as row:
                given = source.detach().contiguous().view(-1)
                if output_splits or input_splits:
                    self._alltoall(_split(row, output, output_splits), _split(given, source, input_splits))
                else:
                    self._execution.run("alltoall", as_bytes(given), as_bytes(row), given.nbytes // self._size)
            return [output]

        options = opts or dist.AllToAllOptions()
        return self._collective(
            "alltoall",
            [output, source],
            job,
            lambda group: group.alltoall_base(output, source, output_splits, input_splits, options),
        )

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        def job() -> Any:
            self._alltoall(outputs, sources)
            return list(outputs)

        options = opts or dist.AllToAllOptions()
        return self._collective(
            "alltoall", [*outputs, *sources], job, lambda group: group.alltoall(outputs, sources, options)
        )

    def _alltoall(self, outputs: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Of any sizes: the ranks agree on the longest row, and fill theirs up to it."""
        most = max(tensor.nbytes for tensor in (*outputs, *sources))
        longest = torch.tensor([most], device=sources[0].device)
        self._execution.run("allreduce", longest, longest, 1, "max")
        length = int(longest)
        whole = in_rows(outputs, length, filled=False)
        self._execution.run("alltoall", in_rows(sources, length), whole, length)
        rows_into(outputs, whole, length)

    # -- what is delegated --------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> Work:
        options = opts if opts is not None else dist.BarrierOptions()
        return self._delegated("barrier", "no data", [], lambda group: group.barrier(options))

    def send(self, tensors: Any, peer: int, tag: int) -> Work:
        return self._of(tensors).send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Work:
        return self._of(tensors).recv(tensors, peer, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        return self._of(tensors).recv_anysource(tensors, tag)

    def _of(self, tensors: Sequence[Tensor]) -> Any:
        return self._nccl if self._nccl is not None and tensors and tensors[0].is_cuda else self._inner

    def _collective(
        self,
        collective: str,
        tensors: Sequence[Tensor],
        job: Job,
        delegate: Callable[[Any], Work],
        reduction: str = "",
    ) -> Work:
        """Start `job`, or leave the call to the inner group where no program can do it."""
        if reason := self._cannot(tensors, reduction):
            return self._delegated(collective, reason, tensors, delegate)
        if tensors and tensors[0].device.type != "cpu":
            return Pending(on_stream(job, tensors, self._streams), self._pending)
        future: Any = torch.futures.Future()
        self._worker.put(job, future)
        return Pending(future, self._pending)

    def _delegated(self, collective: str, reason: str, tensors: Sequence[Tensor], call: Callable[[Any], Work]) -> Work:
        self._worker.require_whole()
        ledger.delegated(collective, self._rank, reason)
        return call(self._of(tensors))

    def _cannot(self, tensors: Sequence[Tensor], reduction: str) -> str:
        """Why these tensors cannot take a program; nothing if they can."""
        if self._size == 1:
            return "one rank"
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                return "tensors on several devices"
            if tensor.device.type != "cpu" and not (tensor.is_cuda and self._nccl is not None):
                return f"tensors on {tensor.device.type}, without NCCL"
            if tensor.layout != torch.strided:
                return "sparse tensors"
            if reason := irreducible(reduction, tensor.dtype):
                return reason
        return ""


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.shutdown()


def _split(row: Tensor, tensor: Tensor, splits: Sequence[int]) -> list[Tensor]:
    """The rows of `tensor`, flat, by how many of its first dimension each has."""
    first = tensor.shape[0] if tensor.dim() else 1
    each = row.numel() // first if first else 0
    return list(row.split([each * int(length) for length in splits]))


def _each(call: Callable[..., Work], outputs: Any, sources: Any, opts: Any) -> Work:
    works = [
        call(output, source, *([opts] if opts is not None else []))
        for output, source in zip(outputs, sources, strict=True)
    ]
    for work in works[:-1]:
        work.wait()
    return works[-1]

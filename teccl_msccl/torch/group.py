"""The process group `teccl`: collectives as programs over an inner group's point-to-point, the rest delegated to it."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import InputError, Refused
from . import ledger
from .execution import COMBINES, Bound, Carrier, slices_for
from .programs import Programs, Served
from .shared import SharedMemory, met, serves
from .trace import tracer

Tensor = Any
Work = Any
Job = Callable[[], Any]

_OPERATIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PREMUL_SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
_groups: weakref.WeakSet[TecclGroup] = weakref.WeakSet()


class TecclGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch is Any here
    """A process group whose collectives on CPU tensors run programs over gloo's point-to-point, one after the other in
    the order of the calls, asynchronously. What it cannot run is delegated to the inner group, counted with its reason
    (`teccl_msccl.torch.stats`). An error (a peer that is gone, or silent for the timeout) breaks the group: every later
    call says so at once."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, world: bool = True, job_rank: int | None = None
    ) -> None:
        super().__init__(rank, size)
        self._job_rank = rank if job_rank is None else job_rank
        self._rank, self._size, self._timeout = rank, size, timeout
        self._store = dist.PrefixStore("teccl", store)
        self._inner = dist.ProcessGroupGloo(dist.PrefixStore("teccl-inner", store), rank, size, timeout)
        self._nccl: Any = None
        if torch.cuda.is_available() and dist.is_nccl_available():
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("teccl-nccl", store), rank, size, timeout)
        self._programs = Programs(rank, size, world, self._store.set, self._ask)
        self._carrier = Carrier(self._inner, timeout)
        self._shared: SharedMemory | None = None
        self._has_met = False
        self._bound: dict[tuple[int, int, int], Bound] = {}
        self._worker = _Worker(f"teccl-{rank}")
        self._pending: dict[int, _Pending] = {}
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
        self._worker.close()

    def abort(self) -> None:
        self._worker.close()

    def _ask(self, key: str) -> bytes:
        self._store.wait([key], self._timeout)
        said: bytes = self._store.get(key)
        return said

    # -- collectives that are programs --------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.AllreduceOptions()
        tensors = _listed(tensors)
        operation = _operation(opts)
        reason = self._cannot(tensors, operation)
        if reason:
            return self._delegated("allreduce", reason, tensors, lambda group: group.allreduce(tensors, opts))

        def job() -> Any:
            for tensor in tensors:
                with _flat(tensor) as flat:
                    _scale_before(flat, opts.reduceOp)
                    self._execute("allreduce", flat, flat, flat.numel(), operation)
                    self._scale_after(flat, opts.reduceOp)
            return list(tensors)

        return self._start(job, opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts if opts is not None else dist.AllreduceCoalescedOptions())

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.BroadcastOptions()
        tensors = _listed(tensors)
        reason = self._cannot(tensors)
        if reason:
            return self._delegated("broadcast", reason, tensors, lambda group: group.broadcast(tensors, opts))

        def job() -> Any:
            for tensor in tensors:
                with _flat(tensor) as flat:
                    self._execute("broadcast", _bytes(flat), _bytes(flat), flat.nbytes, root=opts.rootRank)
            return list(tensors)

        return self._start(job, opts)

    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [source], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        reason = self._cannot([*outputs, *sources])
        if reason:
            return self._delegated(
                "allgather", reason, outputs, lambda group: _each(group._allgather_base, outputs, sources, opts)
            )

        def job() -> Any:
            for output, source in zip(outputs, sources, strict=True):
                with _flat(output) as flat:
                    given = _bytes(source.detach().contiguous().view(-1))
                    self._execute("allgather", given, _bytes(flat), given.numel())
            return list(outputs)

        return self._start(job, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather(self, output_lists: Any, sources: Any, opts: Any = None) -> Work:
        everything = [*(tensor for outputs in output_lists for tensor in outputs), *sources]
        reason = self._cannot(everything)
        if not reason and len({tensor.numel() for tensor in everything}) > 1:
            reason = "tensors of different sizes"
        if reason:
            outputs = output_lists[0]
            return self._delegated(
                "allgather",
                reason,
                outputs,
                lambda group: group.allgather(output_lists, sources, opts or dist.AllgatherOptions()),
            )

        def job() -> Any:
            for outputs, source in zip(output_lists, sources, strict=True):
                whole = source.new_empty((self._size, source.numel()))
                given = source.detach().contiguous().view(-1)
                self._execute("allgather", _bytes(given), _bytes(whole.view(-1)), given.nbytes)
                for output, row in zip(outputs, whole, strict=True):
                    output.copy_(row.view(output.shape))
            return [list(outputs) for outputs in output_lists]

        return self._start(job, opts)

    def allgather_coalesced(self, output_lists: Any, sources: Any, opts: Any = None) -> Work:
        return self.allgather([list(row) for row in zip(*output_lists, strict=True)], sources, opts)

    def _reduce_scatter_base(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [source], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        operation = _operation(opts)
        reason = self._cannot([*outputs, *sources], operation)
        if reason:
            return self._delegated(
                "reduce_scatter",
                reason,
                outputs,
                lambda group: _each(group._reduce_scatter_base, outputs, sources, opts),
            )

        def job() -> Any:
            for output, source in zip(outputs, sources, strict=True):
                self._reduce_scatter(output, source.detach().contiguous().view(-1), opts, operation, source)
            return list(outputs)

        return self._start(job, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_scatter(self, outputs: Any, source_lists: Any, opts: Any = None) -> Work:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        operation = _operation(opts)
        everything = [*outputs, *(tensor for sources in source_lists for tensor in sources)]
        reason = self._cannot(everything, operation)
        if not reason and len({tensor.numel() for tensor in everything}) > 1:
            reason = "tensors of different sizes"
        if reason:
            return self._delegated(
                "reduce_scatter", reason, outputs, lambda group: group.reduce_scatter(outputs, source_lists, opts)
            )

        def job() -> Any:
            for output, sources in zip(outputs, source_lists, strict=True):
                together = torch.cat([source.detach().reshape(-1) for source in sources])
                self._reduce_scatter(output, together, opts, operation, None)
            return list(outputs)

        return self._start(job, opts)

    def _reduce_scatter(self, output: Tensor, given: Tensor, opts: Any, operation: str, source: Tensor | None) -> None:
        if _is(opts.reduceOp, dist.ReduceOp.PREMUL_SUM):
            if source is not None and given.data_ptr() == source.data_ptr():
                given = given.clone()
            _scale_before(given, opts.reduceOp)
        with _flat(output) as flat:
            if _overlap(flat, given):
                given = given.clone()
            self._execute("reduce_scatter", given, flat, flat.numel(), operation)
            self._scale_after(flat, opts.reduceOp)

    def alltoall_base(
        self, output: Tensor, source: Tensor, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Work:
        reason = self._cannot([output, source])
        if not reason and (_uneven(output_splits) or _uneven(input_splits) or output.numel() % self._size):
            reason = "uneven splits"
        if reason:
            options = opts or dist.AllToAllOptions()
            return self._delegated(
                "alltoall",
                reason,
                [output],
                lambda group: group.alltoall_base(output, source, output_splits, input_splits, options),
            )

        def job() -> Any:
            with _flat(output) as flat:
                given = _bytes(source.detach().contiguous().view(-1))
                self._execute("alltoall", given, _bytes(flat), given.numel() // self._size)
            return [output]

        return self._start(job, opts)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, sources: Any, opts: Any = None) -> Work:
        reason = self._cannot([*outputs, *sources])
        if not reason and len({tensor.numel() for tensor in (*outputs, *sources)}) > 1:
            reason = "tensors of different sizes"
        if reason:
            return self._start(lambda: self._pairwise(outputs, sources, reason), opts)

        def job() -> Any:
            given = torch.cat([source.detach().reshape(-1) for source in sources])
            taken = torch.empty_like(given)
            self._execute("alltoall", _bytes(given), _bytes(taken), given.nbytes // self._size)
            for output, row in zip(outputs, taken.view(self._size, -1), strict=True):
                output.copy_(row.view(output.shape))
            return list(outputs)

        return self._start(job, opts)

    def _pairwise(self, outputs: Any, sources: Any, reason: str) -> Any:
        """alltoall of any tensors by plain messages: gloo has none of lists."""
        ledger.delegated("alltoall", self._rank, reason)
        works = []
        taken = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
        given = [source.detach().contiguous() for source in sources]
        for peer in range(self._size):
            if peer == self._rank:
                taken[peer].copy_(given[peer])
                continue
            works.append(self._inner.recv([taken[peer]], peer, _PAIRWISE_TAG))
            works.append(self._inner.send([given[peer]], peer, _PAIRWISE_TAG))
        for work in works:
            work.wait(self._timeout)
        for output, tensor in zip(outputs, taken, strict=True):
            output.copy_(tensor)
        return list(outputs)

    # -- what is delegated --------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> Work:
        options = opts if opts is not None else dist.BarrierOptions()
        return self._delegated("barrier", "no data", [], lambda group: group.barrier(options))

    def reduce(self, tensors: Any, opts: Any) -> Work:
        return self._delegated("reduce", _NO_PROGRAM, tensors, lambda group: group.reduce(tensors, opts))

    def gather(self, outputs: Any, sources: Any, opts: Any) -> Work:
        return self._delegated("gather", _NO_PROGRAM, sources, lambda group: group.gather(outputs, sources, opts))

    def scatter(self, outputs: Any, sources: Any, opts: Any) -> Work:
        return self._delegated("scatter", _NO_PROGRAM, outputs, lambda group: group.scatter(outputs, sources, opts))

    def send(self, tensors: Any, peer: int, tag: int) -> Work:
        return self._of(tensors).send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Work:
        return self._of(tensors).recv(tensors, peer, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        return self._of(tensors).recv_anysource(tensors, tag)

    def _of(self, tensors: Sequence[Tensor]) -> Any:
        return self._nccl if self._nccl is not None and tensors and tensors[0].is_cuda else self._inner

    def _delegated(self, collective: str, reason: str, tensors: Sequence[Tensor], call: Callable[[Any], Work]) -> Work:
        self._worker.require_whole()
        ledger.delegated(collective, self._rank, reason)
        return call(self._of(tensors))

    # -- executing ----------------------------------------------------------------------------------------------

    def _cannot(self, tensors: Sequence[Tensor], operation: str = "") -> str:
        """Why these tensors cannot take a program; nothing if they can."""
        if self._size == 1:
            return "one rank"
        for tensor in tensors:
            if tensor.device.type != "cpu":
                return f"tensors on {tensor.device.type}"
            if tensor.layout != torch.strided:
                return "sparse tensors"
            if operation and tensor.dtype in _NOT_REDUCED:
                return f"{tensor.dtype} is not reduced by torch"
        if operation == "unknown":
            return "operation without a program"
        return ""

    def _start(self, job: Job, opts: Any) -> Work:
        future: Any = torch.futures.Future()
        self._worker.put(job, future)
        return _Pending(future, self._pending)

    def _execute(
        self, collective: str, given: Tensor, output: Tensor, share: int, operation: str = "", root: int = 0
    ) -> None:
        """Run a program on flat tensors with shares of `share` elements."""
        if output.numel() == 0 or share == 0:
            return
        nbytes = max(given.nbytes, output.nbytes)
        try:
            served = self._programs.find(collective, nbytes, root)
        except Refused as refusal:
            raise RuntimeError(f"teccl: no program for {collective} of {nbytes} bytes: {refusal}") from None
        except InputError as error:
            raise RuntimeError(f"teccl: {error}") from None
        ledger.custom(collective, self._rank, nbytes, served.source)
        trace = tracer(self._job_rank, self._rank, collective, nbytes, served.program)
        shared = self._shared_memory() if serves(operation, output.dtype) else None
        if shared is not None and shared.run(served, share, given, output, operation, trace):
            return
        bound = self._bound_to(served, share, output.element_size())
        combine = COMBINES[operation] if operation else None
        with torch.no_grad():
            self._carrier.run(bound, given, output, combine, trace)

    def _shared_memory(self) -> SharedMemory | None:
        if not self._has_met:
            self._has_met = True
            self._shared, why_not = met(self._rank, self._size, self._timeout, self._store.set, self._ask)
            if why_not and self._rank == 0:
                ledger.note(self._rank, f"messages over the inner group: {why_not}")
        return self._shared

    def _bound_to(self, served: Served, share: int, element_size: int) -> Bound:
        key = (id(served), share, element_size)
        bound = self._bound.get(key)
        if bound is None:
            parts = served.plan(1).parts
            bound = self._bound[key] = Bound(served.plan(slices_for(share * element_size / parts)), share)
        return bound

    def _scale_after(self, flat: Tensor, operation: Any) -> None:
        if _is(operation, dist.ReduceOp.AVG):
            with torch.no_grad():
                if flat.dtype.is_floating_point or flat.dtype.is_complex:
                    flat.div_(self._size)
                else:
                    flat.copy_(torch.div(flat, self._size, rounding_mode="trunc"))


_NO_PROGRAM = "has no program; only allreduce, allgather, reduce_scatter, alltoall and broadcast do"
_MOST_KEPT = 1024
_PAIRWISE_TAG = (1 << 20) - 1
_NOT_REDUCED = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bool")
    if hasattr(torch, name)
)


class _Pending(dist._Work):  # type: ignore[misc]  # torch is Any here
    """A call under way. torch's own wrapper of futures does not raise their errors where one waits for it.

    torch's C++ side keeps no hold of what is Python in a Work, so the group does (in `kept`) until someone asks; of
    works that nobody asks for, only of the latest.
    """

    def __init__(self, future: Any, kept: dict[int, _Pending]) -> None:
        super().__init__()
        self._future, self._kept = future, kept
        kept[id(self)] = self
        if len(kept) > _MOST_KEPT:
            kept.pop(next(iter(kept)), None)

    def wait(self, timeout: Any = None) -> bool:
        self._kept.pop(id(self), None)
        self._future.wait()
        return True

    def get_future(self) -> Any:
        self._kept.pop(id(self), None)
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Any:
        return self._future.value()


class _Worker:
    """A thread that does jobs in their order. The first failure is what every later job fails with."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Any] | None] = queue.SimpleQueue()
        self._broken = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False
        self._lock = threading.Lock()

    def put(self, job: Job, future: Any) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                self._thread.start()
        self._jobs.put((job, future))

    def require_whole(self) -> None:
        if self._broken:
            raise RuntimeError(self._broken)

    def close(self) -> None:
        with self._lock:
            if self._started and self._thread.is_alive():
                self._jobs.put(None)
                if threading.current_thread() is not self._thread:
                    self._thread.join(1.0)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            try:
                self.require_whole()
                future.set_result(job())
            except BaseException as error:
                self._broken = self._broken or f"teccl: the group is broken: {error}"
                future.set_exception(error if isinstance(error, RuntimeError) else RuntimeError(str(error)))
            del item, job, future  # tensors live no longer than their call


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.shutdown()


# -- tensors ---------------------------------------------------------------------------------------------------


class _flat:
    """A tensor's elements in a row, as a context: its own memory if contiguous, else a copy that goes back."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()

    def __enter__(self) -> Tensor:
        self._row = self._tensor.contiguous().view(-1)
        return self._row

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None and not self._tensor.is_contiguous():
            self._tensor.copy_(self._row.view(self._tensor.shape))


def _bytes(flat: Tensor) -> Tensor:
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _overlap(one: Tensor, other: Tensor) -> bool:
    a, b = one.data_ptr(), other.data_ptr()
    return bool(a < b + other.nbytes and b < a + one.nbytes)


def _uneven(splits: Any) -> bool:
    return bool(splits) and len(set(splits)) > 1


def _is(operation: Any, kind: Any) -> bool:
    return bool(operation == kind)


def _operation(opts: Any) -> str:
    return next((name for kind, name in _OPERATIONS.items() if opts.reduceOp == kind), "unknown")


def _scale_before(flat: Tensor, operation: Any) -> None:
    if _is(operation, dist.ReduceOp.PREMUL_SUM):
        with torch.no_grad():
            flat.mul_(operation.factor)


def _each(call: Callable[..., Work], outputs: Any, sources: Any, opts: Any) -> Work:
    works = [
        call(output, source, *([opts] if opts is not None else []))
        for output, source in zip(outputs, sources, strict=True)
    ]
    for work in works[:-1]:
        work.wait()
    return works[-1]

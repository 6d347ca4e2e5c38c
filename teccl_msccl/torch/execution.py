"""Executing a group's collectives: which program, and what carries its data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from ..errors import InputError, Refused
from . import ledger
from .grouped import Grouped
from .messages import COMBINES, Bound, Carrier, slices_for
from .programs import Programs, Served
from .shared import SharedMemory, met, serves
from .trace import tracer

Tensor = Any

#: Collectives whose size, as nccl-tests count it, is that of all ranks' shares.
SHARED = frozenset({"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})


class Execution:
    """Programs on flat tensors. On CPUs through memory that the ranks share where all are on one host and the core does
    the reduction, else by messages over `inner`; on GPUs in rounds of messages over `grouped`, on the current stream.
    All ranks must run the same collectives in the same order."""

    def __init__(
        self,
        inner: Any,
        grouped: Any,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        world: bool,
        job_rank: int,
    ) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._job_rank, self._world, self._calls = job_rank, world, 0
        self._programs = Programs(rank, size, world, store.set, self._ask)
        self._carrier = Carrier(inner, timeout)
        self._grouped = None if grouped is None else Grouped(grouped)
        self._bound: dict[tuple[int, int, int], Bound] = {}
        self._shared: SharedMemory | None = None
        self._has_met = False

    def run(
        self, collective: str, given: Tensor, output: Tensor, share: int, reduction: str = "", root: int = 0
    ) -> None:
        """Run a program on shares of `share` elements; ranks without an input or an output give an empty tensor. Raises
        RuntimeError where there is no program, or a peer is gone or silent for the timeout."""
        if share == 0:
            return
        nbytes = share * output.element_size() * (self._size if collective in SHARED else 1)
        try:
            served = self._programs.find(collective, nbytes, root)
        except Refused as refusal:
            raise RuntimeError(f"teccl: no program for {collective} of {nbytes} bytes: {refusal}") from None
        except InputError as error:
            raise RuntimeError(f"teccl: {error}") from None
        ledger.custom(collective, self._rank, nbytes, served.source)
        call = self._calls if self._world else -1
        self._calls += 1
        trace = tracer(self._job_rank, self._rank, call, collective, nbytes, served.program)
        if output.device.type != "cpu":
            assert self._grouped is not None
            with torch.no_grad():
                self._grouped.run(served, share, given, output, reduction, trace)
            return
        shared = self._shared_memory() if serves(reduction, output.dtype) else None
        if shared is not None and shared.run(served, share, given, output, reduction, trace):
            return
        bound = self._bound_to(served, share, output.element_size())
        with torch.no_grad():
            self._carrier.run(bound, given, output, COMBINES[reduction] if reduction else None, trace)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()

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

    def _ask(self, key: str) -> bytes:
        try:
            self._store.wait([key], self._timeout)
            said: bytes = self._store.get(key)
        except RuntimeError:  # torch's has a page of its own stack
            seconds = self._timeout.total_seconds()
            raise RuntimeError(f"no other rank has said {key} within {seconds:g} s: a rank is gone, or late") from None
        return said

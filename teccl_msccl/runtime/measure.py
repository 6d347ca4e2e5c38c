"""Measuring point-to-point times between the ranks of a job, for calibration."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .mpi import MpiWorld

SIZES = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)


class Timing(NamedTuple):
    """`nbytes` from rank `src` to rank `dst` took `time_us`."""

    src: int
    dst: int
    nbytes: int
    time_us: float


class Messengers(Protocol):
    """One rank per process, and what is to be timed between them (`torch_ranks.TorchRanks`, `MpiMessengers`)."""

    rank: int

    def meet(self) -> None:
        """Wait for all, without spinning on a core that is measured."""

    def gather(self, mine: Any) -> list[Any]:
        """Every rank's object."""

    def buffer(self, nbytes: int) -> Any: ...

    def send(self, buffer: Any, peer: int) -> None: ...

    def receive(self, buffer: Any, peer: int) -> None: ...

    def settle(self) -> None:
        """Wait until what was sent and received here is done."""


class MpiMessengers:
    """Messages over MPI between buffers in host memory, whatever GPUs there are."""

    def __init__(self, world: MpiWorld) -> None:
        self._world, self._comm, self._byte = world, world.comm, world.MPI.BYTE
        self.rank = world.rank

    def meet(self) -> None:
        self._world.wait(self._comm.Ibarrier())

    def gather(self, mine: Any) -> list[Any]:
        everyone: list[Any] = self._comm.allgather(mine)
        return everyone

    def buffer(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def send(self, buffer: Any, peer: int) -> None:
        self._comm.Send([buffer, self._byte], peer)

    def receive(self, buffer: Any, peer: int) -> None:
        self._comm.Recv([buffer, self._byte], peer)

    def settle(self) -> None:
        """MPI's blocking calls leave nothing under way."""


def measure(
    ranks: Messengers, pairs: Sequence[tuple[int, int]], sizes: Sequence[int] = SIZES, iterations: int = 20
) -> list[Timing]:
    """Half of the median round trip of each size between each pair, one pair at a time; the same list on every rank."""
    mine: list[Timing] = []
    for src, dst in pairs:
        ranks.meet()
        if ranks.rank in (src, dst):
            for nbytes in sizes:
                time_us = _half_round_trip_us(ranks, src, dst, nbytes, iterations)
                if ranks.rank == src:
                    mine.append(Timing(src, dst, nbytes, time_us))
    ranks.meet()
    return [timing for timings in ranks.gather(mine) for timing in timings]


def _half_round_trip_us(ranks: Messengers, src: int, dst: int, nbytes: int, iterations: int) -> float:
    buffer = ranks.buffer(nbytes)
    ranks.settle()
    times = []
    for _ in range(iterations + 2):  # the first two warm up
        start = time.perf_counter()
        if ranks.rank == src:
            ranks.send(buffer, dst)
            ranks.receive(buffer, dst)
        else:
            ranks.receive(buffer, src)
            ranks.send(buffer, src)
        ranks.settle()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) * 1e6 / 2

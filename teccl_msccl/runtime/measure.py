"""Measuring point-to-point times between the ranks of an MPI job, for calibration."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .mpi import MpiWorld

SIZES = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)


class Timing(NamedTuple):
    """`nbytes` from rank `src` to rank `dst` took `time_us`."""

    src: int
    dst: int
    nbytes: int
    time_us: float


def measure(
    world: MpiWorld, pairs: Sequence[tuple[int, int]], sizes: Sequence[int] = SIZES, iterations: int = 20
) -> list[Timing]:
    """Half of the median round trip of each size between each pair, one pair at a time; the same list on every rank.

    The buffers are numpy's, in host memory: what is measured is MPI between CPUs, whatever GPUs there are.
    """
    mine: list[Timing] = []
    for src, dst in pairs:
        world.wait(world.comm.Ibarrier())  # the others wait without spinning on a core that is measured
        if world.rank in (src, dst):
            for nbytes in sizes:
                time_us = _half_round_trip_us(world, src, dst, nbytes, iterations)
                if world.rank == src:
                    mine.append(Timing(src, dst, nbytes, time_us))
    world.wait(world.comm.Ibarrier())
    everyone: list[list[Timing]] = world.comm.allgather(mine)
    return [timing for timings in everyone for timing in timings]


def _half_round_trip_us(world: MpiWorld, src: int, dst: int, nbytes: int, iterations: int) -> float:
    buffer = np.zeros(nbytes, np.uint8)
    peer = dst if world.rank == src else src
    times = []
    for _ in range(iterations + 2):  # the first two warm up
        start = time.perf_counter()
        if world.rank == src:
            world.comm.Send([buffer, world.MPI.BYTE], peer)
            world.comm.Recv([buffer, world.MPI.BYTE], peer)
        else:
            world.comm.Recv([buffer, world.MPI.BYTE], peer)
            world.comm.Send([buffer, world.MPI.BYTE], peer)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) * 1e6 / 2

"""Types of the C++ core (csrc/python)."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

class Program:
    def __init__(
        self,
        *,
        collective: str,
        protocol: str,
        channels: int,
        chunks_per_loop: int,
        in_place: bool,
        out_of_place: bool,
        gpus: NDArray[np.int64],
        threadblocks: NDArray[np.int64],
        steps: NDArray[np.int64],
    ) -> None: ...
    @property
    def ranks(self) -> int: ...

class CheckReport(TypedDict):
    findings: list[tuple[str, int, int, int, str, str]]
    proofs: list[tuple[str, str]]
    min_credits: int | None
    root: int

def check(
    program: Program, *, credits: int, max_count: int, max_dependency_tb: int, listed: int, root: int
) -> CheckReport: ...

class Network:
    def __init__(
        self,
        *,
        ranks: int,
        bandwidth_GBps: list[float],
        alpha_us: list[float],
        paths: list[tuple[int, int, list[int]]],
    ) -> None: ...

class Demanded:
    def __init__(self, *, chunks: list[tuple[float, bool, list[int], list[int]]]) -> None: ...

_Sends = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]

def retime(network: Network, demand: Demanded, chunk: list[int], path: list[int]) -> _Sends: ...
def greedy(network: Network, demand: Demanded, seed: int, noise: float) -> _Sends: ...

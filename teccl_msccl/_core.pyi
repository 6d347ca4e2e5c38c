"""Types of the C++ core (csrc/python)."""

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

_Bytes = NDArray[np.uint8]
_RankBuffers = tuple[_Bytes, _Bytes, _Bytes]

class World:
    def __init__(
        self,
        program: Program,
        *,
        dtype: str,
        op: str,
        chunk_elements: int,
        slots: int,
        slot_bytes: int,
        buffers: list[_RankBuffers],
        seed: int = 0,
    ) -> None: ...
    def run(self, *, workers: int, timeout: float) -> tuple[float, list[str]]: ...
    @property
    def fifo_bytes(self) -> int: ...

class Endpoint:
    def __init__(
        self,
        program: Program,
        rank: int,
        *,
        dtype: str,
        op: str,
        chunk_elements: int,
        slots: int,
        slot_bytes: int,
        buffers: _RankBuffers,
        chunks: list[tuple[int, int, int]],
        seed: int = 0,
    ) -> None: ...
    def restart(self) -> None: ...
    def advance(self) -> int: ...
    @property
    def progress(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def blocked(self) -> list[str]: ...
    @property
    def outgoing(self) -> list[tuple[int, int]]: ...
    @property
    def incoming(self) -> list[tuple[int, int, int]]: ...
    def outgoing_slot(self, line: int, slot: int) -> memoryview: ...
    def incoming_slot(self, line: int, slot: int) -> memoryview: ...
    def departures(self) -> list[tuple[int, int, int]]: ...
    def credits(self) -> list[tuple[int, int]]: ...
    def landed(self, line: int, nbytes: int) -> None: ...
    def credited(self, line: int) -> None: ...
    @property
    def fifo_bytes(self) -> int: ...

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

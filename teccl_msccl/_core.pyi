"""Types of the C++ core (csrc/python)."""

from collections.abc import Sequence
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
    handovers: list[tuple[str, int, int, int, str, str]]
    min_credits: int | None
    root: int

def check(
    program: Program, *, credits: int, max_count: int, max_dependency_tb: int, listed: int, root: int
) -> CheckReport: ...

class ProgramTiming:
    @property
    def finish_us(self) -> float: ...
    @property
    def threadblocks(self) -> list[tuple[int, int, float, float]]:
        """(gpu, threadblock, busy µs, finish µs)"""
    @property
    def critical_path(self) -> list[tuple[int, int, int, int, float, float, str]]:
        """(gpu, threadblock, step, iteration, start µs, end µs, cause)"""
    @property
    def timeline(self) -> list[tuple[int, int, int, int, float, float, str]]:
        """As the critical path, but everything, where `timeline` was asked for."""
    @property
    def blocked(self) -> list[tuple[int, int, int, int, str]]:
        """(gpu, threadblock, step, iteration, cause); empty unless the program hangs"""

def simulate_program(
    program: Program,
    *,
    bandwidth_GBps: NDArray[np.float64],
    alpha_us: NDArray[np.float64],
    route_links: NDArray[np.int32],
    route_ends: NDArray[np.int32],
    extra_alpha_us: NDArray[np.float64],
    threadblock_GBps: float,
    credits: int,
    chunks_per_transfer: int,
    iterations: int,
    slice_bytes: float,
    last_slice_bytes: float,
    timeline: bool = False,
) -> ProgramTiming: ...

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
        root: int = -1,
        inject: set[str] = ...,
        seed: int = 0,
    ) -> None: ...
    def run(self, *, workers: int, timeout: float) -> tuple[float, list[str]]: ...
    @property
    def fifo_bytes(self) -> int: ...

class Exchange:
    def __init__(
        self,
        *,
        rank: int,
        nranks: int,
        parts: int,
        input_shares: int,
        output_shares: int,
        scratch: int,
        slots: Sequence[int],
        moves: Sequence[tuple[int, tuple[int, int], Sequence[tuple[int, int]]]],
    ) -> None: ...
    def scratch_bytes(self, share: int, rounds: int, element_bytes: int) -> int: ...

class SharedRanks:
    def __init__(
        self, rank: int, segments: Sequence[NDArray[np.uint8]], *, pidfds: Sequence[int], eager: int
    ) -> None: ...
    def rounds_for(self, exchange: Exchange, share: int, element_bytes: int) -> int: ...
    def run(
        self,
        exchange: Exchange,
        *,
        share: int,
        rounds: int,
        dtype: str,
        op: str,
        input: tuple[int, int],
        output: tuple[int, int],
        scratch: tuple[int, int],
        timeout: float,
        traced: bool,
    ) -> list[tuple[int, int, float, float]]: ...

def segment_bytes(bank_bytes: int) -> int: ...

class HostKernel:
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
        root: int = -1,
    ) -> None: ...
    def run(self, *, timeout: float) -> tuple[float, list[str]]: ...
    @property
    def times(self) -> list[tuple[int, int, int, float, float]]: ...
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
        root: int = -1,
        inject: set[str] = ...,
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
    def incoming(self) -> list[tuple[int, int]]: ...
    def departures(self) -> list[tuple[int, memoryview]]: ...
    def landings(self) -> list[tuple[int, memoryview]]: ...
    def credits(self) -> list[int]: ...
    def landed(self, line: int) -> None: ...
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
        trunks: list[int] = ...,
    ) -> None: ...

class Demanded:
    def __init__(
        self,
        *,
        chunks: list[tuple[float, bool, list[int], list[int]]],
        holders: list[list[int]] = ...,
        weights: list[float] = ...,
    ) -> None: ...

_Sends = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]

def retime(network: Network, demand: Demanded, chunk: list[int], path: list[int]) -> _Sends: ...
def left_shift(
    network: Network, demand: Demanded, chunk: list[int], path: list[int], start_us: list[float]
) -> _Sends | None: ...
def dispatch(
    network: Network, demand: Demanded, chunk: list[int], path: list[int], priority: list[float]
) -> _Sends: ...
def dispatch_longest_first(
    network: Network,
    demand: Demanded,
    chunk: list[int],
    path: list[int],
    start_us: list[float],
    arrival_us: list[float],
    load_weight: float,
    noise: float,
    seed: int,
) -> _Sends: ...
def justify(
    network: Network,
    demand: Demanded,
    chunk: list[int],
    path: list[int],
    start_us: list[float],
    arrival_us: list[float],
    shared: bool,
    rounds: int,
    noise: float,
    seed: int,
) -> _Sends: ...
def reroute(
    network: Network,
    demand: Demanded,
    chunk: list[int],
    path: list[int],
    start_us: list[float],
    arrival_us: list[float],
    target_us: float,
    moves: int,
    regrow: bool,
    seed: int,
) -> _Sends: ...
def pack_trees(
    network: Network, demand: Demanded, depth_weight: float, rounds: int, enough_us: float, seed: int
) -> tuple[_Sends, float]: ...
def greedy(network: Network, demand: Demanded, seed: int, noise: float, deadline_us: float) -> _Sends: ...

class Traffic:
    def __init__(
        self,
        *,
        tors: int,
        spines: int,
        hosts_per_tor: int,
        capacity: NDArray[np.float64],
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        weight: NDArray[np.float64],
        collective: NDArray[np.int32],
        collectives: int,
    ) -> None: ...
    def rates(self, spines: NDArray[np.int32], mode: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rates of collectives and flows; spine −1 is none"""
    def rates_of_active(
        self, spines: NDArray[np.int32], mode: str, active: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same where only some flows run; infinite for what does not"""
    def with_capacity(self, capacity: NDArray[np.float64]) -> Traffic: ...
    def alive(self, spines: NDArray[np.int32]) -> NDArray[np.int32]:
        """The routes whose two hops are alive, −1 for the others"""
    def greedy(self, placed: NDArray[np.int32]) -> NDArray[np.int32]: ...
    def equitable(self, placed: NDArray[np.int32], live: list[int]) -> NDArray[np.int32]: ...
    def edge_colours(self) -> NDArray[np.int32]: ...
    def anneal(self, seed: int, iterations: int) -> NDArray[np.int32]: ...
    def polish(
        self, spines: NDArray[np.int32], mode: str, evaluations: int, changes: int
    ) -> tuple[NDArray[np.int32], int, int]:
        """Routes, flows changed, evaluations made"""

"""Program simulation: how long a program takes on a topology under the runtimes' rules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .. import _core
from ..errors import InputError, Refused
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths
from .program import RECEIVING, SENDING, Program, Threadblock
from .protocol import PROTOCOL, Protocol, Slicing, slicing

#: Up to here every iteration is simulated …
FULL_ITERATIONS = 64
#: … unless the program has more transfers than this in all; beyond, iterations are extrapolated.
FULL_TRANSFERS = 2_000_000
#: Extrapolation starts when doubling the iterations changes the time per iteration by less than this.
STEADY = 1e-4
#: The most transfers that one simulation may take, some 5 GB and a minute.
MAX_TRANSFERS = 100_000_000


@dataclass(frozen=True)
class LinkUse:
    """What the program asks of a link: bytes, the time they occupy it, and its share of finish_us."""

    link: int
    busy_us: float
    utilisation: float
    bytes: float


@dataclass(frozen=True)
class ThreadblockUse:
    """The time that a threadblock moves data (waiting is not busy), its share of finish_us, and when it ends."""

    gpu: int
    tb: int
    busy_us: float
    utilisation: float
    finish_us: float


@dataclass(frozen=True)
class CriticalStep:
    """A step that the finish waited for. `why` is the constraint that set its start: the program's `start`, the
    threadblock's own `order`, a `dependency`, `data` on its way, a `credit`, or a busy `link`; the step before it
    on the critical path is the one that held it up."""

    gpu: int
    tb: int
    step: int
    iteration: int
    start_us: float
    end_us: float
    why: str


@dataclass(frozen=True)
class ProgramTiming:
    """The answer of `simulate`. `launch_us` (starting the collective) is not part of `finish_us`; `iterations` is
    how often the runtime loops over the program, of which `simulated_iterations` were simulated. The critical path
    is that of the simulated iterations."""

    finish_us: float
    algbw_GBps: float
    launch_us: float
    iterations: int
    simulated_iterations: int
    links: tuple[LinkUse, ...]
    threadblocks: tuple[ThreadblockUse, ...]
    critical_path: tuple[CriticalStep, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, with the fields' names."""
        return asdict(self)


def simulate(
    program: Program, topology: Topology, size_bytes: float, *, neutral: bool = False, credits: int | None = None
) -> ProgramTiming:
    """How long `program` takes for `size_bytes` (counted as in nccl-tests; any real number) on `topology`.

    The model is the runtimes': threadblocks run their steps in order; a transfer waits for its dependency, for a
    credit of its connection and for the links of its path; chunks larger than the protocol's slot make the runtime
    loop over the program, the iterations pipelining (details: csrc/simulate_program.hpp). The channels of a pair
    of GPUs are dealt out over its `direct_paths`. `topology.alpha_us` is LL's latency: the other protocols add
    theirs once per transfer (`Protocol.hop_alpha_us`). `neutral` takes the links as they are, with no efficiency
    and no added latency, to compare with a schedule; the threadblocks' rate remains. `credits` overrides the
    protocol's transfers in flight.

    Many iterations are simulated until the time per iteration is steady, and then extrapolated.
    O(E log E) for E transfers. Raises `InputError` for a program that does not fit the topology, `Refused` for one
    that hangs.
    """
    if program.nchunks < 1:
        raise InputError(f"{program.name}: nchunksperloop is {program.nchunks}; it must be 1 or more")
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise InputError(f"{program.name}: size is {size_bytes}; it must be a finite number of bytes, zero or more")
    if credits is not None and credits < 1:
        raise InputError(f"{program.name}: {credits} credits; a connection needs 1 or more")
    if program.nranks != topology.nranks:
        raise InputError(
            f"{program.name}: is for {program.nranks} ranks, but {topology.name} has {topology.nranks} GPUs; "
            "choose a topology of the program's size"
        )
    _check_connections(program)
    protocol = PROTOCOL[program.protocol]
    if neutral:
        protocol = replace(protocol, efficiency=1.0, extra_alpha_us={})
    if credits is not None:
        protocol = replace(protocol, credits=credits)
    chunk_bytes = size_bytes / program.chunks_per_size
    cut = slicing(chunk_bytes, protocol)
    wiring = _Wiring(program, topology, protocol)
    run = _Run(program, topology, protocol, cut, wiring)

    links = wiring.loads(chunk_bytes)
    measured = run.all(busiest_us=max((busy for busy, _ in links.values()), default=0.0))
    finish = measured.finish_us
    return ProgramTiming(
        finish_us=finish,
        algbw_GBps=_share(size_bytes / 1e3, finish),
        launch_us=protocol.launch_us,
        iterations=cut.iterations,
        simulated_iterations=measured.simulated,
        links=tuple(LinkUse(link, busy, _share(busy, finish), nbytes) for link, (busy, nbytes) in links.items()),
        threadblocks=tuple(
            ThreadblockUse(gpu, tb, busy, _share(busy, finish), end)
            for (gpu, tb), busy, end in zip(measured.names, measured.busy_us, measured.end_us, strict=True)
        ),
        critical_path=measured.critical_path,
    )


@dataclass(frozen=True)
class Timeline:
    """Every step of the first `iterations` of `of` when it was at work, threadblock by threadblock in time order, and
    the links (ids) that each sending threadblock's data crosses."""

    steps: tuple[CriticalStep, ...]
    routes: dict[tuple[int, int], tuple[int, ...]]
    iterations: int
    of: int


def timeline(program: Program, topology: Topology, size_bytes: float, *, most: int = 200_000) -> Timeline:
    """What `simulate` sees, step by step, for as many iterations as make about `most` transfers (one at least).

    The errors are those of `simulate`, which is to have taken the program first.
    """
    protocol = PROTOCOL[program.protocol]
    cut = slicing(size_bytes / program.chunks_per_size, protocol)
    wiring = _Wiring(program, topology, protocol)
    run = _Run(program, topology, protocol, cut, wiring)
    iterations = max(1, min(cut.iterations, most // max(1, run.transfers)))
    steps: dict[tuple[int, int], list[CriticalStep]] = defaultdict(list)
    for step in (CriticalStep(*each) for each in run.play(iterations, timeline=True).timeline):
        mine = steps[step.gpu, step.tb]
        if mine and (mine[-1].step, mine[-1].iteration) == (step.step, step.iteration):
            mine[-1] = replace(mine[-1], end_us=step.end_us)  # the transfers of one step
        else:
            mine.append(step)
    return Timeline(
        tuple(step for block in sorted(steps) for step in steps[block]),
        wiring.routes(program),
        iterations,
        cut.iterations,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0 if part == 0 else math.inf


def _check_connections(program: Program) -> None:
    """Every threadblock that sends (receives) has a peer, and no two share an end of a connection."""
    owners: dict[tuple[str, int, int, int], int] = {}
    for gpu, g in enumerate(program.gpus):
        for tb, threadblock in enumerate(g.threadblocks):
            where = f"{program.name}: gpu {gpu} tb {tb}"
            for verb, peer, types in (("send", threadblock.send, SENDING), ("recv", threadblock.recv, RECEIVING)):
                if peer >= program.nranks:
                    raise InputError(f"{where}: {verb} peer {peer}; ranks are 0..{program.nranks - 1}")
                if peer < 0:
                    if types.isdisjoint([step.type for step in threadblock.steps]):
                        continue
                    for s, step in enumerate(threadblock.steps):
                        if step.type in types:
                            raise InputError(f"{where} step {s}: {step.type}, but the tb has no {verb} peer; give one")
                    continue
                owner = owners.setdefault((verb, gpu, peer, threadblock.chan), tb)
                if owner != tb:
                    raise InputError(
                        f"{where}: shares its {verb} peer {peer} and channel {threadblock.chan} with tb {owner}; "
                        "give it a channel of its own"
                    )


class _Wiring:
    """Which links every threadblock's sends cross."""

    def __init__(self, program: Program, topology: Topology, protocol: Protocol) -> None:
        self.bandwidth = np.array([link.bandwidth_GBps * protocol.efficiency for link in topology.links])
        self.alpha = np.array([link.alpha_us for link in topology.links])
        self._topology = topology
        position = {link.id: i for i, link in enumerate(topology.links)}
        route_links: list[int] = []
        route_ends: list[int] = []
        extra_alpha: list[float] = []
        self._chunks: dict[int, int] = defaultdict(int)  # position of a link → chunks over it
        paths = self._paths(program)
        for gpu, g in enumerate(program.gpus):
            for threadblock in g.threadblocks:
                extra = 0.0
                if chunks := _chunks_sent(threadblock):
                    choices = paths[gpu, threadblock.send]
                    links = [position[id] for id in choices[threadblock.chan % len(choices)].links]
                    extra = protocol.hop_alpha_us(topology.links[i].kind for i in links)
                    route_links += links
                    for i in links:
                        self._chunks[i] += chunks
                route_ends.append(len(route_links))
                extra_alpha.append(extra)
        self.route_links = np.array(route_links, dtype=np.int32)
        self.route_ends = np.array(route_ends, dtype=np.int32)
        self.extra_alpha = np.array(extra_alpha, dtype=np.float64)

    def _paths(self, program: Program) -> dict[tuple[int, int], list[Path]]:
        sending = {
            (gpu, threadblock.send)
            for gpu, g in enumerate(program.gpus)
            for threadblock in g.threadblocks
            if _chunks_sent(threadblock)
        }
        paths: dict[tuple[int, int], list[Path]] = defaultdict(list)
        for path in direct_paths(self._topology, frozenset(sending)):
            paths[path.src_rank, path.dst_rank].append(path)
        for src, dst in sorted(sending):
            if (src, dst) not in paths:
                raise InputError(
                    f"{program.name}: rank {src} sends to rank {dst}, but {self._topology.name} has no path between "
                    "them that avoids other GPUs; use a program made for this topology"
                )
        return paths

    def routes(self, program: Program) -> dict[tuple[int, int], tuple[int, ...]]:
        """Threadblock → the links (ids) that its sends cross."""
        blocks = [(gpu, tb) for gpu, g in enumerate(program.gpus) for tb in range(len(g.threadblocks))]
        starts = [0, *self.route_ends.tolist()]
        links = [self._topology.links[i].id for i in self.route_links.tolist()]
        return {
            block: tuple(links[starts[i] : starts[i + 1]])
            for i, block in enumerate(blocks)
            if starts[i + 1] > starts[i]
        }

    def loads(self, chunk_bytes: float) -> dict[int, tuple[float, float]]:
        """Link id → (time its data occupies it, bytes), for the links that the program uses."""
        return {
            self._topology.links[i].id: (chunks * chunk_bytes / (self.bandwidth[i].item() * 1e3), chunks * chunk_bytes)
            for i, chunks in sorted(self._chunks.items())
        }


def _chunks_sent(threadblock: Threadblock) -> int:
    return sum(max(step.cnt, 0) for step in threadblock.steps if step.type in SENDING)


@dataclass(frozen=True)
class _Measured:
    """One simulation, or the extrapolation of several: times per threadblock in the order of `names`."""

    simulated: int
    finish_us: float
    names: Sequence[tuple[int, int]]
    busy_us: list[float]
    end_us: list[float]
    critical_path: tuple[CriticalStep, ...]


class _Run:
    """Simulates the program for as many iterations as asked."""

    def __init__(self, program: Program, topology: Topology, protocol: Protocol, cut: Slicing, wiring: _Wiring) -> None:
        self._program, self._protocol, self._cut, self._wiring = program, protocol, cut, wiring
        self._threadblock_GBps = topology.threadblock_GBps or math.inf
        self.transfers = sum(math.ceil(max(step.cnt, 0) / cut.chunks_per_transfer) for _, _, _, step in program.steps())
        if self.transfers > MAX_TRANSFERS:
            raise Refused(
                f"{program.name}: {self.transfers} transfers are too many to simulate; keep cnt within the format's 71"
            )

    def all(self, busiest_us: float) -> _Measured:
        """The program's timing; `busiest_us` is how long its busiest link is occupied, which no extrapolation
        undercuts."""
        iterations = self._cut.iterations
        few = iterations <= FULL_ITERATIONS and iterations * self.transfers <= FULL_TRANSFERS
        if few or iterations <= 16:
            return self.measure(iterations)
        shortest, shorter, longer = (self.measure(count) for count in (4, 8, 16))
        while not _steady(shortest, shorter, longer) and 2 * longer.simulated * self.transfers <= MAX_TRANSFERS:
            if 2 * longer.simulated >= iterations:
                return self.measure(iterations)
            shortest, shorter, longer = shorter, longer, self.measure(2 * longer.simulated)
        return _extrapolate(shorter, longer, iterations, busiest_us)

    def measure(self, iterations: int) -> _Measured:
        """The first `iterations` − 1 iterations on full slices and the last one on the last slice."""
        timing = self.play(iterations)
        return _Measured(
            iterations,
            timing.finish_us,
            [(gpu, tb) for gpu, tb, _, _ in timing.threadblocks],
            [busy for _, _, busy, _ in timing.threadblocks],
            [end for _, _, _, end in timing.threadblocks],
            tuple(CriticalStep(*step) for step in timing.critical_path),
        )

    def play(self, iterations: int, *, timeline: bool = False) -> _core.ProgramTiming:
        """The core's answer for so many iterations. Raises `Refused` when the program hangs."""
        timing = _core.simulate_program(
            self._program.core,
            bandwidth_GBps=self._wiring.bandwidth,
            alpha_us=self._wiring.alpha,
            route_links=self._wiring.route_links,
            route_ends=self._wiring.route_ends,
            extra_alpha_us=self._wiring.extra_alpha,
            threadblock_GBps=self._threadblock_GBps,
            credits=self._protocol.credits,
            chunks_per_transfer=self._cut.chunks_per_transfer,
            iterations=iterations,
            slice_bytes=self._cut.slice_bytes,
            last_slice_bytes=self._cut.last_slice_bytes,
            **({"timeline": True} if timeline else {}),
        )
        if timing.blocked:
            raise Refused(self._hang(timing.blocked))
        return timing

    def _hang(self, blocked: Sequence[tuple[int, int, int, int, str]], shown: int = 4) -> str:
        waits = []
        for gpu, tb, step, iteration, why in blocked[:shown]:
            threadblock = self._program.gpus[gpu].threadblocks[tb]
            dependency = threadblock.steps[step]
            what = {
                "data": f"data from gpu {threadblock.recv} on channel {threadblock.chan}",
                "credit": f"room at gpu {threadblock.send} on channel {threadblock.chan}",
                "dependency": f"tb {dependency.depid} step {dependency.deps}",
            }[why]
            when = f" in iteration {iteration}" if iteration else ""
            waits.append(f"gpu {gpu} tb {tb} step {step} waits for {what}{when}")
        more = f"; and {len(blocked) - shown} more" if len(blocked) > shown else ""
        return (
            f"{self._program.name}: hangs with {self._protocol.credits} transfers in flight per connection: "
            + "; ".join(waits)
            + more
        )


def _steady(shortest: _Measured, shorter: _Measured, longer: _Measured) -> bool:
    """Whether the time per iteration no longer depends on their number."""
    rate = _per_iteration(shorter, longer)
    return abs(rate - _per_iteration(shortest, shorter)) <= STEADY * rate


def _per_iteration(short: _Measured, long: _Measured) -> float:
    return (long.finish_us - short.finish_us) / (long.simulated - short.simulated)


def _extrapolate(short: _Measured, long: _Measured, iterations: int, busiest_us: float) -> _Measured:
    """Each threadblock goes on at the rate that it had between the two simulations."""
    ahead = (iterations - long.simulated) / (long.simulated - short.simulated)
    finish = max(long.finish_us + ahead * (long.finish_us - short.finish_us), busiest_us)
    busy = [b + ahead * (b - a) for a, b in zip(short.busy_us, long.busy_us, strict=True)]
    end = [min(b + ahead * (b - a), finish) for a, b in zip(short.end_us, long.end_us, strict=True)]
    return replace(long, finish_us=finish, busy_us=busy, end_us=end)

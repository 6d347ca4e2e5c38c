"""How long an MSCCL++ plan takes: its operations played event by event on a topology's links."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ..errors import InputError, Refused
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths
from .plan_execution import KNOWN
from .plan_file import End, Op, Part, PlanFile, channel_pairs
from .plan_packets import PACKETS, packet_parts
from .simulate import CriticalStep, LinkUse, ProgramTiming, ThreadblockUse


@dataclass(frozen=True)
class Transfer:
    """A link is occupied by what an operation of a threadblock moves."""

    link: int
    gpu: int
    tb: int
    op: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class PlanTiming(ProgramTiming):
    """As of a program, with every operation that moved data or waited, and every transfer on every link."""

    steps: tuple[CriticalStep, ...] = ()
    transfers: tuple[Transfer, ...] = ()


def simulate_plan(plan: PlanFile, topology: Topology, size_bytes: float) -> PlanTiming:
    """How long `plan` takes for `size_bytes` (as nccl-tests count) on `topology`.

    Threadblocks run their operations in order. What crosses to or from another GPU occupies the links of the pair's
    direct path, cut-through, in the order of the requests; the threadblock is busy until the data has left, and for at
    least bytes / threadblock_GBps, twice that where it copies or reduces. A port channel moves data by itself, one
    transfer after the other. A signal is seen α after it is given, and after what was put before it; α is the links'
    own, with nothing for fences. Packets are twice their data, each there once it has arrived. There are no slots,
    credits or iterations; a pipeline has two, and `launch_us` is 0: they are not known.
    O(operations · path length). Raises `InputError` for a plan that does not fit the topology or has operations that
    the checker does not know, `Refused` for one that hangs.
    """
    if len(plan.gpus) != topology.nranks:
        raise InputError(
            f"{plan.name}: is for {len(plan.gpus)} ranks, but {topology.name} has {topology.nranks} GPUs; "
            "choose a topology of the plan's size"
        )
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise InputError(f"{plan.name}: size is {size_bytes}; it must be a finite number of bytes, zero or more")
    run = _Run(plan, topology, size_bytes)
    run.all()
    return run.timing(size_bytes)


@dataclass
class _Block:
    rank: int
    tb: int
    ops: tuple[Op, ...]
    at: int = 0
    taken: int = 0
    now: float = 0.0
    why: str = "start"
    cause: int = -1  # the step that `why` is about
    latest: int = -1  # its own last step
    busy: float = 0.0
    landed: float = 0.0  # when all that it put has arrived

    @property
    def done(self) -> int:
        """What others wait for who wait for it."""
        return max(self.latest, self.cause)

    def delay(self, until: float, why: str, cause: int) -> None:
        if until > self.now:
            self.now, self.why, self.cause = until, why, cause


class _Run:
    def __init__(self, plan: PlanFile, topology: Topology, size_bytes: float) -> None:
        self.plan, self.topology = plan, topology
        chunks = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus)
        self.chunk_bytes = size_bytes / max(1, chunks)
        self.bytes_per_us = (topology.threadblock_GBps or math.inf) * 1e3
        self.paths: dict[tuple[int, int], list[Path]] = defaultdict(list)
        for path in direct_paths(topology):
            self.paths[path.src_rank, path.dst_rank].append(path)
        self.blocks = [
            _Block(rank, tb, block.ops)
            for rank, gpu in enumerate(plan.gpus)
            for tb, block in enumerate(gpu.threadblocks)
        ]
        self.peer_end = dict(channel_pairs(plan))
        #: Which of the channels between its two ranks it is: these are dealt out over their paths.
        self.ordinal: dict[End, int] = {}
        for rank, gpu in enumerate(plan.gpus):
            for kind, peers in gpu.peers.items():
                for i, peer in enumerate(peers):
                    self.ordinal[rank, kind, i] = peers[:i].count(peer)
        self.free: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, -1))  # link → until when, by which step
        self.port_free: dict[End, float] = defaultdict(float)
        self.port_landed: dict[End, float] = defaultdict(float)  # when all that was put there has arrived
        self.arrived: dict[Hashable, tuple[float, int]] = {}  # packets: when, sent by which step
        self.signals: dict[Hashable, deque[tuple[float, int]]] = defaultdict(deque)  # seen when, given by which step
        self.waiting: dict[Hashable, list[int]] = defaultdict(list)
        self.here: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.steps: list[CriticalStep] = []
        self.causes: list[int] = []
        self.transfers: list[Transfer] = []
        self.queue: list[tuple[float, int]] = []
        for rank, gpu in enumerate(plan.gpus):
            for i, value in enumerate(gpu.semaphores):
                self.signals["semaphore", rank, i].extend([(0.0, -1)] * value)

    def all(self) -> None:
        """Run the earliest threadblock's next operation, again and again."""
        for number in range(len(self.blocks)):
            heappush(self.queue, (0.0, number))
        while self.queue:
            _, number = heappop(self.queue)
            block = self.blocks[number]
            if block.at < len(block.ops) and self._step(number, block):
                block.at += 1
                heappush(self.queue, (block.now, number))
        stuck = next((block for block in self.blocks if block.at < len(block.ops)), None)
        if stuck is not None:
            what = stuck.ops[stuck.at].name
            raise Refused(f"{self.plan.name}: rank {stuck.rank} tb {stuck.tb} op {stuck.at} ({what}) waits for ever")

    def _step(self, number: int, block: _Block) -> bool:
        """Do the operation that is due; False: it waits, and is asked again once what it waits for is there."""
        op = block.ops[block.at]
        if op.name not in KNOWN or op.divided_twice:
            raise InputError(f"{self.plan.name}: rank {block.rank} tb {block.tb}: cannot simulate {op.name}")
        if op.name in ("signal", "rlxsignal"):
            for channel in op.channels:
                self._signal(block, (block.rank, *channel))
        elif op.name in ("wait", "rlxwait"):
            return self._await(number, block, [(block.rank, *channel) for channel in op.channels], "data")
        elif op.name == "sem_release":
            for semaphore in op.semaphores:
                self._give(("semaphore", block.rank, semaphore), block.now, block.done)
        elif op.name == "sem_acquire":
            names = [("semaphore", block.rank, semaphore) for semaphore in op.semaphores]
            return self._await(number, block, names, "dependency")
        elif op.name == "barrier":
            return self._barrier(number, block, op)
        elif op.name == "flush":
            for channel in op.channels:
                block.delay(self.port_free[block.rank, *channel], "link", block.cause)
        elif op.name in PACKETS:
            return self._exchange(number, block, op)
        elif op.name != "nop":
            self._move(block, op)
        return True

    # -- signals -----------------------------------------------------------------------------------------------

    def _signal(self, block: _Block, end: End) -> None:
        peer = self.peer_end[end]
        # Who takes data one way signals back also where the topology has no link that way: hardware is full duplex.
        back = (block.rank, peer[0]) not in self.paths and (peer[0], block.rank) in self.paths
        ways = (peer[0], block.rank) if back else (block.rank, peer[0])
        alpha_us = self._path(*ways, self.ordinal[end]).alpha_us
        landed = self.port_landed[end] if end[1] == "port" else block.landed
        self._give(peer, max(max(block.now, self.port_free[end]) + alpha_us, landed), block.done)

    def _give(self, name: Hashable, seen: float, by: int) -> None:
        self.signals[name].append((seen, by))
        for number in self.waiting.pop(name, ()):
            heappush(self.queue, (max(seen, self.blocks[number].now), number))

    def _await(self, number: int, block: _Block, names: Sequence[Hashable], why: str) -> bool:
        while block.taken < len(names):
            given = self.signals[names[block.taken]]
            if not given:
                self.waiting[names[block.taken]].append(number)
                return False
            seen, by = given.popleft()
            block.delay(seen, why, by)
            block.taken += 1
        block.taken = 0
        return True

    def _barrier(self, number: int, block: _Block, op: Op) -> bool:
        if block.taken:
            block.taken = 0
            return True
        here = self.here[block.rank, op.barrier]
        here.append(number)
        if len(here) < op.barrier_threadblocks:
            return False
        last = max((self.blocks[each] for each in here), key=lambda each: each.now)
        for each in here:
            other = self.blocks[each]
            other.delay(last.now, "dependency", last.done)
            if other is not block:
                other.taken = 1
                heappush(self.queue, (other.now, each))
        here.clear()
        return True

    # -- data --------------------------------------------------------------------------------------------------

    def _move(self, block: _Block, op: Op) -> None:
        pairwise = op.name in ("put", "pws", "pwsf", "copy", "get")
        parts = list(zip(op.sources, op.targets, strict=False)) if pairwise else [(None, None)]
        for i, (source, target) in enumerate(parts):
            channel = op.channels[min(i, len(op.channels) - 1)] if op.channels else None
            end = (block.rank, *channel) if channel is not None else None
            if source is not None and target is not None:
                self._carry(block, end, [source], [target], combines=op.name == "copy")
            else:
                self._carry(block, end, op.sources, op.targets, combines=op.name not in ("gstore", "glres"))
            if op.name.startswith("pws") and end is not None:
                self._signal(block, end)

    def _exchange(self, number: int, block: _Block, op: Op) -> bool:
        """An operation on packets, once all that it reads are there."""
        parts = packet_parts(op)
        for name in (each for part in parts.packet_sources for each in self._packets(part)):
            if name not in self.arrived:
                self.waiting[name].append(number)
                return False
            seen, by = self.arrived[name]
            block.delay(seen, "data", by)
        reads = (*parts.plain_sources, *parts.packet_sources)
        pairwise = op.name == "ppkt"
        moves = list(zip(reads, op.targets, strict=False)) if pairwise else [(None, None)]
        for i, (source, target) in enumerate(moves):
            ends = [(block.rank, *channel) for channel in op.channels[i : i + 1 if pairwise else None]]
            sources, targets = ([source], [target]) if source and target else (reads, op.targets)
            arrival = self._carry(
                block, ends[0] if ends else None, sources, targets, combines=op.name != "ppkt", packets=True
            )
            for part in (part for part in targets if part in parts.packet_targets):
                for name in self._packets(part):
                    self.arrived[name] = (arrival, block.latest)
                    for other in self.waiting.pop(name, ()):
                        heappush(self.queue, (max(arrival, self.blocks[other].now), other))
        return True

    @staticmethod
    def _packets(part: Part) -> list[Hashable]:
        return [("packet", part.ranks[0], k) for k in range(part.first, part.first + part.size)]

    def _carry(
        self,
        block: _Block,
        end: End | None,
        sources: Sequence[Part],
        targets: Sequence[Part],
        *,
        combines: bool,
        packets: bool = False,
    ) -> float:
        """One move: from wherever its sources are to this GPU, and on to wherever its targets are. When it is there."""
        data = max(part.size for part in (*sources, *targets)) * self.chunk_bytes
        nbytes = data * (2 if packets else 1)
        ways = [(rank, block.rank) for part in sources for rank in part.ranks if rank != block.rank]
        ways += [(block.rank, rank) for part in targets for rank in part.ranks if rank != block.rank]
        position = self.ordinal.get(end, 0) if end is not None else 0
        crossed: dict[int, tuple[float, float]] = {}  # link → when the data is on it, from the move's start
        arrival = left = 0.0
        for src, dst in dict.fromkeys(ways):
            path = self._path(src, dst, position)
            head, rate = 0.0, math.inf
            for id in path.links:
                link = self.topology.link_by_id[id]
                rate = min(rate, link.bandwidth_GBps * 1e3)
                tail = head + nbytes / rate
                crossed.setdefault(id, (tail - link.beta_us(nbytes), tail))
                head += link.alpha_us
            arrival = max(arrival, path.alpha_us + nbytes / rate)
            left = max(left, nbytes / (self.topology.link_by_id[path.links[0]].bandwidth_GBps * 1e3))
        by_port = end is not None and end[1] == "port" and bool(ways)
        begin = max(block.now, self.port_free[end]) if by_port and end is not None else block.now
        holder = max(crossed, key=lambda id: self.free[id][0] - crossed[id][0], default=None)
        start = begin
        if holder is not None and self.free[holder][0] - crossed[holder][0] > begin:
            start = self.free[holder][0] - crossed[holder][0]
            if not by_port:
                block.delay(start, "link", self.free[holder][1])
        own = data / self.bytes_per_us * (2 if combines else 1)
        step = self._record(block, start, start + max(left, own, 1e-12 if by_port else 0.0))
        for id, (first, last) in crossed.items():
            self.free[id] = (start + last, step)
            self.transfers.append(Transfer(id, block.rank, block.tb, block.at, start + first, start + last))
        reads = any(rank != block.rank for part in sources for rank in part.ranks)
        if by_port and end is not None:
            self.port_free[end] = start + left
            self.port_landed[end] = max(self.port_landed[end], start + arrival)
            return start + arrival
        block.landed = max(block.landed, start + arrival)
        busy = max(own, arrival if reads else left)
        block.busy += busy
        block.now, block.why, block.cause = start + busy, "order", step
        return start + max(arrival, own)

    def _record(self, block: _Block, start: float, end: float) -> int:
        step = len(self.steps)
        self.steps.append(CriticalStep(block.rank, block.tb, block.at, 0, start, end, block.why))
        self.causes.append(block.cause)
        block.latest = step
        return step

    def _path(self, src: int, dst: int, position: int) -> Path:
        choices = self.paths.get((src, dst))
        if not choices:
            raise InputError(
                f"{self.plan.name}: rank {src} sends to rank {dst}, but {self.topology.name} has no path between them "
                "that avoids other GPUs; use a plan made for this topology"
            )
        return choices[position % len(choices)]

    # -- the answer --------------------------------------------------------------------------------------------

    def timing(self, size_bytes: float) -> PlanTiming:
        finish = max((block.now for block in self.blocks), default=0.0)
        busy: dict[int, float] = defaultdict(float)
        for transfer in self.transfers:
            busy[transfer.link] += transfer.end_us - transfer.start_us

        def share(part: float) -> float:
            return part / finish if finish > 0 else 0.0

        return PlanTiming(
            finish_us=finish,
            algbw_GBps=share(size_bytes / 1e3),
            launch_us=0.0,
            iterations=1,
            simulated_iterations=1,
            links=tuple(
                LinkUse(id, us, share(us), us * self.topology.link_by_id[id].bandwidth_GBps * 1e3)
                for id, us in sorted(busy.items())
            ),
            threadblocks=tuple(
                ThreadblockUse(block.rank, block.tb, block.busy, share(block.busy), block.now) for block in self.blocks
            ),
            critical_path=tuple(self._critical()),
            steps=tuple(self.steps),
            transfers=tuple(self.transfers),
        )

    def _critical(self) -> list[CriticalStep]:
        """From the last threadblock's last step back, from cause to cause."""
        last = max(self.blocks, key=lambda block: block.now, default=None)
        step, path = last.done if last is not None else -1, []
        while step >= 0:
            path.append(self.steps[step])
            step = self.causes[step]
        return path[::-1]

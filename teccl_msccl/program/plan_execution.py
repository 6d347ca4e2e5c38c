"""The abstract execution of a plan: every operation once, on sets of contributions instead of numbers."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

import numpy as np

from .finding import Finding, error, warning
from .packet_memory import Packets
from .plan_clock import Block, Clock, Done, Event, Port
from .plan_file import End, Op, Part, PlanFile, channel_pairs
from .plan_memory import Content, Memory
from .plan_packets import PACKETS, packet_parts
from .targets import MSCCLPP

_PAIRWISE = frozenset({"put", "pws", "pwsf", "copy", "get"})
_REDUCING = frozenset({"re", "rre", "res", "rres"})
_SIGNALS = {"signal": False, "rlxsignal": True}
_WAITS = {"wait": False, "rlxwait": True}
#: Operations that are executed here.
KNOWN = (
    _PAIRWISE
    | _REDUCING
    | PACKETS
    | {*_SIGNALS, *_WAITS, "nop", "barrier", "sem_acquire", "sem_release", "flush", "gstore", "glres"}
)


class Execution:
    """The plan on its way."""

    def __init__(self, plan: PlanFile) -> None:
        self.plan = plan
        self.findings: list[Finding] = []
        total = sum(len(gpu.threadblocks) for gpu in plan.gpus)
        ends = [(r, "port", i) for r, gpu in enumerate(plan.gpus) for i in range(len(gpu.peers.get("port", ())))]
        self.ports: dict[End, Port] = {end: Port(total + i) for i, end in enumerate(ends)}
        total += len(ends)
        self.blocks: list[Block] = []
        self.of_rank: list[list[Block]] = []
        for rank, gpu in enumerate(plan.gpus):
            mine = [
                Block(len(self.blocks) + tb, rank, tb, total, block.ops) for tb, block in enumerate(gpu.threadblocks)
            ]
            self.of_rank.append(mine)
            self.blocks += mine
        self.memory = Memory(plan, self.of_rank, self.findings.append)
        self.packets = Packets(plan, self.of_rank, self.findings.append)
        self.peer_end = dict(channel_pairs(plan))
        self.signals: dict[End, deque[tuple[Clock, Clock, bool]]] = defaultdict(deque)
        self.tokens: dict[tuple[int, int], deque[tuple[Clock, Clock]]] = defaultdict(deque)
        zero = np.zeros(total, dtype=np.int32)
        for rank, gpu in enumerate(plan.gpus):
            for i, value in enumerate(gpu.semaphores):
                self.tokens[rank, i].extend([(zero, zero)] * value)
        self.last_use: dict[tuple[str, End], Event] = {}
        self.last_release: dict[tuple[int, int], Event] = {}
        self.gathered: dict[tuple[int, int], list[Block]] = defaultdict(list)
        self.root: int | None = None
        self.finished = False

    def report(self, code: str, text: str, event: Event | None = None, level: str = "error") -> None:
        make = error if level == "error" else warning
        self.findings.append(make(code, text) if event is None else make(code, text, event.rank, event.tb, event.op))

    def outcomes(self) -> dict[str, str]:
        wrong = {finding.code for finding in self.findings if finding.level == "error"}
        known = self.plan.collective in MSCCLPP.collectives.values()
        data = "no postcondition" if not known else "failed" if wrong & {"data", "twice", "empty"} else "proved"
        return {
            "progress": "failed" if wrong & {"hang", "leftover"} else "proved",
            "data": data if self.finished else "not attempted",
            "races": "failed"
            if wrong & {"race", "entry", "exit", "port", "ambiguous", "reuse"}
            else "proved"
            if self.finished
            else "not attempted",
        }

    # -- the machine -------------------------------------------------------------------------------------------

    def all(self) -> None:
        """Run every threadblock as far as it goes, again and again."""
        queue = deque(self.blocks)
        idle = 0
        while queue and idle < len(queue):
            block = queue.popleft()
            moved = False
            while block.at < len(block.ops) and self._step(block):
                block.at += 1
                moved = True
            if block.at < len(block.ops):
                queue.append(block)
                idle = 0 if moved else idle + 1
            else:
                idle = 0
        if queue:
            self._hang(list(queue))
            return
        self.finished = True
        self._leftovers()
        self.memory.at_rest()
        self.packets.at_rest()
        self._results()

    def _step(self, block: Block) -> bool:
        """Do the operation that is due; False: it waits."""
        op = block.ops[block.at]
        if op.name == "nop":
            block.meet()
        elif op.name in _SIGNALS:
            for channel in op.channels:
                self._signal(block, (block.rank, *channel), _SIGNALS[op.name])
        elif op.name in _WAITS:
            return self._await(block, op, _WAITS[op.name])
        elif op.name == "sem_release":
            for semaphore in op.semaphores:
                self._release(block, (block.rank, semaphore))
        elif op.name == "sem_acquire":
            return self._acquire(block, op)
        elif op.name == "barrier":
            return self._barrier(block, op)
        elif op.name == "flush":
            self._flush(block, op)
        elif op.name in PACKETS:
            return self._exchange(block, op)
        else:
            self._move(block, op)
        return True

    def _signal(self, block: Block, end: End, relaxed: bool) -> None:
        event = block.event()
        self._in_order("signals", end, block, event)
        known, weak = block.known.copy(), block.weak_known.copy()
        if end in self.ports:
            self.ports[end].tell(known)
            np.maximum(weak, known, out=weak)
        self.signals[self.peer_end[end]].append((known, weak, relaxed))

    def _await(self, block: Block, op: Op, relaxed: bool) -> bool:
        while block.taken < len(op.channels):
            end = (block.rank, *op.channels[block.taken])
            if not self.signals[end]:
                return False
            event = block.event()
            self._in_order("waits", end, block, event)
            clock, weak, was_relaxed = self.signals[end].popleft()
            if relaxed or was_relaxed:
                clock = np.minimum(clock, 1)
            np.maximum(block.heard, clock, out=block.heard)
            np.maximum(block.weak_heard, weak, out=block.weak_heard)
            block.taken += 1
        block.taken = 0
        return True

    def _in_order(self, verb: str, end: End, block: Block, event: Event) -> None:
        """Signals are counted: those of one channel must come one after another, and so must the waits."""
        last = self.last_use.get((verb, end))
        if last is not None and last.clock != block.number and not block.knows(last):
            text = f"{verb} on {end[1]} channel {end[2]} at once with tb {last.tb} op {last.op}; which is which is open"
            self.report("ambiguous", text, event)
        self.last_use[verb, end] = event

    def _release(self, block: Block, semaphore: tuple[int, int]) -> None:
        event = block.event()
        last = self.last_release.get(semaphore)
        if last is not None and last.clock != block.number and not block.knows(last) and self.tokens[semaphore]:
            text = f"releases semaphore {semaphore[1]} at once with tb {last.tb} op {last.op}"
            self.report("order", text, event, "warning")
        self.last_release[semaphore] = event
        self.tokens[semaphore].append((block.known.copy(), block.weak_known.copy()))

    def _acquire(self, block: Block, op: Op) -> bool:
        while block.taken < len(op.semaphores):
            tokens = self.tokens[block.rank, op.semaphores[block.taken]]
            if not tokens:
                return False
            clock, weak = tokens.popleft()
            np.maximum(block.heard, clock, out=block.heard)
            np.maximum(block.weak_heard, weak, out=block.weak_heard)
            block.taken += 1
        block.taken = 0
        return True

    def _barrier(self, block: Block, op: Op) -> bool:
        """The last to come brings all of them together; each passes when it is asked again."""
        here = self.gathered[block.rank, op.barrier]
        if block.taken:
            block.taken = 0
            return True
        if block not in here:
            here.append(block)
        if len(here) < op.barrier_threadblocks:
            return False
        for each in here:
            each.meet()
        known = np.maximum.reduce([each.known for each in here])
        weak = np.maximum.reduce([each.weak_known for each in here])
        for each in here:
            for clock in (each.known, each.heard):
                np.maximum(clock, known, out=clock)
            for clock in (each.weak_known, each.weak_heard):
                np.maximum(clock, weak, out=clock)
            each.taken = each is not block
        here.clear()
        return True

    def _flush(self, block: Block, op: Op) -> None:
        if not op.targets:
            return  # flushes nothing: the limits say so
        block.event()
        for channel in op.channels:
            self.ports[(block.rank, *channel)].tell(block.heard)
        np.maximum(block.weak_heard, block.heard, out=block.weak_heard)

    def _move(self, block: Block, op: Op) -> None:
        if op.name in _PAIRWISE:
            for i, (source, target) in enumerate(zip(op.sources, op.targets, strict=False)):
                end = (block.rank, *op.channels[i]) if op.channel_type == "port" and i < len(op.channels) else None
                event = block.event() if end is None else self.ports[end].event(block)
                for k in range(target.size):
                    self.memory.write(block, event, target, k, self.memory.read(block, event, source, k))
                if op.name != "put" and end is not None and op.name.startswith("pws"):
                    self._signal(block, end, relaxed=False)
            return
        event = block.event()
        for k in range(op.targets[0].size if op.targets else 0):
            if op.name == "glres":
                content = self._sum(event, [self.memory.read(block, event, op.sources[0]._replace(ranks=(rank,)), k)
                                            for rank in op.sources[0].ranks])  # fmt: skip
            elif op.name == "gstore":
                content = self.memory.read(block, event, op.sources[0], k)
            else:
                content = self._sum(event, [self.memory.read(block, event, source, k) for source in op.sources])
            for target in op.targets:
                self.memory.write(block, event, target, k, content)

    def _exchange(self, block: Block, op: Op) -> bool:
        """An operation on packets, each by itself: what it makes of one waits for that one only."""
        parts = packet_parts(op)
        if op.name == "ppkt":
            for i, (source, target) in enumerate(zip(op.sources, op.targets, strict=False)):
                self._put_packets(block, op, i, source, target)
            return True
        if not all(self.packets.arrived(part) for part in parts.packet_sources):
            return False
        event = block.event()
        for k in range(op.sources[0].size if op.sources else 0):
            taken = [self.packets.take(block, event, part, k) for part in parts.packet_sources]
            plain = [self.memory.read(block, event, part, k) for part in parts.plain_sources]
            content = self._sum(event, [*plain, *(packet.content for packet in taken)])
            done = self._done(event, parts.plain_sources, k).union(
                *(packet.done for packet in taken), ((event, self.packets.place(p, k)) for p in parts.packet_sources)
            )
            for target in parts.plain_targets:
                self.memory.write(block, event, target, k, content, done)
            if op.channel_type != "port":
                for target in parts.packet_targets:
                    self.packets.send(block, event, target, k, content, taken, done)
        if op.channel_type == "port":
            block.meet()  # before it asks the ports
            for i, target in enumerate(parts.packet_targets):
                self._put_packets(block, op, i, op.sources[0], target)
        return True

    def _put_packets(self, block: Block, op: Op, i: int, source: Part, target: Part) -> None:
        """Data on its way as packets; or packets as they are, which a port moves by itself."""
        if op.channel_type != "port":
            event = block.event()
            for k in range(target.size):
                content = self.memory.read(block, event, source, k)
                self.packets.send(block, event, target, k, content, (), self._done(event, (source,), k))
            return
        port = self.ports[block.rank, *op.channels[i]]
        event = port.event(block)
        for k in range(target.size):
            packet = self.packets.move(block, event, source, k)
            done = frozenset({(event, self.packets.place(source, k))})
            self.packets.send(block, event, target, k, packet.content if packet else None, (), done)
        port.told += 1

    def _done(self, event: Event, sources: tuple[Part, ...], k: int) -> frozenset[Done]:
        return frozenset((event, self.memory.place(part.ranks[0], part.buffer, part.first + k)) for part in sources)

    def _sum(self, event: Event, contents: list[Content | None]) -> Content | None:
        total: Counter[tuple[int, int]] = Counter()
        for content in contents:
            total.update(content or ())
        twice = next((contribution for contribution, count in total.items() if count > 1), None)
        if twice is not None:
            self.report("twice", f"adds rank {twice[0]}'s chunk {self.plan.chunk(twice[1])} twice", event)
        return frozenset(total) if all(content is not None for content in contents) else None

    # -- the end -----------------------------------------------------------------------------------------------

    def _hang(self, stuck: list[Block]) -> None:
        for block in stuck:
            op = block.ops[block.at]
            text = op.name
            if op.name in _WAITS:
                kind, position = op.channels[block.taken]
                peer = self.plan.gpus[block.rank].peers[kind][position]
                text = f"waits for rank {peer} on {kind} channel {position}"
            elif op.name == "sem_acquire":
                text = f"waits for semaphore {op.semaphores[block.taken]}"
            elif op.name in PACKETS:
                part = next(part for part in packet_parts(op).packet_sources if not self.packets.arrived(part))
                text = f"waits for packets {self.plan.chunk(part.first)} and on"
            elif op.name == "barrier":
                text = f"waits at barrier {op.barrier} for {op.barrier_threadblocks} threadblocks"
            self.report("hang", f"{text}, for ever", Event(block.number, 0, block.rank, block.tb, block.position))

    def _leftovers(self) -> None:
        """What one launch leaves behind, the next one takes for its own."""
        for (rank, kind, position), signals in sorted(self.signals.items()):
            if signals:
                text = f"{kind} channel {position} has {len(signals)} signals that nobody waits for"
                self.findings.append(error("leftover", text, rank))
        for (rank, semaphore), tokens in sorted(self.tokens.items()):
            value = self.plan.gpus[rank].semaphores[semaphore]
            if len(tokens) != value:
                text = f"semaphore {semaphore} ends at {len(tokens)}, but begins at {value}"
                self.findings.append(error("leftover", text, rank))

    def _results(self) -> None:
        plan = self.plan
        if self.memory.root is not None:
            self.root = self.memory.root
        elif plan.collective in ("broadcast", "scatter"):
            first = self.memory.content(0, "o", 0)
            self.root = next(iter(first))[0] if first else 0
        elif plan.collective in ("reduce", "gather"):
            self.root = max(range(len(plan.gpus)), key=lambda rank: (self._right(rank), -rank))
        for rank, gpu in enumerate(plan.gpus):
            for k in range(gpu.output_chunks):
                due = self._due(rank, k)
                content = self.memory.content(rank, "o", k)
                if due is not None and content != due:
                    lacking, foreign = sorted(due - (content or frozenset())), sorted((content or frozenset()) - due)
                    text = f"output chunk {plan.chunk(k)} " + (
                        f"lacks rank {lacking[0][0]}'s chunk {plan.chunk(lacking[0][1])}" if lacking
                        else f"has rank {foreign[0][0]}'s chunk {plan.chunk(foreign[0][1])} in it"
                    )  # fmt: skip
                    self.findings.append(error("data", text, rank))

    def _right(self, rank: int) -> int:
        """How many of its output chunks are as the root's."""
        chunks = range(self.plan.gpus[rank].output_chunks)
        return sum(self.memory.content(rank, "o", k) == self._of_root(rank, k) for k in chunks)

    def _of_root(self, rank: int, k: int) -> Content:
        if self.plan.collective == "reduce":
            return frozenset((source, k) for source in range(len(self.plan.gpus)))
        share = self.plan.gpus[rank].input_chunks
        return frozenset({(k // share, k % share)})

    def _due(self, rank: int, k: int) -> Content | None:
        """What a rank's output chunk must hold."""
        plan, everyone = self.plan, range(len(self.plan.gpus))
        match plan.collective:
            case "allgather":
                share = plan.gpus[rank].input_chunks
                return frozenset({(k // share, k % share)})
            case "allreduce":
                return frozenset((source, k) for source in everyone)
            case "reducescatter":
                return frozenset((source, rank * plan.gpus[rank].output_chunks + k) for source in everyone)
            case "alltoall":
                share = plan.gpus[rank].input_chunks // len(plan.gpus)
                return frozenset({(k // share, rank * share + k % share)})
            case "broadcast":
                return frozenset({(self.root or 0, k)})
            case "scatter":
                return frozenset({(self.root or 0, rank * plan.gpus[rank].output_chunks + k)})
            case "reduce" | "gather" if rank == self.root:
                return self._of_root(rank, k)
        return None

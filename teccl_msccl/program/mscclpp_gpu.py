"""One GPU's part of an MSCCL++ plan: a program's steps divided among threadblocks, as operations and semaphores."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ..errors import Refused
from .mscclpp_order import At, Connection, Span, Traffic, Transfer, memory, root_in_place
from .mscclpp_threadblock import Channel, Operations, RemoteBuffer
from .program import SENDING, Program, Step
from .targets import PlanLimits

#: With this many times the semaphores that there are, joining threadblocks two by two takes long and seldom suffices.
_FAR = 3

Point = tuple[At, bool]
Group = tuple[At, ...]


class _Grouping:
    """Steps as they are divided among threadblocks (groups), and the semaphores that keep their order.

    A step waits for its dependency and for the one before it in the program's threadblock. A semaphore counts what
    one group tells another, so its waits are for ever later steps: one that an earlier wait implies is left out.
    """

    def __init__(self, groups: Sequence[Group], steps: Mapping[At, Step], order: Mapping[Point, int]) -> None:
        home = {at: group for group in groups for at in group}
        self.semaphores: dict[tuple[Group, Group], int] = {}
        self.acquired: dict[At, list[int]] = defaultdict(list)
        self.released: dict[At, list[int]] = defaultdict(list)
        #: Steps that go on with a threadblock of the program where another group left it, on the same channel.
        self.continued = {at for at in home if at.step and home[at._replace(step=at.step - 1)] != home[at]}
        for group in groups:
            reached: dict[Group, int] = defaultdict(lambda: -1)
            for at in sorted(group, key=lambda at: order[at, False]):  # it waits when it is due
                for producer in self._before(at, steps[at]):
                    other = home[producer]
                    if other != group and order[producer, True] > reached[other]:
                        reached[other] = order[producer, True]
                        semaphore = self.semaphores.setdefault((other, group), len(self.semaphores))
                        self.acquired[at].append(semaphore)
                        self.released[producer].append(semaphore)

    @staticmethod
    def _before(at: At, step: Step) -> Iterator[At]:
        if at.step:
            yield at._replace(step=at.step - 1)
        if step.depid >= 0:
            yield At(at.rank, step.depid, step.deps)


class GpuPlan:
    """One rank's part of the plan."""

    def __init__(
        self,
        program: Program,
        rank: int,
        inplace: bool,
        traffic: Traffic,
        order: Mapping[Point, int],
        channels: Mapping[Connection, Channel],
        limits: PlanLimits,
    ) -> None:
        self.program, self.rank, self.inplace = program, rank, inplace
        self.traffic, self.order, self.channels, self.limits = traffic, order, channels, limits
        self.steps = {
            At(rank, tb, position): step
            for tb, block in enumerate(program.gpus[rank].threadblocks)
            for position, step in enumerate(block.steps)
        }
        self.root = root_in_place(program) if inplace else None
        self.packets = program.protocol == "LL"
        self.pairs = {(transfer.connection.src, transfer.connection.dst) for transfer in traffic.sends.values()}
        self.credits: dict[Point, list[Transfer]] = defaultdict(list)
        for transfer in traffic.sends.values():
            if transfer.credit is not None and transfer.connection.dst == rank:
                self.credits[transfer.credit].append(transfer)

    def to_json(self) -> dict[str, Any]:
        inputs, outputs = user_chunks(self.program, self.rank)
        blocks, semaphores = self._fit()
        kinds = sorted({channel.type for channel in self.channels.values()})
        remote = list(dict.fromkeys(each for ops in blocks for mine in ops.remote.values() for each in mine))
        return {
            "id": self.rank,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "scratch_chunks": self.traffic.scratch[self.rank],
            "threadblocks": [threadblock_json(i, ops, remote) for i, ops in enumerate(blocks)],
            "channels": [
                {"channel_type": kind, "connected_to": [c.peer for c in self.channels.values() if c.type == kind]}
                for kind in kinds
            ],
            "remote_buffers": [
                {"rank": each.peer, "type": each.buffer, "access_channel_types": [each.type]} for each in remote
            ],
            "semaphores": [{"init_value": 0}] * semaphores,
        }

    def _fit(self) -> tuple[list[Operations], int]:
        """The program's threadblocks as they are; those with too many operations in halves, and as few joined as the
        limits ask for."""
        blocks = self.program.gpus[self.rank].threadblocks
        whole = [tuple(At(self.rank, tb, i) for i in range(len(block.steps))) for tb, block in enumerate(blocks)]
        groups: list[Group] = [steps for steps in whole if steps]
        packed = False
        while True:
            grouping = self._grouping(groups)
            built = [self._operations(group, grouping) for group in groups]
            lacking = self._lacking(built, len(grouping.semaphores))
            if not lacking:
                return built, len(grouping.semaphores)
            far = len(grouping.semaphores) > _FAR * self.limits.max_semaphores
            divided = self._halve(groups, built) or (None if far else self._join(groups, grouping))
            if divided is None and not packed:
                packed, divided = True, self._packed()
            if divided is None:
                raise Refused(
                    f"target mscclpp: rank {self.rank} {lacking}; synthesize with fewer --chunks, or for fewer GPUs"
                )
            groups = divided

    def _halve(self, groups: Sequence[Group], built: Sequence[Operations]) -> list[Group] | None:
        """Halve the groups that are too long for a threadblock; None: none are."""
        halves: list[Group] = []
        for group, ops in zip(groups, built, strict=True):
            half = len(group) // 2 if len(ops.ops) > self.limits.max_operations else 0
            halves += [group[:half], group[half:]] if half else [group]
        return halves if len(halves) > len(groups) else None

    def _grouping(self, groups: Sequence[Group]) -> _Grouping:
        return _Grouping(groups, self.steps, self.order)

    def _lacking(self, built: Sequence[Operations], semaphores: int) -> str:
        """What a limit has too little of; empty when all is well."""
        limits = self.limits
        longest = max((len(ops.ops) for ops in built), default=0)
        if longest > limits.max_operations:
            return f"needs {longest} operations in a threadblock, and plans hold {limits.max_operations}"
        most = max((ops.channels_max for ops in built), default=0)
        if most > limits.max_channels:
            return f"needs {most} channels in a threadblock, and plans hold {limits.max_channels}"
        if len(built) > limits.max_threadblocks:
            return f"needs {len(built)} threadblocks, and a GPU runs {limits.max_threadblocks} at once"
        if semaphores > limits.max_semaphores:
            return f"needs {semaphores} semaphores, and plans hold {limits.max_semaphores}"
        return ""

    def _join(self, groups: Sequence[Group], grouping: _Grouping) -> list[Group] | None:
        """Join pairs of groups that fit in one threadblock, those first that save most semaphores, an eighth of all
        at a time; None: none fit."""
        joined_to: dict[Group, set[tuple[Group, bool]]] = defaultdict(set)
        for producer, consumer in grouping.semaphores:
            joined_to[producer].add((consumer, True))
            joined_to[consumer].add((producer, False))
        saved: Counter[tuple[Group, Group]] = Counter()
        for one, other in combinations(groups, 2):
            direct = ((other, True) in joined_to[one]) + ((other, False) in joined_to[one])
            saved[one, other] = direct + len(joined_to[one] & joined_to[other])
        too_many = len(grouping.semaphores) > self.limits.max_semaphores
        rest = set(groups)
        joined: list[Group] = []
        for (one, other), saving in saved.most_common():
            if (too_many and not saving) or len(joined) > len(groups) // 8:
                break
            group = (*one, *other)
            if one in rest and other in rest and not self._lacking([self._emit(group, grouping, compact=True)], 0):
                rest -= {one, other}
                joined.append(group)
        return [*(group for group in groups if group in rest), *joined] if joined else None

    def _packed(self) -> list[Group]:
        """The program's threadblocks dealt out evenly over so few that every two may have semaphores both ways."""
        number = max(k for k in range(1, 6) if k * (k - 1) <= max(self.limits.max_semaphores, 0))
        packed: list[Group] = [()] * number
        blocks = self.program.gpus[self.rank].threadblocks
        for tb in sorted(range(len(blocks)), key=lambda tb: (-len(blocks[tb].steps), tb)):
            least = min(range(number), key=lambda i: len(packed[i]))
            packed[least] += tuple(At(self.rank, tb, i) for i in range(len(blocks[tb].steps)))
        return [group for group in packed if group]

    # -- operations --------------------------------------------------------------------------------------------

    def _operations(self, group: Group, grouping: _Grouping) -> Operations:
        """The group's operations; signals are held back if that is what makes them fit."""
        ops = self._emit(group, grouping, compact=False)
        if len(ops.ops) > self.limits.max_operations:
            ops = self._emit(group, grouping, compact=True)
        return ops

    def _emit(self, group: Group, grouping: _Grouping, *, compact: bool) -> Operations:
        ops = Operations(self.limits.max_channels_per_operation, self.limits.max_semaphores, compact)
        self._enter(group, ops)
        for at, done in sorted(((at, done) for at in group for done in (False, True)), key=self.order.__getitem__):
            if not done:
                for semaphore in grouping.acquired[at]:
                    ops.acquire(semaphore)
                if at in grouping.continued:
                    ops.meet()
            else:
                self._step(at, self.steps[at], ops)
            for transfer in self.credits[at, done]:
                ops.signal(self.channels[transfer.connection])
            if done:
                if at._replace(step=at.step + 1) in grouping.continued:
                    ops.meet()
                for semaphore in grouping.released[at]:
                    ops.release(semaphore)
        self._leave(group, ops)
        ops.settle()
        return ops

    def _enter(self, group: Group, ops: Operations) -> None:
        """The handshake: this launch is here, its buffers may be written; and so is every peer that is written to.
        Packets go to the other half of scratch than the launch before, whose packets tell as much: who gets none tells
        it at once, and is heard at the end."""
        for connection in self._begun(group, self.traffic.receives):
            ops.signal(self.channels[connection], relaxed=True)
        if not self.packets:
            for connection in self._begun(group, self.traffic.sends):
                ops.wait(self.channels[connection], relaxed=True)

    def _leave(self, group: Group, ops: Operations) -> None:
        """What ports have put must have left its source before the launch ends. Packets may be there still: their
        places are not used again before the launch after next."""
        if self.packets:
            for connection in self._begun(group, self.traffic.sends):
                ops.wait(self.channels[connection], relaxed=True)
            return
        last = {transfer.connection: transfer for at in group if (transfer := self.traffic.sends.get(at))}
        for connection, transfer in last.items():
            if self.channels[connection].type == "port":
                ops.flush(self.channels[connection], transfer.landing)

    def _begun(self, group: Group, transfers: Mapping[At, Transfer]) -> Iterator[Connection]:
        """The connections whose first transfer is the group's; with packets, those only whose receiver sends nothing
        back."""
        for at in group:
            if (transfer := transfers.get(at)) and transfer.position == 0:
                pair = transfer.connection
                if not (self.packets and (pair.dst, pair.src) in self.pairs):
                    yield pair

    def _packet_step(self, at: At, step: Step, ops: Operations) -> None:
        source, target = Span(step.srcbuf, step.srcoff, step.cnt), Span(step.dstbuf, step.dstoff, step.cnt)
        received = self.traffic.receives.get(at)
        if received is not None:
            reduces = step.type in ("rrc", "rrcs")
            plain = [source] if reduces else []
            name = "repkt" if reduces else "upkt"
            ops.local(name, [*plain, received.landing], target, self._memory(*plain), self._memory(target))
            source = target
        if step.type in SENDING:
            transfer = self.traffic.sends[at]
            channel, staging = self.channels[transfer.connection], self.traffic.staging.get(at)
            if staging is None:
                ops.put(channel, source, transfer.landing, self._memory(source), name="ppkt")
            else:
                ops.local("cpkt", [source], staging, self._memory(source), [])
                ops.put(channel, staging, transfer.landing, [], name="rppkt")

    def _step(self, at: At, step: Step, ops: Operations) -> None:
        if self.packets and (at in self.traffic.receives or at in self.traffic.sends):
            self._packet_step(at, step, ops)
            return
        source, target = Span(step.srcbuf, step.srcoff, step.cnt), Span(step.dstbuf, step.dstoff, step.cnt)
        received = self.traffic.receives.get(at)
        if received is not None:
            ops.wait(self.channels[received.connection])
        match step.type:
            case "cpy" if self._memory(source) != self._memory(target):
                ops.local("copy", [source], target, self._memory(source), self._memory(target))
            case "re":
                ops.local("re", [target, source], target, self._memory(source, target), self._memory(target))
            case "rrc" | "rrcs" | "rrs":
                assert received is not None
                slot = received.landing
                source, target = (target if step.type != "rrs" else slot), source
                ops.local("re", [target, slot], source, self._memory(target, slot), self._memory(source))
            case "rcs":
                source = target
        if step.type in SENDING:
            self._send(self.traffic.sends[at], source, ops)

    def _send(self, transfer: Transfer, source: Span, ops: Operations) -> None:
        channel = self.channels[transfer.connection]
        if transfer.credit is not None:
            ops.wait(channel)
        ops.put(channel, source, transfer.landing, self._memory(source))
        ops.signal(channel)
        if channel.type == "port" and self._rewritten(source):
            ops.flush(channel, transfer.landing)

    def _memory(self, *spans: Span) -> list[tuple[str, int]]:
        """The places, each by its one name."""
        places = [(span.buffer, k) for span in spans for k in range(span.offset, span.offset + span.length)]
        return [memory(self.program, self.rank, place, self.root) if self.inplace else place for place in places]

    def _rewritten(self, span: Span) -> bool:
        own = self.program.gpus[self.rank].scratch_chunks
        if span.buffer == "s" and span.offset >= own:
            return True  # a slot
        return any((self.rank, place) in self.traffic.rewritten for place in self._memory(span))


def user_chunks(program: Program, rank: int) -> tuple[int, int]:
    """Input and output chunks. The executor divides by both, so of a gather or scatter all ranks have both buffers."""
    gpus = program.gpus if program.collective in ("gather", "scatter") else program.gpus[rank : rank + 1]
    return max(gpu.input_chunks for gpu in gpus), max(gpu.output_chunks for gpu in gpus)


def threadblock_json(id: int, ops: Operations, remote: Sequence[RemoteBuffer]) -> dict[str, Any]:
    """A threadblock's part of the plan; `remote` are the rank's remote buffers, of which it has its own list."""
    return {
        "id": id,
        "ops": ops.ops,
        "channels": [{"channel_type": kind, "channel_ids": ids} for kind, ids in ops.channels.items()],
        "remote_buffer_refs": [
            {"access_channel_type": kind, "remote_buffer_ids": [remote.index(each) for each in mine]}
            for kind, mine in ops.remote.items()
        ],
    }

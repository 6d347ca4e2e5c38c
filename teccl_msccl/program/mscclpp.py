"""MSCCL++: a Program as a JSON execution plan for `libmscclpp_nccl.so` and MSCCL++'s Python executor.

s → put + signal; r → wait; rrc → wait + re from a slot of scratch; cpy → copy; dependencies between threadblocks →
semaphores. There is no FIFO: where a place is used again, the receiver's signal says that it is free. A launch begins
with a handshake (who receives tells who sends that its buffers are its own now). All that is put is waited for, and
what a port channel puts is flushed, so that a launch which ends is done with everybody's memory: no handshake at the
end is needed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from ..errors import InputError, Refused
from ..files import write_text
from .mscclpp_order import At, Connection, Span, Traffic, Transfer, global_order, memory, plan_traffic
from .mscclpp_threadblock import Channel, Operations, RemoteBuffer
from .program import SENDING, Program, Step
from .targets import MSCCLPP, PlanLimits

#: With this many times the semaphores that there are, joining threadblocks two by two takes long and seldom suffices.
_FAR = 3

Point = tuple[At, bool]
Group = tuple[At, ...]


@dataclass(frozen=True)
class ExecutionPlan:
    """A plan in MSCCL++'s JSON form."""

    value: Mapping[str, Any]

    def write(self, path: str | Path) -> None:
        """Write the JSON form, atomically."""
        write_text(path, json.dumps(self.value, indent=1) + "\n")

    @property
    def threadblocks_max(self) -> int:
        """Threadblocks of the GPU that has most."""
        return max(len(gpu["threadblocks"]) for gpu in self.value["gpus"])

    @property
    def multicasts(self) -> bool:
        """Whether switches copy data."""
        ops = (op for gpu in self.value["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"])
        return any(op["name"] == "gstore" for op in ops)

    @property
    def operations_max(self) -> int:
        """Operations of the longest threadblock."""
        return max((len(tb["ops"]) for gpu in self.value["gpus"] for tb in gpu["threadblocks"]), default=0)


def execution_plan(
    program: Program,
    *,
    inplace: bool | None = None,
    hosts: Sequence[int] | None = None,
    threads: int = 1024,
    limits: PlanLimits = MSCCLPP,
) -> ExecutionPlan:
    """`program` as a plan: reductions are sums, the protocol is Simple.

    `inplace`: which calls it is for (by default out of place, if the program can). `hosts`: the host of every rank;
    ranks of different ones are joined by port channels, all others by memory channels. Threadblocks keep the
    program's division as long as semaphores, channels and operations suffice, then are joined.

    Raises `InputError` for an option that does not fit, `Refused` where the plan would break a limit.
    """
    inplace = not program.outofplace if inplace is None else inplace
    if not (program.inplace if inplace else program.outofplace):
        raise InputError(f"{program.name}: is not for {'in-place' if inplace else 'out-of-place'} calls")
    if hosts is not None and len(hosts) != program.nranks:
        raise InputError(f"{program.name}: {len(hosts)} hosts for {program.nranks} ranks; name each rank's")
    if program.protocol != "Simple":
        raise Refused(f"target mscclpp: {program.protocol} would need packets; use protocol Simple")
    if program.collective not in limits.collectives:
        raise Refused(f"target mscclpp does not take {program.collective}, but {', '.join(limits.collectives)}")
    if inplace and program.collective in ("gather", "scatter"):
        raise Refused(f"target mscclpp: a {program.collective} is for out-of-place calls; use mode outofplace")
    traffic = plan_traffic(program, inplace)
    order = global_order(program, traffic)
    channels = _channels(traffic, hosts or [0] * program.nranks)
    gpus = [
        _Gpu(program, rank, inplace, traffic, order, channels[rank], limits).to_json() for rank in range(program.nranks)
    ]
    low, high = _sizes(program, traffic, limits)
    return ExecutionPlan(
        {
            "name": program.name,
            "collective": limits.collectives[program.collective],
            "protocol": "Simple",
            "inplace": inplace,
            "reuse_resources": False,
            "gpus": gpus,
            "num_threads_per_block": threads,
            "use_double_scratch_buffer": False,
            "buffer_alignment": limits.alignment,
            "min_message_size": low,
            "max_message_size": high,
        }
    )


def _sizes(program: Program, traffic: Traffic, limits: PlanLimits) -> tuple[int, int]:
    """The message sizes that the plan takes: chunks are whole units, and offsets are stored in 32 bits. The executor
    counts the output of an allgather, else the input."""
    user = [_user_chunks(program, rank) for rank in range(program.nranks)]
    largest = max(max(*user[rank], traffic.scratch[rank]) for rank in range(program.nranks))
    highest = limits.max_offset // largest // limits.alignment * limits.alignment  # of a chunk
    message = user[0][1] if program.collective == "allgather" else user[0][0]
    low = max(-(-program.min_bytes // program.nchunks), limits.alignment)
    return low * message, min(program.max_bytes // program.nchunks or highest, highest) * message


def _user_chunks(program: Program, rank: int) -> tuple[int, int]:
    """Input and output chunks. The executor divides by both, so of a gather or scatter all ranks have both buffers."""
    gpus = program.gpus if program.collective in ("gather", "scatter") else program.gpus[rank : rank + 1]
    return max(gpu.input_chunks for gpu in gpus), max(gpu.output_chunks for gpu in gpus)


# -- channels --------------------------------------------------------------------------------------------------


def _channels(traffic: Traffic, hosts: Sequence[int]) -> list[dict[Connection, Channel]]:
    """Every rank's channels, one for each direction of each connection. The k-th of a rank to a peer is joined to
    the k-th of the peer to it, so both list them in one order."""
    found: list[dict[Connection, Channel]] = [{} for _ in hosts]
    number: list[Counter[str]] = [Counter() for _ in hosts]
    connections = {transfer.connection for transfer in traffic.sends.values()}
    for connection in sorted(connections, key=lambda c: (min(c.src, c.dst), max(c.src, c.dst), c)):
        kind = "memory" if hosts[connection.src] == hosts[connection.dst] else "port"
        for rank, peer in ((connection.src, connection.dst), (connection.dst, connection.src)):
            found[rank][connection] = Channel(kind, number[rank][kind], peer)
            number[rank][kind] += 1
    return found


# -- one GPU ---------------------------------------------------------------------------------------------------


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


class _Gpu:
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
        self.credits: dict[Point, list[Transfer]] = defaultdict(list)
        for transfer in traffic.sends.values():
            if transfer.credit is not None and transfer.connection.dst == rank:
                self.credits[transfer.credit].append(transfer)

    def to_json(self) -> dict[str, Any]:
        inputs, outputs = _user_chunks(self.program, self.rank)
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
        """The handshake: this launch is here, its buffers may be written; and so is every peer that is written to."""
        for at in group:
            if (transfer := self.traffic.receives.get(at)) and transfer.position == 0:
                ops.signal(self.channels[transfer.connection], relaxed=True)
        for at in group:
            if (transfer := self.traffic.sends.get(at)) and transfer.position == 0:
                ops.wait(self.channels[transfer.connection], relaxed=True)

    def _leave(self, group: Group, ops: Operations) -> None:
        """What ports have put must have left its source before the launch ends."""
        last = {transfer.connection: transfer for at in group if (transfer := self.traffic.sends.get(at))}
        for connection, transfer in last.items():
            if self.channels[connection].type == "port":
                ops.flush(self.channels[connection], transfer.landing)

    def _step(self, at: At, step: Step, ops: Operations) -> None:
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
        return [memory(self.program, self.rank, place) if self.inplace else place for place in places]

    def _rewritten(self, span: Span) -> bool:
        own = self.program.gpus[self.rank].scratch_chunks
        if span.buffer == "s" and span.offset >= own:
            return True  # a slot
        return any((self.rank, place) in self.traffic.rewritten for place in self._memory(span))


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

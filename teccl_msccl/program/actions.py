"""First pass: a schedule becomes, rank by rank, what is done to which place when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ..collective.demand import Chunk
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import play
from .channels import direct_ways
from .placement import Layout, Place


@dataclass(eq=False, slots=True)
class Action:
    """A step to be: `type` as in the file, reading `src` and writing `dst` (None where the type does not).

    `connection` is (sender, receiver, which of their direct paths), None for what is local; `position` is the place
    in the connection's order and `turn` in the order of all the program's arrivals, the same for both ends. `chunks`
    of them move, from `src` and `dst` on. `onward` is the connection that a fused step sends over, and its place there.
    `start_us`, `arrival_us`, `nbytes` and `links` are the schedule's. Local copies come before all else, but for the
    actions of a `lane`, which are one threadblock's work. `after` holds the earlier actions of the rank that this
    one waits for, always with earlier turns.
    """

    rank: int
    type: str
    src: Place | None
    dst: Place | None
    connection: tuple[int, int, int] | None = None
    position: int = 0
    turn: int = -1
    start_us: float = 0.0
    arrival_us: float = 0.0
    nbytes: float = 0.0
    links: tuple[int, ...] = ()
    lane: int | None = None
    chunks: int = 1
    onward: tuple[tuple[int, int, int], int] | None = None
    after: list[Action] = field(default_factory=list, repr=False)

    @property
    def is_copy(self) -> bool:
        """Whether this is a local copy of no lane."""
        return self.connection is None and self.lane is None


@dataclass
class RankPlan:
    """One rank's actions in the order of their turns, and how much scratch they use."""

    actions: list[Action]
    scratch_chunks: int


def plan_actions(schedule: Schedule, modes: frozenset[str], *, fused: bool = True) -> list[RankPlan]:
    """Turn every send into an `s` at its source and an `r` or `rrc` at its target, and add the local copies.

    Copied chunks arrive at their output place, or in scratch at ranks that only pass them on. Reduced chunks
    gather at the output place of a rank that wants them, else in scratch: first own input + received, then on top.
    For targets that do not receive and reduce in one step (not `fused`) they arrive in scratch of their own, and all
    `re` of a chunk are one threadblock's, so that what it adds up is never handed from threadblock to threadblock.
    """
    planner = _Planner(schedule, modes, fused)
    planner.copy_own_chunks()
    planner.transfer()
    return [planner.finish(rank) for rank in range(schedule.topology.nranks)]


#: An action's turn, start, arrival, bytes and links.
_When = tuple[int, float, float, float, tuple[int, ...]]


class _Planner:
    def __init__(self, schedule: Schedule, modes: frozenset[str], fused: bool) -> None:
        self.schedule = schedule
        self.modes = modes
        self.fused = fused
        self.layout = Layout(schedule.demand)
        self.actions: dict[int, list[Action]] = defaultdict(list)
        self.early: dict[int, list[Action]] = defaultdict(list)
        self.scratch: dict[int, int] = defaultdict(int)
        self.held: dict[tuple[int, int], Place] = {}
        self.connections: dict[int, tuple[tuple[int, int, int], int]] = {}
        self._ways = direct_ways(schedule)
        self._others: dict[tuple[int, int], dict[tuple[int, ...], int]] = defaultdict(dict)
        self._sent: dict[tuple[int, int, int], int] = defaultdict(int)
        for chunk in schedule.demand.chunks:
            for rank in chunk.origin:
                self.held[chunk.id, rank] = self.layout.input_place(chunk, rank)

    def copy_own_chunks(self) -> None:
        """Origins that want their own chunk put it into the output, and send it from there when in-place and
        out-of-place calls share the file."""
        for chunk in self.schedule.demand.chunks:
            for rank in chunk.origin:
                alone = not chunk.reduce or len(chunk.origin) == 1
                if rank not in chunk.want or not alone:
                    continue
                source, target = self.held[chunk.id, rank], self.layout.output_place(chunk, rank)
                if "outofplace" in self.modes:
                    self.actions[rank].append(Action(rank, "cpy", source, target, nbytes=chunk.bytes))
                if self._sends_from_output:
                    self.held[chunk.id, rank] = target

    @property
    def _sends_from_output(self) -> bool:
        return "inplace" in self.modes and self.schedule.demand.collective == "allgather"

    def transfer(self) -> None:
        """Replay the sends on the schedule's clock: departures and arrivals in time order."""
        sends = sorted(self.schedule.sends, key=lambda send: send.start_us)
        starts, arrivals = play(self.schedule.topology, self.schedule.demand, sends)
        events = [(time, i, False) for i, time in enumerate(starts)]
        events += [(time, i, True) for i, time in enumerate(arrivals)]
        events.sort()  # at one instant in the order of the sends, which is causal
        needless = self._needless(sends, events)
        turn = {i: turn for turn, i in enumerate(i for _, i, arrives in events if arrives)}
        for _, i, arrives in events:
            if i in needless:
                continue
            chunk = self.schedule.demand.chunks[sends[i].chunk]
            when = (turn[i], starts[i], arrivals[i], chunk.bytes, sends[i].path)
            if arrives:
                self._arrive(i, sends[i], chunk, when)
            else:
                self._depart(i, sends[i], chunk, when)

    def _needless(self, sends: Sequence[Send], events: Iterable[tuple[float, int, bool]]) -> set[int]:
        """Copies that reach a GPU which has the whole chunk by then: what already reads it would have to wait for
        the copy's turn, or the copy for them."""
        chunks = self.schedule.demand.chunks
        shares = {(chunk.id, rank): 1 for chunk in chunks for rank in chunk.origin}  # contributions held
        in_flight: dict[int, int] = {}
        needless = set()
        for _, i, arrives in events:
            send = sends[i]
            source, target = self.schedule.ends(send)
            held = shares.get((send.chunk, target), 0)
            if not arrives:
                in_flight[i] = shares[send.chunk, source]
            elif send.reduce:
                shares[send.chunk, target] = held + in_flight[i]
            elif held == len(chunks[send.chunk].origin):
                needless.add(i)
            else:
                shares[send.chunk, target] = in_flight[i]
        return needless

    def _depart(self, i: int, send: Send, chunk: Chunk, when: _When) -> None:
        """The send takes the next place in the order of its connection."""
        pair = self.schedule.ends(send)
        connection = (*pair, self._number(pair, send.path))
        position = self._sent[connection]
        self._sent[connection] += 1
        self.connections[i] = (connection, position)
        place = self.held[chunk.id, pair[0]]
        self.actions[pair[0]].append(Action(pair[0], "s", place, None, connection, position, *when))

    def _number(self, pair: tuple[int, int], path: tuple[int, ...]) -> int:
        """Which of the pair's direct paths `path` is; what is none, which no runtime takes, goes by one of them."""
        ways, others = self._ways[pair], self._others[pair]
        if path in ways:
            return ways[path]
        number = others.setdefault(path, len(others))
        return number % len(ways) if ways else number

    def _arrive(self, i: int, send: Send, chunk: Chunk, when: _When) -> None:
        connection, position = self.connections[i]
        rank = connection[1]
        before = self.held.get((chunk.id, rank))
        if not send.reduce or before is None:
            gathered = self._landing(chunk, rank)
            arrived = [Action(rank, "r", None, gathered, connection, position, *when)]
        elif self.fused:
            gathered = before if before.buffer != "i" else self._landing(chunk, rank)
            arrived = [Action(rank, "rrc", before, gathered, connection, position, *when)]
        else:
            landing = self._new_scratch(rank)
            added, gathered = self._operands(chunk, rank, before, landing)
            arrived = [
                Action(rank, "r", None, landing, connection, position, *when),
                Action(rank, "re", added, gathered, None, 0, *when, lane=chunk.id),
            ]
        self.actions[rank] += arrived
        self.held[chunk.id, rank] = gathered

    def _operands(self, chunk: Chunk, rank: int, before: Place, landing: Place) -> tuple[Place, Place]:
        """What a `re` adds to what, of what a rank has of a chunk and what arrived: never onto its input."""
        if before.buffer != "i":
            return landing, before
        if rank not in chunk.want:
            return before, landing
        target = self.layout.output_place(chunk, rank)
        self.early[rank].append(Action(rank, "cpy", before, target, nbytes=chunk.bytes, lane=chunk.id))
        return landing, target

    def _landing(self, chunk: Chunk, rank: int) -> Place:
        """A place of its own for `chunk` at `rank`: the output where wanted, else new scratch."""
        return self.layout.output_place(chunk, rank) if rank in chunk.want else self._new_scratch(rank)

    def _new_scratch(self, rank: int) -> Place:
        self.scratch[rank] += 1
        return Place("s", self.scratch[rank] - 1)

    def finish(self, rank: int) -> RankPlan:
        actions = self.early[rank] + self.actions[rank]
        if "inplace" in self.modes:
            actions = self._stage_overwritten(rank, actions)
        actions.sort(key=lambda action: action.turn)
        return RankPlan(actions, self.scratch[rank])

    def _stage_overwritten(self, rank: int, actions: list[Action]) -> list[Action]:
        """In place, an arrival may overwrite input that is yet to be sent (alltoall): copy that to scratch first.

        Not only where the send starts later than the arrival, but where it *arrives* no earlier elsewhere: were the
        arrival to wait for that send, waits would no longer all point to earlier arrivals, and transfers that wait
        for credits could form a cycle.
        """
        overwritten: dict[Place, float] = {}
        for action in actions:
            if action.dst is not None and action.type != "cpy":
                overwritten.setdefault(self.layout.aliased(action.dst, rank), action.arrival_us)
        late = {a.src: a.nbytes for a in actions if a.src is not None and self._sent_too_late(a, overwritten)}
        staged = {place: self._new_scratch(rank) for place in sorted(late)}
        for action in actions:
            if action.type == "s" and action.src is not None:
                action.src = staged.get(action.src, action.src)
        copies = (Action(rank, "cpy", place, scratch, nbytes=late[place]) for place, scratch in staged.items())
        return [*copies, *actions]

    def _sent_too_late(self, action: Action, overwritten: Mapping[Place, float]) -> bool:
        if action.type != "s" or action.src is None or action.src.buffer != "i":
            return False
        return overwritten.get(self.layout.aliased(action.src, action.rank), inf) <= action.arrival_us

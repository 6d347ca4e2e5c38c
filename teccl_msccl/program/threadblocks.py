"""Pass: a rank's actions become threadblocks and their steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .actions import Action
from .channels import ChannelPlan, Connection, Stream
from .copies import in_order_of_use, share_out
from .dependencies import necessary_waits
from .placement import Place
from .program import RECEIVING, SENDING, Step, Threadblock
from .targets import Target


@dataclass(frozen=True)
class Crew:
    """How a rank's work is shared out: threadblocks for local copies and for local reductions, and whether what is
    sent to a peer and received from it on one channel is one threadblock's."""

    copiers: int = 1
    reducers: int = 1
    paired: bool = False


#: What a threadblock does, to whom it sends, from whom it receives, and on which channel; of local ones, the chunks a
#: step copies, and a number.
_Key = tuple[str, int, int, int]
_Waits = Mapping[Action, Sequence[Action]]
_Joined = Mapping[Stream, Stream]


@dataclass(frozen=True)
class SharedWork:
    """A rank's work as its threadblocks share it, in the order of their ids; what every action `waits` for, and what is
    `waited` for; `sizes` has the chunks that local copies move."""

    blocks: Mapping[_Key, Sequence[Action]]
    waits: _Waits
    waited: frozenset[Action]
    sizes: Mapping[Action, int]

    def steps_of(self, block: Sequence[Action]) -> int:
        """How many a threadblock takes: an action with k waits has k − 1 nops before it, one wait each."""
        return sum(max(1, len(self.waits[action])) for action in block)

    def is_waited_for(self, block: Sequence[Action]) -> bool:
        """Whether another threadblock waits for any of this one's steps."""
        return not self.waited.isdisjoint(block)

    def crowded(self, max_steps: int) -> dict[Connection, int]:
        """The connections with more steps than that in a threadblock, and how many."""
        found: dict[Connection, int] = {}
        for block in self.blocks.values():
            if (steps := self.steps_of(block)) > max_steps:
                for connection in {each for action in block for each in _connections(action)}:
                    found[connection] = max(found.get(connection, 0), steps)
        return found

    def threadblocks(self) -> tuple[Threadblock, ...]:
        """With their steps written down."""
        steps = _steps(self.blocks, self.waits, self.waited, self.sizes)
        return tuple(_threadblock(block, steps[block]) for block in self.blocks)


def share_work(
    actions: Sequence[Action],
    channels: ChannelPlan,
    crew: Crew,
    target: Target,
    paced: _Waits = MappingProxyType({}),
    joined: _Joined = MappingProxyType({}),
) -> SharedWork:
    """One threadblock per connection, direction and channel (of a pair of ranks, if the crew is paired; of what is
    sent and what is received, where they are `joined`), and those for local copies and reductions (more if they must).

    `actions` are in an order that their waits agree with, their hazards in `after`; `paced` has further waits.
    """
    into = {received: sent for sent, received in joined.items()}
    actions, sizes = in_order_of_use(actions, crew.copiers)
    home = share_out(sizes, crew.copiers, target.max_steps)
    reducer = _reducers(actions, crew.reducers, target.max_steps)

    def key(action: Action) -> _Key:
        if action.connection is not None:
            return _transfer_key(action, channels, crew.paired, joined, into)
        return ("local", *home[action], 0) if action.lane is None else ("reduce", 0, reducer[action.lane], 0)

    keys = {action: key(action) for action in actions}
    members: dict[_Key, list[Action]] = defaultdict(list)
    for action, block in keys.items():
        members[block].append(action)
    waits = necessary_waits(actions, keys, paced)
    waited = frozenset(earlier for needed in waits.values() for earlier in needed)
    return SharedWork({block: members[block] for block in _order(members, waited)}, waits, waited, sizes)


def _connections(action: Action) -> Iterator[Connection]:
    if action.connection is not None:
        yield action.connection
    if action.onward is not None:
        yield action.onward[0]


def _transfer_key(action: Action, channels: ChannelPlan, paired: bool, joined: _Joined, into: _Joined) -> _Key:
    assert action.connection is not None
    stream = channels.stream(action.connection, action.position)
    src, dst, channel = stream
    if action.type == "s":
        peers, other = (dst, -1), joined.get(stream)
        if other is not None:
            return ("through", dst, other[0], channel)
    else:
        peers, other = (-1, src), into.get(stream)
        if other is not None:
            return ("through", other[1], src, channel)
    return (
        ("both", max(peers), max(peers), channel)
        if paired
        else ("send" if action.type == "s" else "recv", *peers, channel)
    )


def _reducers(actions: Sequence[Action], wanted: int, max_steps: int) -> dict[int, int]:
    """For each lane its threadblock: lanes take turns at as many as wanted, or as hold them."""
    steps_of = Counter(action.lane for action in actions if action.lane is not None)
    for number in range(max(1, min(wanted, len(steps_of))), len(steps_of) + 1):
        reducer = {lane: turn % number for turn, lane in enumerate(steps_of)}
        steps: Counter[int] = Counter()
        for lane, count in steps_of.items():
            steps[reducer[lane]] += count
        if max(steps.values()) <= max_steps:
            return reducer
    return {lane: turn for turn, lane in enumerate(steps_of)}


def _order(members: Mapping[_Key, Sequence[Action]], waited: frozenset[Action]) -> list[_Key]:
    """Threadblocks that others wait for come first: a dependency can only name low ids."""
    return sorted(members, key=lambda key: (waited.isdisjoint(members[key]), key))


def _steps(
    blocks: Mapping[_Key, Sequence[Action]], waits: _Waits, waited: frozenset[Action], sizes: Mapping[Action, int]
) -> dict[_Key, tuple[Step, ...]]:
    """Every threadblock's steps: an action with k waits takes k − 1 nops before it, one wait each."""
    place: dict[Action, tuple[int, int]] = {}  # threadblock, step
    for tb, block in enumerate(blocks.values()):
        steps = 0
        for action in block:
            steps += max(0, len(waits[action]) - 1)
            place[action] = (tb, steps)
            steps += 1
    return {
        key: tuple(
            step
            for action in block
            for step in _action_steps(
                action,
                [place[earlier] for earlier in waits[action]],
                action in waited,
                sizes.get(action, action.chunks),
            )
        )
        for key, block in blocks.items()
    }


def _action_steps(action: Action, waits: Sequence[tuple[int, int]], waited: bool, chunks: int) -> list[Step]:
    src = action.src or action.dst or Place("i", 0)
    dst = action.dst or action.src or Place("o", 0)
    step = Step(action.type, *src, *dst, chunks, *(waits[-1] if waits else (-1, -1)), waited)
    return [*(Step("nop", depid=tb, deps=at) for tb, at in waits[:-1]), step]


def _threadblock(key: _Key, steps: tuple[Step, ...]) -> Threadblock:
    way, to, by, channel = key
    if way in ("local", "reduce"):
        return Threadblock(send=-1, recv=-1, chan=0, steps=steps)
    sends, receives = (any(step.type in kind for step in steps) for kind in (SENDING, RECEIVING))
    return Threadblock(send=to if sends else -1, recv=by if receives else -1, chan=channel, steps=steps)

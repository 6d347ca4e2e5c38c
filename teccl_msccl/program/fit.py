"""Fitting: as many channels and threadblocks as keep the schedule's pace, and as the target takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, inf

from ..errors import Refused
from ..schedule.schedule import Schedule
from .actions import Action, RankPlan
from .channels import (
    ChannelPlan,
    Connection,
    Transfer,
    assign_channels,
    direct_ways,
    halved,
    most_threadblocks,
    widths_for,
)
from .dependencies import order_hazards
from .fusion import FusedRank, fuse
from .interleaving import in_order_of_moments
from .narrowing import narrowed, time_lost
from .pacing import paced, shared_links, slow_links
from .placement import Layout
from .program import Gpu
from .targets import FEWEST_SMS, MAX_DEPENDENCY_TB, MAX_NODES_PER_RANK, Target
from .threadblocks import Crew, SharedWork, share_work

#: Local copies that others wait for may take this share of the schedule's time.
COPYING_SHARE = 0.2
#: Threadblocks for local copies, or for local reductions, unless more must be to end with the transfers; of the latter
#: so many at least, that few wait in vain.
MOST_LOCAL_THREADBLOCKS = 8
FEWEST_REDUCERS = 8


@dataclass(frozen=True)
class Fitted:
    """The GPUs of a program that the target takes, and the channels that it declares."""

    gpus: tuple[Gpu, ...]
    channels: int


class Fitter:
    """Builds the threadblocks of one schedule's plans, for one target."""

    def __init__(self, schedule: Schedule, plans: Sequence[RankPlan], target: Target, modes: frozenset[str]) -> None:
        self.schedule, self.plans, self.target, self.modes = schedule, plans, target, modes
        self.layout = Layout(schedule.demand)
        self.transfers = [
            Transfer(action.connection, action.nbytes, action.start_us, action.arrival_us)
            for plan in plans
            for action in plan.actions
            if action.type == "s" and action.connection is not None
        ]
        self._ways = {pair: len(ways) for pair, ways in direct_ways(schedule).items()}
        self.waits = cache(self._waits)

    def fit(self, credits: int, spread: int = 1, pace: str = "none", fused: bool = False, few: bool = False) -> Fitted:
        """As many channels as keep the schedule's pace, times `spread`; where a GPU cannot run that many threadblocks
        at once, fewer for the connections that lose least; half of all, and so on, until the target takes them. Where
        one channel is too much, sends to a peer and receives from it share a threadblock.

        `pace`: one of PACES; `fused`: what is passed on is, where sends and receives of a peer have their own
        threadblocks; `few`: connections across hosts have no more channels than they must. Raises `Refused` when
        nothing fits.
        """
        schedule = self.schedule
        needed = widths_for(self.transfers, credits, schedule.topology.threadblock_GBps, schedule.finish_us)
        counts = Counter(transfer.connection for transfer in self.transfers)
        # A transfer is a step at least.
        fewest = {connection: ceil(count / self.target.max_steps) for connection, count in counts.items()}
        widths = {
            connection: max(min(width * spread, self.target.max_channels // max(1, self._ways[connection[:2]])), least)
            for (connection, width), least in zip(needed.items(), map(fewest.__getitem__, needed), strict=True)
        }
        if few:
            widths.update((connection, least) for connection, least in fewest.items() if self._across(connection))
        refusal: Refused | None = None
        crowded: Fitted | None = None  # taken by the target, but more than every GPU can run at once
        forced: dict[Connection, int] = {}  # the channels that steps ask for, whatever is wanted
        for narrow, crew in self._attempts(widths, fewest, credits):
            least = {connection: max(width, forced.get(connection, 1)) for connection, width in narrow.items()}
            ends = most_threadblocks(least, crew.paired)
            beyond = refusal is not None and ends > self.target.max_threadblocks
            if beyond or (crowded and ends + self.locals > FEWEST_SMS):
                continue
            try:
                fitted = self._build(narrow, crew, pace, fused and not crew.paired, forced)
            except Refused as error:
                refusal = error
                continue
            if max(len(gpu.threadblocks) for gpu in fitted.gpus) <= FEWEST_SMS:
                return fitted
            crowded = crowded or fitted
        if crowded is not None:
            return crowded
        assert refusal is not None
        raise refusal

    def _attempts(
        self, widths: Mapping[Connection, int], fewest: Mapping[Connection, int], credits: int
    ) -> Iterator[tuple[Mapping[Connection, int], Crew]]:
        """Widths and crews: those of whose threadblocks a GPU can run all at once, the best first; or else those
        that the target takes. What could not fit is left out, unless that is all: building it says why."""
        narrowing = [widths]
        while max(narrowing[-1].values(), default=1) > 1:
            narrowing.append(halved(narrowing[-1]))
        least = most_threadblocks(narrowing[-1], paired=False) + self.locals
        most = min(FEWEST_SMS, self.target.max_threadblocks)
        crews = [self.crew] if least <= most else [self.crew, replace(self.crew, paired=True)]
        if least <= most < most_threadblocks(widths, paired=False) + self.locals:
            lost = time_lost(self.transfers, credits, self.schedule.topology.threadblock_GBps, self.schedule.finish_us)
            narrowing[0] = narrowed(widths, most - self.locals, lambda c, w: lost(c, w) if w >= fewest[c] else inf)
        attempts = [(narrow, crew) for crew in crews for narrow in narrowing]
        needs = [most_threadblocks(narrow, crew.paired) + self.locals for narrow, crew in attempts]
        first = [attempt for attempt, need in zip(attempts, needs, strict=True) if need <= most]
        then = [a for a, need in zip(attempts, needs, strict=True) if most < need <= self.target.max_threadblocks]
        yield from first or then or attempts[-1:]

    def _build(
        self, wanted: Mapping[Connection, int], crew: Crew, pace: str, fused: bool, forced: dict[Connection, int]
    ) -> Fitted:
        """Threadblocks on `wanted` channels per connection, or on more where the target's limit of steps asks for it:
        that is written down in `forced`. Raises `Refused` when the target does not take them."""
        widths = dict(wanted)
        shared: dict[int, SharedWork] = {}
        before: ChannelPlan | None = None
        while True:
            needed = most_threadblocks(widths, crew.paired)
            if needed > self.target.max_threadblocks and not fused:
                raise Refused(
                    f"a rank's transfers need {needed} threadblocks and target {self.target.name} takes "
                    f"{self.target.max_threadblocks}; synthesize with fewer --chunks"
                )
            channels = assign_channels(widths, self.target, self._ways)
            moved = range(len(self.plans)) if before is None else channels.moved(before)
            shared |= {rank: self._shared(rank, channels, crew, pace, fused) for rank in moved}
            before = channels
            crowded = [each for work in shared.values() if (each := work.crowded(self.target.max_steps))]
            if not (fused and crowded):  # else, other channels may have more fused
                _check_nodes([*shared.values()])
            if not crowded:
                break
            for connection, steps in (item for connections in crowded for item in connections.items()):
                # Waits move with the steps, so how many channels suffice shows only when they are there.
                fewest = ceil(len(channels.of[connection]) * steps / self.target.max_steps)
                widths[connection] = forced[connection] = max(widths[connection], fewest)
        _check_size([shared[rank] for rank in range(len(self.plans))], self.target)
        gpus = tuple(
            Gpu(*self.layout.sizes(rank), plan.scratch_chunks, shared[rank].threadblocks())
            for rank, plan in enumerate(self.plans)
        )
        return Fitted(gpus, channels.count)

    def _shared(self, rank: int, channels: ChannelPlan, crew: Crew, pace: str, fused: bool) -> SharedWork:
        """One rank's work, which the channels of its own connections decide."""
        work = FusedRank(self.plans[rank].actions, self.waits(pace)[rank], {})
        if crew.paired:
            work = replace(work, actions=in_order_of_moments(work.actions, channels, work.waits))
        if fused:
            work = fuse(work.actions, channels, work.waits, self._order_hazards)
        return share_work(work.actions, channels, crew, self.target, work.waits, work.joined)

    def _across(self, connection: Connection) -> bool:
        """Whether the connection is one between hosts."""
        topology = self.schedule.topology
        src, dst = (topology.node_by_id[topology.gpus[rank]].host for rank in connection[:2])
        return src != dst

    def _order_hazards(self, actions: Sequence[Action]) -> None:
        order_hazards(actions, self.layout, self.modes)

    def _waits(self, pace: str) -> list[Mapping[Action, Sequence[Action]]]:
        """For each rank what its sends wait for besides hazards: a shared link has as many sends at once as fill it."""
        links, limit = self.schedule.topology.link_by_id, self.schedule.topology.threadblock_GBps
        at_once = {
            link: ceil(links[link].bandwidth_GBps / limit) if limit else 1 for link in shared_links(self.schedule)
        }
        slow = slow_links(self.schedule)
        return [paced(plan.actions, pace, at_once, slow) for plan in self.plans]

    @cached_property
    def crew(self) -> Crew:
        """Threadblocks that share a rank's local work, so that what waits for them waits but briefly."""
        reducing = any(action.lane is not None for plan in self.plans for action in plan.actions)
        reducers = max(FEWEST_REDUCERS, self._sharing(lambda action: action.lane is not None)) if reducing else 0
        return Crew(self._sharing(lambda action: action.is_copy), reducers)

    @property
    def locals(self) -> int:
        """Threadblocks of the crew."""
        return self.crew.copiers + self.crew.reducers

    def _sharing(self, does: Callable[[Action], bool]) -> int:
        threadblock_GBps, finish_us = self.schedule.topology.threadblock_GBps, self.schedule.finish_us
        if not threadblock_GBps or finish_us <= 0:
            return 1
        nbytes = max(sum(action.nbytes for action in plan.actions if does(action)) for plan in self.plans)
        alone_us = nbytes / (threadblock_GBps / 2 * 1e3)
        soon = min(MOST_LOCAL_THREADBLOCKS, ceil(alone_us / (COPYING_SHARE * finish_us)))
        return max(1, soon, min(self._room, ceil(alone_us / finish_us)))

    @cached_property
    def _room(self) -> int:
        """For copies and for reductions: half of what a GPU can run beside a threadblock for each connection end."""
        ends = most_threadblocks(dict.fromkeys((transfer.connection for transfer in self.transfers), 1), paired=False)
        return (FEWEST_SMS - ends) // 2


def check_transfers(plans: Sequence[RankPlan]) -> None:
    """Refuse early what no channels and threadblocks can make fit."""
    for rank, plan in enumerate(plans):
        transfers = sum(action.connection is not None for action in plan.actions)
        nodes = 1 + len(plans) + transfers
        if nodes > MAX_NODES_PER_RANK:
            raise Refused(
                f"rank {rank} sends and receives {transfers} times, which with 1 algo and {len(plans)} gpu elements "
                f"makes {nodes} nodes, and a file may hold {MAX_NODES_PER_RANK} a rank; synthesize with fewer --chunks"
            )


def _check_nodes(shared: Sequence[SharedWork]) -> None:
    """Refuse, with the arithmetic, what no file can hold on so many channels, and on more even less."""
    for rank, work in enumerate(shared):
        blocks, lengths = len(work.blocks), [*map(work.steps_of, work.blocks.values())]
        nodes = 1 + len(shared) + blocks + sum(lengths)
        if nodes > MAX_NODES_PER_RANK:
            raise Refused(
                f"rank {rank} needs {nodes} nodes ({blocks} threadblocks, {sum(lengths)} steps) and a file may "
                f"hold {MAX_NODES_PER_RANK} a rank; synthesize with fewer --chunks"
            )


def _check_size(shared: Sequence[SharedWork], target: Target) -> None:
    """Refuse, with the arithmetic, what the target cannot hold."""
    for rank, work in enumerate(shared):
        blocks, lengths = len(work.blocks), [*map(work.steps_of, work.blocks.values())]
        if blocks > target.max_threadblocks:
            raise Refused(
                f"rank {rank} needs {blocks} threadblocks and target {target.name} takes "
                f"{target.max_threadblocks}; synthesize with fewer --chunks"
            )
        longest = max(lengths, default=0)
        if longest > target.max_steps:
            raise Refused(
                f"a threadblock of rank {rank} needs {longest} steps and target {target.name} takes "
                f"{target.max_steps}; synthesize with fewer --chunks"
            )
        waited = [*map(work.is_waited_for, work.blocks.values())]
        if any(waited[MAX_DEPENDENCY_TB + 1 :]):
            raise Refused(
                f"others wait for {sum(waited)} of rank {rank}'s threadblocks and runtimes can name "
                f"{MAX_DEPENDENCY_TB + 1}; synthesize with fewer --chunks, or for fewer GPUs"
            )

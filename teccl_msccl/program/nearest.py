"""What would fit where a target does not take a schedule as asked: the nearest thing, found by lowering it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..schedule.schedule import Schedule
from .placement import MODES
from .targets import MAX_NODES_PER_RANK, TARGETS

#: Sends, or parts of sends, that are lowered to find out, a second or two.
MOST_SENDS = 3_000


@dataclass(frozen=True)
class Asked:
    """How a program was asked for."""

    target: str
    mode: str | None
    protocol: str
    instances: int | None


def nearest(schedule: Schedule, asked: Asked, fits: Callable[[Asked], bool]) -> str:
    """The first of the options near to what was `asked` for with which a program `fits`, and with how many chunks one
    might; empty where nothing is known."""
    left, option = MOST_SENDS, ""
    for words, other in _near(asked):
        left -= len(schedule.sends) * (other.instances or 1)
        if left < 0:
            break
        if fits(other):
            option = words
            break
    chunks = chunks_that_fit(schedule, asked.target)
    return " or ".join(
        [
            *([f"it fits with {option}"] if option else []),
            *([f"by proportion with --chunks {chunks}"] if chunks else []),
        ]
    )


def _near(asked: Asked) -> Iterator[tuple[str, Asked]]:
    parts = (asked.instances or 1) // 2
    while parts:
        yield f"--instances {parts}", replace(asked, instances=parts)
        parts //= 2
    if asked.protocol != "auto":
        yield "--protocol auto", replace(asked, protocol="auto")
    for target in TARGETS:
        if target != asked.target:
            yield f"--target {target}", Asked(target, None, "auto", None)
    if TARGETS[asked.target].both_modes and asked.mode in (None, "both"):
        for mode in reversed(MODES):
            yield f"--mode {mode}", replace(asked, mode=mode)


def chunks_that_fit(schedule: Schedule, target: str) -> int | None:
    """Chunks per share with which, were sends as many times fewer, the busiest rank's would fit in its view of a file,
    and the busiest connection's in its threadblocks; None where that is as many as there are, or none."""
    limits, pairs = TARGETS[target], [schedule.ends(send) for send in schedule.sends]
    ranks = Counter(rank for pair in pairs for rank in pair)
    room = MAX_NODES_PER_RANK - 1 - schedule.topology.nranks
    shares = [
        (room, max(ranks.values(), default=0)),
        (limits.max_channels * limits.max_steps, max(Counter(pairs).values(), default=0)),
    ]
    fitting = min(schedule.demand.nchunks * most // needed if needed > most else schedule.demand.nchunks
                  for most, needed in shares)  # fmt: skip
    return fitting if 0 < fitting < schedule.demand.nchunks else None

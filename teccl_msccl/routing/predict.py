"""Prediction: when a job communicates next, from when it did."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)

#: The weight of the newest observation.
NEWEST = 0.3
#: A start that is off by more than this share of the period was not predicted.
MISS = 0.1
#: Windows that are looked ahead, and by what share of its length each is widened.
WINDOWS = 4
MARGIN = 0.1


@dataclass(frozen=True)
class Rhythm:
    """Period and duration of a job's communication in seconds, each an exponentially weighted moving average; None
    until one has been seen."""

    last_start: float | None = None
    running: bool = False
    period: float | None = None
    duration: float | None = None

    def started(self, t: float) -> Rhythm:
        """After a start at time t."""
        period = self.period if self.last_start is None else _average(self.period, t - self.last_start)
        return replace(self, last_start=t, running=True, period=period)

    def ended(self, t: float) -> Rhythm:
        """After an end at time t."""
        if self.last_start is None:
            return replace(self, running=False)
        return replace(self, running=False, duration=_average(self.duration, t - self.last_start))

    def missed(self, t: float) -> bool:
        """Whether a start at time t is not when it was predicted; without a prediction nothing is missed."""
        if self.last_start is None or self.period is None:
            return False
        return abs(t - self.last_start - self.period) > MISS * self.period

    def windows(self, now: float) -> list[tuple[float, float]] | None:
        """The present or next windows of communication, slightly widened; None where nothing can be predicted."""
        if self.last_start is None or self.period is None or self.duration is None or self.period <= self.duration:
            return None
        margin = MARGIN * self.duration
        passed = 0 if self.running else max(0, int((now - self.last_start - self.duration) / self.period))
        begins = [self.last_start + (passed + k) * self.period for k in range(WINDOWS + 1)]
        return [(begin - margin, begin + self.duration + margin) for begin in begins if begin + self.duration >= now]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def groups_that_meet(rhythms: Mapping[Name, Rhythm], now: float) -> dict[Name, int]:
    """Numbers the groups of what may communicate at one time, directly or through others: those whose windows
    overlap. What cannot be predicted meets everything. Flows of different groups do not collide. O(n²)."""
    windows = {name: rhythm.windows(now) for name, rhythm in rhythms.items()}
    if any(found is None for found in windows.values()):
        return dict.fromkeys(rhythms, 0)
    group = {name: name for name in rhythms}

    def root(name: Name) -> Name:
        while group[name] != name:
            name = group[name]
        return name

    for one, other in combinations(rhythms, 2):
        if any(a < d and c < b for a, b in windows[one] or () for c, d in windows[other] or ()):
            group[root(other)] = root(one)
    numbers: dict[Name, int] = {}
    return {name: numbers.setdefault(root(name), len(numbers)) for name in rhythms}


def _average(before: float | None, seen: float) -> float:
    return seen if before is None else (1 - NEWEST) * before + NEWEST * seen

"""What a schedule may be asked to heed beyond a demand on a topology: room on relays, and links that others use too."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from ..errors import InputError

#: From when on, in µs, a link has which share of its bandwidth.
Steps = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Rules:
    """A GPU holds at most `relay_chunks` chunks that it neither has from the beginning nor wants, at the beginning of
    any epoch (None: any number). `shares` is what of its bandwidth a link has, by link id: (from µs, share 0…1), in
    order of time; all before the first, and the last for good. (TE-CCL, arXiv 2305.13479, appendix.)
    """

    relay_chunks: int | None = None
    shares: Mapping[int, Steps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InputError` for figures that mean nothing."""
        if self.relay_chunks is not None and self.relay_chunks < 0:
            raise InputError(f"relay_chunks is {self.relay_chunks}; it must be 0 or more")
        for link, steps in self.shares.items():
            times, shares = [time for time, _ in steps], [share for _, share in steps]
            if not steps or not all(0 <= share <= 1 for share in shares) or shares[-1] == 0:
                raise InputError(f"link {link}: shares must be 0…1 and not end with 0")
            if times != sorted(set(times)) or not (times[0] >= 0 and times[-1] < inf):
                raise InputError(f"link {link}: shares must be in order of time, one for each, from 0 µs on")

    @property
    def constrain(self) -> bool:
        """Whether a schedule made without them may break them, and moving a send to an earlier time, too."""
        return self.relay_chunks is not None or bool(self.shares)

    def share(self, link: int, time_us: float) -> float:
        """What of its bandwidth the link has at that time."""
        steps = self.shares.get(link, ())
        known = bisect_right(steps, (time_us, inf))
        return steps[known - 1][1] if known else 1.0

    def mean_share(self, link: int, until_us: float) -> float:
        """What of its bandwidth the link has from 0 to then, on the average."""
        inside = [time for time, _ in self.shares.get(link, ()) if 0 < time < until_us]
        times = [0.0, *inside, until_us]
        if until_us <= 0:
            return self.share(link, 0.0)
        return sum(self.share(link, begin) * (end - begin) for begin, end in pairwise(times)) / until_us

    def takes_us(self, links: Mapping[int, float], start_us: float) -> float:
        """How long a transfer from `start_us` on takes over links that with all their bandwidth take it so many µs
        each: at every moment it goes as fast as the slowest lets it."""
        needed = {link: alone for link, alone in links.items() if alone > 0}
        if not needed:
            return 0.0
        changes = sorted({time for link in needed for time, _ in self.shares.get(link, ()) if time > start_us})
        now, left = start_us, 1.0
        for until in (*changes, inf):
            speed = min(self.share(link, now) / alone for link, alone in needed.items())
            if speed > 0 and now + left / speed <= until:
                return now + left / speed - start_us
            left -= (until - now) * speed
            now = until
        raise AssertionError("no link's last share is 0")


NO_RULES = Rules()

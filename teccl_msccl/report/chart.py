"""A Gantt chart: rows of links, bars of what occupies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Bar(NamedTuple):
    """Something occupies a link from `start_us` to `end_us`; of a group of links, `share` of them."""

    start_us: float
    end_us: float
    text: str
    share: float = 1.0


@dataclass(frozen=True)
class Row:
    """A link, its bars in time order, and the share of the whole time that it is occupied."""

    link: int
    name: str
    kind: str
    bars: tuple[Bar, ...]
    used: float


@dataclass(frozen=True)
class Gantt:
    """Of `links` that are used. `merged` bars stand for several; where it is `crowded`, a row is a group of links; else
    `left_out` links have none."""

    rows: tuple[Row, ...]
    finish_us: float
    links: int
    merged: bool = False
    crowded: bool = False

    @property
    def left_out(self) -> int:
        return 0 if self.crowded else self.links - len(self.rows)

"""Choice: what a router is told beside the traffic."""

from __future__ import annotations

from dataclasses import dataclass

from ..traffic import Route


@dataclass(frozen=True)
class Choice:
    """`mode` is the metric to optimize; `seed` serves ecmp and anneal. `in_force` are the routes to start from (one
    per flow, None where there is none; empty for none at all), and with `most_moved` no more than that share of them
    is changed. `evaluations` limits polishing (None: by size), `time_limit` (s) the ILP."""

    mode: str = "coll"
    seed: int = 0
    in_force: tuple[Route, ...] = ()
    most_moved: float | None = None
    evaluations: int | None = None
    time_limit: float = 60.0

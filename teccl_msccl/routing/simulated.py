"""Simulated: what came of a scenario."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Communication(NamedTuple):
    """One kind of a job's communication in one iteration: from start to end, and how long it takes alone."""

    job: str
    kind: str
    iteration: int
    start_s: float
    end_s: float
    alone_s: float

    @property
    def slowdown(self) -> float:
        return (self.end_s - self.start_s) / self.alone_s


@dataclass(frozen=True)
class Simulated:
    """What came of jobs: their communications, the completion time of each flow, the routers' work.

    `routing_s` is wall time that routing took, `runs` how often it was asked, `versions` how many tables it made,
    `moved` how many flows changed spine.
    """

    communications: tuple[Communication, ...]
    flow_times_s: NDArray[np.float64]
    carried_bytes: float
    end_s: float
    routing_s: float
    runs: int
    versions: int
    moved: int
    flows: int

    def slowdown(self, job: str, kind: str = "dp") -> float:
        """The mean over a job's iterations of communication time / time alone."""
        found = [c.slowdown for c in self.communications if (c.job, c.kind) == (job, kind)]
        return sum(found) / len(found) if found else math.nan

    def to_json(self) -> dict[str, Any]:
        jobs: dict[str, Any] = {}
        for c in self.communications:
            kinds = jobs.setdefault(c.job, {})
            kinds.setdefault("all_reduce" if c.kind == "dp" else c.kind, []).append(c)
        times = self.flow_times_s
        return {
            "jobs": {job: {kind: _summary(found) for kind, found in kinds.items()} for job, kinds in jobs.items()},
            "flow_completion_s": {
                "mean": float(times.mean()) if len(times) else None,
                **{f"p{q}": float(np.percentile(times, q)) if len(times) else None for q in (50, 99)},
                "max": float(times.max()) if len(times) else None,
            },
            "throughput_GBps": self.carried_bytes / self.end_s / 1e9 if self.end_s else 0.0,
            "end_s": self.end_s,
            "controller": {
                "seconds": self.routing_s,
                "runs": self.runs,
                "versions": self.versions,
                "moved": self.moved,
                "churn": self.moved / (self.flows * max(1, self.runs)) if self.flows else 0.0,
            },
        }


def _summary(found: Sequence[Communication]) -> dict[str, Any]:
    spans = [c.end_s - c.start_s for c in found]
    return {
        "mean_s": sum(spans) / len(spans),
        "max_s": max(spans),
        "alone_s": found[0].alone_s,
        "slowdown": sum(c.slowdown for c in found) / len(found),
        "iterations": [{"start_s": c.start_s, "end_s": c.end_s} for c in found],
    }

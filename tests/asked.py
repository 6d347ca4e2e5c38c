"""`run` for a collective that is asked for as `synthesize` is."""

from __future__ import annotations

from typing import Any

from teccl_msccl.collective.demand import collective_named
from teccl_msccl.collective.size import parse_size
from teccl_msccl.synthesis import portfolio
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.topology.model import Topology


def run(topology: Topology, collective: str, size: str | float, root: int = 0, **ask: Any) -> portfolio.Synthesis:
    settings = Settings(**{key: ask.pop(key) for key in ("nchunks", "solver", "epochs", "seed", "jobs") if key in ask})
    return portfolio.run(Problem(topology, collective_named(collective), parse_size(size), root), settings, **ask)

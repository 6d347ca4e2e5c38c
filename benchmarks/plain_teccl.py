"""A plain TE-CCL MILP: the paper's model as its text has it, with no warm start, no symmetry and no pruning.

F, B and R over every chunk, link, GPU and epoch; the objective max Σ R/(k+1); the makespan by searching K, first
doubled, then halved (arXiv 2305.13479, §3). Without switches, of which the paper's text needs no more here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil
from typing import Any

from mip import BINARY, CONTINUOUS, MAXIMIZE, OptimizationStatus, xsum

from teccl_msccl.collective.demand import Demand
from teccl_msccl.synthesis.solver import new_model
from teccl_msccl.topology.model import Topology


@dataclass(frozen=True)
class Plain:
    """The fewest epochs found (None: none in time), whether fewer were shown not to do, and the seconds it took."""

    epochs: int | None
    proved: bool
    seconds: float


def fewest_epochs(topology: Topology, demand: Demand, tau_us: float, seconds: float) -> Plain:
    """The K search."""
    began = time.perf_counter()
    deadline = began + seconds
    low, high, k = 0, None, 1
    while high is None or high - low > 1:
        k = (low + high) // 2 if high is not None else max(1, 2 * low)
        answer = _feasible(topology, demand, tau_us, k, deadline - time.perf_counter())
        if answer is None:
            return Plain(high, False, time.perf_counter() - began)
        low, high = (low, k) if answer else (k, high)
    return Plain(high, True, time.perf_counter() - began)


def _feasible(topology: Topology, demand: Demand, tau_us: float, horizon: int, seconds: float) -> bool | None:
    """Whether K = `horizon` epochs do; None if that is not known in time."""
    if seconds <= 0.1:
        return None
    model = new_model("cbc")
    model.sense, model.threads = MAXIMIZE, 1
    nbytes = demand.chunks[0].bytes
    links = [(link, topology.rank_of[link.src], topology.rank_of[link.dst]) for link in topology.links]
    epochs = range(horizon)
    flow: dict[Any, Any] = {
        (c.id, link.id, k): model.add_var(var_type=BINARY)
        for c in demand.chunks
        for link, _, _ in links
        for k in epochs
    }
    held: dict[Any, Any] = {
        (c.id, v, k): model.add_var(var_type=CONTINUOUS, ub=1)
        for c in demand.chunks
        for v in range(demand.nranks)
        for k in range(horizon + 1)
    }
    for link, src, _ in links:
        beta = link.beta_us(nbytes)
        span = max(1, ceil(beta / tau_us - 1e-9))
        for k in epochs:  # at most one start in any κ epochs, or as many as fit in one
            window = [flow[c.id, link.id, e] for c in demand.chunks for e in range(max(0, k - span + 1), k + 1)]
            model += xsum(window) <= max(1, int(tau_us / beta + 1e-9))
        for c in demand.chunks:
            for k in epochs:
                model += flow[c.id, link.id, k] <= held[c.id, src, k]
    for c in demand.chunks:
        for v in range(demand.nranks):
            model += held[c.id, v, 0] == int(v in c.origin)
            for k in range(1, horizon + 1):
                arriving = []
                for link, _, dst in links:
                    arrival = max(1, ceil((link.alpha_us + link.beta_us(nbytes)) / tau_us - 1e-9))
                    if dst == v and k >= arrival:
                        arriving.append(flow[c.id, link.id, k - arrival])
                model += held[c.id, v, k] <= held[c.id, v, k - 1] + xsum(arriving)
        for v in c.want:
            model += held[c.id, v, horizon] >= 1
    model.objective = xsum(held[c.id, v, k] * (1 / (k + 1)) for c in demand.chunks for v in c.want for k in epochs)
    status = model.optimize(max_seconds=seconds, max_solutions=1)
    if model.num_solutions:
        return True
    return False if status in (OptimizationStatus.INFEASIBLE, OptimizationStatus.INT_INFEASIBLE) else None

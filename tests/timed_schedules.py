"""Schedules for tests: by hand, by chance, and delayed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.schedule.simulate import play
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.model import Topology


def link_between(topology, src, dst):
    return next(link.id for link in topology.links if (link.src, link.dst) == (src, dst))


def hop(topology, chunk, *nodes, start=0.0, reduce=False):
    """A send of `chunk` through `nodes`."""
    path = tuple(link_between(topology, a, b) for a, b in pairwise(nodes))
    return Send(chunk, path, start, reduce)


def timed(topology, demand, hops):
    """The schedule of `hops` in that order, as early as they go."""
    starts, arrivals = play(topology, demand, hops)
    sends = tuple(send._replace(start_us=start) for send, start in zip(hops, starts, strict=True))
    schedule = Schedule(topology, demand, sends, max(arrivals))
    schedule.validate()
    return schedule


def feasible(topology: Topology, rng: random.Random) -> Schedule:
    """A valid schedule of a random collective, with holes in it: some of its sends start late."""
    collective = rng.choice(["allgather", "alltoall", "broadcast", "reduce_scatter", "reduce", "allreduce", "scatter"])
    problem = Problem(topology, collective, rng.choice([1e3, 1e6]), rng.randrange(topology.nranks))
    count = rng.choice([1, 2, 3])
    parts = [GreedySearch(stage.topology).trial(stage.demand(count), rng.randrange(99)) for stage in problem.stages]
    return problem.assemble(parts)


def delayed(schedule: Schedule, rng: random.Random) -> Schedule:
    """The same, stretched: every start and the finish times a factor, so that it stays feasible."""
    factor = rng.choice([1.0, 1.0, 1.3, 2.0])
    sends = tuple(send._replace(start_us=send.start_us * factor) for send in schedule.sends)
    return replace(schedule, sends=sends, finish_us=max((schedule.arrival_us(send) for send in sends), default=0.0))

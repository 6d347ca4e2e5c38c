"""Strategies for lowering: small machines, and schedules on them that nobody would choose but that are right."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from teccl_msccl.collective.demand import COLLECTIVES, REDUCING, Demand
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.model import Link, Node, Topology
from teccl_msccl.topology.paths import direct_paths

#: More than any send takes: sends at this distance follow one another.
ONE_BY_ONE_US = 1e4


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """2–6 GPUs and up to 2 switches: a ring through all of them, and any further links, parallel ones too."""
    gpus, switches = draw(st.integers(2, 6)), draw(st.integers(0, 2))
    nodes = [Node(i, "gpu", rank=i) for i in range(gpus)] + [Node(gpus + i, "switch") for i in range(switches)]
    ring = draw(st.permutations(range(len(nodes))))
    joined = [(node, following) for node, following in zip(ring, [*ring[1:], ring[0]], strict=True)]
    node_ids = st.integers(0, len(nodes) - 1)
    joined += draw(st.lists(st.tuples(node_ids, node_ids).filter(lambda pair: pair[0] != pair[1]), max_size=10))
    figures = st.tuples(st.sampled_from([5.0, 25.0, 50.0]), st.sampled_from([0.0, 0.5, 2.0]))
    links = tuple(Link(i, *pair, *draw(figures)) for i, pair in enumerate(joined))
    return Topology("drawn", tuple(nodes), links, threadblock_GBps=draw(st.sampled_from([None, 4.0, 20.0])))


@st.composite
def problems(
    draw: st.DrawFn, collectives: tuple[str, ...] = tuple(COLLECTIVES), sizes: tuple[float, ...] = (1.0, 1e3, 1e6, 1e9)
) -> Problem:
    """A collective of some size on any machine."""
    topology = draw(topologies())
    size = draw(st.sampled_from(sizes))
    return Problem(topology, draw(st.sampled_from(collectives)), size, draw(st.integers(0, topology.nranks - 1)))


@st.composite
def wild_schedules(draw: st.DrawFn) -> Schedule:
    """Chunks wander at random until they are where they are wanted, past GPUs that do not want them and, where
    copies only are made, to GPUs that have them already; reductions are such wanderings backwards. One send at a
    time, with much idle time, or as early as they go."""
    problem = draw(problems(sizes=(0.0, 1.0, 1e6)))
    nchunks, random = draw(st.integers(1, 3)), Random(draw(st.integers(0, 2**32)))
    again = 0.0 if problem.collective in REDUCING else draw(st.sampled_from([0.0, 0.3]))
    ways: list[tuple[int, tuple[int, ...], bool]] = []
    for stage in problem.stages:
        wandering = _wander(stage.topology, stage.demand(nchunks), random, again)
        if stage.topology is problem.topology:
            ways += [(chunk, path, False) for chunk, path in wandering]
        else:
            ways += [(chunk, path[::-1], True) for chunk, path in reversed(wandering)]
    sends = tuple(Send(chunk, path, i * ONE_BY_ONE_US, reduce) for i, (chunk, path, reduce) in enumerate(ways))
    apart = Schedule(problem.topology, problem.demand(nchunks), sends, len(sends) * ONE_BY_ONE_US)
    return draw(st.sampled_from([apart, apart.retimed()]))


def _wander(topology: Topology, demand: Demand, random: Random, again: float) -> list[tuple[int, tuple[int, ...]]]:
    """Copies (chunk, path) in the order in which they are made."""
    paths = direct_paths(topology)
    made = []
    holders = [set(chunk.origin) for chunk in demand.chunks]
    unmet = [chunk.id for chunk in demand.chunks if not set(chunk.want) <= holders[chunk.id]]
    while unmet:
        chunk = random.choice(unmet)
        useless = random.random() < again
        path = random.choice([p for p in paths if p.src_rank in holders[chunk]
                              and (useless or p.dst_rank not in holders[chunk])])  # fmt: skip
        holders[chunk].add(path.dst_rank)
        made.append((chunk, path.links))
        unmet = [id for id in unmet if not set(demand.chunks[id].want) <= holders[id]]
    return made

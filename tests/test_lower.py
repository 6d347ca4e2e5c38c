"""Lowering, end to end: every program is proved by the checker and computes the right data in every mode it claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import by_hand, greedy, require_right
from strategies_lower import problems, wild_schedules

from teccl_msccl.collective.demand import COLLECTIVES, Chunk, Demand, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.lower import lower
from teccl_msccl.program.program import PROTOCOLS
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Link, Node, Topology

MODES = ("both", "inplace", "outofplace")
SPREADS = (1, 2, None)
PRESETS = ("teccl-dgx1", "ring-8", "star-8", "mesh-2x3", "dgx-a100x2")

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def require_claims(program, mode: str) -> None:
    assert (program.inplace, program.outofplace) == (mode != "outofplace", mode != "inplace")


# -- schedules of the synthesizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_machine(collective: str, mode: str) -> None:
    @settings(unhurried, max_examples=8)
    @given(
        problem=problems((collective,)),
        nchunks=st.integers(1, 3),
        seed=st.integers(0, 7),
        protocol=st.sampled_from([*PROTOCOLS, "auto"]),
        spread=st.sampled_from(SPREADS),
    )
    def prove(problem: Problem, nchunks: int, seed: int, protocol: str, spread: int | None) -> None:
        schedule = greedy(problem, nchunks, seed)
        program = lower(schedule, mode=mode, protocol=protocol, spread=spread)
        require_claims(program, mode)
        require_right(program, schedule)

    prove()


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str, collective: str) -> None:
    topology = load(preset).topology
    for nchunks in (1, 2) if topology.nranks <= 8 else (1,):
        turn = PRESETS.index(preset) + list(COLLECTIVES).index(collective) + nchunks
        schedule = greedy(Problem(topology, collective, 1e6, root=topology.nranks // 2), nchunks, seed=turn)
        program = lower(
            schedule, mode=MODES[turn % 3], protocol=[*PROTOCOLS, "auto"][turn % 4], spread=SPREADS[turn % 3]
        )
        require_right(program, schedule, slots=(1, 8) if topology.nranks <= 8 else (1,))


@settings(unhurried, max_examples=60)
@given(
    schedule=wild_schedules(),
    mode=st.sampled_from(MODES),
    protocol=st.sampled_from(PROTOCOLS),
    spread=st.sampled_from(SPREADS),
)
def test_any_schedule(schedule: Schedule, mode: str, protocol: str, spread: int | None) -> None:
    schedule.validate()
    require_right(lower(schedule, mode=mode, protocol=protocol, spread=spread), schedule)


@settings(unhurried, max_examples=15)
@given(schedule=wild_schedules())
def test_a_schedule_read_from_its_json_lowers_alike(schedule: Schedule) -> None:
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert lower(again) == lower(schedule)


# -- schedules by hand ---------------------------------------------------------------------------------------------


def ring(n: int = 5) -> Schedule:
    """Every chunk goes round, in both directions at once."""
    ways = [(rank, hop, step) for step in (1, -1) for hop in range(n - 1) for rank in range(n)]
    ways.sort(key=lambda way: way[1])
    hops = [(2 * r + (step < 0), (r + step * hop) % n, (r + step * (hop + 1)) % n) for r, hop, step in ways]
    return by_hand(load(f"ring-{n}").topology, demand_for("allgather", n, 1e6, 2), hops)


def tree_allreduce() -> Schedule:
    """Up a binary tree to rank 0 and down again; chunk 1 up to rank 6 and down."""
    up = [[(0, 3, 1), (0, 4, 1), (0, 5, 2), (0, 6, 2), (0, 1, 0), (0, 2, 0)],
          [(1, 3, 5), (1, 2, 5), (1, 1, 4), (1, 0, 4), (1, 5, 6), (1, 4, 6)]]  # fmt: skip
    reductions = [hop for both in zip(*up, strict=True) for hop in both]
    copies = [(chunk, dst, src) for chunk, src, dst in reversed(reductions)]
    demand = demand_for("allreduce", 7, 1e6, 2)
    return by_hand(load("full-7").topology, demand, reductions + copies, copies=len(copies))


def line(collective: str, hops: Callable[[int], list[tuple[int, int, int]]], root: int = 0, n: int = 4) -> Schedule:
    return by_hand(load(f"line-{n}").topology, demand_for(collective, n, 1e6, 1, root), hops(n))


def walk(chunk: int, src: int, dst: int) -> list[tuple[int, int, int]]:
    """Hop by hop along a line, past ranks that do not want the chunk."""
    ranks = list(range(src, dst + 1)) if src < dst else list(range(src, dst - 1, -1))
    return [(chunk, a, b) for a, b in pairwise(ranks)]


def everyone_exchanges(n: int = 4) -> Schedule:
    """Equal start times: all pairs at once. In place, what arrives overwrites what is being sent."""
    hops = [(src * n + dst, src, dst) for src in range(n) for dst in range(n) if src != dst]
    return by_hand(load(f"full-{n}").topology, demand_for("alltoall", n, 1e6), hops)


def there_and_back() -> Schedule:
    """Chunks that ranks keep for themselves (of an alltoall) go to a neighbour and come back."""
    schedule = everyone_exchanges(3)
    own = [hop for r in range(3) for hop in ((4 * r, r, (r + 1) % 3), (4 * r, (r + 1) % 3, r))]
    hops = [(s.chunk, *schedule.ends(s)) for s in schedule.sends]
    return by_hand(schedule.topology, schedule.demand, own + hops)


def twice() -> Schedule:
    """Rank 1 gets chunk 0 from rank 0, and again from rank 2, to which it sends it meanwhile."""
    demand = demand_for("broadcast", 3, 1e6)
    return by_hand(load("full-3").topology, demand, [(0, 0, 1), (0, 0, 2), (0, 1, 2), (0, 2, 1)])


def own_demand() -> Schedule:
    """Two chunks of different sizes and origins for some ranks only, called a broadcast."""
    chunks = (Chunk(0, (0,), (0, 1, 2), 1e5), Chunk(1, (0,), (0, 1, 2), 3e5))
    demand = Demand("broadcast", 3, chunks, 2, 4e5, root=0)
    return by_hand(load("line-3").topology, demand, [(0, 0, 1), (1, 0, 1), (1, 1, 2), (0, 1, 2)])


def no_latency(size: float) -> Schedule:
    """Links without α: of nothing, all sends start and arrive at the same instant."""
    nodes = tuple(Node(i, "gpu", rank=i) for i in range(4))
    links = tuple(Link(2 * i + back, *((i, i + 1), (i + 1, i))[back], 50.0, 0.0) for i in range(3) for back in (0, 1))
    topology = Topology("no latency", nodes, links)
    return by_hand(topology, demand_for("alltoall", 4, size), [
        hop for src in range(4) for dst in range(4) if src != dst for hop in walk(4 * src + dst, src, dst)
    ])  # fmt: skip


def idle() -> Schedule:
    """Every send waits a while for nothing."""
    schedule = ring()
    sends = tuple(send._replace(start_us=3 * send.start_us + 7) for send in schedule.sends)
    return replace(schedule, sends=sends, finish_us=3 * schedule.finish_us + 7)


HAND_MADE: dict[str, Callable[[], Schedule]] = {
    "ring": ring,
    "tree allreduce": tree_allreduce,
    "alltoall through others": lambda: line(
        "alltoall", lambda n: [hop for s in range(n) for d in range(n) if s != d for hop in walk(n * s + d, s, d)]
    ),
    "gather through others": lambda: line("gather", lambda n: [h for r in range(n) for h in walk(r, r, 1)], root=1),
    "scatter through others": lambda: line("scatter", lambda n: [h for r in range(n) for h in walk(r, 3, r)], root=3),
    "chain reduce": lambda: line("reduce", lambda n: [*walk(0, 3, 1), *walk(0, 0, 1)], root=1),
    "equal starts": everyone_exchanges,
    "there and back": there_and_back,
    "twice": twice,
    "own demand": own_demand,
    "nothing without latency": lambda: no_latency(0.0),
    "something without latency": lambda: no_latency(1e6),
    "idle time": idle,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HAND_MADE)
def test_schedules_by_hand(name: str, mode: str) -> None:
    schedule = HAND_MADE[name]()
    schedule.validate()
    for protocol in PROTOCOLS:
        program = lower(schedule, mode=mode, protocol=protocol, spread=1 + (protocol == "LL"))
        require_right(program, schedule)


def test_idle_time_changes_nothing() -> None:
    assert lower(idle(), protocol="Simple") == lower(ring(), protocol="Simple")


def test_what_comes_a_second_time_is_left_out() -> None:
    """Else rank 1 would have to hold the second copy back until it has sent the first one on."""
    program = lower(twice(), protocol="Simple")
    assert sorted(step.type for _, _, _, step in program.steps()) == ["cpy", "r", "r", "s", "s"]


# -- options -------------------------------------------------------------------------------------------------------


def test_options_that_do_not_exist() -> None:
    for wrong, words in (
        ({"protocol": "simple"}, "unknown protocol 'simple'"),
        ({"mode": "in-place"}, "mode 'in-place'"),
        ({"spread": 0}, "spread 0"),
        ({"target": "nccl"}, "unknown target 'nccl'"),
    ):
        with pytest.raises(InputError, match=words):
            lower(ring(), **wrong)


def test_a_collective_that_the_target_does_not_take() -> None:
    demand = Demand("custom", 2, (Chunk(0, (0,), (1,), 1.0),), 1, 1.0)
    with pytest.raises(Refused, match="does not take custom"):
        lower(by_hand(load("line-2").topology, demand, [(0, 0, 1)]))


def test_auto_takes_the_protocol_that_is_faster_when_simulated() -> None:
    topology = load("dgx-a100").topology
    small, large = (lower(greedy(Problem(topology, "allgather", size), 2)) for size in (1e3, 1e9))
    assert (small.protocol, large.protocol) == ("LL", "Simple")

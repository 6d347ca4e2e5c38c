"""Schedules: their JSON, their clock against closed forms and a slow simulation, and the proof against mutants."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines

from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.schedule.simulate import play
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths


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


# -- the clock, by closed forms --------------------------------------------------------------------------------


def test_ring_allgather_takes_n_minus_1_hops_each_of_alpha_and_beta():
    ring = Topology.load("ring-5")
    hops = [hop(ring, c, (c + k) % 5, (c + k + 1) % 5) for k in range(4) for c in range(5)]
    schedule = timed(ring, demand_for("allgather", 5, 5e6), hops)
    assert schedule.finish_us == pytest.approx(4 * (0.5 + 20))
    assert schedule.algbw_GBps == pytest.approx(5e6 / (82 * 1e3))


def test_alpha_is_pipelined_and_beta_occupies():
    """k chunks over one link: k·β + α, not k·(α + β)."""
    pair = machine("gg", [(0, 1, 10, 7)])
    schedule = timed(pair, demand_for("broadcast", 2, 6e5, 6), [hop(pair, c, 0, 1) for c in range(6)])
    assert [send.start_us for send in schedule.sends] == pytest.approx([0, 10, 20, 30, 40, 50])
    assert schedule.finish_us == pytest.approx(60 + 7)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 1), (4, 5), (6, 3)])
def test_line_broadcast_is_a_pipeline(n, k):
    line = Topology.load(f"line-{n}")
    hops = [hop(line, c, g, g + 1) for c in range(k) for g in range(n - 1)]
    schedule = timed(line, demand_for("broadcast", n, k * 5e4, k), hops)
    assert schedule.finish_us == pytest.approx((n - 1) * 0.5 + (n - 1 + k - 1) * 1.0)


def test_star_alltoall_keeps_every_port_busy():
    star = Topology.load("star-4")
    hops = [hop(star, 4 * g + (g + k) % 4, g, 4, (g + k) % 4) for k in range(1, 4) for g in range(4)]
    assert timed(star, demand_for("alltoall", 4, 4e5), hops).finish_us == pytest.approx(3 * 2 + 2 * 0.25)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_hypercube_allgather_doubles_every_round(dimensions):
    """In lockstep, Σ_d (α + 2^d β); left-shifted, no round waits for the whole of the one before."""
    n = 2**dimensions
    cube = Topology.load(f"hypercube-{n}")
    sends, begin = [], 0.0
    for d in range(dimensions):
        for g in range(n):
            mine = [c for c in range(n) if (c ^ g) < (1 << d)]
            sends += [hop(cube, c, g, g ^ (1 << d), start=begin + turn) for turn, c in enumerate(mine)]
        begin += 0.5 + (1 << d)
    schedule = Schedule(cube, demand_for("allgather", n, n * 5e4), tuple(sends), begin)
    assert begin == dimensions * 0.5 + (n - 1) * 1.0
    schedule.validate()
    with pytest.raises(Refused, match="after the finish"):
        replace(schedule, finish_us=begin - 1e-6).validate()
    assert n - 1 < dimensions * schedule.retimed().finish_us <= dimensions * begin


def test_cut_through_over_a_slow_link_between_fast_ones():
    """β once, of the slowest; α of all. The slow link decides when the next chunk may start; the fast ones idle."""
    chain = machine("gssg", [(0, 1, 100, 0.1), (1, 2, 10, 0.2), (2, 3, 50, 0.4)])
    schedule = timed(chain, demand_for("broadcast", 2, 3e5, 3), [hop(chain, c, 0, 1, 2, 3) for c in range(3)])
    assert [send.start_us for send in schedule.sends] == pytest.approx([0, 10, 20])
    assert schedule.finish_us == pytest.approx(20 + 0.7 + 10)
    assert schedule.arrival_us(schedule.sends[0]) == pytest.approx(10.7)


def test_a_fast_link_behind_a_slow_one_stays_busy_to_its_end():
    """0 → switch at 10 GB/s, switch → 1 at 100: the fast link is taken from 9 to 10 µs, free before for GPU 2's."""
    fan = machine("ggsg", [(0, 2, 10, 0), (2, 1, 100, 0), (3, 2, 100, 0)])
    demand = Demand("two", 3, (Chunk(0, (0,), (1,), 1e5), Chunk(1, (2,), (1,), 1e5)), 1, 2e5)
    slow, quick = hop(fan, 0, 0, 2, 1), hop(fan, 1, 3, 2, 1)
    Schedule(fan, demand, (slow, quick._replace(start_us=8.0)), 10.0).validate()
    with pytest.raises(Refused, match="at once"):
        Schedule(fan, demand, (slow, quick._replace(start_us=8.5)), 10.0).validate()


def test_a_reduction_waits_for_everything_that_comes_before_it():
    line = Topology.load("line-3")
    hops = [hop(line, 0, 2, 1, reduce=True), hop(line, 0, 1, 0, reduce=True)]
    assert timed(line, demand_for("reduce", 3, 5e4), hops).finish_us == pytest.approx(2 * 1.5)


# -- re-timing ---------------------------------------------------------------------------------------------------


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


def per_us(schedule: Schedule, link: int) -> Fraction:
    """Bytes per µs of a link."""
    return Fraction(schedule.topology.link_by_id[link].bandwidth_GBps) * 1000


def offsets(schedule: Schedule, send: Send) -> list[Fraction]:
    """When each link of the send's path is taken, after its start, in exact arithmetic."""
    at, before = [Fraction(0)], None
    for id in send.path:
        link = schedule.topology.link_by_id[id]
        beta = Fraction(schedule.demand.chunks[send.chunk].bytes) / per_us(schedule, id)
        if before is not None:
            alpha, beta_before = before
            at.append(max(at[-1] + alpha, at[-1] + beta_before + alpha - beta))
        before = Fraction(link.alpha_us), beta
    return at


def slowly_left_shifted(schedule: Schedule) -> list[Fraction]:
    """The oracle: events in exact time. Sends are held back by whatever, in the given schedule, came before them
    on a link or brought their data; all start at 0 and are pushed until none is too early."""
    sends, at = schedule.sends, [offsets(schedule, send) for send in schedule.sends]
    beta = [
        [Fraction(schedule.demand.chunks[s.chunk].bytes) / per_us(schedule, link) for link in s.path] for s in sends
    ]  # fmt: skip
    alpha = [Fraction(schedule.topology.link_by_id[s.path[-1]].alpha_us) for s in sends]
    takes = [at[i][-1] + beta[i][-1] + alpha[i] for i in range(len(sends))]
    given = [Fraction(send.start_us) for send in sends]
    slack = Fraction(1, 10**8) * (1 + max(given, default=Fraction(0)))
    holds: list[tuple[int, int, Fraction]] = []  # (earlier, later, least difference of their starts)
    for i, one in enumerate(sends):
        for j, two in enumerate(sends):
            if i == j:
                continue
            for k, link in enumerate(one.path):
                for m, other in enumerate(two.path):
                    if link == other and (given[i] + at[i][k], i) < (given[j] + at[j][m], j):
                        holds.append((i, j, at[i][k] + beta[i][k] - at[j][m]))
    for j, send in enumerate(sends):
        source = schedule.ends(send)[0]
        chunk = schedule.demand.chunks[send.chunk]
        arrived = [
            i
            for i, other in enumerate(sends)
            if (other.chunk, schedule.ends(other)[1]) == (send.chunk, source)
            and given[i] + takes[i] <= given[j] + slack
        ]
        if chunk.reduce:
            holds += [(i, j, takes[i]) for i in arrived if i != j]
        elif source not in chunk.origin:
            first = min(arrived, key=lambda i: given[i] + takes[i])
            holds.append((first, j, takes[first]))
    starts = [Fraction(0)] * len(sends)
    for _ in range(4 * len(sends) + 4):
        pushed = [max([starts[j], *(starts[i] + d for i, k, d in holds if k == j)]) for j in range(len(sends))]
        if all(after - before <= slack / 100 for after, before in zip(pushed, starts, strict=True)):
            return starts
        starts = pushed
    raise AssertionError("the given schedule was not feasible")


@settings(max_examples=50, deadline=None)
@given(machines(most=5), st.integers(0, 2**32))
def test_re_timing_is_never_later_valid_and_as_the_oracle_says(topology, seed):
    rng = random.Random(seed)
    late = delayed(feasible(topology, rng), rng)
    late.validate()
    early = late.retimed()
    early.validate()
    assert early.finish_us <= late.finish_us * (1 + 1e-9)
    before = sorted(late.sends, key=lambda send: send.start_us)
    for one, other in zip(before, early.sends, strict=True):
        assert one[:2] == other[:2]
        assert other.start_us <= one.start_us + 1e-9 * (1 + one.start_us)
    if len(before) <= 40:
        exact = slowly_left_shifted(replace(late, sends=tuple(before)))
        assert [send.start_us for send in early.sends] == pytest.approx([float(t) for t in exact], abs=1e-6)
    assert early.retimed().finish_us == pytest.approx(early.finish_us)


def test_a_shared_link_keeps_its_order_when_the_later_start_crosses_it_first():
    """GPU 0 is far from the switch, GPU 1 near it: its send starts later, and has crossed before the other comes."""
    fan = machine("gggs", [(0, 3, 50, 10), (1, 3, 50, 0), (3, 2, 50, 0)])
    demand = Demand("two", 3, (Chunk(0, (0,), (2,), 1e5), Chunk(1, (1,), (2,), 1e5)), 1, 2e5)
    schedule = Schedule(fan, demand, (hop(fan, 0, 0, 3, 2), hop(fan, 1, 1, 3, 2, start=5)), 12.0)
    schedule.validate()
    early = schedule.retimed()
    early.validate()
    assert [send.start_us for send in early.sends] == [0, 0]
    assert early.finish_us == pytest.approx(12)


def test_starts_that_are_not_feasible_only_give_the_order():
    line = Topology.load("line-3")
    demand = demand_for("broadcast", 3, 5e4)
    schedule = Schedule(line, demand, (hop(line, 0, 0, 1), hop(line, 0, 1, 2, start=0.1)), 0.0).retimed()
    schedule.validate()
    assert [send.start_us for send in schedule.sends] == pytest.approx([0, 1.5])


def in_turn(schedule: Schedule) -> list[Fraction]:
    """`play` by hand: each send in turn behind all before it on its links, and behind its data."""
    free: dict[int, Fraction] = {}
    there = {(c.id, rank): Fraction(0) for c in schedule.demand.chunks for rank in c.origin}
    starts = []
    for send in schedule.sends:
        source, target = schedule.ends(send)
        chunk = schedule.demand.chunks[send.chunk]
        at = offsets(schedule, send)
        start = max(
            [there[send.chunk, source]]
            + [free.get(link, Fraction(0)) - offset for link, offset in zip(send.path, at, strict=True)]
        )
        for link, offset in zip(send.path, at, strict=True):
            free[link] = start + offset + Fraction(chunk.bytes) / per_us(schedule, link)
        arrival = free[send.path[-1]] + Fraction(schedule.topology.link_by_id[send.path[-1]].alpha_us)
        known = there.get((send.chunk, target), arrival)
        there[send.chunk, target] = max(known, arrival) if chunk.reduce else min(known, arrival)
        starts.append(start)
    return starts


@settings(max_examples=40, deadline=None)
@given(machines(most=5), st.integers(0, 2**32))
def test_play_takes_sends_in_turn(topology, seed):
    rng = random.Random(seed)
    demand = demand_for("broadcast", topology.nranks, rng.choice([1e3, 1e6]), 3)
    held, sends = {(c, 0) for c in range(3)}, []
    for _ in range(15):
        path = rng.choice(direct_paths(topology))
        ready = [c for c, rank in held if rank == path.src_rank]
        if ready:
            sends.append(Send(rng.choice(ready), path.links, 0.0))
            held.add((sends[-1].chunk, path.dst_rank))
    starts, arrivals = play(topology, demand, sends)
    schedule = Schedule(topology, demand, tuple(sends), 0.0)
    assert starts == pytest.approx([float(start) for start in in_turn(schedule)], abs=1e-9)
    for send, start, arrival in zip(sends, starts, arrivals, strict=True):
        assert schedule.arrival_us(send._replace(start_us=start)) == pytest.approx(arrival)


@pytest.mark.parametrize(
    "send", [Send(1, (0,), 0.0), Send(-1, (0,), 0.0), Send(0, (9,), 0.0), Send(0, (), 0.0), Send(0, (2,), 0.0)]
)
def test_what_cannot_be_played_is_refused_not_run_into(send):
    line = Topology.load("line-3")
    schedule = Schedule(line, demand_for("broadcast", 3, 8), (send,), 0.0)
    for attempt in (schedule.retimed, lambda: play(line, schedule.demand, [send])):
        with pytest.raises((Refused, InputError)):
            attempt()


def test_nothing_to_do_takes_no_time():
    one = Schedule(Topology.load("ring-3"), Demand("nothing", 3, (), 1, 0.0), (), 0.0)
    one.validate()
    assert one.retimed() == one
    assert one.algbw_GBps == 0


# -- the proof -----------------------------------------------------------------------------------------------------


def refused(schedule: Schedule) -> bool:
    try:
        schedule.validate()
    except Refused as no:
        assert "\n" not in str(no)
        return True
    return False


def with_send(schedule, i, **change):
    sends = list(schedule.sends)
    sends[i] = sends[i]._replace(**change)
    return replace(schedule, sends=tuple(sends), finish_us=schedule.finish_us + 1e3)


@settings(max_examples=60, deadline=None)
@given(machines(most=5), st.integers(0, 2**32), st.data())
def test_every_mutant_is_refused(topology, seed, data):
    schedule = feasible(topology, random.Random(seed))
    schedule.validate()
    tight = 1e-6 * (1 + schedule.finish_us)
    i = data.draw(st.integers(0, len(schedule.sends) - 1))
    send = schedule.sends[i]
    dropped = replace(schedule, sends=schedule.sends[:i] + schedule.sends[i + 1 :])
    assert refused(dropped)
    assert refused(replace(schedule, finish_us=schedule.finish_us - tight))
    assert refused(with_send(schedule, i, start_us=-tight))
    assert refused(with_send(schedule, i, start_us=math.nan))
    assert refused(with_send(schedule, i, start_us=math.inf))
    assert refused(with_send(schedule, i, chunk=len(schedule.demand.chunks)))
    assert refused(with_send(schedule, i, chunk=-1))
    assert refused(with_send(schedule, i, path=()))
    assert refused(with_send(schedule, i, path=(*send.path, send.path[0])))
    assert refused(with_send(schedule, i, path=(10**6,)))
    if len(send.path) > 1:
        assert refused(with_send(schedule, i, path=send.path[:-1]))
        assert refused(with_send(schedule, i, path=send.path[1:]))
    assert refused(with_send(schedule, i, reduce=not send.reduce)) or schedule.demand.collective == "reduce" or (
        schedule.demand.reducing and not refused_is_due(schedule, i)
    )  # fmt: skip
    if send.start_us > tight:  # left-shifted: any earlier start is too early for its data or its links
        assert refused(replace(schedule, sends=with_send(schedule, i, start_us=send.start_us - tight).sends))


def refused_is_due(schedule: Schedule, i: int) -> bool:
    """A send that merges may as well copy, or the other way round, where it brings everything to where nothing is."""
    send = schedule.sends[i]
    source, target = schedule.ends(send)
    chunk = schedule.demand.chunks[send.chunk]
    return bool(send.reduce or target in chunk.origin or source in chunk.origin)


@settings(max_examples=30, deadline=None)
@given(machines(most=5), st.integers(0, 2**32), st.data())
def test_a_busy_link_is_refused(topology, seed, data):
    """The same send once more, while the first is under way."""
    schedule = feasible(topology, random.Random(seed))
    send = data.draw(st.sampled_from(schedule.sends))
    assert refused(replace(schedule, sends=(*schedule.sends, send), finish_us=schedule.finish_us + 1))


def test_a_claimed_finish_buys_no_tolerance():
    """Tolerance goes by the times compared, not by what the file says of its finish nor by an idle last send."""
    line = Topology.load("line-3")
    demand = demand_for("broadcast", 3, 5e4)
    cheat = (hop(line, 0, 0, 1), hop(line, 0, 1, 2, start=0.5))
    assert refused(Schedule(line, demand, cheat, 1e12))
    assert refused(Schedule(line, demand, (*cheat, hop(line, 0, 0, 1, start=1e12)), 2e12))
    assert refused(Schedule(line, demand, (hop(line, 0, 0, 1), hop(line, 0, 1, 2, start=1.5)), math.nan))
    assert refused(Schedule(line, demand, (hop(line, 0, 0, 1), hop(line, 0, 1, 2, start=1.5)), math.inf))
    assert not refused(Schedule(line, demand, (hop(line, 0, 0, 1), hop(line, 0, 1, 2, start=1.5)), 1e12))


def test_reductions_that_count_twice_come_late_or_are_not_complete():
    line = Topology.load("line-3")
    reduce = demand_for("reduce", 3, 5e4)
    both = (hop(line, 0, 2, 1, reduce=True), hop(line, 0, 1, 0, start=1.5, reduce=True))
    assert not refused(Schedule(line, reduce, both, 3))
    assert refused(Schedule(line, reduce, (*both, hop(line, 0, 1, 0, start=2.5, reduce=True)), 9))  # twice
    assert refused(Schedule(line, reduce, (both[0], both[1]._replace(start_us=0)), 9))  # before GPU 2's share came
    assert refused(Schedule(line, reduce, (both[0], both[1]._replace(reduce=False)), 9))  # overwrites GPU 0's own
    assert refused(Schedule(line, reduce, both[:1], 9))
    allreduce = demand_for("allreduce", 3, 5e4)
    back = (hop(line, 0, 0, 1, start=3), hop(line, 0, 1, 2, start=4.5))
    assert not refused(Schedule(line, allreduce, both + back, 6))
    assert refused(Schedule(line, allreduce, (*both, back[0]._replace(start_us=2.9), back[1]), 6))  # incomplete
    assert refused(Schedule(line, allreduce, (*both, hop(line, 0, 1, 2, start=1.5)), 6))  # GPU 1 has only two shares
    assert refused(Schedule(line, allreduce, (*both, *back[:1]), 6))


@pytest.mark.parametrize("size", [0.0, 1e-9])
def test_no_bytes_over_no_latency_take_no_time_in_order(size):
    """A chunk may come and go at one instant, in the order of the sends."""
    line = machine("ggg", [(0, 1, 50, 0), (1, 2, 50, 0)])
    sends = (hop(line, 0, 0, 1), hop(line, 0, 1, 2))
    schedule = Schedule(line, demand_for("broadcast", 3, size), sends, 1.0)
    schedule.validate()
    assert schedule.retimed().finish_us == pytest.approx(0)
    with pytest.raises(Refused, match="does not hold"):
        replace(schedule, sends=sends[::-1]).validate()


# -- JSON ------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(machines(most=4), st.integers(0, 2**32))
def test_json_round_trip(topology, seed):
    schedule = feasible(topology, random.Random(seed))
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert again == schedule


def line_json():
    line = Topology.load("line-3")
    hops = [hop(line, 0, 0, 1), hop(line, 0, 1, 2, start=1.5)]
    return Schedule(line, demand_for("broadcast", 3, 5e4), tuple(hops), 3.0).to_json()


def test_files_keep_unknown_keys_and_need_not_say_what_the_collective_says(tmp_path):
    value = {**line_json(), "made_by": {"whom": ["me"]}}
    path = tmp_path / "schedule.json"
    schedule = Schedule.from_json(value)
    schedule.write(path)
    assert json.loads(path.read_text()) == value
    assert Schedule.read(path) == schedule
    for chunk in value["chunks"]:
        del chunk["want"], chunk["reduce"]
    assert Schedule.from_json(value) == schedule
    del value["chunks"], value["nchunks"]
    assert Schedule.from_json(value) == schedule
    del value["finish_us"]
    assert Schedule.from_json(value).retimed() == schedule


def test_a_name_that_is_none_of_ours_needs_chunks():
    value = {**line_json(), "collective": "gossip"}
    assert Schedule.from_json(value).demand.chunks == Schedule.from_json(line_json()).demand.chunks
    del value["chunks"]
    with pytest.raises(InputError, match=r"plan\.json: unknown collective 'gossip'"):
        Schedule.from_json(value, "plan.json")


def test_a_demand_of_ones_own_makes_the_round_trip_too():
    line = Topology.load("line-3")
    demand = Demand("mine", 3, (Chunk(0, (0,), (1, 2), 5e4), Chunk(1, (0, 2), (1,), 10.0, True)), 1, 5e4)
    schedule = Schedule(line, demand, (hop(line, 0, 0, 1),), 3.0)
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("topology",), None, "topology"),
        (("topology",), ..., "'topology' is missing"),
        (("topology", "links"), [], "disconnected"),
        (("collective",), ..., "'collective' is missing"),
        (("collective",), [], "collective: must be a name"),
        (("collective",), "allgather", "3 GPUs"),
        (("root",), 7, "root 7"),
        (("root",), 1, r"chunks\[0\]: origin is \[0\]"),
        (("root",), "0", "root: must be a whole number"),
        (("size_bytes",), ..., "'size_bytes' is missing"),
        (("size_bytes",), -1, "size_bytes|zero or more|bytes"),
        (("size_bytes",), math.nan, "size_bytes: must be a finite"),
        (("size_bytes",), 10**400, "size_bytes: must be a finite"),
        (("size_bytes",), True, "size_bytes: must be a number"),
        (("size_bytes",), 5e5, r"chunks\[0\]: 50000.0 bytes"),
        (("nchunks",), 0, "use 1 or more"),
        (("nchunks",), 2, "has 2"),
        (("nchunks",), 10**12, "too many"),
        (("nchunks",), 1.0, "nchunks: must be a whole number"),
        (("chunks",), {}, "'chunks' must be a list"),
        (("chunks",), [], "0 chunks"),
        (("chunks", 0), 3, r"chunks\[0\]: must be an object"),
        (("chunks", 0, "id"), 1, r"chunks\[0\]: id is 1"),
        (("chunks", 0, "id"), ..., r"chunks\[0\]: 'id' is missing"),
        (("chunks", 0, "origin"), [1], r"chunks\[0\]: origin"),
        (("chunks", 0, "want"), [], r"chunks\[0\]: want is \[\]"),
        (("chunks", 0, "want"), "all", r"chunks\[0\]: want"),
        (("chunks", 0, "bytes"), 1, r"chunks\[0\]: 1 bytes"),
        (("chunks", 0, "reduce"), True, r"chunks\[0\]: reduce"),
        (("sends",), ..., "'sends' is missing"),
        (("sends",), {}, "'sends' must be a list"),
        (("sends", 1), None, r"sends\[1\]: must be an object"),
        (("sends", 1, "chunk"), ..., r"sends\[1\]: 'chunk' is missing"),
        (("sends", 1, "chunk"), 1, r"sends\[1\]: no chunk 1"),
        (("sends", 1, "chunk"), -1, r"sends\[1\]: no chunk -1"),
        (("sends", 1, "chunk"), False, r"sends\[1\]: chunk: must be a whole"),
        (("sends", 1, "path"), [], r"sends\[1\]: the path has no links"),
        (("sends", 1, "path"), 1, r"sends\[1\]: path must be a list"),
        (("sends", 1, "path"), [99], r"sends\[1\]: the topology has no link 99"),
        (("sends", 1, "path"), [0, 2], r"sends\[1\]: the path crosses GPU 1"),
        (("sends", 1, "path"), [0, 3], r"sends\[1\]: link 0 ends at node 1"),
        (("sends", 1, "path"), ["0"], r"sends\[1\]: path: must be a whole"),
        (("sends", 1, "start_us"), "0", r"sends\[1\]: start_us: must be a number"),
        (("sends", 1, "start_us"), math.nan, r"sends\[1\]: start_us: must be a finite"),
        (("sends", 1, "start_us"), math.inf, r"sends\[1\]: start_us: must be a finite"),
        (("sends", 1, "reduce"), "false", r"sends\[1\]: reduce: must be true or false"),
        (("finish_us",), math.nan, "finish_us: must be a finite"),
    ],
)  # fmt: skip
def test_bad_json_is_one_line_that_names_the_place(place, value, said):
    whole = copy.deepcopy(line_json())
    holder = whole
    for key in place[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    with pytest.raises(InputError, match=said) as refusal:
        Schedule.from_json(whole, "plan.json")
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("plan.json: ")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"x"', "[" * 10**5,
     '{"sends": 1' + "0" * 5000 + "}", json.dumps(line_json())[:-40], "\xff"],
)  # fmt: skip
def test_files_that_are_no_schedule(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"plan\.json"):
        Schedule.read(path)

"""Schedules: their clock against closed forms and a slow simulation."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines
from timed_schedules import delayed, feasible, hop, timed

from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.schedule.simulate import play
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths

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


def test_cut_through_over_a_fast_link_between_slow_ones():
    """The last link starts as the first byte comes, not when the fast link's share of the time does."""
    chain = machine("gssg", [(0, 1, 10, 0.1), (1, 2, 100, 0.2), (2, 3, 10, 0.4)])
    schedule = timed(chain, demand_for("broadcast", 2, 2e5, 2), [hop(chain, c, 0, 1, 2, 3) for c in range(2)])
    assert [send.start_us for send in schedule.sends] == pytest.approx([0, 10])
    assert schedule.finish_us == pytest.approx(10 + 0.7 + 10)


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


def per_us(schedule: Schedule, link: int) -> Fraction:
    """Bytes per µs of a link."""
    return Fraction(schedule.topology.link_by_id[link].bandwidth_GBps) * 1000


def offsets(schedule: Schedule, send: Send) -> list[Fraction]:
    """When each link of the send's path is taken, after its start, in exact arithmetic."""
    at, alpha, longest = [], Fraction(0), Fraction(0)
    for id in send.path:
        beta = Fraction(schedule.demand.chunks[send.chunk].bytes) / per_us(schedule, id)
        longest = max(longest, beta)
        at.append(alpha + longest - beta)
        alpha += Fraction(schedule.topology.link_by_id[id].alpha_us)
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


def test_larger_chunks_wait_for_their_sums_and_for_what_comes_back():
    """Starts of a small size are too early for a large one, and every rank has something of the chunk at once."""
    line = Topology.load("line-3")
    up = [hop(line, 0, 2, 1, reduce=True), hop(line, 0, 1, 0, reduce=True)]
    for collective, hops in (("reduce", up), ("allreduce", [*up, hop(line, 0, 0, 1), hop(line, 0, 1, 2)])):
        small = timed(line, demand_for(collective, 3, 5e4), hops)
        large = replace(small, demand=demand_for(collective, 3, 5e6)).retimed()
        large.validate()
        assert large.finish_us == pytest.approx(len(hops) * (0.5 + 5e6 / 50e3))


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

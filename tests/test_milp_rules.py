"""The general MILP: switches that multicast, limited buffers, bandwidth that varies, tenants; each against a closed
form or a count of its own."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from strategies import machine, seeded_machine

from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.lower import lower
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.synthesis.epochs import EpochGrid, fast_epoch_us
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.milp import Milp, Tenant
from teccl_msccl.synthesis.rules import Rules
from teccl_msccl.topology.model import Topology

CHUNK = 5e4  # 1 µs on a link of 50 GB/s


def star(n: int, multicast: bool) -> Topology:
    """GPUs round one switch, 50 GB/s, no α."""
    plain = machine("g" * n + "s", [(i, n, 50, 0.0) for i in range(n)])
    return replace(plain, nodes=tuple(replace(x, multicast=multicast and x.kind == "switch") for x in plain.nodes))


def solved(topology: Topology, demand: Demand, rules: Rules = Rules(), tenants: tuple[Tenant, ...] = ()):  # noqa: B008
    start = GreedySearch(topology).trial(demand, 0)
    return Milp(EpochGrid(topology, demand, 1.0), start, "cbc", rules, tenants).improve(seconds=20)


# -- multicast -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("multicast", "finish_us"), [(False, 2.0), (True, 1.0)])
def test_a_switch_that_multicasts_copies_in_one_transfer(multicast, finish_us):
    """Broadcast among 4: the root's uplink alone is busy 3 µs, relays help to 2; the switch makes it 1."""
    result = solved(star(4, multicast), demand_for("broadcast", 4, CHUNK))
    result.schedule.validate()
    assert result.outcome.status == "optimal"
    assert result.schedule.finish_us == pytest.approx(finish_us)
    assert result.schedule.multicasts() == multicast


def test_an_allgather_by_multicast_still_fills_the_downlinks():
    result = solved(star(4, True), demand_for("allgather", 4, 4 * CHUNK))
    result.schedule.validate()
    assert result.schedule.finish_us == pytest.approx(3.0)
    assert result.schedule.retimed().finish_us == pytest.approx(3.0)


def multicast_sends(topology: Topology, starts: tuple[float, ...]) -> Schedule:
    link = {(x.src, x.dst): x.id for x in topology.links}
    n = topology.nranks
    sends = tuple(Send(0, (link[0, n], link[n, i + 1]), start) for i, start in enumerate(starts))
    return Schedule(topology, demand_for("broadcast", n, CHUNK), sends, 1.0 + max(starts))


def test_only_copies_that_start_together_share_an_uplink_and_only_where_the_switch_can():
    multicast_sends(star(3, True), (0.0, 0.0)).validate()
    multicast_sends(star(3, True), (0.0, 1.0)).validate()
    for topology, starts in ((star(3, False), (0.0, 0.0)), (star(3, True), (0.0, 0.5))):
        with pytest.raises(Refused, match="carries sends 0 and 1 at once"):
            multicast_sends(topology, starts).validate()


def test_two_chunks_never_share_an_uplink():
    topology = star(3, True)
    one = multicast_sends(topology, (0.0, 0.0))
    two = replace(one, demand=demand_for("broadcast", 3, 2 * CHUNK, 2))
    two = replace(two, sends=tuple(send._replace(chunk=i) for i, send in enumerate(one.sends)))
    with pytest.raises(Refused, match="at once"):
        two.validate()


def test_the_clock_keeps_copies_together_and_joins_them_when_played_in_order():
    topology = star(4, True)
    late = multicast_sends(topology, (5.0, 5.0, 5.0))
    assert [send.start_us for send in late.retimed().sends] == [0.0, 0.0, 0.0]
    clash = multicast_sends(topology, (0.0, 0.1, 0.2))  # infeasible as given: played in this order instead
    played = clash.retimed()
    played.validate()
    assert played.finish_us == pytest.approx(1.0)
    apart = multicast_sends(star(4, False), (0.0, 0.1, 0.2)).retimed()
    apart.validate()
    assert apart.finish_us == pytest.approx(3.0)


def test_programs_cannot_multicast():
    schedule = multicast_sends(star(3, True), (0.0, 0.0))
    with pytest.raises(Refused, match="multicast"):
        lower(schedule)
    lower(multicast_sends(star(3, True), (0.0, 1.0)))


# -- hyper-edges ---------------------------------------------------------------------------------------------------


def test_a_switch_is_a_hyper_edge():
    """3 GPUs that only send and 2 that only take: as many transfers at a time as the fewer ports, one per GPU."""
    sources, targets = range(3), (3, 4)
    wires = [(i, 5, 50, 0.0) for i in sources] + [(5, j, 50, 0.0) for j in targets]
    wires += [(j, i, 1e-3, 0.0) for j in targets for i in sources]  # a way back, to be connected
    topology = machine("gggggs", wires, one_way=True)
    chunks = tuple(Chunk(n, (i,), (j,), CHUNK) for n, (i, j) in enumerate((i, j) for i in sources for j in targets))
    result = solved(topology, Demand("custom", 5, chunks, 1, 6 * CHUNK))
    assert result.epochs == 3
    at = defaultdict(list)
    for send in result.schedule.sends:
        at[send.start_us].append(result.schedule.ends(send))
    assert all(len(ends) <= 2 and len({i for i, _ in ends}) == len(ends) for ends in at.values())


# -- limited buffers -----------------------------------------------------------------------------------------------


def held_for_others(schedule: Schedule, epochs: int, tau: float = 1.0) -> int:
    """The most chunks that a GPU must keep at the beginning of an epoch to pass them on later."""
    most = 0
    for v in range(schedule.topology.nranks):
        for k in range(epochs + 1):
            kept = 0
            for chunk in schedule.demand.chunks:
                if v in chunk.origin or v in chunk.want:
                    continue
                mine = [send for send in schedule.sends if send.chunk == chunk.id]
                came = min((schedule.arrival_us(s) for s in mine if schedule.ends(s)[1] == v), default=1e9)
                goes = max((s.start_us for s in mine if schedule.ends(s)[0] == v), default=-1)
                kept += came <= k * tau + 1e-9 and k * tau <= goes + 1e-9
            most = max(most, kept)
    return most


@pytest.mark.parametrize(("relay_chunks", "epochs"), [(None, 6), (2, 6), (1, 9)])
def test_a_relay_of_few_chunks(relay_chunks, epochs):
    """Three chunks over a fast link to a relay that passes them on over a slow one: with room for one, each comes only
    when the one before has gone."""
    line = machine("ggg", [(0, 1, 50, 0.0), (1, 2, 50, 0.0)])
    chunks = tuple(Chunk(n, (0,), (2,), CHUNK) for n in range(3)) + tuple(
        Chunk(3 + n, (1,), (2,), CHUNK) for n in range(2)
    )
    demand = Demand("custom", 3, chunks, 1, 5 * CHUNK)
    result = solved(line, demand, Rules(relay_chunks=relay_chunks))
    result.schedule.validate()
    assert result.outcome.status == "optimal"
    if relay_chunks is not None:
        assert held_for_others(result.schedule, result.epochs) <= relay_chunks
    assert result.epochs <= epochs


def test_no_room_at_all_leaves_no_way():
    line = machine("ggg", [(0, 1, 50, 0.0), (1, 2, 50, 0.0)])
    demand = Demand("custom", 3, (Chunk(0, (0,), (2,), CHUNK),), 1, CHUNK)
    with pytest.raises(Refused, match=r"chunk 0 has no way from GPU 0 to GPU 2 .* relay_chunks is 0"):
        solved(line, demand, Rules(relay_chunks=0))


def test_without_room_on_others_a_chunk_goes_over_those_that_want_it():
    """In a ring of 4 from 0 to 1 and 2: not over 3, which is as near."""
    ring = machine("gggg", [(0, 1, 50, 0.0), (1, 2, 50, 0.0), (2, 3, 50, 0.0), (3, 0, 50, 0.0)])
    demand = Demand("custom", 4, tuple(Chunk(n, (0,), (1, 2), CHUNK) for n in range(2)), 1, 2 * CHUNK)
    result = solved(ring, demand, Rules(relay_chunks=0))
    result.schedule.validate()
    assert {result.schedule.ends(send) for send in result.schedule.sends} == {(0, 1), (1, 2)}
    assert result.schedule.finish_us == pytest.approx(3.0)


# -- bandwidth that varies -----------------------------------------------------------------------------------------


def steps(*shares: float) -> tuple[tuple[float, float], ...]:
    """A share for every µs, the last for good."""
    return tuple((float(time), share) for time, share in enumerate(shares))


@pytest.mark.parametrize(
    ("shares", "finish"),
    [((1.0,), 3), ((0.0, 0.0, 1.0), 5), ((0.5,), 6), ((1.0, 0.0, 1.0), 4), ((0.5, 0.5, 1.0), 4)],
)
def test_a_link_that_others_use(shares, finish):
    """Three chunks over one link, an epoch each at full bandwidth."""
    pair = machine("gg", [(0, 1, 50, 0.0)])
    rules = Rules(shares={0: steps(*shares)})
    result = solved(pair, demand_for("scatter", 2, 6 * CHUNK, 3), rules)
    assert result.outcome.status == "optimal"
    assert result.epochs == finish
    assert result.schedule.finish_us == pytest.approx(finish)
    assert_crossed(result.schedule, rules)


def assert_crossed(schedule: Schedule, rules: Rules) -> None:
    """By small steps of time: on direct links without α one transfer at a time gets all its bytes across, and no GPU
    passes on what has not come."""
    assert schedule.sends
    dt = 1e-3
    here = {(chunk.id, rank): 0.0 for chunk in schedule.demand.chunks for rank in chunk.origin}
    free_at: dict[int, float] = defaultdict(float)
    for send in sorted(schedule.sends, key=lambda send: send.start_us):
        (id,) = send.path
        src, dst = schedule.ends(send)
        assert send.start_us >= max(here[send.chunk, src], free_at[id]) - 2 * dt
        left, now = schedule.demand.chunks[send.chunk].bytes, send.start_us
        while left > 1e-6:
            share = next((s for time, s in reversed(rules.shares.get(id, ())) if time <= now + dt / 2), 1.0)
            left -= share * schedule.topology.link_by_id[id].bandwidth_GBps * 1e3 * dt
            now += dt
        free_at[id] = now
        here[send.chunk, dst] = min(now, here.get((send.chunk, dst), now))
    assert schedule.finish_us == pytest.approx(
        max(here[chunk.id, rank] for chunk in schedule.demand.chunks for rank in chunk.want), abs=5 * dt
    )


def test_a_link_at_half_bandwidth_from_some_time_on_is_gone_round():
    """Ring of 3, three chunks from 0 to 1, and the direct link halves at 1 µs: one goes there in time."""
    ring = machine("ggg", [(0, 1, 50, 0.0), (1, 2, 50, 0.0), (2, 0, 50, 0.0)])
    demand = Demand("custom", 3, tuple(Chunk(n, (0,), (1,), CHUNK) for n in range(3)), 1, 3 * CHUNK)
    direct = next(link.id for link in ring.links if (link.src, link.dst) == (0, 1))
    rules = Rules(shares={direct: ((1.0, 0.5),)})
    result = solved(ring, demand, rules)
    assert_crossed(result.schedule, rules)
    assert result.outcome.status == "optimal"
    assert result.schedule.finish_us == pytest.approx(3.0)  # direct at 1 and 3, round at 2: or both round at 2 and 3


def test_a_path_goes_at_every_moment_as_fast_as_its_slowest_link_lets_it():
    rules = Rules(shares={0: steps(1, 0, 1), 1: steps(0, 1, 1)})
    assert rules.takes_us({0: 1.0}, 0.0) == pytest.approx(1.0)
    assert rules.takes_us({1: 1.0}, 0.0) == pytest.approx(2.0)
    assert rules.takes_us({0: 1.0, 1: 1.0}, 0.0) == pytest.approx(3.0)
    assert rules.takes_us({0: 2.0}, 0.5) == pytest.approx(3.0)  # half a µs, a µs of nothing, one and a half more
    assert rules.takes_us({0: 0.0}, 1.2) == 0.0
    assert Rules().takes_us({0: 1.5, 1: 2.5}, 7.0) == pytest.approx(2.5)


@pytest.mark.parametrize("seed", range(6))
def test_schedules_keep_random_rules(seed):
    """On random machines: both the start that is made to keep them and what the MILP makes of it."""
    rng = random.Random(seed)
    topology = seeded_machine(seed, 3, 3, 0)
    topology = replace(topology, links=tuple(replace(link, alpha_us=0.0) for link in topology.links))
    demand = demand_for("alltoall", topology.nranks, CHUNK * topology.nranks, 1)
    shares = {
        link.id: ((0.0, rng.choice([0.25, 1.0])), (rng.uniform(0.5, 4), 0.0), (rng.uniform(4.5, 8), 0.5))
        for link in topology.links
        if rng.random() < 0.5
    }
    rules = Rules(relay_chunks=1 if seed % 2 else None, shares=shares)
    start = GreedySearch(topology).trial(demand, seed)
    model = Milp(EpochGrid(topology, demand, fast_epoch_us(topology, demand)), start, "cbc", rules)
    found = model.improve(seconds=20).schedule
    for schedule in (model.started(), found):
        schedule.validate()
        assert_crossed(schedule, rules)
        if rules.relay_chunks:
            assert held_for_others(schedule, model.horizon, model.grid.tau_us) <= 1
    assert found.finish_us <= model.horizon * model.grid.tau_us * (1 + 1e-9)


# -- tenants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
def test_the_weightier_tenant_goes_first(first):
    pair = machine("gg", [(0, 1, 50, 0.0)])
    demand = Demand("custom", 2, tuple(Chunk(n, (0,), (1,), CHUNK) for n in range(4)), 1, 4 * CHUNK)
    weights = {first: 10.0, 1 - first: 1.0}
    tenants = tuple(Tenant(frozenset({2 * t, 2 * t + 1}), weights[t]) for t in (0, 1))
    result = solved(pair, demand, tenants=tenants)
    result.schedule.validate()
    starts = {send.chunk: send.start_us for send in result.schedule.sends}
    assert sorted(starts, key=starts.__getitem__)[:2] in ([2 * first, 2 * first + 1], [2 * first + 1, 2 * first])


def test_rules_that_mean_nothing():
    with pytest.raises(InputError, match="relay_chunks is -1"):
        Rules(relay_chunks=-1)
    for wrong in (steps(1.0, 0.0), steps(2.0), (), ((1.0, 1.0), (1.0, 0.5)), ((-1.0, 1.0),)):
        with pytest.raises(InputError, match="link 0: shares"):
            Rules(shares={0: wrong})
    with pytest.raises(InputError, match="weight"):
        Tenant(frozenset({0}), 0.0)

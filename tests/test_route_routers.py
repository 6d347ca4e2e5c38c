"""Routers against exhaustive search, closed forms and each other."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest
from clos_by_hand import every_routing, load_of, traffic, two_layer_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl.errors import InputError, Refused
from teccl_msccl.routing.fabric import Clos, Link
from teccl_msccl.routing.metric import load_bound, max_load, rates
from teccl_msccl.routing.routers import ROUTERS, optimize
from teccl_msccl.routing.routers.auto import moved
from teccl_msccl.routing.routers.choice import Choice
from teccl_msccl.routing.routers.equitable import route_by_weight
from teccl_msccl.routing.routers.polish import polish
from teccl_msccl.routing.traffic import Flow, Traffic


def random_traffic(seed, most_flows=8, tors=(2, 4), spines=(1, 3)):
    """A few flows of up to three collectives between single-host-link-free hosts of a small fabric."""
    draw = random.Random(seed)
    fabric = Clos(draw.randint(*tors), draw.randint(*spines), most_flows)
    flows = []
    for i in range(draw.randint(1, most_flows)):
        source, target = draw.sample(range(fabric.tors), 2)
        flows.append(Flow(draw.choice("ABC"), source * most_flows + i, target * most_flows + i))
    return Traffic(fabric, tuple(flow._replace(job=flow.collective) for flow in flows))


def degree(flows, side):
    count = {}
    for flow in flows.flows:
        tor = (flow.src, flow.dst)[side] // flows.fabric.hosts_per_tor
        count[tor] = count.get(tor, 0) + 1
    return count


def test_worked_example_where_greedy_errs():
    flows, _ = traffic(3, 2, 2, "A:0>2, B:1>4, C:2>0, D:3>5")
    found = optimize(flows, "greedy").routes
    assert found == (0, 1, 0, 0)
    assert rates(flows, found).phi == [F(1, 2), F(1, 2), 1, 1]
    for router in ("equitable", "auto"):
        assert rates(flows, optimize(flows, router).routes).phi == [1, 1, 1, 1]


def test_worked_example_where_the_largest_load_is_not_all():
    flows, _ = traffic(2, 2, 4, "A:4>2, A:2>5, A:5>0, A:0>4, B:3>1, B:1>6, B:6>3")
    greedy = optimize(flows, "greedy").routes
    assert rates(flows, greedy).phi == [F(1, 2), F(1, 2)]
    best = max((sorted(two_layer_rates(flows, r).values()), r) for r in every_routing(flows))
    assert best[0] == [F(1, 2), 1]
    assert load_of(flows, best[1]) == load_of(flows, greedy) == 2
    assert rates(flows, optimize(flows, "auto").routes).phi == [F(1, 2), 1]


@pytest.mark.parametrize("seed", range(60))
def test_small_instances_against_exhaustive_search(seed):
    flows = random_traffic(seed)
    least = min(load_of(flows, routes) for routes in every_routing(flows))
    delta = max(max(degree(flows, side).values()) for side in (0, 1))
    m = flows.fabric.spines
    assert least == -(-delta // m) == load_bound(flows)
    assert load_of(flows, optimize(flows, "equitable").routes) == least
    greedy = optimize(flows, "greedy").routes
    assert load_of(flows, greedy) <= 1 + (2 * delta - 2) // m
    assert load_of(flows, greedy) <= 2 * least
    for flow, route in zip(flows.flows, greedy, strict=True):  # T2
        d = max(degree(flows, 0)[flow.src // 8], degree(flows, 1)[flow.dst // 8])
        crossing = [
            sum(r == route and f.src // 8 == flow.src // 8 for f, r in zip(flows.flows, greedy, strict=True)),
            sum(r == route and f.dst // 8 == flow.dst // 8 for f, r in zip(flows.flows, greedy, strict=True)),
        ]
        assert F(1, max(crossing)) >= F(1, 2 * -(-d // m))
    auto = sorted(two_layer_rates(flows, optimize(flows, "auto").routes).values())
    assert auto >= sorted(two_layer_rates(flows, greedy).values())


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_ilp_is_the_least_largest_load(seed):
    flows = random_traffic(seed)
    least = min(load_of(flows, routes) for routes in every_routing(flows))
    assert load_of(flows, optimize(flows, "ilp").routes) == least


def test_ilp_with_weights_and_unequal_links():
    flows, _ = traffic(2, 2, 3, "A:0>3 w3, B:1>4 w2, C:2>5 w1", exceptions={Link("up", 0, 1): F(1, 2)})
    assert max_load(flows, optimize(flows, "ilp").routes) == 4  # 3 + 1 on the whole link, 2 on the half
    with pytest.raises(InputError, match="binaries"):
        optimize(Traffic(Clos(2, 8, 200), tuple(Flow("A", i, 200 + i) for i in range(129))), "ilp")


@st.composite
def symmetric(draw):
    spines = draw(st.integers(1, 9))
    dead = frozenset(draw(st.sets(st.integers(0, spines - 1), max_size=spines - 1)))
    tors = draw(st.integers(2, 5))
    pairs = draw(st.lists(st.tuples(st.integers(0, tors - 1), st.integers(0, tors - 1)), min_size=1, max_size=60))
    flows = tuple(Flow("A", 60 * u + i, 60 * v + i) for i, (u, v) in enumerate(pairs) if u != v)
    return Traffic(Clos(tors, spines, 60, dead_spines=dead), flows)


@given(symmetric())
@settings(max_examples=40, deadline=None)
def test_equitable_gives_every_link_its_even_share(flows):
    routes = optimize(flows, "equitable").routes
    live = [s for s in range(flows.fabric.spines) if s not in flows.fabric.dead_spines]
    assert all(route in live for route in routes)
    for side in (0, 1):
        for tor, d in degree(flows, side).items():
            for spine in live:
                load = sum(
                    (f.src, f.dst)[side] // 60 == tor and r == spine for f, r in zip(flows.flows, routes, strict=True)
                )
                assert load in (d // len(live), -(-d // len(live)))


@given(symmetric(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_equitable_keeps_routes_in_force_that_fit(flows, draw):
    live = [s for s in range(flows.fabric.spines) if s not in flows.fabric.dead_spines]
    fresh = optimize(flows, "equitable").routes
    assert optimize(flows, "equitable", Choice(in_force=fresh)).routes == fresh
    some = tuple(route if draw.random() < 0.5 else draw.choice([None, *live]) for route in fresh)
    again = Traffic(flows.fabric, flows.flows)
    routes = optimize(again, "equitable", Choice(in_force=some)).routes
    assert max_load(flows, routes) == max_load(flows, fresh)


def test_edge_colours_wrap_around_the_spines():
    """3 flows of one ToR take 3 colours: 2 spines carry 2 and 1; equal colours never meet at a ToR."""
    flows, _ = traffic(4, 3, 3, "A:0>3, A:1>6, A:2>9, B:3>0, B:4>7, B:6>1")
    routes = optimize(flows, "edge-colour").routes
    assert load_of(flows, routes) == 1
    fewer = Traffic(flows.fabric.with_spine(1, alive=False), flows.flows)
    assert load_of(fewer, optimize(fewer, "edge-colour").routes) == 2


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_is_deterministic_and_avoids_what_failed(router):
    flows = random_traffic(5, 8, (4, 4), (3, 3))
    fabric = flows.fabric.with_spine(0, alive=False)
    asymmetric = Traffic(fabric.with_link(Link("up", 1, 1), F(0)), flows.flows)
    for case in (Traffic(fabric, flows.flows), asymmetric):
        if router == "equitable" and case is asymmetric:
            with pytest.raises(InputError, match="symmetric"):
                optimize(case, router)
            continue
        routes = optimize(case, router, Choice(seed=3)).routes
        case.check_routes(routes)
        assert optimize(case, router, Choice(seed=3)).routes == routes


@pytest.mark.parametrize("router", [name for name in ROUTERS if name != "ilp"])
def test_flows_inside_a_tor_and_no_flows(router):
    inside = Traffic(Clos(2, 2, 2), (Flow("A", 0, 1), Flow("A", 3, 2)))
    assert optimize(inside, router).routes == (None, None)
    assert optimize(Traffic(Clos(2, 2, 2), ()), router).routes == ()


@given(symmetric(), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_split_loads_a_symmetric_link_by_its_share(flows, q):
    parts = flows.split(q)
    routes = optimize(parts, "equitable").routes
    m = flows.fabric.spines - len(flows.fabric.dead_spines)
    delta = max((d for side in (0, 1) for d in degree(flows, side).values()), default=0)
    assert max_load(parts, routes) == F(-(-q * delta // m), q)


def test_split_beats_any_single_path():
    flows, _ = traffic(2, 2, 3, "A:0>3, B:1>4, C:2>5")
    assert max(min(two_layer_rates(flows, routes).values()) for routes in every_routing(flows)) == F(1, 2)
    parts = flows.split(2)
    assert rates(parts, optimize(parts, "auto").routes).phi == [F(2, 3)] * 3


@pytest.mark.parametrize("seed", range(20))
def test_polish_never_worsens_and_ends_where_no_change_helps(seed):
    flows = random_traffic(seed, 6)
    begin = list(optimize(flows, "ecmp", Choice(seed=seed)).routes)
    polished = polish(flows, begin, Choice())

    def key(routes):
        on = {}
        for flow, route in zip(flows.flows, routes, strict=True):
            on.setdefault(("up", flow.src // 6, route), set()).add(flow.collective)
            on.setdefault(("down", flow.dst // 6, route), set()).add(flow.collective)
        return sorted(two_layer_rates(flows, routes).values()), -sum(len(here) - 1 for here in on.values())

    assert key(polished) >= key(begin)
    for i in range(len(polished)):
        for spine in range(flows.fabric.spines):
            assert key([*polished[:i], spine, *polished[i + 1 :]]) <= key(polished)
    stopped = polish(flows, begin, Choice(), most_changes=1)
    assert moved(begin, stopped) <= 1
    assert polish(flows, begin, Choice(evaluations=0)) == begin


@pytest.mark.parametrize("seed", range(20))
def test_auto_is_the_best_of_its_candidates_even_unpolished(seed):
    flows = random_traffic(seed, 8, (3, 4), (2, 3))
    phi = {router: rates(flows, optimize(flows, router, Choice(evaluations=0)).routes).phi for router in ROUTERS}
    assert phi["auto"] == max(phi["greedy"], phi["equitable"])


def test_auto_starts_from_the_routes_in_force():
    flows, _ = traffic(4, 4, 4, ",".join(f"{'AB'[i % 2]}:{i}>{4 + i},{'AB'[i % 2]}:{4 + i}>{8 + i}" for i in range(4)))
    first = optimize(flows, "auto").routes
    assert optimize(flows, "auto", Choice(in_force=first)).routes == first
    more = Traffic(flows.fabric, (*flows.flows, Flow("C", 8, 12), Flow("C", 12, 0)))
    second = optimize(more, "auto", Choice(in_force=(*first, None, None))).routes
    assert second[:8] == first
    assert rates(more, second).phi[0] == 1


def test_light_flows_do_not_decide_where_heavy_ones_meet():
    """4 heavy flows and 3 light ones leave ToR 0: on 4 spines heavy ones have a spine each."""
    light = ", ".join(f"L{i}:{i}>{8 + i} w1/100" for i in range(3))
    heavy = ", ".join(f"H{i}:{3 + i}>{11 + i} w1" for i in range(4))
    flows, _ = traffic(2, 4, 8, f"{light}, {heavy}")
    assert rates(flows, optimize(flows, "auto").routes).phi[0] >= F(100, 101)


@given(symmetric(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_each_class_of_weights_is_balanced(flows, draw):
    weights = [draw.choice([F(8), F(6), F(1, 3)]) for _ in flows.flows]  # 8 and 6 are of one class
    mixed = Traffic(flows.fabric, tuple(f._replace(weight=w) for f, w in zip(flows.flows, weights, strict=True)))
    routes = route_by_weight(mixed, Choice())
    m = mixed.fabric.spines - len(mixed.fabric.dead_spines)
    for light in (True, False):
        mine = [(f, r) for f, r in zip(mixed.flows, routes, strict=True) if (f.weight < 1) is light]
        for side in (0, 1):
            d, load = {}, {}
            for flow, route in mine:
                tor = (flow.src, flow.dst)[side] // 60
                d[tor] = d.get(tor, 0) + 1
                load[tor, route] = load.get((tor, route), 0) + 1
            assert all(count <= -(-d[tor] // m) for (tor, _), count in load.items())


def test_unknown_router_and_unreachable_pairs():
    flows, _ = traffic(2, 1, 1, "A:0>1")
    with pytest.raises(InputError, match="unknown router"):
        optimize(flows, "best")
    dead = Traffic(flows.fabric.with_spine(0, alive=False), flows.flows)
    for router in ROUTERS:
        with pytest.raises(InputError, match="cannot be reached"):
            optimize(dead, router)


def test_ilp_that_proves_nothing_is_refused(monkeypatch):
    monkeypatch.setattr("teccl_msccl.synthesis.solver.solve", lambda *args, **kw: ilp_outcome())
    flows, _ = traffic(2, 1, 1, "A:0>1")
    with pytest.raises(Refused, match="no optimum"):
        optimize(flows, "ilp")


def ilp_outcome():
    from teccl_msccl.synthesis.solver import Outcome

    return Outcome("cbc", "feasible", 1, 1, 1.0, 0.0)

"""The metric: worked examples to the last digit, and properties against the definition."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np
import pytest
from clos_by_hand import link_names, max_min_flow_rates, traffic, two_layer_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl.errors import InputError
from teccl_msccl.routing.compiled import as_spines, compiled, scaled_weights
from teccl_msccl.routing.efficiency import Report
from teccl_msccl.routing.fabric import Clos, Link
from teccl_msccl.routing.metric import load_bound, max_load, non_blocking, rates
from teccl_msccl.routing.traffic import Flow, Traffic

EXAMPLES = {
    "two ToRs, one spine": ((2, 1, 2, "A:0>2, B:1>3"), {"coll": {"A": "1/2", "B": "1/2"}}),
    "paced by its slower flow": (
        (3, 2, 2, "A:0>2@0, A:4>3@1, B:1>5@0"),
        {"flow": {"A": "1/2", "B": "1/2"}, "coll": {"A": "1/2", "B": "1/2"}},
    ),
    "two layers differ from one": (
        (4, 1, 3, "A:0>3, A:6>9, B:1>4, D:2>5, C:7>10"),
        {
            "flow": {"A": "1/3", "B": "1/3", "D": "1/3", "C": "1/2"},
            "coll": {"A": "1/3", "B": "1/3", "D": "1/3", "C": "2/3"},
        },
    ),
    "weights": (
        (4, 1, 2, "A:0>2 w2, A:4>6 w1, B:1>3 w1"),
        {"flow": {"A": "1/4", "B": "1/2"}, "coll": {"A": "1/3", "B": "1/3"}},
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name):
    case, modes = EXAMPLES[name]
    flows, routes = traffic(*case)
    for mode, expected in modes.items():
        found = rates(flows, routes, mode)
        assert found.collectives == {key: F(value) for key, value in expected.items()}
        assert found.phi == sorted(F(value) for value in expected.values())


def test_flow_rates_of_the_paced_collective():
    flows, routes = traffic(3, 2, 2, "A:0>2@0, A:4>3@1, B:1>5@0")
    assert rates(flows, routes, "flow").flows == (F(1, 2), 1, F(1, 2))
    assert rates(flows, routes, "coll").flows == (F(1, 2), F(1, 2), F(1, 2))


def test_equal_share_of_each_link_is_not_max_min():
    """C shares a link with half of A alone; what A leaves there is C's."""
    flows, routes = traffic(4, 1, 3, "A:0>3, A:6>9, B:1>4, D:2>5, C:7>10")
    assert rates(flows, routes, "coll").collectives["C"] > F(1, 2)


def test_static_is_the_busiest_link():
    flows, routes = traffic(4, 1, 3, "A:0>3, A:6>9, B:1>4, D:2>5, C:7>10")
    assert rates(flows, routes, "static").collectives == {"A": F(1, 3), "B": F(1, 3), "D": F(1, 3), "C": F(1, 2)}


def test_unequal_and_failed_links_count():
    flows, routes = traffic(2, 2, 2, "A:0>2@0, B:1>3@1", exceptions={Link("up", 0, 1): F(1, 3)})
    assert rates(flows, routes).collectives == {"A": 1, "B": F(1, 3)}
    failed = Traffic(flows.fabric.with_link(Link("down", 1, 0), F(0)), flows.flows)
    for mode in ("coll", "flow", "static"):
        assert rates(failed, routes, mode).collectives == {"A": 0, "B": F(1, 3)}
    assert rates(Traffic(flows.fabric.with_link(Link("host_up", host=0), F(1, 7)), flows.flows), routes).phi[0] == F(
        1, 7
    )


def test_phases_do_not_meet():
    one, routes = traffic(2, 1, 2, "A:0>2, B:1>3")
    apart = Traffic(one.fabric, (one.flows[0], one.flows[1]._replace(phase=1)))
    assert rates(apart, routes).phi == [1, 1]
    assert max_load(apart, routes) == 1


def test_report_of_both_groupings():
    fabric = Clos(2, 1, 4)
    flows = (Flow("a", 0, 4, job="J"), Flow("b", 1, 5, F(3), job="J"), Flow("c", 2, 6, job="K"))
    report = Report(Traffic(fabric, flows), (0, 0, 0), "coll")
    # apart: 5 units share the link; b's pace is 1/5 as everyone's
    assert report.rates.phi == [F(1, 5)] * 3
    assert report.jobs["J"].rate == report.jobs["K"].rate == F(1, 5)
    assert [group.efficiency for group in report.collectives.values()] == [F(1, 5), F(3, 5), F(1, 5)]
    assert report.min_efficiency == F(1, 5)
    assert report.mean_efficiency == F(1, 3)
    assert report.weighted_efficiency == (F(1, 5) + 3 * F(3, 5) + F(1, 5)) / 5
    assert report.jain == F(1) ** 2 / (3 * (F(1, 25) + F(9, 25) + F(1, 25)))
    value = report.to_json()
    assert value["phi"] == ["1/5", "1/5", "1/5"]
    assert value["collectives"]["b"] == {"rate": "1/5", "efficiency": 0.6, "time": "5", "time_s": 5 * 8 / 100e9}
    assert value["max_load"] == 5
    assert value["bounds"] == {"max_load": 5, "phi": ["1/3", "1", "1"]}


@st.composite
def routed(draw, weights=(F(1), F(2), F(1, 3))):
    tors, spines, hosts = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    host = st.integers(0, tors * hosts - 1)
    ends = draw(st.lists(st.tuples(host, host), min_size=1, max_size=8).map(lambda p: [e for e in p if e[0] != e[1]]))
    flows = tuple(Flow(draw(st.sampled_from("ABCD")), *end, draw(st.sampled_from(weights))) for end in ends)
    flows = tuple(flow._replace(job=flow.collective) for flow in flows)
    routes = [None if flow.src // hosts == flow.dst // hosts else draw(st.integers(0, spines - 1)) for flow in flows]
    return Traffic(Clos(tors, spines, hosts), flows), routes


@given(routed())
@settings(max_examples=40, deadline=None)
def test_rates_follow_the_definition(case):
    flows, routes = case
    assert rates(flows, routes, "coll").collectives == (two_layer_rates(flows, routes) if flows.flows else {})
    if flows.flows:
        assert list(rates(flows, routes, "flow").flows) == max_min_flow_rates(flows, routes)


@given(routed())
@settings(max_examples=50, deadline=None)
def test_no_link_is_over_full_and_every_collective_has_a_bottleneck(case):
    flows, routes = case
    found = rates(flows, routes, "coll")
    load, on = {}, {}
    for flow, route, rate in zip(flows.flows, routes, found.flows, strict=True):
        for link in link_names(flows, flow, route):
            load[link] = load.get(link, 0) + rate
            on.setdefault(link, set()).add(flow.collective)
    assert all(value <= 1 for value in load.values())
    for name, rate in found.collectives.items():
        assert any(
            load[link] == 1 and name in here and rate == max(found.collectives[other] for other in here)
            for link, here in on.items()
        )


@given(routed(), st.sampled_from(["coll", "flow", "static"]))
@settings(max_examples=40, deadline=None)
def test_the_core_agrees_with_the_rationals(case, mode):
    flows, routes = case
    if not flows.flows:
        return
    exact = rates(flows, routes, mode)
    names = flows.collectives
    collective, flow = compiled(flows).rates(as_spines(routes), mode)
    _, scale = scaled_weights(flows)
    np.testing.assert_allclose(collective * scale, [float(exact.collectives[name]) for name in names], rtol=1e-9)
    np.testing.assert_allclose(flow, [float(rate) for rate in exact.flows], rtol=1e-9)


@given(routed())
@settings(max_examples=40, deadline=None)
def test_no_routes_beat_the_bounds(case):
    flows, routes = case
    for mode in ("coll", "flow", "static"):
        assert rates(flows, routes, mode).phi <= non_blocking(flows, mode).phi
    assert load_bound(flows) <= max_load(flows, routes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": -1}, "weight"),
        ({"weight": 0}, "weight"),
        ({"weight": float("nan")}, "finite"),
        ({"weight": "x"}, "number"),
        ({"weight": 10**400}, "absurd"),
        ({"weight": 1e-300}, "proportion"),
        ({"weight": "1/0"}, "number"),
        ({"src": 99}, "no host 99"),
        ({"dst": 0}, "itself"),
        ({"spine": 7}, "no spine 7"),
        ({"wieght": 1}, "unknown key 'wieght'"),
        ({"src_ip": "10.0.0"}, "IPv4"),
        ({"dst_qpn": -1}, "dst_qpn"),
    ],
)
def test_bad_flows_are_named(change, words):
    flow = {"collective": "A", "src": 0, "dst": 2} | change
    with pytest.raises(InputError, match=r"flows\[0\].*" + words):
        Traffic.from_json({"fabric": {"tors": 2, "spines": 1, "hosts_per_tor": 2}, "flows": [flow]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tors": 0}, "tors"),
        ({"spines": 1.5}, "whole"),
        ({"dead_spines": [5]}, "no spine 5"),
        ({"dead_spines": [0, 0]}, "twice"),
        ({"link_gbps": float("inf")}, "finite"),
        ({"links": [{"kind": "sideways", "capacity": 1}]}, "kind"),
        ({"links": [{"kind": {}, "capacity": 1}]}, "kind"),
        ({"links": [{"kind": "up", "tor": 0, "spine": 0, "capacity": -0.5}]}, "below 0"),
        ({"links": [{"kind": "up", "tor": 9, "spine": 0, "capacity": 1}]}, "no tor 9"),
        ({"links": [{"kind": "host_up", "host": 1, "capacity": 1}] * 2}, "twice"),
        ({"links": [{"kind": "up", "tor": 0, "capacity": 1}]}, "'spine' is missing"),
    ],
)
def test_bad_fabrics_are_named(change, words):
    with pytest.raises(InputError, match=words):
        Clos.from_json({"tors": 2, "spines": 2, "hosts_per_tor": 2} | change)


def test_duplicate_ids_are_refused():
    flows = [{"id": 1, "src": 0, "dst": 2}, {"id": 1, "src": 1, "dst": 3}]
    with pytest.raises(InputError, match=r"flows\[1\]: id 1 is given twice"):
        Traffic.from_json({"fabric": {"tors": 2, "spines": 1, "hosts_per_tor": 2}, "flows": flows})


def test_unreachable_pairs_are_named():
    fabric = Clos(3, 2, 1, dead_spines=frozenset({0}), exceptions={Link("down", 2, 1): F(0)})
    Traffic(fabric, (Flow("A", 0, 1),)).check_reachable()
    with pytest.raises(InputError, match="ToR 2 cannot be reached from ToR 0"):
        Traffic(fabric, (Flow("A", 0, 1), Flow("A", 0, 2))).check_reachable()


def test_json_keeps_fabric_and_flows():
    fabric = Clos(2, 4, 2, F(400), frozenset({3}), {Link("up", 1, 2): F(1, 3), Link("host_down", host=3): F(1, 2)})
    flows = Traffic(fabric, (Flow("A", 0, 2, F(1, 3), "J"), Flow("B", 1, 0, phase=2, extra=(("rank", 5),))))
    again, routes = Traffic.from_json(flows.to_json([1, None]))
    assert (again, routes) == (flows, [1, None])
    assert [fabric.link(fabric.number(link)) for link in fabric.exceptions] == list(fabric.exceptions)

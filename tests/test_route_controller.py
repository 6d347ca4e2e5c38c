"""The controller: what it accepts, refuses, predicts, re-places and remembers."""

from __future__ import annotations

import json
import math

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.routing.controller import Controller, Policy
from teccl_msccl.routing.events import event_from_json
from teccl_msccl.routing.fabric import Clos
from teccl_msccl.routing.predict import Rhythm, groups_that_meet


def job(name, hosts, dp=2, **fields):
    return {"job": name, "dp": dp, "hosts": hosts, "bytes": 1000, **fields}


def send(controller, t, event, **fields):
    return controller.handle(event_from_json({"t": t, "event": event, **fields}))


def rings(count, first=0, hosts=8):
    """A job of `count` rings between ToR 0 and ToR 1."""
    return [*range(first, first + count), *range(hosts + first, hosts + first + count)]


@pytest.fixture
def busy():
    """2 ToRs × 4 spines: a job of 4 rings, one on each spine."""
    controller = Controller(Clos(2, 4, 8))
    (change,) = send(controller, 0, "job_arrive", job=job("J", rings(4), tp=4))
    assert (change.version, change.moved) == (1, 0)
    assert change.phi == pytest.approx([1 / 1000] * 4)
    return controller


def loads(controller, side=0):
    count = {}
    for flow, spine in zip(controller.traffic.flows, controller.routes, strict=True):
        tor = (flow.src, flow.dst)[side] // controller.fabric.hosts_per_tor
        count[tor, spine] = count.get((tor, spine), 0) + 1
    return count


def test_arriving_jobs_go_where_there_is_room(busy):
    before = list(busy.routes)
    (change,) = send(busy, 1, "job_arrive", job=job("K", rings(4, first=4), tp=4))
    assert (change.version, change.moved) == (2, 0)
    assert busy.routes[: len(before)] == before
    assert set(loads(busy).values()) == {2}


def test_a_dead_spine_moves_its_flows_and_no_others(busy):
    before = list(busy.routes)
    (change,) = send(busy, 1, "spine", spine=2, alive=False)
    assert 2 not in busy.routes
    changed = [i for i, (a, b) in enumerate(zip(before, busy.routes, strict=True)) if a != b]
    assert changed == [i for i, spine in enumerate(before) if spine == 2]
    assert change.moved == len(changed) == 2
    assert busy.due
    assert busy.background() == []  # nothing better is to be had: 4 flows on 3 spines


def test_a_spine_that_is_back_is_used_within_the_cap():
    controller = Controller(Clos(2, 4, 8), Policy(most_moved=1.0))
    send(controller, 0, "job_arrive", job=job("J", rings(4), tp=4))
    send(controller, 1, "spine", spine=2, alive=False)
    assert send(controller, 2, "spine", spine=2, alive=True) == []
    (change,) = controller.background()
    assert 0 < change.moved <= 8
    assert change.phi == pytest.approx([1 / 1000] * 4)
    for share, moves in ((0.0, 0), (0.1, 2)):  # a swap's two at least
        capped = Controller(Clos(2, 4, 8), Policy(most_moved=share))
        send(capped, 0, "job_arrive", job=job("J", rings(4), tp=4))
        send(capped, 1, "spine", spine=2, alive=False)
        send(capped, 2, "spine", spine=2, alive=True)
        assert sum(change.moved for change in capped.background()) == moves


def test_small_gains_are_not_worth_a_change():
    for gain, taken in ((0.05, True), (1.5, False)):
        controller = Controller(Clos(2, 4, 8), Policy(most_moved=1.0, gain=gain))
        send(controller, 0, "job_arrive", job=job("J", rings(4), tp=4))
        send(controller, 1, "spine", spine=2, alive=False)
        send(controller, 2, "spine", spine=2, alive=True)
        assert bool(controller.background()) is taken


def test_links_too(busy):
    victim = next(i for i, spine in enumerate(busy.routes) if spine == 1)
    tor = busy.traffic.flows[victim].src // 8
    (change,) = send(busy, 1, "link", kind="up", tor=tor, spine=1, capacity=0)
    assert change.moved == 1
    assert busy.routes[victim] != 1
    assert send(busy, 2, "link", kind="host_up", host=0, capacity=0.5) == []
    assert len(busy.unreachable) == 0
    send(busy, 3, "link", kind="host_up", host=0, capacity=0)
    assert [flow.src for flow in busy.unreachable] == [0]


def test_what_cannot_be_reached_keeps_its_route_and_the_rest_goes_on():
    controller = Controller(Clos(3, 2, 2))
    send(controller, 0, "job_arrive", job=job("J", [0, 2]))
    send(controller, 0, "job_arrive", job=job("K", [1, 4]))
    before = dict(zip(controller.traffic.flows, controller.routes, strict=True))
    send(controller, 1, "link", kind="down", tor=1, spine=0, capacity=0)
    send(controller, 1, "link", kind="down", tor=1, spine=1, capacity=0)
    stuck = [(flow.src, flow.dst) for flow in controller.unreachable]
    assert stuck == [(0, 2)]
    send(controller, 2, "spine", spine=0, alive=False)
    after = dict(zip(controller.traffic.flows, controller.routes, strict=True))
    assert all(spine == 1 for flow, spine in after.items() if (flow.src, flow.dst) != (0, 2))
    assert controller.background() == []
    with pytest.raises(InputError, match="cannot be reached"):
        send(controller, 3, "job_arrive", job=job("L", [0, 3]))
    assert list(controller.jobs) == ["J", "K"]
    assert before.keys() == after.keys()


def test_leaving_jobs_free_their_rows(busy):
    send(busy, 1, "job_arrive", job=job("K", rings(4, first=4), tp=4))
    kept = [s for f, s in zip(busy.traffic.flows, busy.routes, strict=True) if f.job == "K"]
    (change,) = send(busy, 2, "job_leave", job="J")
    assert (change.version, change.moved) == (3, 0)
    assert busy.routes == kept
    send(busy, 3, "job_leave", job="K")
    assert busy.routes == []
    assert busy.background() == []


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"t": 0.5, "event": "timer"}, "after an event at 1"),
        ({"t": math.nan, "event": "timer"}, "finite"),
        ({"event": "timer"}, "'t' is missing"),
        ({"t": 2, "event": "earthquake"}, "unknown event"),
        ({"t": 2, "event": "job_leave", "job": "X"}, "no job 'X'"),
        ({"t": 2, "event": "job_arrive", "job": {"job": "J", "hosts": [0]}}, "here already"),
        ({"t": 2, "event": "job_arrive", "job": {"job": "X", "hosts": [99]}}, "no host 99"),
        ({"t": 2, "event": "job_arrive", "job": {"job": "X", "hosts": [0, 1], "dp": 2, "bytes": -1}}, "below 0"),
        ({"t": 2, "event": "collective_start", "job": "X", "collective": "dp"}, "no job 'X'"),
        ({"t": 2, "event": "collective_start", "job": "J", "collective": "dp9"}, "no collective 'dp9'"),
        ({"t": 2, "event": "collective_end", "job": "J", "collective": "dp"}, "does not run"),
        ({"t": 2, "event": "spine", "spine": 9, "alive": False}, "no spine 9"),
        ({"t": 2, "event": "spine", "spine": 1, "alive": "no"}, "true or false"),
        ({"t": 2, "event": "link", "kind": "up", "tor": 0, "spine": 1, "capacity": -1}, "below 0"),
        ({"t": 2, "event": "link", "kind": "up", "tor": 7, "spine": 1, "capacity": 1}, "no tor 7"),
        ({"t": 2, "event": "nack", "job": "J", "collective": "dp0", "src": 5, "dst": 6}, "no flow 5>6"),
    ],
)
def test_bad_events_change_nothing(busy, event, words):
    send(busy, 1, "timer")
    before = json.dumps(busy.to_json())
    with pytest.raises(InputError, match=words):
        busy.handle(event_from_json(event))
    assert json.dumps(busy.to_json()) == before


def test_starts_and_ends_must_alternate(busy):
    send(busy, 1, "collective_start", job="J", collective="dp")
    with pytest.raises(InputError, match="runs already"):
        send(busy, 2, "collective_start", job="J", collective="dp2")
    send(busy, 3, "collective_end", job="J", collective="dp2")
    assert busy.rhythms["J", "dp"].running
    for name in ("dp0", "dp1", "dp3"):
        send(busy, 4, "collective_end", job="J", collective=name)
    assert busy.rhythms["J", "dp"] == Rhythm(last_start=1, running=False, duration=3)


def test_a_nack_brings_the_old_route_back():
    controller = Controller(Clos(2, 2, 2))
    send(controller, 0, "job_arrive", job=job("J", [0, 2]))
    (old, _) = controller.routes
    link = {"kind": "up", "tor": 0, "spine": old}
    send(controller, 1, "link", **link, capacity=0)
    assert controller.routes[0] != old
    nack = {"job": "J", "collective": "dp0", "src": 0, "dst": 2}
    assert send(controller, 2, "nack", **nack) == []  # the old one has failed
    send(controller, 3, "link", **link, capacity=1)
    (change,) = send(controller, 4, "nack", **nack)
    assert (change.moved, controller.routes[0]) == (1, old)


def test_a_missed_prediction_asks_for_new_routes(busy):
    busy.due = False
    for period in (10, 20, 30):
        send(busy, period, "collective_start", job="J", collective="dp")
        send(busy, period + 1, "collective_end", job="J", collective="dp")
    busy.background()
    send(busy, 40, "collective_start", job="J", collective="dp")
    assert not busy.due
    send(busy, 41, "collective_end", job="J", collective="dp")
    send(busy, 55, "collective_start", job="J", collective="dp")
    assert busy.due


def test_jobs_that_never_meet_share_spines():
    """Two jobs of 2 rings on 2 spines; while they may meet, 4 flows leave each ToR. Once their windows are known not
    to overlap, each has the fabric to itself."""
    controller = Controller(Clos(2, 2, 4), Policy(most_moved=1.0))
    send(controller, 0, "job_arrive", job=job("A", rings(2, hosts=4), tp=2))
    (change,) = send(controller, 0, "job_arrive", job=job("B", rings(2, first=2, hosts=4), tp=2))
    assert change.phi == pytest.approx([0.5 / 1000] * 4)
    for start in (0, 10, 20):
        for name, offset in (("A", 0), ("B", 5)):
            send(controller, start + offset, "collective_start", job=name, collective="dp")
            send(controller, start + offset + 1, "collective_end", job=name, collective="dp")
    controller.background()
    assert controller._phi_in_force().tolist() == pytest.approx([1 / 1000] * 4)


def test_rhythms_are_moving_averages():
    rhythm = Rhythm()
    for start, end in ((0, 2), (10, 12), (24, 27)):
        rhythm = rhythm.started(start).ended(end)
    assert rhythm.period == pytest.approx(0.7 * 10 + 0.3 * 14)
    assert rhythm.duration == pytest.approx(0.7 * (0.7 * 2 + 0.3 * 2) + 0.3 * 3)
    windows = rhythm.windows(30)
    assert windows[0][0] == pytest.approx(24 + rhythm.period - 0.1 * rhythm.duration)
    assert windows[0][1] == pytest.approx(24 + rhythm.period + 1.1 * rhythm.duration)
    assert not rhythm.missed(24 + 1.05 * rhythm.period)
    assert rhythm.missed(24 + 1.2 * rhythm.period)
    assert Rhythm().windows(0) is None


def test_groups_meet_directly_or_through_others():
    def rhythm(start, duration, period=100.0):
        return Rhythm(start, False, period, duration)

    apart = {"a": rhythm(0, 10), "b": rhythm(20, 10), "c": rhythm(40, 10)}
    assert len(set(groups_that_meet(apart, 60).values())) == 3
    chained = {"a": rhythm(0, 10), "b": rhythm(8, 20), "c": rhythm(27, 10), "d": rhythm(50, 10)}
    found = groups_that_meet(chained, 70)
    assert found["a"] == found["b"] == found["c"] != found["d"]
    unknown = {**apart, "d": Rhythm()}
    assert len(set(groups_that_meet(unknown, 60).values())) == 1
    # 30 s and 50 s periods meet within the windows that are looked ahead
    assert len(set(groups_that_meet({"a": rhythm(0, 5, 30.0), "b": rhythm(10, 5, 50.0)}, 15).values())) == 1


def test_state_is_all_in_its_json(busy):
    send(busy, 1, "job_arrive", job=job("K", rings(4, first=4), tp=4))
    send(busy, 2, "spine", spine=3, alive=False)
    send(busy, 3, "collective_start", job="J", collective="dp")
    again = Controller.from_json(json.loads(json.dumps(busy.to_json())), "state.json")
    assert again.to_json() == busy.to_json()
    events = [
        {"t": 4, "event": "collective_end", "job": "J", "collective": "dp"},
        {"t": 5, "event": "spine", "spine": 3, "alive": True},
        {"t": 6, "event": "job_leave", "job": "J"},
    ]
    for event in events:
        changes = [c.handle(event_from_json(event)) + c.background() for c in (busy, again)]
        assert changes[0] == changes[1]
    assert again.to_json() == busy.to_json()


@pytest.mark.parametrize("change", [{"routes": [0]}, {"version": None}, {"jobs": 3}, {"rhythms": [{"job": "J"}]}])
def test_states_that_do_not_fit_are_refused(busy, change):
    with pytest.raises(InputError, match=r"state\.json"):
        Controller.from_json(busy.to_json() | change, "state.json")

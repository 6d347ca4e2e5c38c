"""Schedules: every fault is refused; their JSON makes the round trip."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines
from timed_schedules import feasible, hop

from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.topology.model import Topology


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

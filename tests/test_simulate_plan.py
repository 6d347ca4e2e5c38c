"""Simulated MSCCL++ plans: closed forms, bounds that hold for any plan, and what the command line shows of them."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lowered import greedy
from strategies import machine

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.lower_plan import lower_plan
from teccl_msccl.program.plan_file import PlanFile, plan_file
from teccl_msccl.program.simulate_plan import simulate_plan
from teccl_msccl.report.gantt import plan_gantt
from teccl_msccl.report.trace import plan_trace_events
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology


def run(*argv: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in argv])
    return int(stop.value.code or 0)


def pair(alpha_us: float = 0.5, GBps: float = 100.0) -> Topology:
    nodes = [{"id": rank, "kind": "gpu", "rank": rank} for rank in (0, 1)]
    links = [{"src": 0, "dst": 1, "bandwidth_GBps": GBps, "alpha_us": alpha_us},
             {"src": 1, "dst": 0, "bandwidth_GBps": GBps, "alpha_us": alpha_us}]  # fmt: skip
    return Topology.from_json({"name": "pair", "nodes": nodes, "links": links})


def plan(ops: list[list[list[dict[str, Any]]]], kind: str = "memory", remote: str = "o") -> PlanFile:
    """Threadblocks' operations of two ranks that have one channel and 4 chunks."""
    gpus = [
        {
            "id": rank, "input_chunks": 4, "output_chunks": 4, "scratch_chunks": 4,
            "channels": [{"channel_type": kind, "connected_to": [1 - rank]}],
            "remote_buffers": [{"rank": 1 - rank, "type": remote, "access_channel_types": [kind]}],
            "semaphores": [{"init_value": 0}],
            "threadblocks": [
                {"id": i, "ops": block, "channels": [{"channel_type": kind, "channel_ids": [0]}],
                 "remote_buffer_refs": [{"access_channel_type": kind, "remote_buffer_ids": [0]}]}
                for i, block in enumerate(blocks)
            ],
        }
        for rank, blocks in enumerate(ops)
    ]  # fmt: skip
    value = {"name": "p", "collective": "allreduce", "protocol": "Simple", "inplace": False, "gpus": gpus}
    return plan_file(value, "p")


def op(name: str, kind: str = "memory", **more: Any) -> dict[str, Any]:
    return {"name": name, "channel_type": kind, "channel_ids": [0], **more}


def put(kind: str = "memory", chunks: int = 1) -> dict[str, Any]:
    source, target = [{"type": "i", "index": 0, "size": chunks}], [{"buffer_id": 0, "index": 0, "size": chunks}]
    return op("put", kind, src_buff=source, dst_buff=target)


COPY = {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 1}],
        "dst_buff": [{"type": "o", "index": 0, "size": 1}]}  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "port"])
def test_a_put_and_its_signal(kind: str) -> None:
    """1 MB a chunk over 100 GB/s is 10 µs; the waiter has it α later, two puts in a row after 20 µs and α."""
    for count in (1, 2):
        sender = [*[put(kind)] * count, op("signal", kind)]
        timing = simulate_plan(plan([[sender], [[op("wait", kind)]]], kind), pair(), 4e6)
        assert timing.finish_us == pytest.approx(10 * count + 0.5)
        assert [use.link for use in timing.links] == [0]
        assert timing.links[0].busy_us == pytest.approx(10 * count) and timing.links[0].bytes == pytest.approx(
            1e6 * count
        )


@pytest.mark.parametrize("kind", ["memory", "port"])
def test_packets(kind: str) -> None:
    """1 MB a chunk is 2 MB of packets, 20 µs over 100 GB/s: who unpacks has them α later, without a signal."""

    def packets(name: str, source: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
        return op(name, kind, src_buff=[source | {"size": 1}], dst_buff=[target | {"size": 1}])

    first, mine, theirs = {"type": "i", "index": 0}, {"type": "s", "index": 0}, {"buffer_id": 0, "index": 0}
    sender = [packets("ppkt", first, theirs)]
    if kind == "port":  # moves what a copy has made packets
        sender = [packets("cpkt", first, mine), packets("rppkt", mine, theirs)]
    read = plan([[sender], [[packets("upkt", mine, {"type": "o", "index": 0})]]], kind, "s")
    timing = simulate_plan(read, pair(), 4e6)
    assert timing.finish_us == pytest.approx(20.5)
    assert timing.links[0].bytes == pytest.approx(2e6)
    assert timing.critical_path[-1].why == "data"
    with pytest.raises(Refused, match=r"tb 0 op 0 \(upkt\) waits for ever"):
        simulate_plan(plan([[], [[packets("upkt", mine, first)]]], kind, "s"), pair(), 4e6)


def test_packets_pay_where_latency_counts() -> None:
    topology = load("dgx-a100").topology
    for size, protocol in ((8e3, "LL"), (1e6, "Simple")):
        schedule = greedy(Problem(topology, "allgather", size), 1)
        made = {each: lower_plan(schedule, protocol=each)[1].value for each in ("auto", "Simple", "LL")}
        assert made["auto"]["protocol"] == protocol
        times = {each: simulate_plan(plan_file(value, each), topology, size).finish_us for each, value in made.items()}
        assert times["auto"] == min(times.values())


@pytest.mark.parametrize("protocol", ["Simple", "LL", "auto"])
def test_signals_go_back_also_where_links_are_one_way(protocol: str) -> None:
    """As they do over links back, on which nothing else is; data has no such way."""
    there, back = ([(i, j, 50, 1.0) for i, j in ends] for ends in ([(0, 1), (1, 2), (2, 0)], [(1, 0), (2, 1), (0, 2)]))
    one_way, both_ways = (machine("ggg", links, one_way=True) for links in (there, there + back))
    schedule = greedy(Problem(one_way, "reduce_scatter", 1e3), 2)
    made = plan_file(dict(lower_plan(schedule, protocol=protocol)[1].value), "made")
    timings = [simulate_plan(made, topology, 1e3).finish_us for topology in (one_way, both_ways)]
    assert timings[0] == pytest.approx(timings[1]) and timings[0] > schedule.finish_us
    other_way = plan_file(dict(lower_plan(greedy(Problem(both_ways, "alltoall", 1e3)))[1].value), "other")
    with pytest.raises(InputError, match="has no path between them"):
        simulate_plan(other_way, one_way, 1e3)


def test_a_port_channel_works_on_its_own() -> None:
    """The threadblock of a memory channel is busy with its put, that of a port channel goes on at once."""
    after = [put("port"), COPY]
    timing = simulate_plan(plan([[after], []], "port"), pair(), 4e6)
    copied = next(step for step in timing.steps if step.step == 1)
    assert copied.start_us == pytest.approx(0, abs=1e-6)
    timing = simulate_plan(plan([[[put(), COPY]], []]), pair(), 4e6)
    assert next(step for step in timing.steps if step.step == 1).start_us == pytest.approx(10)
    flushed = [put("port"), op("flush", "port", dst_buff=[{"buffer_id": 0, "index": 0, "size": 1}]), COPY]
    timing = simulate_plan(plan([[flushed], []], "port"), pair(), 4e6)
    assert timing.steps[-1].start_us == pytest.approx(10)


def test_two_threadblocks_share_a_link() -> None:
    timing = simulate_plan(plan([[[put()], [put()]], []]), pair(), 4e6)
    assert timing.finish_us == pytest.approx(20)
    assert timing.critical_path[-1].why == "link" and len(timing.critical_path) == 2


def test_semaphores_and_barriers() -> None:
    first = [put(), {"name": "sem_release", "semaphore_ids": [0]}]
    second = [{"name": "sem_acquire", "semaphore_ids": [0]}, put(chunks=2)]
    timing = simulate_plan(plan([[first, second], []]), pair(), 4e6)
    assert timing.finish_us == pytest.approx(30) and timing.critical_path[-1].why == "dependency"
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    timing = simulate_plan(plan([[[put(), barrier], [barrier, put()]], []]), pair(), 4e6)
    assert timing.finish_us == pytest.approx(20)


def test_what_waits_for_ever_and_does_not_fit() -> None:
    with pytest.raises(Refused, match=r"rank 1 tb 0 op 0 \(wait\) waits for ever"):
        simulate_plan(plan([[[put()]], [[op("wait")]]]), pair(), 4e6)
    with pytest.raises(InputError, match="is for 2 ranks"):
        simulate_plan(plan([[], []]), load("ring-4").topology, 4e6)
    with pytest.raises(InputError, match="finite"):
        simulate_plan(plan([[], []]), pair(), float("nan"))
    with pytest.raises(InputError, match="cannot simulate"):
        simulate_plan(plan([[[op("read_put_packet")]], []]), pair(), 4e6)


@pytest.mark.parametrize(
    ("name", "collective"),
    [("ring-4", "allgather"), ("full-4", "allreduce"), ("teccl-dgx1", "alltoall"), ("a100x4x2", "allgather")],
)
def test_plans_of_schedules(name: str, collective: str) -> None:
    """No plan beats the bound; no link does two things at once."""
    topology = load(name).topology
    problem = Problem(topology, collective, 8e6)
    schedule = greedy(problem, 1)
    _, made = lower_plan(schedule)
    file = plan_file(json.loads(json.dumps(made.value)), "p")
    timing = simulate_plan(file, topology, 8e6)
    assert lower_bound_us(topology, schedule.demand) <= timing.finish_us * (1 + 1e-9) <= 3 * schedule.finish_us + 50
    occupied = defaultdict(list)
    for move in timing.transfers:
        occupied[move.link].append((move.start_us, move.end_us))
    for spans in occupied.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-6 for one, other in pairwise(spans))
    assert all(0 < use.utilisation <= 1 + 1e-9 for use in timing.links)
    path = timing.critical_path
    assert path[-1].end_us <= timing.finish_us + 1e-9
    assert all(one.start_us <= other.start_us + 1e-9 for one, other in pairwise(path))
    chart = plan_gantt(file, topology, timing)
    assert {row.link for row in chart.rows} == set(occupied)
    slices = [event for event in plan_trace_events(file, topology, timing) if event["ph"] == "X"]
    assert len(slices) == len(timing.steps) + len(timing.transfers)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lower_plan(greedy(Problem(load("ring-4").topology, "allgather", 8e6), 1))[1].write("p.json")
    assert run("simulate", "p.json", "--topology", "ring-4", "--size", "8MB", "--trace", "t.json", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["finish_us"] > 0 and answer["links"] and answer["critical_path"] and "transfers" not in answer
    assert json.loads(Path("t.json").read_text())["otherData"]["program"]
    assert run("simulate", "p.json", "--topology", "ring-4", "--size", "8MB") == 0
    assert "Busiest links" in capsys.readouterr().out
    assert run("report", "p.json", "--topology", "ring-4", "--size", "8MB", "--quick") == 0
    html = Path("report.html").read_text()
    assert "Threadblock utilisation" in html and "proved" in html and "Critical path" in html
    assert run("report", "p.json") == 2
    assert "name its --topology" in capsys.readouterr().err
    assert run("simulate", "p.json", "--topology", "ring-5", "--size", "8MB") == 2

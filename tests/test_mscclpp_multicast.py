"""MSCCL++ plans of schedules in which switches copy chunks."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from plans import codes, require_right

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import Refused
from teccl_msccl.program.lower import lower
from teccl_msccl.program.lower_plan import lower_plan
from teccl_msccl.program.mscclpp_multicast import multicast_plan
from teccl_msccl.program.targets import MSCCLPP, TARGETS
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.topology.model import Topology


def multicasting(collective: str, hosts: int, gpus: int) -> Schedule:
    """Hosts of GPUs around a switch that multicasts; their first GPUs are joined, pass on what the other hosts lack,
    and multicast what comes."""
    n = hosts * gpus
    nodes = [{"id": r, "kind": "gpu", "rank": r, "host": r // gpus} for r in range(n)]
    nodes += [{"id": n + h, "kind": "switch", "host": h, "multicast": True} for h in range(hosts)]
    pairs = [pair for r in range(n) for pair in ((r, n + r // gpus), (n + r // gpus, r))]
    pairs += [(a * gpus, b * gpus) for a in range(hosts) for b in range(hosts) if a != b]
    links = [{"src": a, "dst": b, "bandwidth_GBps": 50.0, "alpha_us": 0.5} for a, b in pairs]
    topology = Topology.from_json({"name": "nvls", "nodes": nodes, "links": links})
    link = {pair: i for i, pair in enumerate(pairs)}
    demand = demand_for(collective, n, 1e5 * n, 1, 0)
    sends: list[Send] = []
    time = 0.0

    def spread(chunk: int, src: int) -> None:
        nonlocal time
        switch = n + src // gpus
        local = range(src // gpus * gpus, (src // gpus + 1) * gpus)
        sends.extend(Send(chunk, (link[src, switch], link[switch, dst]), time) for dst in local if dst != src)
        time += 1e3

    for chunk in demand.chunks:
        source = chunk.origin[0]
        spread(chunk.id, source)
        for host in range(hosts):
            if host != source // gpus:
                sends.append(Send(chunk.id, (link[source // gpus * gpus, host * gpus],), time))
                time += 1e3
                spread(chunk.id, host * gpus)
    schedule = Schedule(topology, demand, tuple(sends), time).retimed()
    schedule.validate()
    return schedule


@pytest.mark.parametrize("mode", ["inplace", "outofplace"])
@pytest.mark.parametrize("collective", ["allgather", "broadcast"])
@pytest.mark.parametrize(("hosts", "gpus"), [(1, 4), (1, 8), (2, 3)])
def test_multicast(hosts: int, gpus: int, collective: str, mode: str) -> None:
    schedule = multicasting(collective, hosts, gpus)
    assert schedule.multicasts()
    _, made = lower_plan(schedule, mode=mode)
    plan = json.loads(json.dumps(made.value))
    stores = [op for gpu in plan["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"] if op["name"] == "gstore"]
    assert len(stores) == hosts * (hosts * gpus if collective == "allgather" else 1) and made.multicasts
    require_right(plan)


def test_multicast_elsewhere_is_refused_by_name() -> None:
    schedule = multicasting("allgather", 1, 4)
    for target in TARGETS:
        with pytest.raises(Refused, match=f"target {target} cannot multicast"):
            lower(schedule, target)
    with pytest.raises(Refused, match=r"needs .* operations"):
        multicast_plan(schedule, limits=replace(MSCCLPP, max_operations=3))


def test_multicast_faults_are_found() -> None:
    plan = json.loads(json.dumps(multicast_plan(multicasting("allgather", 1, 4)).value))
    assert not codes(plan)
    for change, code in (({"index": 9}, "bounds"), ({"index": 0}, "data")):
        broken = copy.deepcopy(plan)
        store = next(op for op in broken["gpus"][1]["threadblocks"][0]["ops"] if op["name"] == "gstore")
        store["dst_buff"][0].update(change)
        assert code in codes(broken)
    broken = copy.deepcopy(plan)
    ops = broken["gpus"][2]["threadblocks"][0]["ops"]
    ops[:] = [op for op in ops if op["name"] != "rlxwait"]
    assert {"entry", "leftover"} <= codes(broken)

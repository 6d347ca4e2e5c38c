"""MSCCL++ plans: exported, proved by the checker, and executed on real numbers by a little machine of its own."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import hand_made
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lowered import greedy
from plan_interpreter import ELEMENTS, Machine, Stuck
from strategies_lower import problems

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.check_plan import check_plan
from teccl_msccl.program.lower import lower
from teccl_msccl.program.lower_plan import lower_plan
from teccl_msccl.program.mscclpp import execution_plan
from teccl_msccl.program.mscclpp_multicast import multicast_plan
from teccl_msccl.program.mscclpp_order import Span
from teccl_msccl.program.mscclpp_threadblock import Channel, Operations
from teccl_msccl.program.program import Program
from teccl_msccl.program.targets import MSCCLPP, TARGETS
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology

COLLECTIVES = ("allgather", "allreduce", "reduce_scatter", "broadcast", "alltoall", "reduce", "gather", "scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
unhurried = settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking schedules takes minutes and tells little
)


def plan_of(program: Program, **options: Any) -> dict[str, Any]:
    """The plan as its file has it."""
    return json.loads(json.dumps(execution_plan(program, **options).value))


def number(launch: int, rank: int, chunk: int) -> np.ndarray:
    return (launch + 1) * 10**6 + rank * 10**4 + chunk * 10 + np.arange(ELEMENTS)


def expected(plan: dict[str, Any], launch: int, rank: int, root: int) -> np.ndarray:
    """By the collective's definition; nccl-tests' layout of the buffers."""
    n, outputs = len(plan["gpus"]), plan["gpus"][rank]["output_chunks"]
    match plan["collective"]:
        case "allgather":
            return np.array([number(launch, k // (outputs // n), k % (outputs // n)) for k in range(outputs)])
        case "allreduce":
            return np.array([sum(number(launch, r, k) for r in range(n)) for k in range(outputs)])
        case "reducescatter":
            return np.array([sum(number(launch, r, rank * outputs + k) for r in range(n)) for k in range(outputs)])
        case "alltoall":
            share = outputs // n
            return np.array([number(launch, k // share, rank * share + k % share) for k in range(outputs)])
        case "broadcast":
            return np.array([number(launch, root, k) for k in range(outputs)])
        case "reduce":
            return np.array([sum(number(launch, r, k) for r in range(n)) for k in range(outputs)])
        case "gather":
            return np.array([number(launch, k // (outputs // n), k % (outputs // n)) for k in range(outputs)])
        case "scatter":
            return np.array([number(launch, root, rank * outputs + k) for k in range(outputs)])
    raise AssertionError


def execute(plan: dict[str, Any], seed: int, root: int = 0, launches: int = 2) -> None:
    chunks = [gpu["input_chunks"] for gpu in plan["gpus"]]

    def inputs(launch: int, rank: int) -> np.ndarray:
        return np.array([number(launch, rank, k) for k in range(chunks[rank])]).reshape(-1, ELEMENTS)

    def check(launch: int, rank: int, output: np.ndarray) -> None:
        if plan["collective"] in ("reduce", "gather") and rank != root:
            return
        np.testing.assert_array_equal(output, expected(plan, launch, rank, root))

    Machine(plan, inputs, check, seed).run(launches)


def require_right(plan: dict[str, Any], root: int = 0, seeds: int = 3) -> None:
    verdict = check_plan(plan)
    assert verdict.ok, verdict.findings
    assert [proof.outcome for proof in verdict.proofs] == ["proved"] * 4
    assert verdict.root == (root if plan["collective"] in ROOTED else None)
    for seed in range(seeds):
        execute(plan, seed, root)


# -- programs ------------------------------------------------------------------------------------------------------


def hand_made_programs() -> dict[str, Program]:
    made = {f"{name}-{n}": hand_made.direct(name, n, 2) for name in COLLECTIVES for n in (2, 3, 4)}
    made |= {f"ring-{name}-{n}": hand_made.ring(name, n, 2) for name in COLLECTIVES[:3] for n in (2, 3, 5)}
    return made | {"ring-allreduce-8": hand_made.ring("allreduce", 8)}  # too long for one threadblock


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", hand_made_programs())
def test_hand_made(name: str, inplace: bool, hosts: int) -> None:
    program = hand_made_programs()[name]
    of = [rank * hosts // program.nranks for rank in range(program.nranks)]
    if inplace and program.collective in ("gather", "scatter"):
        with pytest.raises(Refused, match="out-of-place"):
            plan_of(program, inplace=True)
        return
    plan = plan_of(program, inplace=inplace, hosts=of)
    kinds = {channel["channel_type"] for gpu in plan["gpus"] for channel in gpu["channels"]}
    assert kinds <= {"memory", "port"} and ("port" in kinds) == (hosts == 2)
    require_right(plan, seeds=2)


@pytest.mark.parametrize("mode", ["inplace", "outofplace"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("preset", ["teccl-dgx1", "star-5"])
def test_synthesized(preset: str, collective: str, mode: str) -> None:
    topology = load(preset).topology
    schedule = greedy(Problem(topology, collective, 1e6, 2), 1)
    mode = "outofplace" if collective in ("gather", "scatter") else mode
    program = lower(schedule, mode=mode, protocol="Simple", spread=1)
    plan = plan_of(program)
    assert plan["inplace"] == (mode == "inplace")
    require_right(plan, 2, seeds=1)


def test_no_signal_comes_before_all_threads_have_put() -> None:
    """Held signals are given when there are too many: what is put next has a nop before its own signal, too."""
    most = 3
    ops = Operations(most, 16, compact=True)
    channel = Channel("memory", 0, 1)
    for k in range(3 * most + 1):
        ops.put(channel, Span("i", k, 1), Span("o", k, 1), [("i", k)])
        ops.signal(channel)
    ops.settle()
    names = [op["name"] for op in ops.ops]
    assert names.count("put") == names.count("signal") == 3 * most + 1
    assert all(after != "signal" for name, after in pairwise(names) if name == "put")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_machine(collective: str) -> None:
    @unhurried
    @given(problem=problems((collective,), sizes=(1e6,)), nchunks=st.integers(1, 2), seed=st.integers(0, 99),
           mode=st.sampled_from(["inplace", "outofplace"]), hosts=st.integers(1, 2))  # fmt: skip
    def prove(problem: Problem, nchunks: int, seed: int, mode: str, hosts: int) -> None:
        schedule = greedy(problem, nchunks, seed)
        mode = "outofplace" if collective in ("gather", "scatter") else mode
        program = lower(schedule, mode=mode, protocol="Simple", spread=1, fuse=False)
        of = [rank % hosts for rank in range(program.nranks)]
        try:
            plan = plan_of(program, hosts=of)
        except Refused as error:
            assert "needs" in str(error)
            return
        require_right(plan, problem.root, seeds=1)

    prove()


def test_slots_are_used_again_with_credit() -> None:
    """More reductions on a connection than it has slots."""
    plan = plan_of(hand_made.ring("reduce_scatter", 8, 1), inplace=False)
    assert {gpu["scratch_chunks"] for gpu in plan["gpus"]} == {4}
    waits = [op for op in plan["gpus"][0]["threadblocks"][0]["ops"] if op["name"] == "wait"]
    assert len(waits) == 7 + 3
    require_right(plan)


def test_limits_hold_or_are_named() -> None:
    for n in (4, 10):
        plan = plan_of(hand_made.direct("allreduce", n))
        for gpu in plan["gpus"]:
            assert len(gpu["semaphores"]) <= MSCCLPP.max_semaphores
            for block in gpu["threadblocks"]:
                assert len(block["ops"]) <= MSCCLPP.max_operations
                assert all(len(c["channel_ids"]) <= MSCCLPP.max_channels for c in block["channels"])
                assert all(len(op.get("channel_ids", [])) <= MSCCLPP.max_channels_per_operation for op in block["ops"])
        require_right(plan, seeds=1)
    for tight in (
        {"max_semaphores": 1, "max_operations": 20},
        {"max_operations": 6},
        {"max_channels": 1, "max_threadblocks": 9},
    ):
        with pytest.raises(Refused, match=r"rank 0 needs \d+ \w+.*fewer --chunks"):
            execution_plan(hand_made.direct("allreduce", 6), limits=replace(MSCCLPP, **tight))


def test_what_it_is_for() -> None:
    program = hand_made.direct("allgather", 4, 2)
    value = plan_of(program)
    assert (value["min_message_size"], value["max_message_size"]) == (16 * 8, (2**32 - 1) // 8 // 16 * 16 * 8)
    assert plan_of(hand_made.direct("reduce_scatter", 2))["collective"] == "reducescatter"
    gather, scatter = (plan_of(hand_made.direct(name, 4, 2), inplace=False) for name in ("gather", "scatter"))
    for plan, inputs, outputs in ((gather, 2, 8), (scatter, 8, 2)):  # all ranks have both buffers
        assert {(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"]} == {(inputs, outputs)}
    with pytest.raises(Refused, match="a gather is for out-of-place calls"):
        execution_plan(hand_made.direct("gather", 4), inplace=True)
    with pytest.raises(Refused, match="does not take alltoallv"):
        execution_plan(replace(hand_made.direct("alltoall", 4), collective="alltoallv"))
    with pytest.raises(Refused, match="packets"):
        execution_plan(hand_made.direct("allgather", 4, protocol="LL"))
    with pytest.raises(InputError, match="3 hosts for 4 ranks"):
        execution_plan(program, hosts=[0, 0, 1])
    one_mode = lower(greedy(Problem(load("ring-4").topology, "allgather", 1e6)), mode="inplace", protocol="Simple")
    with pytest.raises(InputError, match="not for out-of-place"):
        execution_plan(one_mode, inplace=False)


# -- switches that copy ----------------------------------------------------------------------------------------------


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


# -- the checker ---------------------------------------------------------------------------------------------------


def codes(plan: Any) -> set[str]:
    return {finding.code for finding in check_plan(plan).findings if finding.level == "error"}


def ring_plan() -> dict[str, Any]:
    return plan_of(hand_made.ring("allreduce", 3, 1), inplace=True, hosts=[0, 0, 1])


def mutants(plan: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """One fault each: an operation left out, or twice, or before its neighbour; a number one off."""
    found = []
    for g, gpu in enumerate(plan["gpus"]):
        for t, block in enumerate(gpu["threadblocks"]):
            for i, op in enumerate(block["ops"]):

                def edited(change: Callable[[list[Any]], Any], g: int = g, t: int = t) -> dict[str, Any]:
                    mutant = copy.deepcopy(plan)
                    change(mutant["gpus"][g]["threadblocks"][t]["ops"])
                    return mutant

                found.append((f"{g}.{t}.{i} without {op['name']}", edited(lambda ops, i=i: ops.pop(i))))
                if op["name"] != "nop":
                    found.append((f"{g}.{t}.{i} twice {op['name']}", edited(lambda ops, i=i: ops.insert(i, ops[i]))))
                if i:
                    found.append(
                        (f"{g}.{t}.{i} earlier {op['name']}", edited(lambda ops, i=i: ops.insert(i - 1, ops.pop(i))))
                    )
                for key in ("src_buff", "dst_buff"):
                    for p in range(len(op.get(key, []))):

                        def move(ops: list[Any], i: int = i, key: str = key, p: int = p) -> None:
                            part = ops[i][key][p]
                            part["index"] += 1 if part["index"] == 0 else -1

                        if op["name"] != "flush":
                            found.append((f"{g}.{t}.{i} other {key} of {op['name']}", edited(move)))
    return found


@pytest.mark.parametrize("which", ["ring", "direct", "alltoall", "gather", "reduce", "scatter"])
def test_mutants_are_caught(which: str) -> None:
    """Every single fault is found, unless the machine cannot tell the mutant from the original either."""
    plan = {
        "ring": ring_plan,
        "direct": lambda: plan_of(hand_made.direct("allreduce", 3, 1), inplace=False),
        "alltoall": lambda: plan_of(hand_made.direct("alltoall", 3, 1), inplace=True),
        "gather": lambda: plan_of(hand_made.direct("gather", 3, 2), inplace=False, hosts=[0, 1, 1]),
        "reduce": lambda: plan_of(hand_made.direct("reduce", 3, 2), inplace=True),
        "scatter": lambda: plan_of(hand_made.direct("scatter", 3, 2), inplace=False),
    }[which]()
    assert check_plan(plan).ok
    for name, mutant in Random(1).sample(found := mutants(plan), min(len(found), 90)):
        if not check_plan(mutant).ok:
            continue
        assert not re.search("without (put|re|signal|wait|rlx.*|sem_.*)$|twice (signal|wait|rlx.*|sem_.*)$", name), name
        for seed in range(4):
            try:
                execute(mutant, seed)
            except (AssertionError, Stuck) as error:
                raise AssertionError(f"{name} was accepted, and goes wrong: {error}") from None


def test_faults_by_name() -> None:
    def changed(change: Callable[[dict[str, Any]], Any]) -> set[str]:
        plan = ring_plan()
        change(plan)
        return codes(plan)

    def ops(plan: dict[str, Any], name: str) -> list[Any]:
        return [
            op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"] if op["name"] == name
        ]

    def drop(plan: dict[str, Any], name: str) -> None:
        block = next(b for gpu in plan["gpus"] for b in gpu["threadblocks"] if any(o["name"] == name for o in b["ops"]))
        block["ops"] = [op for op in block["ops"] if op["name"] != name]

    assert not codes(ring_plan())
    assert "hang" in changed(lambda plan: drop(plan, "signal"))
    assert {"leftover", "exit"} & changed(lambda plan: drop(plan, "wait"))
    assert "race" in changed(lambda plan: drop(plan, "nop"))
    assert "entry" in changed(lambda plan: drop(plan, "rlxwait"))
    assert "port" in changed(lambda plan: drop(plan, "flush"))
    assert "data" in changed(lambda plan: drop(plan, "re"))
    assert "twice" in changed(lambda plan: ops(plan, "re")[0]["src_buff"].append(ops(plan, "re")[0]["src_buff"][0]))
    assert "bounds" in changed(lambda plan: ops(plan, "re")[0]["dst_buff"][0].update(index=99))
    assert "channel" in changed(lambda plan: plan["gpus"][0]["channels"][0]["connected_to"].append(1))
    assert "operations" in changed(
        lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"].extend([{"name": "nop"}] * 64)
    )
    assert "operation" in changed(lambda plan: ops(plan, "put")[0].update(name="ppkt"))
    assert "operation" in changed(lambda plan: ops(plan, "put")[0].update(tbg_info={"tb_id": 0, "tbg_size": 2}))
    assert "semaphores" in changed(lambda plan: plan["gpus"][0].update(semaphores=[{"init_value": 0}] * 17))
    assert "leftover" not in changed(lambda plan: plan["gpus"][0].update(semaphores=[{"init_value": 3}]))
    assert "collective" in changed(lambda plan: plan.update(collective="alltoallv"))
    assert "chunks" in changed(lambda plan: plan["gpus"][0].update(output_chunks=0))
    assert "threads" in changed(lambda plan: plan.update(num_threads_per_block=1000))
    assert "byte-range" in changed(lambda plan: plan.update(min_message_size=2**40))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("name", None, "name: must be a string"),
        ("inplace", 1, "must be true or false"),
        ("gpus", [], "gpus is empty"),
        ("gpus.0.id", 3, "has id 3"),
        ("gpus.0.input_chunks", 2**40, "input_chunks: must be a whole number"),
        ("gpus.0.channels.0.channel_type", "wire", "use memory, port"),
        ("gpus.0.channels.0.connected_to", [0], "is the GPU itself"),
        ("gpus.0.channels.0.connected_to", [9], "must be a whole number from 0 to 2"),
        ("gpus.0.threadblocks.0.id", 1, "must be its position 0"),
        ("gpus.0.threadblocks.0.ops.0", 5, "must be an object"),
        ("gpus.0.threadblocks.0.ops.0.channel_ids", [7], "channel of the threadblock 7 is not among its"),
        ("gpus.0.threadblocks.0.channels.0.channel_ids", [-1], "-1 is not among its"),
        ("gpus.0.semaphores", {}, "semaphores: must be a list"),
    ],
)
def test_what_is_no_plan(path: str, value: Any, words: str) -> None:
    plan: Any = ring_plan()
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = plan
    for key in way:
        place = place[key]
    place[last] = value
    with pytest.raises(InputError, match=words):
        check_plan(plan, "here.json")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_anything_else_is_one_line(data: st.DataObject) -> None:
    """Random damage: a verdict or an `InputError`, never anything else."""
    plan: Any = ring_plan()
    random = Random(data.draw(st.integers(0, 2**32)))
    for _ in range(3):
        place = plan
        while isinstance(place, (dict, list)) and place:
            parent = place
            key = random.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
            place = place[key]
            if random.random() < 0.2:
                break
        parent[key] = data.draw(
            st.sampled_from([None, -1, 0, 1, 3, 2**70, "i", "", [], {}, [[]], True, 1.5, [{"name": "wait"}]])
        )
    try:
        check_plan(plan)
    except InputError as error:
        assert "\n" not in str(error)


def test_barriers_and_other_operations(tmp_path: Path) -> None:
    """A plan by hand with get, barrier and a read-reduce: two ranks that fetch each other's chunk."""

    def gpu(rank: int) -> dict[str, Any]:
        peer = 1 - rank
        buffers = [{"rank": peer, "type": "i", "access_channel_types": ["memory"]}]
        head = {"channels": [{"channel_type": "memory", "channel_ids": [0]}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]}  # fmt: skip
        meet = [{"name": "signal", "channel_type": "memory", "channel_ids": [0]},
                {"name": "wait", "channel_type": "memory", "channel_ids": [0]}]  # fmt: skip
        fetch = {"name": "rre", "channel_type": "memory", "reduce_op": "sum",
                 "src_buff": [{"type": "i", "index": 0, "size": 1}, {"buffer_id": 0, "index": 0, "size": 1}],
                 "dst_buff": [{"type": "o", "index": 0, "size": 1}]}  # fmt: skip
        barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
        copy_out = {"name": "copy", "src_buff": [{"type": "s", "index": 0, "size": 1}],
                    "dst_buff": [{"type": "o", "index": 1, "size": 1}]}  # fmt: skip
        get = {
            "name": "get",
            "channel_type": "memory",
            "channel_ids": [0],
            "src_buff": [{"buffer_id": 0, "index": 1, "size": 1}],
            "dst_buff": [{"type": "s", "index": 0, "size": 1}],
        }
        add = {"name": "re", "src_buff": [{"type": "s", "index": 0, "size": 1}, {"type": "i", "index": 1, "size": 1}],
               "dst_buff": [{"type": "s", "index": 0, "size": 1}], "reduce_op": "sum"}  # fmt: skip
        nop = {"name": "nop"}
        first = [*meet, nop, fetch, get, nop, add, barrier, *meet]
        second = [barrier, copy_out]
        return {"id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 1,
                "threadblocks": [{"id": 0, "ops": first, **head}, {"id": 1, "ops": second, "channels": []}],
                "channels": [{"channel_type": "memory", "connected_to": [peer]}], "remote_buffers": buffers,
                "semaphores": []}  # fmt: skip

    plan = {"name": "p", "collective": "allreduce", "protocol": "Simple", "inplace": False, "gpus": [gpu(0), gpu(1)],
            "max_message_size": 2**30}  # fmt: skip
    verdict = check_plan(plan)
    assert verdict.ok, verdict.findings
    late = copy.deepcopy(plan)
    del late["gpus"][0]["threadblocks"][0]["ops"][-2:]
    del late["gpus"][1]["threadblocks"][0]["ops"][-2:]
    assert codes(late) == {"exit"}
    loose = copy.deepcopy(plan)
    for each in loose["gpus"]:
        each["threadblocks"][1]["ops"][0] = {"name": "nop"}
        each["threadblocks"][0]["ops"].remove({"name": "barrier", "barrier_id": 0, "num_threadblocks": 2})
    assert codes(loose) & {"race", "empty"}
    alone = copy.deepcopy(plan)
    alone["gpus"][1]["threadblocks"][1]["ops"].pop(0)
    assert "hang" in codes(alone)

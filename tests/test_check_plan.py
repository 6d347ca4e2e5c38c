"""The checker of MSCCL++ plans: single faults are found, and anything else is one line."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import hand_made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_interpreter import Stuck
from plans import codes, execute, mutants, plan_of, ring_plan

from teccl_msccl.errors import InputError
from teccl_msccl.program.check_plan import check_plan


@pytest.mark.parametrize(
    "which", ["ring", "direct", "alltoall", "gather", "reduce", "scatter", "packets", "rooted packets"]
)
def test_mutants_are_caught(which: str) -> None:
    """Every single fault is found, unless the machine cannot tell the mutant from the original either."""
    plan = {
        "ring": ring_plan,
        "direct": lambda: plan_of(hand_made.direct("allreduce", 3, 1), inplace=False),
        "alltoall": lambda: plan_of(hand_made.direct("alltoall", 3, 1), inplace=True),
        "gather": lambda: plan_of(hand_made.direct("gather", 3, 2), inplace=False, hosts=[0, 1, 1]),
        "reduce": lambda: plan_of(hand_made.direct("reduce", 3, 2), inplace=True),
        "scatter": lambda: plan_of(hand_made.direct("scatter", 3, 2), inplace=False),
        "packets": lambda: plan_of(hand_made.direct("allreduce", 3, 1, protocol="LL"), inplace=True, hosts=[0, 0, 1]),
        "rooted packets": lambda: plan_of(hand_made.direct("broadcast", 3, 2, protocol="LL"), inplace=False),
    }[which]()
    assert check_plan(plan).ok
    for name, mutant in Random(1).sample(found := mutants(plan), min(len(found), 90)):
        if not check_plan(mutant).ok:
            continue
        assert not re.search(
            "without (put|re|signal|wait|rlx.*|sem_.*|.*pkt)$|twice (signal|wait|rlx.*|sem_.*|.?.ppkt)$", name
        ), name
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
    assert "parts" in changed(lambda plan: ops(plan, "put")[0]["src_buff"][0].update(size=0))
    assert "channel" in changed(lambda plan: plan["gpus"][0]["channels"][0]["connected_to"].append(1))
    assert "operations" in changed(
        lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"].extend([{"name": "nop"}] * 64)
    )
    assert "operation" in changed(lambda plan: ops(plan, "put")[0].update(name="puts"))
    assert "packets" in changed(lambda plan: ops(plan, "put")[0].update(name="ppkt"))
    assert "empty" in changed(lambda plan: ops(plan, "put")[0].update(tbg_info={"tb_id": 0, "tbg_size": 2}))
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
        (
            "gpus.0.threadblocks.0.ops.0.tbg_info",
            {"tb_id": 2, "tbg_size": 2},
            "tb_id: must be a whole number from 0 to 1",
        ),
        ("gpus.0.threadblocks.0.ops.0", {"name": "pipeline"}, "'iter_context' is missing"),
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
        copy_out = {"name": "copy", "src_buff": [{"type": "s", "index": 1, "size": 1}],
                    "dst_buff": [{"type": "o", "index": 1, "size": 1}]}  # fmt: skip
        get = {
            "name": "get",
            "channel_type": "memory",
            "channel_ids": [0],
            "src_buff": [{"buffer_id": 0, "index": 1, "size": 1}],
            "dst_buff": [{"type": "s", "index": 1, "size": 1}],
        }
        add = {"name": "re", "src_buff": [{"type": "s", "index": 1, "size": 1}, {"type": "i", "index": 1, "size": 1}],
               "dst_buff": [{"type": "s", "index": 1, "size": 1}], "reduce_op": "sum"}  # fmt: skip
        nop = {"name": "nop"}
        first = [*meet, nop, fetch, get, nop, add, barrier, *meet]
        second = [barrier, copy_out]
        return {"id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 2,
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

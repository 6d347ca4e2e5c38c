"""MSCCL++ plans: exported, proved by the checker, and executed on real numbers by a little machine of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import hand_made
import pytest
from executed import with_step
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lowered import greedy
from plans import COLLECTIVES, plan_of, require_right
from strategies_lower import problems

from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.lower import lower
from teccl_msccl.program.mscclpp import execution_plan
from teccl_msccl.program.mscclpp_order import Span
from teccl_msccl.program.mscclpp_threadblock import Channel, Operations
from teccl_msccl.program.program import Program
from teccl_msccl.program.targets import MSCCLPP, PLAN_PROTOCOLS
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load

unhurried = settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking schedules takes minutes and tells little
)


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
    plan = plan_of(program, inplace=inplace, hosts=of)
    kinds = {channel["channel_type"] for gpu in plan["gpus"] for channel in gpu["channels"]}
    assert kinds <= {"memory", "port"} and ("port" in kinds) == (hosts == 2)
    require_right(plan, seeds=2)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_packets(collective: str, inplace: bool, hosts: int) -> None:
    """Protocol LL: no signals but from who sends nothing, and right launch after launch."""
    program = hand_made.direct(collective, 3, 2, protocol="LL")
    plan = plan_of(program, inplace=inplace, hosts=[0, 0, hosts - 1])
    ops = {op["name"] for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"]}
    assert (plan["protocol"], plan["use_double_scratch_buffer"]) == ("LL", True)
    assert {"ppkt"} | ({"cpkt", "rppkt"} if hosts == 2 else set()) <= ops
    assert ("rlxsignal" in ops) == (collective in ("broadcast", "reduce", "gather", "scatter"))
    assert not {"signal", "wait", "put", "flush"} & ops
    require_right(plan, seeds=2)


@pytest.mark.parametrize("mode", ["inplace", "outofplace"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("preset", ["teccl-dgx1", "star-5"])
def test_synthesized(preset: str, collective: str, mode: str) -> None:
    topology = load(preset).topology
    schedule = greedy(Problem(topology, collective, 1e6, 2), 1)
    program = lower(schedule, mode=mode, protocol="Simple", spread=1, unroll=False)
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
           mode=st.sampled_from(["inplace", "outofplace"]), hosts=st.integers(1, 2),
           protocol=st.sampled_from(PLAN_PROTOCOLS))  # fmt: skip
    def prove(problem: Problem, nchunks: int, seed: int, mode: str, hosts: int, protocol: str) -> None:
        schedule = greedy(problem, nchunks, seed)
        program = lower(schedule, mode=mode, protocol=protocol, spread=1, fuse=False, unroll=False)
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
    scatter_all = hand_made.direct("scatter", 4)
    two_roots = with_step(scatter_all, 3, 0, 0, type="cpy", srcbuf="i", srcoff=0, dstbuf="o", dstoff=0)
    with pytest.raises(Refused, match="the root of this scatter does not show"):
        execution_plan(two_roots, inplace=True)
    with pytest.raises(Refused, match="does not take alltoallv"):
        execution_plan(replace(hand_made.direct("alltoall", 4), collective="alltoallv"))
    with pytest.raises(Refused, match="has no LL128; use protocol Simple or LL"):
        execution_plan(hand_made.direct("allgather", 4, protocol="LL128"))
    with pytest.raises(Refused, match="LL has no rrs in plans; lower it without fused steps"):
        execution_plan(replace(hand_made.ring("allreduce", 3), protocol="LL"))
    with pytest.raises(InputError, match="3 hosts for 4 ranks"):
        execution_plan(program, hosts=[0, 0, 1])
    one_mode = lower(greedy(Problem(load("ring-4").topology, "allgather", 1e6)), mode="inplace", protocol="Simple")
    with pytest.raises(InputError, match="not for out-of-place"):
        execution_plan(one_mode, inplace=False)

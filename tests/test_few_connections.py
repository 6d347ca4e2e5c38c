"""Connections across hosts: no more channels than what is between hosts needs to be as fast."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowered import greedy, require_right

from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Program
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load


def across(program: Program, per_host: int) -> int:
    return sum(
        tb.send >= 0 and tb.send // per_host != rank // per_host
        for rank, gpu in enumerate(program.gpus)
        for tb in gpu.threadblocks
    )


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_channels_across_hosts_that_gain_nothing_are_left_out(collective: str) -> None:
    """A ring through two hosts: a link that takes one transfer after the other is no faster with two channels."""
    ring = load("ring-6").topology
    topology = replace(ring, nodes=tuple(replace(node, host=node.id // 3) for node in ring.nodes))
    schedule = greedy(Problem(topology, collective, 1e6), 4)
    limits, modes = TARGETS["executor"], frozenset(MODES)
    lowering = Lowering(schedule, limits, modes, "hosts")
    wide, few = (lowering.program(Choice("Simple", spread=2, few=few)) for few in (False, True))
    assert across(few, 3) < across(wide, 3)
    pairs = {schedule.ends(send) for send in schedule.sends if len({rank // 3 for rank in schedule.ends(send)}) == 2}
    assert across(few, 3) == len(pairs)
    chosen = lower(schedule, protocol="Simple", spread=2, instances=1)
    assert across(chosen, 3) == len(pairs)
    finish = [simulate(p, schedule.topology, 1e6, neutral=True).finish_us for p in (chosen, wide)]
    assert finish[0] <= finish[1] * (1 + 1e-9)
    require_right(chosen, schedule, slots=(1,))

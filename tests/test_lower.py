"""Lowering, end to end: every program is proved by the checker and computes the right data in every mode it claims."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import greedy, require_right
from schedules_by_hand import HAND_MADE, by_hand, idle, ring, twice
from strategies_lower import problems, wild_schedules

from teccl_msccl.collective.demand import COLLECTIVES, Chunk, Demand
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.lower import lower
from teccl_msccl.program.program import PROTOCOLS
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load

MODES = ("both", "inplace", "outofplace")
SPREADS = (1, 2, None)
PRESETS = ("teccl-dgx1", "ring-8", "star-8", "mesh-2x3", "dgx-a100x2")

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def require_claims(program, mode: str) -> None:
    assert (program.inplace, program.outofplace) == (mode != "outofplace", mode != "inplace")


# -- schedules of the synthesizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_machine(collective: str, mode: str) -> None:
    @settings(unhurried, max_examples=6)
    @given(
        problem=problems((collective,)),
        nchunks=st.integers(1, 3),
        seed=st.integers(0, 7),
        protocol=st.sampled_from([*PROTOCOLS, "auto"]),
        spread=st.sampled_from(SPREADS),
        instances=st.sampled_from((1, 1, 2, 3)),
    )
    def prove(problem: Problem, nchunks: int, seed: int, protocol: str, spread: int | None, instances: int) -> None:
        schedule = greedy(problem, nchunks, seed)
        program = lower(schedule, mode=mode, protocol=protocol, spread=spread, instances=instances)
        require_claims(program, mode)
        require_right(program, schedule)

    prove()


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str, collective: str) -> None:
    topology = load(preset).topology
    for nchunks in (1, 2) if topology.nranks <= 8 else (1,):
        turn = PRESETS.index(preset) + list(COLLECTIVES).index(collective) + nchunks
        schedule = greedy(Problem(topology, collective, 1e6, root=topology.nranks // 2), nchunks, seed=turn)
        program = lower(
            schedule, mode=MODES[turn % 3], protocol=[*PROTOCOLS, "auto"][turn % 4], spread=SPREADS[turn % 3]
        )
        require_right(program, schedule, slots=(1, 8) if topology.nranks <= 8 else (1,))


@settings(unhurried, max_examples=50)
@given(
    schedule=wild_schedules(),
    mode=st.sampled_from(MODES),
    protocol=st.sampled_from(PROTOCOLS),
    spread=st.sampled_from(SPREADS),
)
def test_any_schedule(schedule: Schedule, mode: str, protocol: str, spread: int | None) -> None:
    schedule.validate()
    require_right(lower(schedule, mode=mode, protocol=protocol, spread=spread), schedule)


@settings(unhurried, max_examples=15)
@given(schedule=wild_schedules())
def test_a_schedule_read_from_its_json_lowers_alike(schedule: Schedule) -> None:
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert lower(again) == lower(schedule)


# -- schedules by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HAND_MADE)
def test_schedules_by_hand(name: str, mode: str) -> None:
    schedule = HAND_MADE[name]()
    schedule.validate()
    for protocol in PROTOCOLS:
        program = lower(schedule, mode=mode, protocol=protocol, spread=1 + (protocol == "LL"))
        require_right(program, schedule)


def test_idle_time_changes_nothing() -> None:
    assert lower(idle(), protocol="Simple") == lower(ring(), protocol="Simple")


def test_what_comes_a_second_time_is_left_out() -> None:
    """Else rank 1 would have to hold the second copy back until it has sent the first one on."""
    program = lower(twice(), protocol="Simple")
    assert sorted(step.type for _, _, _, step in program.steps()) == ["cpy", "r", "r", "s", "s"]


# -- options -------------------------------------------------------------------------------------------------------


def test_options_that_do_not_exist() -> None:
    for wrong, words in (
        ({"protocol": "simple"}, "unknown protocol 'simple'"),
        ({"mode": "in-place"}, "mode 'in-place'"),
        ({"spread": 0}, "spread 0"),
        ({"target": "nccl"}, "unknown target 'nccl'"),
    ):
        with pytest.raises(InputError, match=words):
            lower(ring(), **wrong)


def test_a_collective_that_the_target_does_not_take() -> None:
    demand = Demand("custom", 2, (Chunk(0, (0,), (1,), 1.0),), 1, 1.0)
    with pytest.raises(Refused, match=r"\bcustom\b"):
        lower(by_hand(load("line-2").topology, demand, [(0, 0, 1)]))


def test_auto_takes_the_protocol_that_is_faster_when_simulated() -> None:
    topology = load("teccl-dgx1").topology
    small, large = (lower(greedy(Problem(topology, "broadcast", size), 2)) for size in (1e3, 1e8))
    assert (small.protocol, large.protocol) == ("LL", "Simple")

"""Lowering at the target's limits: what still fits, and how what does not is refused."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from lowered import greedy, require_right
from schedules_by_hand import by_hand

from teccl_msccl.cli import main
from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.errors import Refused
from teccl_msccl.program import fit
from teccl_msccl.program.channels import assign_channels
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Program
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.threadblocks import SharedWork, share_work
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load


def down_a_line(nchunks: int, n: int = 2) -> Schedule:
    hops = [(chunk, hop, hop + 1) for chunk in range(nchunks) for hop in range(n - 1)]
    return by_hand(load(f"line-{n}").topology, demand_for("broadcast", n, 1e6, nchunks), hops)


def most_steps(program: Program) -> int:
    return max(len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks)


# -- steps of a threadblock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nchunks", [64, 65, 300])
def test_more_steps_than_a_threadblock_takes_go_over_several_channels(nchunks: int) -> None:
    schedule = down_a_line(nchunks, 3)
    program = lower(schedule, protocol="LL", spread=1)
    assert program.nchannels == -(-nchunks // 64) and most_steps(program) <= 64
    require_right(program, schedule, slots=(1,))


@pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
def test_waits_hold_however_often_channels_are_added(collective: str) -> None:
    """More channels mean that receives no longer follow one another: waits that went without saying are needed."""
    topology = replace(load("ring-5").topology, threadblock_GBps=20.0)
    schedule = greedy(Problem(topology, collective, 1e6), nchunks=24 if collective == "alltoall" else 40)
    program = lower(schedule, protocol="Simple", spread=1)
    assert program.nchannels > 1
    require_right(program, schedule, slots=(1,))


def test_the_pace_asks_for_channels_but_does_not_refuse() -> None:
    """All 40 chunks leave at once on a link so fast that the pace would have 40 threadblocks share the work."""
    schedule = down_a_line(40)
    fast = tuple(replace(link, bandwidth_GBps=1e5) for link in schedule.topology.links)
    topology = replace(schedule.topology, links=fast, threadblock_GBps=0.5)
    schedule = replace(schedule, topology=topology).retimed()
    program = lower(schedule, protocol="Simple", spread=1)
    assert 1 < program.nchannels <= 32
    require_right(program, schedule, slots=(1,))


# -- threadblocks of a channel and of a rank ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "collective"),
    [("full-40", "allgather"), ("full-34", "reduce_scatter"), ("star-34", "alltoall"), ("star-40", "gather"),
     ("ring-40", "scatter")],
)  # fmt: skip
def test_more_peers_than_a_channel_takes(machine: str, collective: str) -> None:
    schedule = greedy(Problem(load(machine).topology, collective, 1e6, root=1))
    program = lower(schedule, protocol="Simple", spread=1)
    peers = max(sum(tb.send >= 0 for tb in gpu.threadblocks) for gpu in program.gpus)
    assert (program.nchannels > 1) == (peers > 32 or collective == "gather")
    for gpu in program.gpus:
        for way in ("send", "recv"):
            sharing = Counter(tb.chan for tb in gpu.threadblocks if getattr(tb, way) >= 0)
            assert max(sharing.values(), default=0) <= 32
    require_right(program, schedule, slots=(1,))


def test_channels_of_crowded_pairs() -> None:
    """40 peers at one rank and two paths between a pair: lowest channels first, a path's own ones only."""
    widths = {(0, peer, 0): 1 for peer in range(1, 41)} | {(0, 1, 1): 2}
    plan = assign_channels(widths, TARGETS["executor"])
    assert plan.of[0, 1, 0] == (0,) and plan.of[0, 1, 1] == (1, 3)
    assert Counter(plan.of[0, peer, 0] for peer in range(1, 41)) == {(0,): 32, (1,): 8}
    assert plan.count == 4
    with pytest.raises(Refused, match="from rank 0 to rank 1 needs 33 channels and target executor has 32"):
        assign_channels({(0, 1, 0): 33}, TARGETS["executor"])


def test_more_than_a_gpu_can_run_at_once_is_not_asked_for() -> None:
    """Where one threadblock per peer and direction is within a GPU's SMs, so is what pace makes of it."""
    topology = replace(load("full-16").topology, threadblock_GBps=1.0)
    program = lower(greedy(Problem(topology, "allgather", 1e8), nchunks=4))
    assert max(len(gpu.threadblocks) for gpu in program.gpus) <= 80
    assert not check(program).findings


# -- what no file can hold ------------------------------------------------------------------------------------------


def reduce_to_the_middle_of_a_star(n: int) -> Schedule:
    """Every arrival waits for the one before, so all but the last receiving threadblocks are waited for."""
    demand = demand_for("reduce", n, 1e6)
    return by_hand(load(f"star-{n}").topology, demand, [(0, rank, 0) for rank in range(1, n)])


def test_dependencies_name_128_threadblocks() -> None:
    schedule = reduce_to_the_middle_of_a_star(130)
    program = lower(schedule, protocol="LL", spread=1)
    assert max(step.depid for _, _, _, step in program.steps()) == 127
    require_right(program, schedule, slots=(1,))
    with pytest.raises(Refused, match="others wait for 129 of rank 0's threadblocks and runtimes can name 128"):
        lower(reduce_to_the_middle_of_a_star(131), protocol="LL", spread=1)


def scattered(nchunks: int) -> Schedule:
    """Rank 0 deals out `nchunks` chunks to each of three peers."""
    demand = demand_for("scatter", 4, 1e6, nchunks)
    return by_hand(load("full-4").topology, demand, [(c, 0, c // nchunks) for c in range(nchunks, 4 * nchunks)])


REFUSED = {
    "channels": (lambda: down_a_line(2053), "from rank 0 to rank 1 needs 33 channels and target executor has 32"),
    "transfers": (
        lambda: scattered(1409),  # a prime: no step with a count moves as many as the others
        "rank 0 sends and receives 4227 times, which with 1 algo and 4 gpu elements makes 4232 nodes, and a file may "
        "hold 4095 a rank",
    ),
    "nodes": (
        lambda: scattered(1361),  # 4083 sends, and 20 copies of at most 71 chunks, in 70 threadblocks
        "rank 0 needs 4[0-9]{3} nodes .[0-9]+ threadblocks, 4[0-9]{3} steps. and a file may hold 4095 a rank",
    ),
}


@pytest.mark.parametrize("limit", REFUSED)
def test_refusals_have_the_arithmetic(limit: str) -> None:
    make, words = REFUSED[limit]
    with pytest.raises(Refused, match=words) as refusal:
        lower(make(), protocol="Simple", spread=1)
    assert "fewer --chunks" in str(refusal.value)


def test_more_chunks_than_fit_go_by_twos() -> None:
    """A relay of 2054 chunks, each with its own waits, needs 4108 steps; 1027 larger ones fit."""
    schedule = down_a_line(2054, 3)
    with pytest.raises(Refused, match="a file may hold 4095"):
        lower(schedule, protocol="Simple", spread=1, instances=1)
    program = lower(schedule, protocol="Simple", spread=1, unroll=False)
    assert program.nchunks == 1027
    assert check(program, root=schedule.demand.root).ok


def test_too_many_threadblocks_are_refused_before_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building them, once for every way to narrow channels, took most of the time of what fits in the end."""
    schedule = greedy(Problem(load("full-66").topology, "alltoall", 1e6))
    fitter = Lowering(schedule, TARGETS["rccl"], frozenset({"outofplace"}), "crowded").fitter

    def built(*_: object) -> None:
        raise AssertionError("threadblocks are shared out though there are too many")

    monkeypatch.setattr(fit, "share_work", built)
    with pytest.raises(Refused, match="a rank's transfers need 65 threadblocks and target rccl takes 64"):
        fitter.fit(credits=2)


def test_more_nodes_than_a_file_holds_are_not_spread_over_more_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to narrow the channels is refused as it is: 4107 steps stay as many on any."""
    target, modes = TARGETS["rccl"], frozenset({"outofplace"})
    schedule = scattered(1361)
    fitter = Lowering(schedule, target, modes, "nodes").fitter
    widths, tried = [], []
    assign, attempts = fit.assign_channels, fitter._attempts
    monkeypatch.setattr(fit, "assign_channels", lambda *args: (widths.append(args[0]), assign(*args))[1])
    monkeypatch.setattr(fitter, "_attempts", lambda *args: (tried.append(each) or each for each in attempts(*args)))
    with pytest.raises(Refused, match="and a file may hold 4095 a rank"):
        fitter.fit(credits=2)
    assert tried and len(widths) <= len(tried)


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_is_collected_as_before(collecting: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        lower(down_a_line(2), protocol="Simple")
        assert gc.isenabled() is collecting
        with pytest.raises(Refused):
            lower(down_a_line(2053), protocol="Simple", spread=1)
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()


def test_a_refusal_is_one_line_and_leaves_no_file(tmp_path, capsys) -> None:
    scattered(1409).write(tmp_path / "schedule.json")
    with pytest.raises(SystemExit) as stop:
        main(["lower", str(tmp_path / "schedule.json"), "-o", str(tmp_path / "program.xml")])
    assert stop.value.code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["schedule.json"]
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: rank 0 sends and receives 4227 times")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_gpus_are_enough(collective: str) -> None:
    schedule = greedy(Problem(load("line-2").topology, collective, 1e6, root=1))
    require_right(lower(schedule), schedule)


def test_where_steps_ask_for_channels_only_ranks_that_get_some_are_shared_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waits make the threadblocks of the two ranks in the middle too long: those of the others stay."""
    schedule = greedy(Problem(load("line-4").topology, "alltoall", 1e6), 40)
    shared: list[SharedWork] = []

    def counted(*asked: Any) -> SharedWork:
        shared.append(share_work(*asked))
        return shared[-1]

    monkeypatch.setattr(fit, "share_work", counted)
    lowering = Lowering(schedule, TARGETS["executor"], frozenset(MODES), "long")
    program = lowering.program(Choice("Simple", "arrivals"))
    assert [bool(work.crowded(64)) for work in shared] == [False, True, True, False, False, False]
    assert most_steps(program) <= 64
    require_right(program, schedule, slots=(1,))

"""Simulated programs: properties of any, many iterations, bad input, the command."""

import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_programs import MIB, chain, exchange, line, program, ring, ring_allgather, star, topology

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program import simulate as simulation
from teccl_msccl.program import xml
from teccl_msccl.program.program import Program, Step
from teccl_msccl.program.simulate import simulate
from teccl_msccl.topology.model import Topology


@st.composite
def routed_programs(draw):
    """Trees of copies over a star or a ring with chords, each hop a send and a receive on threadblocks of its own."""
    nranks = draw(st.integers(2, 6))
    use_star = draw(st.booleans())
    figures = st.tuples(st.sampled_from([5.0, 12.5, 25.0]), st.sampled_from([0.0, 0.3, 2.0]))
    if use_star:
        machine = topology(nranks, [(i, nranks, *draw(figures)) for i in range(nranks)], switches=1)
    else:
        machine = topology(nranks, [(a, b, *draw(figures)) for a in range(nranks) for b in range(a)])
    tbs: list[list[tuple]] = [[] for _ in range(nranks)]
    chains = draw(st.lists(st.lists(st.integers(0, nranks - 1), min_size=2, max_size=5), min_size=1, max_size=6))
    longest = 0.0
    chunk = draw(st.sampled_from([0.0, 100.0, 65536.0, 3e6]))
    for channel, ranks in enumerate(chains):
        hops = [(a, b) for a, b in pairwise(ranks) if a != b]
        connected = all(a[1] == b[0] for a, b in pairwise(hops))
        length = 0.0
        for position, (src, dst) in enumerate(hops):
            lane = 10 * channel + position
            received = next((i for i, tb in enumerate(tbs[src]) if tb[2] == lane - 1 and tb[1] >= 0), -1)
            depends = position > 0 and connected and received >= 0
            tbs[src].append((dst, -1, lane, [Step("s", depid=received if depends else -1, deps=0 if depends else -1)]))
            tbs[dst].append((-1, src, lane, [Step("r", hasdep=True)]))
            ends = {(src, dst), (src, nranks), (nranks, dst)}
            ways = [(link.bandwidth_GBps, link.alpha_us) for link in machine.links if (link.src, link.dst) in ends]
            hop = sum(alpha for _, alpha in ways) + chunk / (min(bandwidth for bandwidth, _ in ways) * 1e3)
            length = length + hop if depends else hop
            longest = max(longest, length)
    return machine, program(tbs), chunk, longest


@settings(max_examples=80, deadline=None)
@given(routed_programs())
def test_no_link_and_no_chain_is_faster_than_it_can_be(case):
    machine, made, size, longest = case
    timing = simulate(made, machine, size)
    if timing.iterations == 1:
        assert timing.finish_us >= longest * (1 - 1e-9)
    for link in timing.links:
        bandwidth = machine.link_by_id[link.link].bandwidth_GBps
        assert link.busy_us == pytest.approx(link.bytes / (bandwidth * 1e3))
        assert timing.finish_us >= link.busy_us * (1 - 1e-9)
    hops = 2 if len(machine.nodes) > machine.nranks else 1
    sends = sum(step.type == "s" for *_, step in made.steps())
    assert sum(link.bytes for link in timing.links) == pytest.approx(hops * sends * size)


# -- many iterations, large programs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "machine"),
    [
        pytest.param(chain(4), topology(4, [(0, 1, 25, 0.7), (1, 2, 10, 0.7), (2, 3, 50, 0.7)]), id="chain"),
        pytest.param(exchange(5), star(5), id="star"),
        pytest.param(ring_allgather(5), ring(5, threadblock_GBps=20), id="ring, slow threadblocks"),
    ],
)
def test_extrapolation_agrees_with_full_simulation(made, machine, monkeypatch):
    size = 300.3 * 2 * MIB * made.nchunks
    quick = simulate(made, machine, size)
    monkeypatch.setattr(simulation, "FULL_ITERATIONS", 1000)
    full = simulate(made, machine, size)
    assert full.simulated_iterations == full.iterations == quick.iterations == 301
    assert quick.simulated_iterations <= 64
    assert quick.finish_us == pytest.approx(full.finish_us, rel=1e-3)
    for a, b in zip(quick.threadblocks, full.threadblocks, strict=True):
        assert a.busy_us == pytest.approx(b.busy_us, rel=2e-3)
        assert a.finish_us == pytest.approx(b.finish_us, rel=2e-3)
    assert quick.links == tuple(
        replace(b, utilisation=a.utilisation) for a, b in zip(quick.links, full.links, strict=True)
    )


def big(nranks: int, steps_per_pair: int) -> Program:
    """Everybody sends `steps_per_pair` chunks to everybody."""

    def threadblocks(rank):
        for distance in range(1, nranks):
            yield ((rank + distance) % nranks, -1, 0, [Step("s")] * steps_per_pair)
            yield (-1, (rank - distance) % nranks, 0, [Step("r")] * steps_per_pair)

    return program([list(threadblocks(rank)) for rank in range(nranks)], nranks * steps_per_pair)


def test_ten_thousand_steps_on_16_ranks_are_quick():
    made, machine = big(16, 21), star(16)
    begin = time.perf_counter()
    timing = simulate(made, machine, 16e6)
    assert time.perf_counter() - begin < 1  # 0.1 s alone
    assert timing.finish_us == pytest.approx(15 * 21 * 16e6 / made.nchunks / 25e3, rel=0.2)


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (ring_allgather(4), "is for 4 ranks, but machine has 3 GPUs"),
        (program([[(2, -1, 0, [Step("s")])], [], [(-1, 0, 0, [Step("r")])]]), "rank 0 sends to rank 2"),
        (program([[(0, -1, 0, [Step("s")])], [], []]), "rank 0 sends to rank 0"),
        (program([[(7, -1, 0, [Step("s")])], [], []]), "gpu 0 tb 0: send peer 7; ranks are 0..2"),
        (program([[], [(-1, 2, 0, [Step("nop"), Step("rcs")])], []]), "gpu 1 tb 0 step 1: rcs, but the tb has no send"),
        (program([[], [(-1, 0, 0, []), (-1, 0, 0, [])], []]), "shares its recv peer 0 and channel 0 with tb 0"),
        (program([[], [], []], nchunks=0), "nchunksperloop is 0"),
    ],
)
def test_a_program_that_does_not_fit_is_refused_by_name(made, message):
    with pytest.raises(InputError, match=message):
        simulate(made, line(3), 1e6)


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf")])
def test_a_size_must_be_a_number_of_bytes(size):
    with pytest.raises(InputError, match="size is"):
        simulate(chain(3), line(3), size)


def test_odd_counts_and_dependencies_neither_crash_nor_loop():
    idle = program([[(1, -1, 0, [Step("s", cnt=0), Step("s", cnt=-5)])], [(-1, 0, 0, [Step("r", cnt=0)])]])
    assert simulate(idle, line(2), 1e6).finish_us == 0
    for depid, deps in ((99, 0), (0, 5), (0, 2**31 - 1), (0, 0)):
        with pytest.raises(Refused, match="gpu 0 tb 0 step 0 waits for tb"):
            simulate(program([[(-1, -1, 0, [Step("cpy", depid=depid, deps=deps, hasdep=True)])], []]), line(2), 1e6)
    with pytest.raises(Refused, match="too many to simulate"):
        simulate(program([[(1, -1, 0, [Step("s", cnt=2**31 - 1)])], []]), line(2), 1e9)


def test_a_receiver_whose_sender_stays_silent_hangs_by_name():
    silent = program([[], [(-1, 0, 3, [Step("r")])]])
    with pytest.raises(Refused, match="gpu 1 tb 0 step 0 waits for data from gpu 0 on channel 3"):
        simulate(silent, line(2), 1e6)


# -- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    machine = ring(4)
    monkeypatch.setattr(Topology, "load", classmethod(lambda cls, name, hosts=1, network=None: machine))
    xml.write(replace(ring_allgather(4), max_bytes=MIB), tmp_path / "ring.xml")
    return tmp_path / "ring.xml"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *arguments])
    return stop.value.code


def test_the_command_answers_in_json(files, capsys):
    assert run(str(files), "--topology", "ring-4", "--size", "4KB", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["finish_us"] == pytest.approx(3 * (0.7 + 0.04))
    assert {"algbw_GBps", "launch_us", "iterations", "links", "threadblocks", "critical_path"} <= answer.keys()
    assert set(answer["links"][0]) == {"link", "busy_us", "utilisation", "bytes"}
    assert set(answer["threadblocks"][0]) == {"gpu", "tb", "busy_us", "utilisation", "finish_us"}


def test_the_command_shows_tables_and_warns_of_a_size_out_of_range(files, capsys):
    assert run(str(files), "--topology", "ring-4", "--size", "4MB") == 0
    shown = capsys.readouterr()
    assert "Busiest links" in shown.out
    assert "Critical path" in shown.out
    assert "a runtime does not choose it for 4 MB" in shown.err

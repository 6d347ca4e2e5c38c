"""Program simulation against closed forms, bounds, and what the runtimes' rules must cause."""

import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program import simulate as simulation
from teccl_msccl.program import xml
from teccl_msccl.program.program import Gpu, Program, Step, Threadblock
from teccl_msccl.program.protocol import PROTOCOL, slicing
from teccl_msccl.program.simulate import simulate
from teccl_msccl.topology.model import Link, Node, Topology

MIB = 2**20


def topology(nranks: int, links: list[tuple], switches: int = 0, threadblock_GBps: float | None = None) -> Topology:
    """GPUs 0 … nranks−1, then switches; `links`: (src, dst, GB/s, α[, kind]), both directions."""
    nodes = [Node(i, "gpu", rank=i) for i in range(nranks)]
    nodes += [Node(nranks + i, "switch") for i in range(switches)]
    both = [link for a, b, *figures in links for link in ((a, b, *figures), (b, a, *figures))]
    made = tuple(Link(i, *link) for i, link in enumerate(both))
    return Topology("machine", tuple(nodes), made, threadblock_GBps=threadblock_GBps)


def ring(nranks: int, bandwidth: float = 25, alpha: float = 0.7, **options) -> Topology:
    return topology(nranks, [(i, (i + 1) % nranks, bandwidth, alpha) for i in range(nranks)], **options)


def star(nranks: int, bandwidth: float = 25, alpha: float = 0.3) -> Topology:
    return topology(nranks, [(i, nranks, bandwidth, alpha) for i in range(nranks)], switches=1)


def line(nranks: int, bandwidth: float = 25, alpha: float = 0.7, **options) -> Topology:
    return topology(nranks, [(i, i + 1, bandwidth, alpha) for i in range(nranks - 1)], **options)


def program(tbs: list[list[tuple]], nchunks: int = 1, protocol: str = "Simple") -> Program:
    """`tbs`: for each rank (send, recv, channel, steps)."""
    gpus = tuple(Gpu(64, 64, 64, tuple(Threadblock(s, r, c, tuple(steps)) for s, r, c, steps in rank)) for rank in tbs)
    return Program("test", "allgather", protocol, 1, nchunks, False, True, gpus)


def ring_allgather(nranks: int, protocol: str = "Simple") -> Program:
    def steps(rank):
        passed_on = [Step("rcs", dstoff=(rank - k) % nranks) for k in range(1, nranks - 1)]
        return [Step("s"), *passed_on, Step("r", dstoff=(rank + 1) % nranks)]

    tbs = [[((rank + 1) % nranks, (rank - 1) % nranks, 0, steps(rank))] for rank in range(nranks)]
    return program(tbs, nranks, protocol)


def chain(nranks: int, protocol: str = "Simple", count: int = 1) -> Program:
    """A broadcast down a line."""
    middle = [[(rank + 1, rank - 1, 0, [Step("rcs", cnt=count)])] for rank in range(1, nranks - 1)]
    last = (-1, nranks - 2, 0, [Step("r", cnt=count)])
    return program([[(1, -1, 0, [Step("s", cnt=count)])], *middle, [last]], count, protocol)


def exchange(nranks: int) -> Program:
    """Everybody sends to everybody, a threadblock per direction and peer."""

    def threadblocks(rank):
        for distance in range(1, nranks):
            yield ((rank + distance) % nranks, -1, 0, [Step("s")])
            yield (-1, (rank - distance) % nranks, 0, [Step("r")])

    return program([list(threadblocks(rank)) for rank in range(nranks)], nranks)


# -- closed forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nranks", [2, 3, 8])
@pytest.mark.parametrize("size", [0, 8e3, 4 * MIB])
def test_ring_allgather_takes_n_minus_1_times_alpha_plus_beta(nranks, size):
    timing = simulate(ring_allgather(nranks), ring(nranks), size)
    assert timing.finish_us == pytest.approx((nranks - 1) * (0.7 + size / nranks / 25e3))
    assert timing.iterations == 1


def test_direct_exchange_on_full_links_takes_one_transfer():
    full = topology(6, [(a, b, 50, 0.5) for a in range(6) for b in range(a)])
    assert simulate(exchange(6), full, 6e6).finish_us == pytest.approx(0.5 + 1e6 / 50e3)


def test_exchange_through_a_star_fills_the_links_and_crosses_two_alphas():
    timing = simulate(exchange(6), star(6), 6e6)
    assert timing.finish_us == pytest.approx(5 * 1e6 / 25e3 + 2 * 0.3)
    assert all(link.busy_us == pytest.approx(5 * 1e6 / 25e3) and link.bytes == 5e6 for link in timing.links)


def test_incast_through_a_star_is_served_in_turn():
    senders = [[(0, -1, 0, [Step("s")])] for _ in range(5)]
    receivers = [(-1, rank, 0, [Step("r")]) for rank in range(1, 6)]
    timing = simulate(program([receivers, *senders]), star(6), 1e6)
    assert timing.finish_us == pytest.approx(5 * 40 + 0.6)
    assert [step.why for step in timing.critical_path] == ["start", "link", "link", "link", "link", "data"]


def test_a_transfer_that_waits_does_not_hold_up_another():
    tbs = [
        [(1, -1, 0, [Step("s", cnt=4)])],
        [(-1, 0, 0, [Step("r", cnt=4)]), (-1, 2, 0, [Step("r")])],
        [(1, -1, 0, [Step("s")]), (3, -1, 0, [Step("s")])],
        [(-1, 2, 0, [Step("r")])],
    ]
    timing = simulate(program(tbs, 4), star(4), 4e5)
    ends = {(use.gpu, use.tb): use.finish_us for use in timing.threadblocks}
    assert ends[3, 0] == pytest.approx(4 + 0.6)  # though 2 → 1, which waits for 0 → 1, asked before
    assert ends[1, 1] == pytest.approx(5 * 4 + 0.6)


def test_pipelined_slices_cost_the_first_slice_s_way_and_then_the_busiest_link():
    slices, slot = 10, 2 * MIB
    links = topology(4, [(0, 1, 25, 0.7), (1, 2, 10, 0.7), (2, 3, 50, 0.7)])
    timing = simulate(chain(4), links, slices * slot)
    way = sum(0.7 + slot / (bandwidth * 1e3) for bandwidth in (25, 10, 50))
    assert timing.iterations == slices
    assert timing.finish_us == pytest.approx(way + (slices - 1) * (slot / 10e3), rel=0.02)
    assert timing.finish_us >= way + (slices - 1) * (slot / 10e3) - 1e-6


def test_the_last_slice_may_be_smaller():
    timing = simulate(chain(2), line(2), 2.5 * 2 * MIB)
    assert timing.iterations == 3
    assert timing.finish_us == pytest.approx(2.5 * 2 * MIB / 25e3 + 0.7)


def test_local_steps_run_at_half_a_threadblock_s_rate_and_nothing_limits_a_generic_graph():
    local = program([[(-1, -1, 0, [Step("cpy"), Step("re")])], []])
    assert simulate(local, line(2, threadblock_GBps=20), 1e6).finish_us == pytest.approx(2 * 1e6 / 10e3)
    assert simulate(local, line(2), 1e6).finish_us == 0


# -- the runtimes' rules -------------------------------------------------------------------------------------


def test_a_dependency_waits_for_the_first_flag_at_or_after_the_step():
    def sender(deps):
        return (1, -1, 0, [Step("s", depid=1, deps=deps)])

    copies = (-1, -1, 0, [Step("cpy"), Step("cpy", hasdep=True), Step("cpy"), Step("nop", hasdep=True)])
    receiver = [(-1, 0, 0, [Step("r")])]
    machine = line(2, bandwidth=5, threadblock_GBps=20)
    two_copies, way = 2 * 1e6 / 10e3, 1e6 / 5e3 + 0.7
    for deps in (0, 1):
        timing = simulate(program([[sender(deps), copies], receiver]), machine, 1e6)
        assert timing.finish_us == pytest.approx(two_copies + way)
        assert [(step.tb, step.why) for step in timing.critical_path] == [
            (1, "start"), (1, "order"), (0, "dependency"), (0, "data"),
        ]  # fmt: skip
    with pytest.raises(Refused, match=r"gpu 0 tb 0 step 0 waits for tb 1 step 2; gpu 1 tb 0 step 0 waits for data"):
        simulate(program([[sender(2), copies], receiver]), line(2), 1e6)


def test_nops_carry_dependencies_and_take_no_time():
    waits = [Step("nop", depid=1, deps=0), Step("s", depid=2, deps=0)]
    tbs = [(1, -1, 0, waits), *((-1, -1, 0, [Step("cpy", hasdep=True, cnt=cnt)]) for cnt in (3, 1))]
    timing = simulate(program([tbs, [(-1, 0, 0, [Step("r")])]], 4), line(2, threadblock_GBps=20), 4e6)
    assert timing.critical_path[0].tb == 1
    assert timing.critical_path[1].start_us == pytest.approx(3e6 / 10e3)


def test_a_step_is_cut_into_transfers_that_fit_a_slot():
    """Four chunks of 0.75 MiB: two fit Simple's slot, and the second hop starts when the first two have come."""
    chunk = 0.75 * MIB / 25e3
    timing = simulate(chain(3, count=4), line(3), 3 * MIB)
    assert timing.iterations == 1
    assert timing.finish_us == pytest.approx((4 + 2) * chunk + 2 * 0.7)


def test_slicing_is_the_runtimes():
    simple, ll, ll128 = PROTOCOL["Simple"], PROTOCOL["LL"], PROTOCOL["LL128"]
    assert slicing(2 * MIB, simple).iterations == 1
    assert slicing(2 * MIB + 1, simple).iterations == 2
    assert slicing(2 * MIB + 1, simple).last_slice_bytes == 1
    assert slicing(1024, ll).chunks_per_transfer == 32
    assert slicing(1024.5, ll).chunks_per_transfer == 31
    assert slicing(192_001, ll128).chunks_per_transfer == 2
    assert slicing(0, simple).chunks_per_transfer == 71


def test_fewer_credits_are_slower():
    """One credit leaves the link idle while a transfer's latency passes, two hide a latency of β."""
    tbs = [[(1, -1, 0, [Step("s")] * 8)], [(-1, 0, 0, [Step("r")] * 8)]]
    made, machine, beta = program(tbs, 8), line(2, alpha=40.0), MIB / 25e3
    one, two, eight = (simulate(made, machine, 8 * MIB, credits=credits) for credits in (1, 2, 8))
    assert one.finish_us == pytest.approx(8 * (beta + 40))
    assert two.finish_us == pytest.approx(eight.finish_us) == pytest.approx(8 * beta + 40)
    assert simulate(made, machine, 8 * MIB) == two
    assert "credit" in {step.why for step in one.critical_path}


@pytest.mark.parametrize(("protocol", "credits"), [("Simple", 2), ("LL", 8), ("LL128", 8)])
def test_a_program_that_needs_more_credits_than_the_protocol_has_hangs(protocol, credits):
    def both_send_first(sends):
        steps = [*[Step("s")] * sends, *[Step("r")] * sends]
        return program([[(1, 1, 0, steps)], [(0, 0, 0, steps)]], 1, protocol)

    assert simulate(both_send_first(credits), line(2), 4096).finish_us > 0
    with pytest.raises(Refused, match=f"{credits} transfers.*gpu 0 tb 0 step {credits} waits for room at gpu 1"):
        simulate(both_send_first(credits + 1), line(2), 4096)


@pytest.mark.parametrize(("protocol", "efficiency"), [("Simple", 1.0), ("LL", 0.5), ("LL128", 0.9375)])
def test_protocols_differ_in_bandwidth_and_neutral_does_not(protocol, efficiency):
    timing = simulate(chain(2, protocol), line(2), 16e3)
    assert timing.finish_us == pytest.approx(16e3 / 25e3 / efficiency + 0.7)
    assert simulate(chain(2, protocol), line(2), 16e3, neutral=True).finish_us == pytest.approx(16e3 / 25e3 + 0.7)
    assert timing.launch_us == {"Simple": 8.4, "LL": 6.6, "LL128": 14.0}[protocol]


@pytest.mark.parametrize(
    ("kinds", "simple", "ll128"),
    [
        (("nvlink", "nvlink"), 2.8, 1.3),
        (("xgmi", "xgmi"), 2.8, 1.3),
        (("pcie", "pcie"), 4.7, 1.5),
        (("pcie", "network"), 11.3, 1.3),
        (("", ""), 0, 0),
    ],
)
def test_latency_is_added_once_per_transfer_by_the_slowest_kind(kinds, simple, ll128):
    machine = topology(2, [(0, 2, 25, 0.5, kinds[0]), (2, 1, 25, 0.5, kinds[1])], switches=1)
    for protocol, extra in (("Simple", simple), ("LL", 0), ("LL128", ll128)):
        expected = 1.0 + (1.5 if (protocol, kinds) == ("LL128", ("pcie", "network")) else extra)
        assert simulate(chain(2, protocol), machine, 0).finish_us == pytest.approx(expected)
        assert simulate(chain(2, protocol), machine, 0, neutral=True).finish_us == pytest.approx(1.0)


def test_a_threadblock_s_rate_limits_one_transfer_and_not_the_link():
    sends = [(1, -1, channel, [Step("s")]) for channel in range(4)]
    receives = [(-1, 0, channel, [Step("r")]) for channel in range(4)]
    one, four = program([sends[:1], receives[:1]]), program([sends, receives])
    machine = line(2, bandwidth=100, threadblock_GBps=20)
    assert simulate(one, machine, 1e6).finish_us == pytest.approx(1e6 / 20e3 + 0.7)
    assert simulate(four, machine, 1e6).finish_us == pytest.approx(3 * 1e6 / 100e3 + 1e6 / 20e3 + 0.7)
    assert simulate(four, line(2, bandwidth=100), 1e6).finish_us == pytest.approx(4 * 1e6 / 100e3 + 0.7)


def test_channels_are_dealt_out_over_a_pair_s_paths():
    double = topology(2, [(0, 1, 25, 0.7), (0, 1, 25, 0.7)])
    sends = [(1, -1, channel, [Step("s")]) for channel in (0, 1)]
    receives = [(-1, 0, channel, [Step("r")]) for channel in (0, 1)]
    timing = simulate(program([sends, receives]), double, 1e6)
    assert timing.finish_us == pytest.approx(40 + 0.7)
    assert {link.link for link in timing.links} == {0, 2}
    same = [(*tb[:2], 2 * channel, tb[3]) for channel, tb in enumerate(sends)]
    same_receives = [(*tb[:2], 2 * channel, tb[3]) for channel, tb in enumerate(receives)]
    assert simulate(program([same, same_receives]), double, 1e6).finish_us == pytest.approx(80 + 0.7)


def test_a_reduction_uses_what_it_received():
    tbs = [[(1, -1, 0, [Step("s")])], [(2, 0, 0, [Step("rrcs")])], [(-1, 1, 0, [Step("rrc")])]]
    timing = simulate(program(tbs), line(3), 1e6)
    assert timing.finish_us == pytest.approx(2 * 40.7)
    assert [(step.gpu, step.why) for step in timing.critical_path] == [(0, "start"), (1, "data"), (2, "data")]


# -- what it reports -----------------------------------------------------------------------------------------


def test_the_critical_path_is_consistent():
    timing = simulate(ring_allgather(5), ring(5), 5e6)
    path = timing.critical_path
    assert path[0].start_us == 0
    assert path[0].why == "start"
    assert path[-1].end_us == timing.finish_us
    assert all(step.start_us <= step.end_us for step in path)
    assert all(a.start_us <= b.start_us and a.end_us <= b.end_us for a, b in pairwise(path))


def test_figures_agree_with_one_another():
    timing = simulate(ring_allgather(5), ring(5), 5e6)
    assert timing.algbw_GBps == pytest.approx(5e6 / timing.finish_us / 1e3)
    for use in (*timing.links, *timing.threadblocks):
        assert use.utilisation == pytest.approx(use.busy_us / timing.finish_us)
        assert use.utilisation <= 1 + 1e-9
    assert max(tb.finish_us for tb in timing.threadblocks) == timing.finish_us


# -- properties ----------------------------------------------------------------------------------------------


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

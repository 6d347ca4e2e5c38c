"""Program simulation against closed forms, and what the runtimes' rules must cause."""

from itertools import pairwise

import pytest
from timed_programs import MIB, chain, exchange, line, program, ring, ring_allgather, star, topology

from teccl_msccl.errors import Refused
from teccl_msccl.program.program import Step
from teccl_msccl.program.protocol import PROTOCOL, slicing
from teccl_msccl.program.simulate import simulate

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

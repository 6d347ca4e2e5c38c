"""Machines that have lost a part, and schedules that are repaired on what is left."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from asked import run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import machines

from teccl_msccl import synthesize
from teccl_msccl.collective.demand import COLLECTIVES
from teccl_msccl.errors import InputError
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.baselines.search import BASELINES, baseline_schedule
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.repair import is_remainder, repaired
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.without import only, without


@pytest.mark.parametrize(
    ("name", "hosts", "part", "gone"),
    [
        ("dgx1", 1, "link:0-3", [(0, 3), (3, 0)]),
        ("dgx1", 1, "link:GPU3-GPU0", [(0, 3), (3, 0)]),
        ("ring-4", 1, "link:3-0", [(3, 0), (0, 3)]),
        ("dgx-h100", 2, "link:3-NVSwitch", [(3, 24), (24, 3)]),
        ("dgx-h100", 2, "link:1.GPU2-1.NVSwitch", [(10, 43), (43, 10)]),
    ],
)
def test_a_link_goes_both_ways(name, hosts, part, gone):
    topology = Topology.load(name, hosts=hosts)
    left = without(topology, [part]).topology
    assert {(x.src, x.dst) for x in topology.links} - {(x.src, x.dst) for x in left.links} == set(gone)
    assert [x for x in topology.links if (x.src, x.dst) not in gone] == list(left.links)
    assert left.nodes == topology.nodes
    assert left.name == f"{topology.name} without {part}"


@pytest.mark.parametrize(("part", "node"), [("nic:1.2", 37), ("nic:0.NIC2", 18), ("nic:1.nic2", 37)])
def test_a_nic_takes_its_links_along(part, node):
    cluster = Topology.load("dgx-h100", hosts=2)
    left = without(cluster, [part]).topology
    assert {x.id for x in cluster.nodes} - {x.id for x in left.nodes} == {node}
    assert len(cluster.links) - len(left.links) == 4


def test_a_capture_is_named_by_its_own_labels():
    capture = Topology.load("samples/dgx1-v100.topo.txt")
    assert without(capture, ["nic:mlx5_2"]).topology.nodes == without(capture, ["nic:2"]).topology.nodes


def test_a_gpu_renumbers_the_others_and_says_so():
    left = without(Topology.load("dgx1"), ["gpu:4", "gpu:1"])
    assert left.topology.nranks == 6
    assert [left.topology.node_by_id[gpu].name for gpu in left.topology.gpus] == [f"GPU{i}" for i in (0, 2, 3, 5, 6, 7)]
    (finding,) = left.findings
    assert finding.text.startswith("6 of 8 GPUs are left, as ranks 0 to 5: rank 2 is now 1, rank 3 is now 2, rank 5")
    assert without(Topology.load("dgx1"), ["gpu:7"]).findings[0].text == "7 of 8 GPUs are left, as ranks 0 to 6"
    assert without(Topology.load("dgx1"), []).topology == Topology.load("dgx1")


def test_only_some_gpus_in_the_order_asked():
    some = only(Topology.load("dgx1"), (5, 2, 7))
    assert [some.node_by_id[gpu].name for gpu in some.gpus] == ["GPU5", "GPU2", "GPU7"]


@pytest.mark.parametrize(
    ("name", "parts", "said"),
    [
        ("dgx1", ["link:0-7"], "no link between GPU 0 and GPU 7; GPU 0 has links to GPU 1, GPU 2"),
        ("dgx1", ["link:3"], "no such two ends; write 3-5"),
        ("dgx1", ["gpu:9"], "none such; it has GPU 0, GPU 1"),
        ("ring-4", ["nic:0"], "it has no nic"),
        ("dgx1", ["cable:3"], "write link:3-5"),
        ("dgx1", [""], "write link:3-5"),
        ("dgx-h100x2", ["nic:2"], "say which: nic:0.2, nic:1.2"),
        ("dgx-h100x2", ["link:GPU3-NVSwitch"], "2 hosts have such a link"),
        ("line-4", ["link:1-2"], "line-4 without link:1-2: disconnected: GPU 0 cannot reach GPU 2; these parts"),
        ("line-2", ["gpu:0", "gpu:1"], "no GPU is left"),
    ],
)
def test_what_cannot_be_lost(name, parts, said):
    with pytest.raises(InputError, match=said) as refused:
        without(Topology.load(name), parts)
    assert "\n" not in str(refused.value)


# -- synthesis and repair --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "broadcast", "reduce", "scatter"])
@pytest.mark.parametrize("part", ["link:0-3", "gpu:4"])
def test_the_same_call_after_a_loss_with_a_warm_start(collective, part):
    machine = Topology.load("teccl-dgx1")
    healthy = run(machine, collective, 1e6, method="greedy", time_limit=0.2).schedule
    left = without(machine, [part]).topology
    quick = run(left, collective, 1e6, start=healthy, time_limit=0)
    quick.schedule.validate()
    assert quick.schedule.topology == left
    assert quick.schedule.finish_us >= lower_bound_us(left, quick.schedule.demand) * (1 - 1e-9)
    problem = Problem(left, collective, 1e6)
    mended = repaired(healthy, left, problem.split(healthy.demand.nchunks))
    mended.validate()
    assert quick.schedule.finish_us <= mended.finish_us * (1 + 1e-9)


def test_an_allreduce_is_repaired_where_it_was_complete():
    machine = Topology.load("teccl-dgx1")
    demand = Problem(machine, "allreduce", 1e6).demand(1)
    healthy = baseline_schedule(machine, demand, BASELINES["ring"])
    left = without(machine, ["link:0-3"]).topology
    mended = repaired(healthy, left, demand)
    mended.validate()
    kept = {send[:2] for send in healthy.sends if all(link in left.link_by_id for link in send.path)}
    assert len(kept & {send[:2] for send in mended.sends}) > 0.8 * len(kept)


def test_what_survives_is_kept():
    machine = Topology.load("teccl-dgx1")
    healthy = run(machine, "allgather", 1e6, nchunks=2, method="greedy").schedule
    left = without(machine, ["link:2-3"]).topology
    mended = repaired(healthy, left, healthy.demand)
    lost = {link.id for link in machine.links} - {link.id for link in left.links}
    before = {(send.chunk, send.path) for send in healthy.sends}
    kept = {(chunk, path) for chunk, path in before if not lost & set(path)}
    after = {(send.chunk, send.path) for send in mended.sends}
    assert kept < before
    assert len(kept & after) > 0.9 * len(kept)
    assert len(after) == len(before) == 2 * 8 * 7


def test_nothing_lost_is_nothing_changed():
    machine = Topology.load("mesh-2x3")
    for collective in COLLECTIVES:
        healthy = run(machine, collective, 1e6, method="greedy", time_limit=0.1, root=4).schedule
        renamed = replace(machine, name="the same")
        mended = repaired(healthy, renamed, healthy.demand)
        mended.validate()
        assert {send[:2] for send in mended.sends} == {send[:2] for send in healthy.sends}
        assert mended.finish_us == pytest.approx(healthy.finish_us)


@settings(max_examples=12, deadline=None)
@given(machines(least=3, most=6), st.sampled_from(list(COLLECTIVES)), st.integers(0, 10**6), st.integers(1, 3))
def test_any_loss_on_any_machine(topology, collective, seed, nchunks):
    rng = random.Random(seed)
    healthy = run(topology, collective, 1e6, method="greedy", time_limit=0, nchunks=nchunks, root=1).schedule
    gpus = [f"gpu:{rank}" for rank in range(topology.nranks)]
    ends = [(topology.rank_of.get(x.src), topology.rank_of.get(x.dst)) for x in topology.links]
    links = [f"link:{a}-{b}" for a, b in ends if a is not None and b is not None]
    parts = rng.sample(gpus + links, min(len(gpus + links), rng.choice((1, 1, 2, 3))))
    try:
        left = without(topology, parts).topology
    except InputError as error:
        assert "disconnected" in str(error) or "no GPU" in str(error)
        assume(False)
    assume(left.nranks >= 2)
    assert is_remainder(left, topology)
    mended = repaired(healthy, left, Problem(left, collective, 1e6, 1).split(healthy.demand.nchunks))
    mended.validate()
    assert mended.topology == left


def test_a_start_for_another_machine_is_still_refused():
    start = run(Topology.load("ring-4"), "allgather", 1e6, time_limit=0).schedule
    with pytest.raises(InputError, match="another topology"):
        run(Topology.load("full-4"), "allgather", 1e6, start=start, time_limit=0)


def test_from_python():
    healthy = synthesize(Topology.load("ring-6"), "broadcast", "1MB", time_limit=0.2, nchunks=4)
    mended = synthesize(Topology.load("ring-6"), "broadcast", "1MB", without=["link:0-1"], start=healthy, time_limit=0)
    assert isinstance(mended, Schedule)
    assert len(mended.topology.links) == 10

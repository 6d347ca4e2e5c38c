"""Bounds for many GPUs: no larger than an optimum, and the same as the thorough bounds where these are cuts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machines

from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.synthesis import bounds
from teccl_msccl.synthesis.bounds import lower_bounds
from teccl_msccl.synthesis.large_bounds import large_bounds
from teccl_msccl.topology.model import Topology

CUTS = ("alpha", "ingress", "egress", "cut")


def large_us(topology: Topology, collective: str, size: float, *terms: str) -> float:
    demand = demand_for(collective, topology.nranks, size, 1)
    return max(us for term, us, _ in large_bounds(topology, demand) if not terms or term in terms)


@settings(deadline=None, max_examples=30)
@given(machines(most=5), st.sampled_from(sorted(COLLECTIVES)), st.sampled_from([1e3, 1e6, 1e9]))
def test_never_above_the_thorough_bounds(topology, collective, size):
    """Which a brute-force optimum checks elsewhere. (A term of its own, traffic into hosts, needs several hosts.)"""
    thorough = lower_bounds(topology, demand_for(collective, topology.nranks, size, 1))[0].bound_us
    assert large_us(topology, collective, size, "root", *CUTS) <= thorough * (1 + 1e-9)


@pytest.mark.parametrize("size", [1e3, 1e9])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "alltoall", "broadcast"])
@pytest.mark.parametrize(("name", "hosts", "network"), [("dgx-a100", 2, "rail"), ("dgx1", 2, None)])
def test_as_good_on_clusters(name, hosts, network, collective, size):
    topology = Topology.load(name, hosts=hosts, network=network)
    demand = demand_for(collective, topology.nranks, size, 1)
    thorough = max(bound.bound_us for bound in lower_bounds(topology, demand) if bound.term in CUTS)
    assert large_us(topology, collective, size, *CUTS) == pytest.approx(thorough, rel=0.02)


def test_an_allreduce_enters_hosts_twice():
    """2 · (H − 1) / H · size per host's network bandwidth, as for one GPU per host."""
    topology = Topology.load("dgx-h100", hosts=4, network="rail")
    traffic_us = large_us(topology, "allreduce", 1e9, "traffic")
    assert traffic_us == pytest.approx(2 * 3 / 4 * 1e9 / (8 * 48e3) + 3.7, rel=0.2)
    assert traffic_us > large_us(topology, "allreduce", 1e9, "ingress", "cut")


def test_large_clusters_take_them(monkeypatch):
    topology = Topology.load("dgx1", hosts=2)
    demand = demand_for("allgather", topology.nranks, 1e9, 1)
    monkeypatch.setattr(bounds, "LARGE", 0)
    quick = bounds.lower_bounds(topology, demand)
    assert [bound.bound_us for bound in quick] == sorted((bound.bound_us for bound in quick), reverse=True)
    assert quick[0].bound_us == pytest.approx(large_us(topology, "allgather", 1e9))


def test_a_demand_of_some_is_not_taken_for_one_of_all():
    """Half of the GPUs gather: no representative stands for the others."""
    from dataclasses import replace

    topology = Topology.load("ring-6")
    whole = demand_for("allgather", 6, 1e9, 1)
    some = replace(whole, chunks=tuple(replace(chunk, want=(1, 2, 3)) for chunk in whole.chunks))
    ingress = max(us for term, us, _ in large_bounds(topology, some) if term == "ingress")
    assert ingress == pytest.approx(5 / 6 * 1e9 / 100e3 + 0.5, rel=1e-3)


def test_a_thin_uplink_is_a_cut():
    """Leaves of 4 hosts, 4 : 1: half of what 32 GPUs send leaves their leaf, over a quarter of their bandwidth."""
    topology = Topology.load("dgx-h100", hosts=8, network="fat-tree:4")
    leaving = 32 * 32 / 64 * 1e9
    assert large_us(topology, "alltoall", 1e9, "cut") == pytest.approx(leaving / (32 * 48e3 / 4) + 3.7, rel=1e-3)

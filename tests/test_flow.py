"""The flow bound: closed forms, and validity for any prices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teccl_msccl import Topology
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.synthesis.flow import flow_bound_us, price_bound_us


def test_closed_forms() -> None:
    """Ring of 8: every GPU's 8 MB cross 2 links on average, 16 links share them; star: 7/8 through one port."""
    ring = Topology.load("ring-8")
    assert flow_bound_us(ring, demand_for("alltoall", 8, 8e6)) == pytest.approx(8 * 1e6 * 16 / (16 * 50e3))
    star = Topology.load("star-8")
    assert flow_bound_us(star, demand_for("alltoall", 8, 8e6)) == pytest.approx(7e6 / 50e3)
    assert flow_bound_us(star, demand_for("gather", 8, 8e6, root=3)) == pytest.approx(7e6 / 50e3)


def test_published_figures() -> None:
    """The bandwidth limits that a concurrent-flow program proved elsewhere for these two boards."""
    assert flow_bound_us(Topology.load("teccl-dgx1"), demand_for("alltoall", 8, 1e9)) == pytest.approx(13333.3333)
    assert flow_bound_us(Topology.load("mesh-4x4"), demand_for("alltoall", 16, 1e9)) == pytest.approx(20000)


@given(st.lists(st.floats(0, 10), min_size=16, max_size=16))
def test_any_prices_give_a_bound_below_the_optimum(prices: list[float]) -> None:
    ring = Topology.load("ring-8")
    wanted = {(s, t): 1e6 for s in range(8) for t in range(8) if s != t}
    bound = price_bound_us(ring, wanted, dict(enumerate(prices)))
    assert bound <= 8 * 1e6 * 16 / (16 * 50e3) * (1 + 1e-9)


def test_nothing_to_move() -> None:
    assert flow_bound_us(Topology.load("ring-4"), demand_for("alltoall", 4, 0)) is None

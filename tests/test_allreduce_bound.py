"""The allreduce's bounds: their figures against linear programs solved elsewhere."""

import random

import pytest
from strategies import machine, seeded_machine

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.synthesis.allreduce_bound import latency_bound_us, price_bound_us, tree_bound
from teccl_msccl.synthesis.bounds import latencies, lower_bounds
from teccl_msccl.synthesis.portfolio import synthesize
from teccl_msccl.topology.model import Topology


@pytest.mark.parametrize(
    ("name", "hosts", "GBps"), [("mesh-4x4", 1, 80.0), ("teccl-dgx2", 2, 67.742), ("teccl-ndv2", 4, 8.3333)]
)
def test_the_tree_program_has_its_known_optimum(name, hosts, GBps):
    topology = Topology.load(name, hosts=hosts)
    latency = latencies(topology)
    found = tree_bound(topology, 1e12, latency)
    assert 1e12 / (found.bound_us * 1e3) == pytest.approx(GBps, rel=1e-3)
    assert found.bound_us == pytest.approx(price_bound_us(topology, 1e12, found.prices, latency))


def test_any_prices_give_a_bound_below_the_optimum():
    rng = random.Random(3)
    for seed in range(8):
        topology = seeded_machine(seed, 2, 5, 1)
        latency = latencies(topology)
        best = tree_bound(topology, 1e9, latency).bound_us
        for _ in range(5):
            prices = {link.id: rng.choice([0.0, rng.random()]) for link in topology.links}
            assert price_bound_us(topology, 1e9, prices, latency) <= best * (1 + 2e-4)


def test_a_root_in_the_middle_is_nearest_to_all():
    line = machine("ggg", [(0, 1, 50, 1.0), (1, 2, 50, 2.0)])
    assert latency_bound_us(line, latencies(line)) == (4.0, 1)


@pytest.mark.parametrize("nbytes", [1e5, 1e9])
def test_copies_made_by_switches_save_no_traffic_into_gpus(nbytes):
    """Every GPU takes in a share, and a result: 2(n − 1) arrivals of each byte, the first after α; it is attained."""
    star = Topology.from_json(
        {
            "name": "star",
            "nodes": [{"id": i, "kind": "gpu", "rank": i} for i in range(4)]
            + [{"id": 4, "kind": "switch", "multicast": True}],
            "links": [
                {"src": a, "dst": b, "bandwidth_GBps": 50, "alpha_us": 0.1}
                for i in range(4)
                for a, b in ((i, 4), (4, i))
            ],
        }
    )
    best = lower_bounds(star, demand_for("allreduce", 4, nbytes))[0]
    assert (best.term, best.bound_us) == ("traffic", pytest.approx(1.5 * nbytes / 50e3 + 0.2))
    schedule = synthesize(star, "allreduce", nbytes, time_limit=2)
    assert best.bound_us * (1 - 1e-9) <= schedule.finish_us <= 1.01 * best.bound_us + 0.2

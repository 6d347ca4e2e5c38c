"""Rails: an uneven alltoall between hosts fills all of them alike."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.incumbent import Incumbent, gap
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.rails import search_rails
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.without import without


def uneven(hosts: int, seed: int = 0) -> Problem:
    """Exponentially spread traffic between 8 GPUs of each host."""
    n = 8 * hosts
    topology = Topology.load("dgx-h100", hosts=hosts, network="rail")
    return ask(topology, "alltoallv", None, matrix=np.random.default_rng(seed).exponential(1e6, (n, n)).tolist())


def test_rails_are_filled_alike():
    hosts = 2
    problem = uneven(hosts)
    incumbent = Incumbent(problem, 60, lambda progress: None)
    search_rails(incumbent, Settings(nchunks=1))
    schedule = incumbent.best
    schedule.validate()
    assert schedule.finish_us >= lower_bound_us(problem.topology, schedule.demand) * (1 - 1e-9)
    load: dict[int, float] = defaultdict(float)
    for send in schedule.sends:
        for id in send.path:
            link = problem.topology.link_by_id[id]
            if link.kind == "network" and problem.topology.node_by_id[link.src].kind == "nic":
                load[id] += schedule.demand.chunks[send.chunk].bytes
    assert len(load) == 8 * hosts
    for host in range(hosts):
        of_host = [nbytes for id, nbytes in load.items()
                   if problem.topology.node_by_id[problem.topology.link_by_id[id].src].host == host]  # fmt: skip
        assert max(of_host) <= 1.05 * sum(of_host) / 8


def test_nothing_where_there_are_no_rails():
    topology = Topology.load("ring-4")
    problem = ask(topology, "alltoallv", None, matrix=np.ones((4, 4)).tolist())
    incumbent = Incumbent(problem, 60, lambda progress: None)
    search_rails(incumbent, Settings())
    assert incumbent.best is None


@pytest.mark.parametrize("lost", ["nic:0.2", "gpu:4", "link:GPU1-0.PCIe switch 1"])
@pytest.mark.parametrize(("collective", "most"), [("allgather", 0.25), ("reduce_scatter", 0.25), ("alltoall", 0.02)])
def test_what_is_left_of_a_host_is_filled_alike(lost: str, collective: str, most: float):
    """With three hosts an allgather is as busy inside them, where nothing is balanced, as between them."""
    topology = without(Topology.load("dgx-h100", hosts=3, network="rail"), [lost]).topology
    incumbent = Incumbent(Problem(topology, collective, 1e9), 60, lambda progress: None)
    search_rails(incumbent, Settings(nchunks=4))
    incumbent.best.validate()
    assert -1e-9 <= gap(incumbent.best.finish_us, incumbent.bound_us) <= most


def test_hosts_that_are_alike_are_left_to_the_hierarchy():
    incumbent = Incumbent(Problem(Topology.load("dgx-h100", hosts=2), "allgather", 1e6), 60, lambda progress: None)
    search_rails(incumbent, Settings())
    assert incumbent.best is None

"""Rails: an uneven alltoall between hosts fills all of them alike."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.incumbent import Incumbent
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.rails import search_rails
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.topology.model import Topology


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

"""Trees of one root: least ones against networkx, packings against minimum cuts, pipelines against closed forms."""

import random
from collections import Counter
from itertools import chain, pairwise

import networkx as nx
import numpy as np
import pytest
from strategies import seeded_machine

from teccl_msccl import Topology
from teccl_msccl.synthesis.arborescence import arborescence
from teccl_msccl.synthesis.bounds import latencies, program_bounds
from teccl_msccl.synthesis.host_trees import chained_trees
from teccl_msccl.synthesis.pipelines import pipelined, spreading_root
from teccl_msccl.synthesis.portfolio import run
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.rail_trees import host_orders, rail_trees
from teccl_msccl.synthesis.rooted_trees import TreePacking, price_bound_us, rooted_bound

BYTES = 256e6


@pytest.mark.parametrize("seed", range(40))
def test_arborescences_are_least(seed):
    rng = random.Random(seed)
    n = rng.randint(2, 9)
    cost = np.array([[rng.choice([0.0, 1.0, 2.0, rng.random()]) for _ in range(n)] for _ in range(n)])
    root = rng.randrange(n)
    parents = arborescence(cost, root)
    tree = nx.DiGraph((parents[v], v) for v in range(n) if v != root)
    assert parents[root] == root
    assert n == 1 or (nx.is_arborescence(tree) and tree.in_degree(root) == 0)
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((u, v, cost[u, v]) for u in range(n) for v in range(n) if u != v and v != root)
    best = nx.minimum_spanning_arborescence(graph).size(weight="weight")
    assert sum(cost[parents[v], v] for v in range(n) if v != root) == pytest.approx(best)


def least_cut_GBps(topology: Topology, root: int) -> float:
    """The least maximum flow from the root's GPU to another, of a machine whose links join GPUs."""
    graph = nx.DiGraph()
    for link in topology.links:
        capacity = graph.get_edge_data(link.src, link.dst, {"capacity": 0.0})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=capacity + link.bandwidth_GBps)
    source = topology.gpus[root]
    return min(nx.maximum_flow_value(graph, source, gpu) for gpu in topology.gpus if gpu != source)


@pytest.mark.parametrize("seed", range(12))
def test_a_packing_has_the_rate_of_the_least_cut(seed):
    """Edmonds: from both sides, the trees' load and what the prices prove."""
    topology = seeded_machine(seed, 2, 6, 0)
    root = seed % topology.nranks
    rate = least_cut_GBps(topology, root)
    packing = TreePacking(topology, root)
    weights = packing.weights(1e15, 10**9)
    load = sum(weight * tree.load for weight, tree in zip(weights, packing.trees, strict=True))
    assert 1 / load.max() == pytest.approx(rate, rel=2e-3)
    assert 1 / packing.least(packing.prices) == pytest.approx(rate, rel=2e-3)
    for weight, tree in zip(weights, packing.trees, strict=True):
        ends = nx.DiGraph((packing.paths[p].src_rank, packing.paths[p].dst_rank) for p in tree.paths)
        assert nx.is_arborescence(ends) and ends.in_degree(root) == 0 and len(ends) == topology.nranks
        assert weight >= 0


@pytest.mark.parametrize("seed", range(6))
def test_any_prices_bound_a_broadcast(seed):
    rng = random.Random(seed)
    topology = seeded_machine(seed, 2, 5, 1)
    latency = latencies(topology)
    best = rooted_bound(topology, BYTES, 0, latency)
    found = run(Problem(topology, "broadcast", BYTES), time_limit=0.3).schedule
    assert best.bound_us <= found.finish_us * (1 + 1e-9)
    packing = TreePacking(topology, 0)
    for _ in range(5):
        prices = {link.id: rng.choice([0.0, rng.random()]) for link in topology.links}
        assert price_bound_us(packing, BYTES, prices, latency) <= found.finish_us * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "GBps"), [("ring-6", 100), ("line-4", 50), ("star-5", 50), ("full-5", 200), ("hypercube-8", 150)]
)
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_pipelines_have_the_rate_of_their_machine(name, GBps, collective):
    """A root's ports are the least cut; 256 chunks are within a few hops of it."""
    problem = Problem(Topology.load(name), collective, BYTES, root=1)
    (stage,) = problem.stages
    packing = TreePacking(stage.topology, 1)
    router, routes = pipelined(stage.topology, stage.demand(256), packing)
    schedule = problem.assemble([router.schedule(routes)])
    schedule.validate()
    (bound,) = {
        bound.bound_us for bound in program_bounds(problem.topology, problem.demand(1)) if bound.term == "trees"
    }
    assert bound == pytest.approx(BYTES / (GBps * 1e3), rel=5e-3)
    assert bound <= schedule.finish_us <= 1.12 * bound


def test_only_what_one_gpu_gives_to_all_is_a_pipeline():
    ring = Topology.load("ring-4")
    assert spreading_root(Problem(ring, "broadcast", 1e6, root=2).demand(3)) == 2
    assert spreading_root(Problem(ring, "allgather", 1e6).demand(1)) is None
    assert spreading_root(Problem(ring, "scatter", 1e6).demand(1)) is None


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_the_first_answer_is_a_pipeline(collective):
    """On NVLink of two speeds (the papers' DGX-1), in no time, near the bound: one tree takes nine times as long."""
    found = run(Problem(Topology.load("teccl-dgx1"), collective, BYTES), time_limit=0)
    assert found.method == "trees" and found.gap < 0.1
    assert len({send.path for send in found.schedule.sends}) > found.schedule.topology.nranks - 1  # more than one tree


def test_nothing_needs_no_pipeline():
    assert run(Problem(Topology.load("ring-4"), "broadcast", 0.0), method="trees", time_limit=0.2).gap == 0


@pytest.mark.parametrize("network", ["rail", "fat-tree"])
@pytest.mark.parametrize("root", [0, 5])
@pytest.mark.parametrize(("by_hosts", "GBps"), [(rail_trees, 8 * 48), (chained_trees, 370.8)])
def test_trees_of_hosts_have_the_rate_of_their_fabric(network, root, by_hosts, GBps):
    """That of a host's NICs; but where nothing is handed back, the root's GPU puts each byte on its NVLinks."""
    topology = Topology.load("dgx-h100", hosts=4, network=network)
    packing = TreePacking(topology, root, by_hosts=by_hosts)
    weights = packing.weights(1e9, 10**6)
    load = sum(weight * tree.load for weight, tree in zip(weights, packing.trees, strict=True))
    assert load.max() == pytest.approx(1 / GBps, rel=1e-3)
    for tree in packing.trees:
        ends = nx.DiGraph((packing.paths[p].src_rank, packing.paths[p].dst_rank) for p in tree.paths)
        assert nx.is_arborescence(ends) and ends.in_degree(root) == 0 and len(ends) == topology.nranks


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(("hosts", "chunks", "within"), [(2, 720, 1.04), (4, 720, 1.09), (4, 384, 1.16)])
def test_pipelines_of_rails(collective, hosts, chunks, within):
    """From a root in the middle of a host, of what the NICs of a host take for 1 GB."""
    problem = Problem(Topology.load("dgx-h100", hosts=hosts), collective, 1e9, root=9)
    (stage,) = problem.stages
    packing = TreePacking(stage.topology, 9, by_hosts=rail_trees)
    router, routes = pipelined(stage.topology, stage.demand(chunks), packing)
    schedule = problem.assemble([router.schedule(routes)])
    schedule.validate()
    assert schedule.finish_us <= within * 1e9 / (8 * 48e3)


@pytest.mark.parametrize(("hosts", "count"), [(1, 8), (2, 3), (3, 8), (5, 4), (7, 8), (15, 8)])
def test_few_hosts_follow_each_other_on_many_rails(hosts, count):
    orders = host_orders(hosts, count)
    assert len(orders) == count and all(sorted(order) == list(range(hosts)) for order in orders)
    begun = Counter(order[0] for order in orders)
    assert max(begun.values()) == -(-count // hosts)
    followed = Counter(chain.from_iterable(map(pairwise, orders)))
    assert len(followed) >= 0.8 * min(hosts * (hosts - 1), count * (hosts - 1))


@pytest.mark.parametrize("chunks", [100, 256])
def test_balanced_trees_leave_no_link_behind(chunks):
    """At any time the busiest link is a few chunks beyond its share, however many trees take turns."""
    packing = TreePacking(Topology.load("dgx-h100", hosts=2), 0, by_hosts=rail_trees)
    packing.weights(1e9, chunks)
    turns = packing.balanced(chunks)
    carried = np.cumsum([packing.trees[tree].load for tree in turns], axis=0).max(axis=1) * 8 * 48
    assert len(set(turns)) > 2 * 8
    assert (carried <= np.arange(1, chunks + 1) + 3 * 8).all() and carried[-1] <= chunks * 1.02 + 8


@pytest.mark.parametrize("by_hosts", [rail_trees, chained_trees])
def test_one_host_has_no_trees_of_hosts(by_hosts):
    assert TreePacking(Topology.load("dgx-h100"), 0, by_hosts=by_hosts).trees == []

"""Symmetry: generators and mappings, verified by applying them."""

import random
import time
from collections import Counter
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl.topology.builder import Builder
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.detect.nvidia_smi import parse
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.symmetry import (
    automorphism_generators,
    first_difference,
    is_automorphism,
    isomorphism,
    match,
    rank_generators,
)


def applied(topology, permutation):
    """The links after renumbering, by plain counting."""
    return Counter(
        (permutation[x.src], permutation[x.dst], x.bandwidth_GBps, x.alpha_us, x.kind) for x in topology.links
    )


def group_order(topology):
    """Number of automorphisms that the generators generate on ranks (small groups only)."""
    generators = rank_generators(topology)
    identity = tuple(range(topology.nranks))
    seen, todo = {identity}, [identity]
    while todo:
        here = todo.pop()
        for g in generators:
            there = tuple(g[r] for r in here)
            if there not in seen:
                seen.add(there)
                todo.append(there)
    return len(seen)


def renumbered(topology, seed):
    """The same machine with shuffled ranks, ids and links."""
    rng = random.Random(seed)
    ids = [node.id for node in topology.nodes]
    new = dict(zip(ids, rng.sample(range(1000), len(ids)), strict=True))
    ranks = rng.sample(range(topology.nranks), topology.nranks)
    nodes = [
        replace(node, id=new[node.id], rank=None if node.rank is None else ranks[node.rank], name="")
        for node in topology.nodes
    ]
    links = [replace(link, src=new[link.src], dst=new[link.dst]) for link in topology.links]
    rng.shuffle(links)
    links = [replace(link, id=i) for i, link in enumerate(links)]
    return replace(topology, nodes=tuple(nodes), links=tuple(links), name="other")


@pytest.mark.parametrize(
    ("name", "order"),
    [("ring-8", 16), ("line-5", 2), ("full-5", 120), ("star-5", 120), ("hypercube-8", 48), ("mesh-2x3", 4),
     ("torus-3x3", 72), ("teccl-ndv2", 4)],
)  # fmt: skip
def test_known_groups(name, order):
    topology = load(name).topology
    for permutation in automorphism_generators(topology):
        assert applied(topology, permutation) == applied(topology, {id: id for id in topology.node_by_id})
    assert group_order(topology) == order


def test_networkx_counts_the_same_automorphisms():
    topology = load("dgx1").topology
    graph = nx.DiGraph()
    for node in topology.nodes:
        graph.add_node(node.id, kind=node.kind)
    for link in topology.links:
        graph.add_edge(link.src, link.dst, figures=(link.bandwidth_GBps, link.alpha_us, link.kind))
    same = nx.isomorphism.DiGraphMatcher(
        graph, graph, node_match=lambda a, b: a == b, edge_match=lambda a, b: a == b
    )  # fmt: skip
    on_ranks = {tuple(mapping[gpu] for gpu in topology.gpus) for mapping in same.isomorphisms_iter()}
    assert group_order(topology) == len(on_ranks)


def one_way_ring(figures):
    """GPUs in a ring that goes one way, link i with figures[i]."""
    value = {
        "nodes": [{"id": i, "kind": "gpu", "rank": i} for i in range(len(figures))],
        "links": [
            {"src": i, "dst": (i + 1) % len(figures), "bandwidth_GBps": GBps, "alpha_us": 0.5}
            for i, all_GBps in enumerate(figures)
            for GBps in all_GBps
        ],
    }
    return Topology.from_json(value, "one-way")


def test_direction_and_parallel_links_count():
    assert group_order(one_way_ring([[10]] * 5)) == 5  # no reflection
    assert group_order(one_way_ring([[10, 20], [10]] * 3)) == 3
    assert group_order(one_way_ring([[10, 20], [20, 10]] * 3)) == 6  # the order of parallel links does not matter


def test_a_cluster_of_16_by_8_takes_less_than_five_seconds():
    topology = load("dgx-a100x16").topology
    start = time.perf_counter()
    generators = automorphism_generators(topology)
    assert time.perf_counter() - start < 5
    assert all(is_automorphism(topology, permutation) for permutation in generators)
    hosts = nx.Graph()
    for ranks in rank_generators(topology):
        hosts.add_edges_from((rank // 8, image // 8) for rank, image in enumerate(ranks))
    assert nx.is_connected(hosts)  # every host can stand for every other


def test_what_is_no_automorphism():
    ring = load("ring-4").topology
    assert is_automorphism(ring, {0: 1, 1: 2, 2: 3, 3: 0})
    assert not is_automorphism(ring, {0: 1, 1: 0, 2: 2, 3: 3})
    assert not is_automorphism(ring, {0: 1, 1: 2, 2: 3, 3: 3})
    assert not is_automorphism(ring, {0: 0})
    box = load("star-2").topology
    assert not is_automorphism(box, {0: 2, 2: 0, 1: 1})


@given(st.sampled_from(["dgx1", "teccl-dgx2x2", "mi250x", "torus-2x3", "p4d", "dgx-a100x2"]), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_renumbered_machine_is_found_again(name, seed):
    one = load(name).topology
    other = renumbered(one, seed)
    mapping = isomorphism(one, other)
    assert applied(one, mapping) == applied(other, {id: id for id in other.node_by_id})
    ranks = match(one, other).permutation
    assert sorted(ranks) == list(range(one.nranks))
    assert all(other.rank_of[mapping[gpu]] == ranks[rank] for rank, gpu in enumerate(one.gpus))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("dgx1", "ring-8", "2 cpu nodes in dgx1, 0 cpu nodes in ring-8"),
        ("ring-8", "ring-6", "8 gpu nodes in ring-8, 6 gpu nodes"),
        ("dgx-a100", "dgx-h100", "nvlink 240 GB/s"),
        ("teccl-dgx1", "teccl-dgx2", "8 gpu nodes"),
        ("ring-6", "line-6", "links of"),
        ("hypercube-16", "torus-2x8", ""),
    ],
)
def test_the_first_difference(one, other, said):
    one, other = load(one).topology, load(other).topology
    found = match(one, other)
    assert found.permutation is None
    assert said in found.difference
    assert match(other, one).permutation is None
    assert first_difference(one, other)


def test_same_counts_but_joined_differently():
    def rings(*sizes):
        builder = Builder()
        hub = None
        for size in sizes:
            gpus = [builder.gpu(str(i)) for i in range(size)]
            for a, b in zip(gpus, gpus[1:] + gpus[:1], strict=True):
                builder.wire(a, b, 10.0, 0.5)
            hub = gpus
        assert hub
        switch = builder.node("switch", "hub")
        for node in list(builder.nodes):
            if node.kind == "gpu":
                builder.wire(node.id, switch, 5.0, 0.5)
        return builder.topology("-".join(map(str, sizes)))

    found = match(rings(3, 3), rings(6))
    assert found.permutation is None
    assert "join them differently" in found.difference


MESH = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
        (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}  # fmt: skip


def cube_mesh(order, far):
    """A cube mesh whose GPU i is numbered order[i], as `topo -m` prints it."""
    links = {frozenset((order[i], order[j])): n for (i, j), n in MESH.items()}
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(8)) + "\tCPU Affinity"]
    for i in range(8):
        cells = [" X " if i == j else f"NV{n}" if (n := links.get(frozenset((i, j)))) else far(i, j) for j in range(8)]
        lines.append(f"GPU{i}\t" + "\t".join(cells) + "\t0-95")
    return parse("\n".join(lines)).topology


def test_a_cloud_that_numbers_gpus_differently_and_hides_pcie():
    bare = cube_mesh(range(8), lambda i, j: "SYS" if i // 4 != j // 4 else "NODE")
    order = [3, 0, 6, 1, 5, 2, 7, 4]
    virtual = cube_mesh(order, lambda i, j: "PHB")
    found = match(bare, virtual)
    assert found.fabric_only
    assert found.difference
    here = {(bare.rank_of[x.src], bare.rank_of[x.dst]): x.bandwidth_GBps for x in bare.links if x.kind == "nvlink"}
    there = {
        (virtual.rank_of[x.src], virtual.rank_of[x.dst]): x.bandwidth_GBps for x in virtual.links if x.kind == "nvlink"
    }
    assert {(found.permutation[a], found.permutation[b]): GBps for (a, b), GBps in here.items()} == there
    assert match(bare, virtual, fabric=False).permutation is None

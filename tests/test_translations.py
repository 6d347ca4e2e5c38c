"""Translations: groups of automorphisms, checked against their definition."""

from __future__ import annotations

from itertools import product

import pytest

from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.symmetry import is_automorphism
from teccl_msccl.topology.translations import (
    Translations,
    block_translations,
    cyclic_translations,
    host_translations,
)

CLUSTERS = [
    ("dgx-a100", 3, "rail"),
    ("dgx-h100", 8, "fat-tree:2"),
    ("mi300x", 2, "single-switch"),
    ("dgx1", 3, "ring"),
    ("teccl-ndv2", 2, None),
    ("teccl-ndv2", 4, None),
    ("mi250x", 2, "rail:2"),
]


def finest_translations(topology: Topology) -> Translations | None:
    return next(block_translations(topology), None)


def node_images(found: Translations, g: int) -> dict[int, int]:
    """The nodes that translation g takes each node to, read off its links."""
    links = found.topology.links
    image: dict[int, int] = {}
    for place, moved in enumerate(found.links[g].tolist()):
        for one, other in ((links[place].src, links[moved].src), (links[place].dst, links[moved].dst)):
            assert image.setdefault(one, other) == other
    return image


def check(found: Translations) -> None:
    """What the class promises."""
    topology = found.topology
    assert sorted(found.ranks.reshape(-1).tolist()) == list(range(topology.nranks))
    for g in range(found.count):
        image = node_images(found, g)
        assert is_automorphism(topology, image)
        for h, p in product(range(found.count), range(found.ranks.shape[1])):
            moved = topology.rank_of[image[topology.gpus[found.ranks[h, p]]]]
            assert moved == found.ranks[found.table[g, h], p]
        assert found.table[g, 0] == g
        assert g == 0 or all(found.table[g, h] != h for h in range(found.count))
    orbit = {place: {int(found.links[g, place]) for g in range(found.count)} for place in range(len(topology.links))}
    assert all(found.link_orbits[place] == min(orbit[place]) for place in orbit)


@pytest.mark.parametrize(("name", "hosts", "network"), CLUSTERS)
def test_hosts_of_clusters_move(name, hosts, network):
    found = host_translations(Topology.load(name, hosts=hosts, network=network))
    assert found is not None and found.count == hosts
    check(found)


@pytest.mark.parametrize(
    "name", ["ring-5", "torus-3x4", "torus-2x3x2", "hypercube-8", "star-6", "full-4", "dgx-h100", "mi300x", "line-2"]
)
def test_gpus_of_symmetric_machines_move(name):
    topology = Topology.load(name)
    found = finest_translations(topology)
    assert found is not None and found.count == topology.nranks
    check(found)


def test_gpus_of_a_cluster_move():
    found = finest_translations(Topology.load("dgx-h100", hosts=3, network="rail"))
    assert found is not None and found.count == 24
    check(found)


@pytest.mark.parametrize(
    ("name", "hosts", "width"),
    [("dgx1", 1, 4), ("dgx1", 2, 4), ("mi250x", 2, 8), ("teccl-dgx2", 2, 2), ("mesh-2x4", 1, 4), ("line-6", 1, None)],
)
def test_blocks_of_gpus_move_where_single_ones_do_not(name, hosts, width):
    topology = Topology.load(name, hosts=hosts)
    found = finest_translations(topology)
    assert (None if found is None else found.ranks.shape[1]) == width
    if found is not None:
        check(found)


@pytest.mark.parametrize(
    ("name", "count"), [("mesh-4x4", 4), ("mesh-2x3", 2), ("line-6", 2), ("ring-5", 5), ("dgx1", 2), ("mesh-3x3", None)]
)
def test_what_one_automorphism_moves_round(name, count):
    found = cyclic_translations(Topology.load(name))
    assert (None if found is None else found.count) == count
    if found is not None:
        check(found)


def test_none_where_parts_differ():
    assert finest_translations(Topology.load("mesh-3x3")) is None
    assert finest_translations(Topology.load("line-3")) is None
    assert host_translations(Topology.load("dgx-h100")) is None
    assert host_translations(Topology.load("dgx-h100", hosts=6, network="fat-tree")) is None  # leaves of 4 and of 2


def test_a_changed_link_breaks_the_symmetry():
    topology = Topology.load("dgx-a100", hosts=2, network="rail")
    value = topology.to_json()
    value["links"][0]["bandwidth_GBps"] /= 2
    assert host_translations(Topology.from_json(value)) is None


def test_a_path_is_moved_link_by_link():
    topology = Topology.load("torus-3x3")
    found = finest_translations(topology)
    assert found is not None
    first = topology.links[0]
    second = next(link for link in topology.links if link.src == first.dst and link.dst != first.src)
    for moved in found.lifted((first.id, second.id)):
        one, other = (topology.link_by_id[id] for id in moved)
        assert one.dst == other.src
    assert len(set(found.lifted((first.id, second.id)))) == 9

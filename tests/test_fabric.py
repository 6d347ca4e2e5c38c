"""Fabric: hosts joined into clusters."""

import json
from collections import Counter
from cProfile import Profile
from dataclasses import replace
from pstats import Stats

import networkx as nx
import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.topology.builder import Builder
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.fabric import compose, join
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths


def between_hosts(topology):
    """(src, dst, GB/s, α) of the links that are not inside a host."""
    host = {node.id: node.host for node in topology.nodes}
    return sorted(
        (link.src, link.dst, link.bandwidth_GBps, link.alpha_us)
        for link in topology.links
        if host[link.src] != host[link.dst]
    )


def joined(topology):
    """The ordered pairs of ranks that a direct path joins."""
    return {(path.src_rank, path.dst_rank) for path in direct_paths(topology)}


def host_with(nics, **extra):
    """Two GPUs on a PCIe switch with NICs."""
    builder = Builder()
    gpus = [builder.gpu(f"GPU{i}") for i in range(2)]
    switch = builder.node("switch", "PCIe switch")
    for gpu in gpus:
        builder.wire(gpu, switch, 24.0, 0.5, "pcie")
    for i in range(nics):
        builder.wire(builder.node("nic", f"NIC{i}", extra), switch, 24.0, 0.0, "pcie")
    return builder.topology("box")


def test_ranks_are_host_major_and_ids_are_ranks():
    cluster = compose(load("dgx-a100").topology, 3)
    assert cluster.gpus == tuple(range(24))
    assert [cluster.node_by_id[gpu].host for gpu in cluster.gpus] == [rank // 8 for rank in range(24)]
    assert [cluster.node_by_id[gpu].name for gpu in cluster.gpus[8:10]] == ["GPU0", "GPU1"]
    assert cluster.hosts == (0, 1, 2)
    assert len({link.id for link in cluster.links}) == len(cluster.links)


def test_a_rail_joins_the_same_nic_of_every_host():
    cluster = compose(load("dgx-h100").topology, 4, "rail")
    rails = [node for node in cluster.nodes if node.name.startswith("rail")]
    assert len(rails) == 8
    for rail in rails:
        nics = [cluster.node_by_id[link.dst] for link in cluster.links if link.src == rail.id]
        assert [nic.host for nic in nics] == [0, 1, 2, 3]
        assert {nic.name for nic in nics} == {f"NIC{rail.name[4:]}"}
    assert {(GBps, alpha_us) for _, _, GBps, alpha_us in between_hosts(cluster)} == {(48.0, 1.35)}


def test_single_switch_joins_all_nics():
    cluster = compose(load("dgx-a100").topology, 2, "single-switch")
    switches = [node for node in cluster.nodes if node.host < 0]
    assert len(switches) == 1
    assert Counter(src for src, *_ in between_hosts(cluster))[switches[0].id] == 16


@pytest.mark.parametrize(("nics", "switches"), [(1, 1), (3, 3)])
def test_the_default_is_rails_for_several_nics_and_one_switch_for_one(nics, switches):
    cluster = compose(host_with(nics), 2)
    assert sum(node.host < 0 for node in cluster.nodes) == switches
    assert (compose(host_with(nics), 2, "rail") == cluster) == (nics > 1)


def test_crossing_the_network_costs_its_latency_once():
    cluster = compose(host_with(1), 2)
    graph = nx.DiGraph((link.src, link.dst, {"alpha": link.alpha_us}) for link in cluster.links)
    nics = [node.id for node in cluster.nodes if node.kind == "nic"]
    assert nx.shortest_path_length(graph, *nics, weight="alpha") == pytest.approx(2.7)


def test_a_nic_has_its_line_rate_on_the_network():
    assert {GBps for _, _, GBps, _ in between_hosts(compose(host_with(1, line_rate_GBps=12.5), 2))} == {12.5}
    assert {GBps for _, _, GBps, _ in between_hosts(compose(host_with(1), 2))} == {24.0}
    with pytest.raises(InputError, match="line_rate_GBps"):
        compose(host_with(1, line_rate_GBps="fast"), 2)


def test_nics_far_from_every_gpu_take_no_part():
    builder = Builder()
    gpu, near, far = builder.gpu("GPU0"), builder.node("nic", "NIC0"), builder.node("nic", "NIC1")
    cpu = builder.node("cpu", "CPU0")
    builder.wire(gpu, near, 24.0, 0.5)
    builder.wire(gpu, cpu, 24.0, 0.5)
    builder.wire(far, cpu, 24.0, 0.0)
    cluster = compose(builder.topology("box"), 2)
    names = {cluster.node_by_id[src].name for src, *_ in between_hosts(cluster)}
    assert names == {"NIC0", "network"}


def GBps_between(cluster, one, other):
    """Bandwidths of the links from nodes named `one…` to nodes named `other…`."""
    name = {node.id: node.name for node in cluster.nodes}
    return [x.bandwidth_GBps for x in cluster.links if name[x.src].startswith(one) and name[x.dst].startswith(other)]


def test_a_fat_tree_has_leaves_of_four_hosts_under_a_spine():
    board = load("dgx-a100").topology
    cluster = compose(board, 6, "fat-tree")
    assert GBps_between(cluster, "leaf", "spine") == [4 * 8 * 24, 2 * 8 * 24]
    assert GBps_between(compose(board, 6, "fat-tree:4"), "spine", "leaf") == [8 * 24, 2 * 2 * 24]
    assert len(GBps_between(cluster, "NIC", "leaf")) == 6 * 8
    assert GBps_between(compose(board, 4, "fat-tree"), "leaf", "spine") == []


def test_oversubscribed_rails_meet_at_a_spine():
    cluster = compose(load("dgx-h100").topology, 4, "rail:2")
    assert GBps_between(cluster, "rail", "spine") == [4 * 48 / 2] * 8


def test_a_ring_of_hosts_needs_no_switch():
    cluster = compose(load("dgx-a100").topology, 3, "ring")
    assert not [node for node in cluster.nodes if node.host < 0]
    host = {node.id: node.host for node in cluster.nodes}
    assert Counter((host[src], host[dst]) for src, dst, *_ in between_hosts(cluster)) == Counter(
        {(a, b): 4 for a in range(3) for b in range(3) if a != b}
    )
    assert {alpha_us for *_, alpha_us in between_hosts(cluster)} == {2.7}
    assert {b // 8 for a, b in joined(cluster) if a // 8 == 0} == {0, 1, 2}
    four = compose(load("dgx-a100").topology, 4, "ring")
    assert {b // 8 for a, b in joined(four) if a // 8 == 0} == {0, 1, 3}  # no NIC passes on for host 2
    lone = compose(host_with(1), 2, "ring")
    assert len(between_hosts(lone)) == 2


NETWORK = {
    "switches": [
        {"name": "leaf0", "joins": [{"hosts": [0, 1]}]},
        {"name": "leaf1", "joins": [{"hosts": [2], "nics": [0], "bandwidth_GBps": 10, "alpha_us": 0.5}]},
        {"name": "spine"},
    ],
    "wires": [
        {"between": ["leaf0", "spine"], "bandwidth_GBps": 40},
        {"between": ["spine", "leaf1"], "bandwidth_GBps": 20, "alpha_us": 0.1},
    ],
}


def test_a_network_file_says_what_joins_what(tmp_path):
    path = tmp_path / "network.json"
    path.write_text(json.dumps(NETWORK))
    cluster = compose(host_with(2), 3, str(path))
    assert GBps_between(cluster, "NIC", "leaf0") == [24.0] * 4
    assert GBps_between(cluster, "NIC", "leaf1") == [10.0]
    assert GBps_between(cluster, "spine", "leaf") == [40.0, 20.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"switches": 3}, "switches"),
        ({"switches": [{}]}, r"switches\[0\]"),
        ({"switches": [{"name": "a"}, {"name": "a"}]}, "twice"),
        ({"switches": [{"name": "a", "joins": [{"hosts": [9]}]}]}, "none of 0 to 2"),
        ({"switches": [{"name": "a", "joins": [{"nics": [2]}]}]}, "nics of host 0"),
        ({"switches": [{"name": "a", "joins": [7]}], "wires": []}, "hosts and nics"),
        ({"switches": [{"name": "a", "joins": [{"hosts": [0, 0]}]}]}, "hosts: 0 is named twice"),
        ({"switches": [{"name": "a", "joins": [{"nic": [0]}]}]}, "unknown key 'nic'"),
        ({"switches": [{"name": "a", "join": []}]}, "unknown key 'join'"),
        ({"switches": [{"name": "a"}], "wire": []}, "unknown key 'wire'"),
        ({"switches": [{"name": "a"}], "wires": [{"between": ["a", "a"], "bandwidth_GBps": 1}]}, "a to itself"),
        (
            {"switches": [{"name": "a"}, {"name": "b"}], "wires": [{"between": ["a", "b"], "bandwidth_GBps": 0}]},
            r"wires\[0\]: bandwidth_GBps is 0",
        ),
        (
            {"switches": [{"name": "a"}, {"name": "b"}], "wires": [{"between": ["a", "b"], "bandwidth_GBps": 10**400}]},
            r"wires\[0\]: bandwidth_GBps is 1000",
        ),
        ({"switches": [{"name": "a", "joins": [{"alpha_us": float("nan")}]}]}, "alpha_us is nan"),
        ({"wires": [{"between": ["leaf0", "attic"], "bandwidth_GBps": 1}]}, r"wires\[0\]"),
        ({"wires": [{"between": ["leaf0", "spine"]}]}, "bandwidth_GBps"),
        ({"wires": []}, "disconnected"),
    ],
)
def test_bad_network_files_are_refused(tmp_path, change, said):
    path = tmp_path / "network.json"
    path.write_text(json.dumps({**NETWORK, **change}))
    with pytest.raises(InputError, match=said):
        compose(host_with(2), 3, str(path))


@pytest.mark.parametrize("network", ["rail:0.5", "ring:2", "fat-tree:", "fat-tree:-1", "nowhere.json"])
def test_bad_spellings_of_networks(network):
    with pytest.raises(InputError, match="network"):
        compose(host_with(2), 2, network)


def test_hosts_of_one_nvlink_domain_share_their_nvswitch():
    builder = Builder()
    gpus = [builder.gpu(f"GPU{i}") for i in range(4)]
    switch = builder.node("switch", "NVSwitch", {"nvlink_domain": "ab/1"})
    for gpu in gpus:
        builder.wire(gpu, switch, 721.8, 0.3, "nvlink")
    cluster = compose(builder.topology("tray"), 18)
    assert cluster.nranks == 72
    assert [node.kind for node in cluster.nodes[72:]] == ["switch"]


def test_ndv2_of_te_ccl_brings_its_own_network():
    two = load("teccl-ndv2", hosts=2).topology
    assert between_hosts(two) == [(0, 9, 12.5, 1.3), (8, 1, 12.5, 1.3)]
    four = load("teccl-ndv2", hosts=4).topology
    up = [(8 * host, 32, 12.5, 1.3) for host in range(4)]
    down = [(32, 8 * host + 1, 12.5, 1.3) for host in range(4)]
    assert between_hosts(four) == sorted(up + down)
    assert "network" not in four.extra


def test_dgx2_of_te_ccl_joins_odd_gpus_to_even_ones():
    cluster = load("teccl-dgx2", hosts=2).topology
    there = [(i, 16 + i - 1, 12.5, 2.6) for i in range(1, 16, 2)]
    back = [(16 + i, i - 1, 12.5, 2.6) for i in range(1, 16, 2)]
    assert between_hosts(cluster) == sorted(there + back)
    with pytest.raises(InputError, match="at most 2"):
        load("teccl-dgx2", hosts=3)


def test_different_hosts_meet_on_the_rails_they_have():
    cluster = join([load("dgx-a100").topology, load("p4d").topology])
    assert cluster.nranks == 16
    members = Counter(src for src, *_ in between_hosts(cluster) if cluster.node_by_id[src].host < 0)
    assert sorted(members.values()) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert cluster.threadblock_GBps == 24.0


def test_one_host_is_left_as_it_is():
    host = load("dgx1").topology
    assert compose(host, 1) is host


@pytest.mark.parametrize(
    ("name", "hosts", "network", "said"),
    [
        ("dgx1", 0, None, "at least 1"),
        ("dgx1", -3, None, "at least 1"),
        ("dgx1", 10**6, None, "at most"),
        ("dgx1", 2, "torus", "rail, fat-tree, single-switch, ring"),
        ("dgx1", 1, "torus", "rail, fat-tree, single-switch, ring"),
        ("star-4", 2, None, "no NIC"),
        ("teccl-ndv2", 2, "rail", "no NIC"),
        ("teccl-dgx1", 2, None, "no NIC"),
    ],
)
def test_what_cannot_be_composed(name, hosts, network, said):
    with pytest.raises(InputError) as refusal:
        compose(load(name).topology, hosts, network)
    assert said in str(refusal.value)


def test_a_cluster_is_not_composed_again():
    with pytest.raises(InputError, match="already 2 hosts"):
        compose(load("dgx1x2").topology, 2)


@pytest.mark.parametrize(
    "network",
    [
        5,
        [3],
        [{}],
        [{"most_hosts": "2", "links": []}],
        [{"links": [{"src": 0, "dst": 99, "bandwidth_GBps": 1, "alpha_us": 0}]}],
        [{"links": [{"src": 0, "dst": 1, "alpha_us": 0}]}],
        [{"links": [7]}],
        [{"switch": "IB", "up": [{"rank": 0, "bandwidth_GBps": 1, "alpha_us": 0}]}],
        [{"links": []}],  # joins nothing
    ],
)
def test_bad_wirings_are_refused(network):
    host = replace(load("ring-4").topology, extra={"network": network})
    with pytest.raises(InputError):
        compose(host, 2)


def test_twice_the_hosts_are_composed_with_twice_the_work():
    host = load("dgx-h100").topology

    def calls(hosts):
        profile = Profile()
        profile.runcall(compose, host, hosts)
        return Stats(profile).total_calls

    assert compose(host, 128).nranks == 1024
    assert calls(128) < 2.5 * calls(64)


def test_a_composed_cluster_survives_json(tmp_path):
    cluster = load("ndv2x2").topology
    cluster.write(tmp_path / "cluster.json")
    assert Topology.read(tmp_path / "cluster.json") == cluster

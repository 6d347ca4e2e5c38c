"""Direct paths between GPUs: the rules of choice, ties, and that large machines are quick."""

import time

import pytest

from teccl_msccl.topology.model import Link, Node, Topology
from teccl_msccl.topology.paths import MAX_PATHS_PER_PAIR, Path, direct_paths


def machine(nodes: str, links: list[tuple]) -> Topology:
    """`nodes`: one letter a node, g(pu), s(witch), n(ic), c(pu); `links`: (src, dst, GB/s, α), both directions."""
    kinds = {"g": "gpu", "s": "switch", "n": "nic", "c": "cpu"}
    ranks = iter(range(len(nodes)))
    made = tuple(Node(i, kinds[k], rank=next(ranks) if k == "g" else None) for i, k in enumerate(nodes))
    both = [link for a, b, bw, alpha in links for link in ((a, b, bw, alpha), (b, a, bw, alpha))]
    return Topology("machine", made, tuple(Link(i, *link) for i, link in enumerate(both)))


def hosts(count: int, gpus: int = 8) -> Topology:
    """DGX-H100-like hosts: an NVSwitch, a PCIe switch and a NIC per GPU, two CPUs; NICs on rails."""
    nodes, links = [], []

    def node(kind, host, rank=None):
        nodes.append(Node(len(nodes), kind, rank=rank, host=host))
        return len(nodes) - 1

    def join(a, b, bandwidth, alpha, kind):
        links.append(Link(len(links), a, b, bandwidth, alpha, kind))
        links.append(Link(len(links), b, a, bandwidth, alpha, kind))

    rails = [node("switch", 0) for _ in range(gpus)]
    for host in range(count):
        nvswitch, *cpus = node("switch", host), node("cpu", host), node("cpu", host)
        join(*cpus, 22, 1.0, "socket")
        for i in range(gpus):
            gpu = node("gpu", host, host * gpus + i)
            pcie, nic = node("switch", host), node("nic", host)
            join(gpu, nvswitch, 370, 0.3, "nvlink")
            join(gpu, pcie, 48, 0.5, "pcie")
            join(pcie, nic, 48, 0.5, "pcie")
            join(pcie, cpus[2 * i // gpus], 48, 0.5, "pcie")
            join(nic, rails[i], 48, 1.35, "network")
    return Topology("hosts", tuple(nodes), tuple(links))


def between(topology: Topology, src: int, dst: int) -> list[tuple[int, ...]]:
    return [path.links for path in direct_paths(topology) if (path.src_rank, path.dst_rank) == (src, dst)]


def test_a_link_between_two_gpus_is_a_path():
    topology = machine("gg", [(0, 1, 25, 0.7)])
    assert direct_paths(topology) == (Path((0,), 0, 1, 0.7, 25), Path((1,), 1, 0, 0.7, 25))


def test_a_pair_that_only_a_gpu_joins_is_absent():
    topology = machine("ggg", [(0, 1, 25, 0.7), (1, 2, 25, 0.7)])
    assert between(topology, 0, 2) == []
    assert len(direct_paths(topology)) == 4


def test_parallel_links_are_each_a_path_even_when_one_is_narrower():
    topology = machine("gg", [(0, 1, 25, 0.7), (0, 1, 50, 0.7), (0, 1, 50, 0.9)])
    assert between(topology, 0, 1) == [(0,), (2,), (4,)]


@pytest.mark.parametrize(
    ("through_2", "through_3", "expected"),
    [
        pytest.param((50, 9.0), (25, 0.1), [(0, 2)], id="wider first, whatever its alpha"),
        pytest.param((50, 0.2), (50, 0.1), [(4, 6)], id="then the least alpha"),
        pytest.param((50, 0.1), (50, 0.1), [(0, 2), (4, 6)], id="ties are all kept"),
    ],
)
def test_the_best_of_two_switches(through_2, through_3, expected):
    topology = machine("ggss", [(0, 2, *through_2), (2, 1, *through_2), (0, 3, *through_3), (3, 1, *through_3)])
    assert between(topology, 0, 1) == expected


def test_fewest_links_break_a_tie_of_alpha():
    topology = machine("ggsss", [(0, 2, 50, 0.5), (2, 1, 50, 0.5), (0, 3, 50, 0.5), (3, 4, 50, 0), (4, 1, 50, 0.5)])
    assert between(topology, 0, 1) == [(0, 2)]


def test_alphas_that_sum_differently_in_floating_point_still_tie():
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    up = [(0, 2, 9, 0.1), (2, 3, 9, 0.2), (3, 1, 9, 0.3)]
    down = [(0, 4, 9, 0.3), (4, 5, 9, 0.2), (5, 1, 9, 0.1)]
    assert len(between(machine("ggssss", up + down), 0, 1)) == 2


def test_a_wide_switch_beats_a_narrow_link():
    topology = machine("ggs", [(0, 1, 12, 0.1), (0, 2, 300, 0.6), (2, 1, 300, 0.6)])
    assert between(topology, 0, 1) == [(2, 4)]


def test_many_ties_are_cut_down_and_rotated():
    sides = [(a, b, 10, 0.1) for a, b in [*((0, i) for i in range(3, 23)), *((i, 1) for i in range(3, 23))]]
    sides += [(2, i, 10, 0.1) for i in range(3, 23)]
    topology = machine("ggg" + "s" * 20, sides)
    for src, dst in ((0, 1), (0, 2), (1, 2)):
        assert len(set(between(topology, src, dst))) == MAX_PATHS_PER_PAIR
    first_hop = {links[0] // 2 % 20 for links in between(topology, 0, 1)}
    assert first_hop != {links[0] // 2 % 20 for links in between(topology, 0, 2)}
    assert direct_paths(topology) == direct_paths.__wrapped__(topology)


def test_pairs_limit_the_answer():
    topology = hosts(2)
    some = direct_paths(topology, frozenset({(3, 1), (0, 9)}))
    assert some == tuple(p for p in direct_paths(topology) if (p.src_rank, p.dst_rank) in {(3, 1), (0, 9)})


def test_hosts_use_nvswitch_inside_and_their_rail_outside():
    topology = hosts(2)
    kinds = [topology.link_by_id[id].kind for id in between(topology, 0, 5)[0]]
    assert kinds == ["nvlink", "nvlink"]
    (rail,) = between(topology, 3, 11)
    assert [topology.link_by_id[id].kind for id in rail] == ["pcie", "pcie", "network", "network", "pcie", "pcie"]
    across = next(p for p in direct_paths(topology) if (p.src_rank, p.dst_rank) == (0, 9))
    assert across.bandwidth_GBps == 48  # over a PCIe switch of the same socket, on either side
    assert across.alpha_us == pytest.approx(2.7 + 4 * 0.5 + 2 * 0.5)


def test_64_gpus_are_quick():
    topology = hosts(8)
    begin = time.perf_counter()
    paths = direct_paths.__wrapped__(topology)
    assert {(p.src_rank, p.dst_rank) for p in paths} == {(a, b) for a in range(64) for b in range(64) if a != b}
    assert time.perf_counter() - begin < 4  # 0.5 s alone

"""Catalog: generators, presets, files, and names that are none of these."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.topology import catalog
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths

ROOT = Path(__file__).resolve().parents[1]


def wires(topology):
    return Counter((link.src, link.dst) for link in topology.links)


def both_ways(pairs):
    return Counter(wire for a, b in pairs for wire in ((a, b), (b, a)))


GENERATED = {
    "ring-2": (2, both_ways([(0, 1)])),
    "ring-5": (5, both_ways([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)])),
    "line-3": (3, both_ways([(0, 1), (1, 2)])),
    "full-3": (3, both_ways([(0, 1), (0, 2), (1, 2)])),
    "mesh-2x3": (6, both_ways([(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)])),
    "torus-3x2": (6, both_ways([(0, 1), (2, 3), (4, 5), (0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)])),
    "hypercube-4": (4, both_ways([(0, 1), (2, 3), (0, 2), (1, 3)])),
    "star-2": (2, both_ways([(0, 2), (1, 2)])),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generators_make_exactly_their_graphs(name):
    nranks, expected = GENERATED[name]
    topology = load(name).topology
    assert topology.nranks == nranks
    assert topology.gpus == tuple(range(nranks))
    assert wires(topology) == expected
    alpha_us = 0.25 if name.startswith("star") else 0.5
    assert {(link.bandwidth_GBps, link.alpha_us) for link in topology.links} == {(50.0, alpha_us)}


@pytest.mark.parametrize(("cube", "grid"), [("hypercube-8", "torus-2x2x2"), ("torus-2x2x2", "mesh-2x2x2")])
def test_an_extent_of_two_has_no_double_links(cube, grid):
    assert wires(load(cube).topology) == wires(load(grid).topology)


def test_torus_degrees():
    assert Counter(link.src for link in load("torus-4x3x5").topology.links) == dict.fromkeys(range(60), 6)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ring-1", "at least 2"),
        ("ring-0", "at least 2"),
        ("star-1", "at least 2"),
        ("mesh-1x1", "at least 2"),
        ("mesh-0x3", "at least 1"),
        ("hypercube-6", "power of two"),
        ("full-100000", "at most"),
        ("full-3000", "links"),
        ("torus-999999999x999999999", "at most"),
        ("local", "nvidia-smi topo -m"),
        ("", "no such topology"),
        ("dgx-a10", "did you mean dgx-a100?"),
        ("dgx-a10x2", "did you mean dgx-a100?"),
        ("rings-8", "did you mean ring-8?"),
        ("mesh-3x", "torus-AxB[xC]"),
        ("dgx1x0", "at least 1"),
        ("ring-8x2", "no NIC"),
        ("no/such/file.json", "no such topology or file"),
        ("a\0b", "no such topology or file"),
        ("x" * 5000, "no such topology or file"),
    ],
)
def test_names_that_cannot_be_used(name, said):
    with pytest.raises(InputError) as refusal:
        load(name)
    assert said in str(refusal.value)


def test_names_are_case_insensitive_and_say_hosts():
    assert load("DGX-A100X2").topology == load("dgx-a100", hosts=2).topology
    assert load("dgx-a100x2", hosts=2).topology.name == "dgx-a100x2"
    assert load(" Ring-8 ").topology == load("ring-8").topology
    with pytest.raises(InputError, match="2 hosts by its name, but 3"):
        load("dgx-a100x2", hosts=3)


@pytest.mark.parametrize("name", sorted(catalog.presets()))
def test_every_preset_names_its_source_and_is_symmetric(name):
    topology = catalog.presets()[name].topology
    assert topology.name == name
    assert topology.source
    assert topology.gpus == tuple(range(topology.nranks))
    there = Counter((link.src, link.dst, link.bandwidth_GBps, link.alpha_us) for link in topology.links)
    back = Counter((link.dst, link.src, link.bandwidth_GBps, link.alpha_us) for link in topology.links)
    assert there == back


def nvlink_GBps(topology):
    """Each GPU's NVLink bandwidth out."""
    out = Counter()
    for link in topology.links:
        if link.kind == "nvlink" and link.src < topology.nranks:
            out[link.src] += link.bandwidth_GBps
    return out


@pytest.mark.parametrize(
    ("name", "nranks", "per_gpu", "nics", "nic_GBps", "threadblock"),
    [
        ("dgx1", 8, 6 * 20, 4, 12, 20),
        ("ndv2", 8, 6 * 20, 1, 12, 20),
        ("dgx-a100", 8, 12 * 20, 8, 24, 24),
        ("ndv4", 8, 12 * 20, 8, 24, 24),
        ("p4d", 8, 12 * 20, 4, 12, 24),
        ("dgx-h100", 8, 18 * 20.6, 8, 48, 40),
        ("ndv5", 8, 18 * 20.6, 8, 48, 40),
        ("p5", 8, 18 * 20.6, 8, 48, 40),
        ("dgx2", 16, 6 * 20, 8, 12, 20),
        ("hgx-b200", 8, 18 * 40.1, 8, 48, 40),
        ("gb200-nvl72", 72, 18 * 40.1, 72, 48, 40),
        ("a100x4", 4, 12 * 20, 4, 24, 24),
        ("teccl-dgx1", 8, 6 * 25, 0, None, None),
        ("teccl-ndv2", 8, 6 * 25, 0, None, None),
        ("teccl-dgx2", 16, 125, 0, None, None),
    ],
)
def test_boards_have_their_figures(name, nranks, per_gpu, nics, nic_GBps, threadblock):
    topology = load(name).topology
    assert topology.nranks == nranks
    assert nvlink_GBps(topology) == pytest.approx(dict.fromkeys(range(nranks), per_gpu))
    rates = [node.extra["line_rate_GBps"] for node in topology.nodes if node.kind == "nic"]
    assert rates == [nic_GBps] * nics
    assert topology.threadblock_GBps == threadblock


def direct_GBps(topology):
    """Each GPU's bandwidth to other GPUs by direct links."""
    out = Counter()
    for link in topology.links:
        if max(link.src, link.dst) < topology.nranks:
            out[link.src] += link.bandwidth_GBps
    return sorted(set(out.values()))


def test_amd_boards_and_the_papers_constants():
    assert direct_GBps(load("mi300x").topology) == [7 * 48]
    assert direct_GBps(load("mi250x").topology) == [7 * 36]
    assert direct_GBps(load("teccl-amd").topology) == [7 * 50]
    assert direct_GBps(load("taccl-ndv2").topology) == pytest.approx([2 * 1000 / 23 + 2 * 1000 / 46], rel=1e-4)
    assert [path.bandwidth_GBps for path in direct_paths(load("taccl-dgx2").topology)[:1]] == [125]


def test_the_papers_clusters_cross_as_they_say():
    for name, alpha_us, GBps in (
        ("teccl-amd", 4 * 0.75, 25),
        ("taccl-ndv2", 2.6, 1000 / 105),
        ("taccl-dgx2", 2.6, 1000 / 105),
    ):
        cluster = load(name, hosts=2).topology
        far = cluster.nranks - 1
        (path, *_) = direct_paths(cluster, frozenset({(0, far)}))
        assert path.alpha_us == pytest.approx(alpha_us)
        assert path.bandwidth_GBps == pytest.approx(GBps, rel=1e-4)


@pytest.mark.parametrize("name", ["mi250x", "mi300x", "pcie-gen4", "gb200-nvl72", "a100x4", "dgx2"])
def test_boards_with_nics_compose(name):
    assert load(f"{name}x2").topology.nranks == 2 * load(name).topology.nranks


def test_gpus_that_share_a_pcie_switch_share_its_uplink():
    topology = load("dgx-a100").topology
    kind = {node.id: node.kind for node in topology.nodes}
    for link in topology.links:
        if kind[link.src] == "switch" and kind[link.dst] == "cpu":
            below = Counter(kind[other.dst] for other in topology.links if other.src == link.src)
            assert below == {"gpu": 2, "nic": 2, "cpu": 1}
            assert link.bandwidth_GBps == 24


def test_files_are_told_by_their_content(tmp_path):
    capture = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path = tmp_path / f"{encoding}.topo.txt"
        path.write_bytes(capture.encode(encoding))
        assert load(str(path)).topology.nranks == 2
        assert load(str(path)).topology.name == encoding
    machine = tmp_path / "machine"
    load("ring-4").topology.write(machine)
    assert load(str(machine)).topology == load("ring-4").topology


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no GPU rows"),
        (b"\x7fELF\x00\x01\xff\xfe", "not text"),
        (b"GPU0\0X", "binary"),
        (b"\xff\xfe\x00", "GPU rows"),
        (b"<system version='1'/>", "no GPU in the PCI tree"),
        (b'{"nodes": ', "not JSON"),
        (b"hello\n" * 400_000, "characters"),
    ],
)
def test_files_that_are_neither(tmp_path, data, said):
    path = tmp_path / "thing"
    path.write_bytes(data)
    with pytest.raises(InputError) as refusal:
        load(str(path))
    assert said in str(refusal.value)
    assert "thing" in str(refusal.value)


def test_directories_and_dangling_links(tmp_path):
    with pytest.raises(InputError, match="directory"):
        load(str(tmp_path))
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot read"):
        load(str(tmp_path / "dangling"))


def test_presets_are_found_where_the_package_is_installed(tmp_path):
    """As the wheel lays them out: inside the package, away from this checkout."""
    package = tmp_path / "teccl_msccl"
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "teccl_msccl" / "topology", package / "topology", ignore=skip)
    shutil.copytree(ROOT / "topologies", package / "topologies")
    for name in ("__init__.py", "errors.py", "files.py"):
        shutil.copy(ROOT / "teccl_msccl" / name, package / name)
    script = "from teccl_msccl.topology.catalog import load; print(load('dgx-a100x2').topology.nranks)"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "16\n", result.stderr


def test_topology_load_is_the_catalog():
    assert Topology.load("dgx-a100", hosts=2) == load("dgx-a100x2").topology


def test_a_json_that_is_no_topology_is_called_so(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[]")
    with pytest.raises(InputError, match="a topology is an object"):
        load(str(path))

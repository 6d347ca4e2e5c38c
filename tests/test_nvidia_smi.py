"""nvidia_smi: what captures of boards mean; pasted ones are in test_nvidia_smi_text."""

import pytest
from captures import CUBE_MESH, capture, cube_mesh, devices, links, names

from teccl_msccl.topology.detect.nvidia_smi import parse

# -- what boards mean ----------------------------------------------------------------------------------------


def test_a_cube_mesh_has_direct_links():
    detected = parse(capture(8, cube_mesh, affinity=lambda gpu: f"{gpu // 4}"))
    nvlinks = links(detected, "nvlink")
    expected = {(f"GPU{i}", f"GPU{j}"): 20.0 * n for (i, j), n in CUBE_MESH.items()}
    assert nvlinks == {**expected, **{(b, a): GBps for (a, b), GBps in expected.items()}}
    assert {link.alpha_us for link in detected.topology.links if link.kind == "nvlink"} == {0.6}
    assert len(names(detected, "cpu")) == 2
    assert detected.topology.threadblock_GBps == 20


@pytest.mark.parametrize(
    ("ngpus", "nv", "per_gpu", "threadblock"),
    [(16, 6, 120.0, 20.0), (8, 12, 240.0, 24.0), (4, 12, 240.0, 24.0), (8, 8, 164.8, 40.0), (8, 18, 370.8, 40.0)],
)
def test_more_links_than_a_gpu_has_mean_an_nvswitch(ngpus, nv, per_gpu, threadblock):
    detected = parse(capture(ngpus, lambda i, j: f"NV{nv}"))
    up = {(f"GPU{i}", "NVSwitch"): per_gpu for i in range(ngpus)}
    assert links(detected, "nvlink") == {**up, **{(b, a): GBps for (a, b), GBps in up.items()}}
    assert {link.alpha_us for link in detected.topology.links if link.kind == "nvlink"} == {0.3}
    assert detected.topology.threadblock_GBps == threadblock
    assert not devices(detected, "fault")


@pytest.mark.parametrize(
    ("ngpus", "nv", "GBps"), [(4, 4, 80.0), (2, 4, 48.0), (2, 12, 240.0), (4, 6, 123.6), (2, 2, 40.0)]
)
def test_no_more_links_than_a_gpu_has_are_direct(ngpus, nv, GBps):
    detected = parse(capture(ngpus, lambda i, j: f"NV{nv}"))
    assert names(detected, "switch") == []
    assert set(links(detected, "nvlink").values()) == {GBps}
    assert len(links(detected, "nvlink")) == ngpus * (ngpus - 1)


@pytest.mark.parametrize(
    ("model", "nv", "switched", "per_link"),
    [
        ("NVIDIA A800-SXM4-80GB", 8, True, 20.0),
        ("NVIDIA B200", 18, True, 40.1),
        ("Tesla V100-SXM3-32GB", 6, True, 20.0),
        ("NVIDIA H100 80GB HBM3", 6, False, 20.6),
        ("Tesla P100-SXM2-16GB", 1, False, 18.0),
    ],
)
def test_the_gpu_model_decides_where_the_counts_do_not(model, nv, switched, per_link):
    listing = "".join(f"GPU {i}: {model} (UUID: GPU-{i})\n" for i in range(4))
    detected = parse(listing + capture(4, lambda i, j: f"NV{nv}"))
    assert names(detected, "switch") == ["NVSwitch"] * switched
    assert set(links(detected, "nvlink").values()) == {round(nv * per_link, 3)}
    assert any(model in finding.text for finding in detected.findings)


def test_grace_cpus_tell_a_gb200_tray():
    text = capture(4, lambda i, j: "NV18", affinity=lambda gpu: ("0-71\t0", "72-143\t1")[gpu // 2])
    detected = parse(text)
    assert set(links(detected, "nvlink").values()) == {721.8}
    assert any("72 GPUs" in finding.text for finding in detected.findings)


def test_a_gpu_off_the_fabric_is_a_fault():
    detected = parse(capture(8, lambda i, j: "SYS" if 5 in (i, j) else "NV12"))
    assert devices(detected, "fault") == ["GPU5"]
    assert len(links(detected, "nvlink")) == 2 * 7
    assert detected.topology.nranks == 8


def test_a_gpu_with_fewer_links_than_its_siblings_is_a_fault():
    detected = parse(capture(8, lambda i, j: "NV17" if 2 in (i, j) else "NV18"))
    assert devices(detected, "fault") == ["GPU2"]
    assert links(detected, "nvlink")["GPU2", "NVSwitch"] == pytest.approx(17 * 20.6)


def test_two_nvswitch_partitions():
    detected = parse(capture(8, lambda i, j: "NV12" if i // 4 == j // 4 else "SYS"))
    assert names(detected, "switch") == ["NVSwitch0", "NVSwitch1"]


def test_a_gpu_beside_a_bridged_pair_is_no_fault():
    detected = parse(capture(3, lambda i, j: "NV4" if j < 2 else "NODE"))
    assert devices(detected, "fault") == []
    assert devices(detected, "warning").count("GPU2") == 1


def test_line_rates_of_nvlink_s_are_used():
    status = "".join(
        f"GPU {i}: NVIDIA GeForce RTX 3090 (UUID: GPU-{i})\n" + "\t Link 0: 14.062 GB/s\n" * 4 for i in range(2)
    )
    assert set(links(parse(status + capture(2, lambda i, j: "NV4")), "nvlink").values()) == {56.248}
    inactive = status.replace("Link 0: 14.062 GB/s\n\t", "Link 0: <inactive>\n\t", 1)
    assert "GPU0" in devices(parse(inactive + capture(2, lambda i, j: "NV4")), "warning")


# -- PCIe ----------------------------------------------------------------------------------------------------


def test_pix_shares_a_switch_and_sys_crosses_sockets():
    detected = parse(capture(4, lambda i, j: "PIX" if i // 2 == j // 2 else "SYS", affinity=lambda gpu: f"{gpu // 2}"))
    pcie = links(detected, "pcie")
    assert {a for a, b in pcie if b == "PCIe switch 0"} == {"GPU0", "GPU1", "CPU0"}
    assert {a for a, b in pcie if b == "PCIe switch 1"} == {"GPU2", "GPU3", "CPU1"}
    assert set(links(detected, "socket")) == {("CPU0", "CPU1"), ("CPU1", "CPU0")}


def test_pxb_joins_the_switches_of_pix_below_one_uplink():
    level = {(0, 1): "PIX", (2, 3): "PIX"}
    pcie = links(parse(capture(4, lambda i, j: level.get((i, j), "PXB"))), "pcie")
    uplinks = {a for a, b in pcie if b.startswith(("CPU", "NUMA"))}
    assert uplinks == {"PCIe switch 0"}
    assert {a for a, b in pcie if b == "PCIe switch 0"} == {"PCIe switch 1", "PCIe switch 2", "NUMA node 0"}


def test_phb_goes_through_the_cpu():
    detected = parse(capture(4, lambda i, j: "PHB"))
    assert names(detected, "switch") == []
    assert {b for _, b in links(detected, "pcie") if not b.startswith("GPU")} == {"NUMA node 0"}


def test_nics_hang_where_their_gpus_do():
    def cell(i, j):
        if j < 4:
            return "NV12"
        if i < 4:
            return "PXB" if i // 2 == j - 4 else "SYS"
        return "SYS"

    text = capture(4, cell, nics=("mlx5_0", "mlx5_1", "mlx5_2"), affinity=lambda gpu: f"{gpu // 2}")
    detected = parse(text)
    pcie = links(detected, "pcie")
    assert {a for a, b in pcie if b == "PCIe switch 0"} == {"GPU0", "GPU1", "mlx5_0", "CPU0"}
    assert {a for a, b in pcie if b == "PCIe switch 1"} == {"GPU2", "GPU3", "mlx5_1", "CPU1"}
    assert ("mlx5_2", "CPU2") in pcie
    assert "mlx5_2" in devices(detected, "info")


def test_nic_legend_names_the_device():
    text = capture(2, lambda i, j: "PHB", nics=("NIC0",)) + "\nNIC Legend:\n\n  NIC0: rocep49s0\n"
    nic = next(node for node in parse(text).topology.nodes if node.kind == "nic")
    assert (nic.name, nic.extra["device"]) == ("NIC0", "rocep49s0")


def test_a_virtual_machine_with_one_affinity_for_all_keeps_its_sockets_apart():
    detected = parse(capture(8, cube_mesh, affinity=lambda gpu: "0-95"))
    assert len(names(detected, "cpu")) == 2
    assert sum("virtual machine" in finding.text for finding in detected.findings) == 1


@pytest.mark.parametrize(("status", "level"), [("OK", "info"), ("GNS", "warning"), ("CNS", "warning")])
def test_peer_to_peer_status_is_reported(status, level):
    p2p = (
        f" \tGPU0\tGPU1\t\n GPU0\tX\t{status}\t\n GPU1\t{status}\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
    )
    detected = parse(capture(2, lambda i, j: "PHB") + "nvidia-smi topo -p2p r\n" + p2p)
    assert detected.topology.nranks == 2
    found = [finding for finding in detected.findings if "peer-to-peer" in finding.text]
    assert [(finding.level, finding.device) for finding in found] == [(level, "GPU0")]
    other = parse(capture(2, lambda i, j: "PHB") + "nvidia-smi topo -p2p n\n" + p2p)
    assert not any("peer-to-peer" in finding.text for finding in other.findings)


def test_mig_is_reported():
    listing = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n  MIG 3g.20gb     Device  0: (UUID: MIG-0)\n"
    assert devices(parse(listing + capture(2, lambda i, j: "NV12")), "warning") == ["GPU0"]


def test_a_single_gpu():
    detected = parse("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n")
    assert detected.topology.nranks == 1

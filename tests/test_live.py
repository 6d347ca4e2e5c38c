"""Live detection: the unmodified NVML binding on a small libnvidia-ml.so.1 that answers from a table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.topology.detect import amd, live
from teccl_msccl.topology.detect.pci_tree import lanes_GBps
from teccl_msccl.topology.detect.sysfs import pci_tree, rdma_nics

ROOT = Path(__file__).resolve().parents[1]
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The folder of the compiled library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the stand-in for libnvidia-ml.so.1 with")
    folder = tmp_path_factory.mktemp("nvml")
    source = ROOT / "tests" / "fake_nvml" / "nvml.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return folder


@pytest.fixture
def on_machine(library, tmp_path):
    """Detect the machine that a table and a /sys folder describe: exit code and the printed JSON object."""

    def run(table, sys_root=None, command=("topo", "show", "local")):
        (tmp_path / "table").write_text("\n".join(table) + "\n")
        script = (
            "import sys; from pathlib import Path; from teccl_msccl.topology.detect import sysfs, live\n"
            f"live.detect.__defaults__ = (Path({str(sys_root or tmp_path / 'nothing')!r}),)\n"
            "from teccl_msccl.cli import main; main(sys.argv[1:])"
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(tmp_path / "table")}
        environment["PATH"] = str(tmp_path)  # no nvidia-smi
        result = subprocess.run(
            [sys.executable, "-c", script, *command, "--json"],
            env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in result.stderr
        return result.returncode, json.loads(result.stdout)

    return run


def address(gpu):
    return f"0000:{0x10 + gpu:02X}:00.0"


def gpus(count, sm, generation, name, width=16):
    return [f"gpu {i} 0000{address(i)} {sm} {generation} {width} {name}" for i in range(count)]


def switched(ngpus, nlinks, without=()):
    return [f"link {i} {k} switch" for i in range(ngpus) if i not in without for k in range(nlinks)]


def links(answer, kind):
    """(one name, other name) → GB/s of the links of a kind."""
    name = {node["id"]: node["name"] for node in answer["nodes"]}
    return {
        (name[x["src"]], name[x["dst"]]): x["bandwidth_GBps"] for x in answer["links"] if x.get("kind") == kind
    }  # fmt: skip


def texts(answer, level):
    return [(finding["device"], finding["text"]) for finding in answer["findings"] if finding["level"] == level]


def sysfs_of(folder, devices, rdma=(), numa=None):
    """A /sys with devices at PCI paths ("0000:00:01.0/0000:10:00.0"), RDMA devices, and NUMA nodes by host bridge."""
    bus = folder / "bus" / "pci" / "devices"
    bus.mkdir(parents=True)
    for bridge, path in devices:
        place = folder / "devices" / f"pci{bridge}"
        for part in path.split("/"):
            place = place / part
            place.mkdir(parents=True, exist_ok=True)
            (place / "max_link_speed").write_text("16.0 GT/s PCIe\n")
            (place / "current_link_width").write_text("16\n")
            (place / "numa_node").write_text(f"{(numa or {}).get(bridge, -1)}\n")
            if not (bus / part).exists():
                (bus / part).symlink_to(place)
    for name, where, rate, state in rdma:
        port = folder / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{rate} Gb/sec (4X)\n")
        (port / "state").write_text(f"{state}\n")
        (folder / "class" / "infiniband" / name / "device").symlink_to(bus / where)
    return folder


# -- machines ------------------------------------------------------------------------------------------------


def test_v100_cube_mesh(on_machine):
    table, used = gpus(8, 70, 3, "Tesla V100-SXM2-16GB"), dict.fromkeys(range(8), 0)
    for (one, other), count in CUBE_MESH.items():
        for _ in range(count):
            for here, there in ((one, other), (other, one)):
                table.append(f"link {here} {used[here]} gpu 0000{address(there)}")
                used[here] += 1
    table += [f"ancestor {i} {j} {20 if i // 4 == j // 4 else 50}" for i in range(8) for j in range(i + 1, 8)]
    code, answer = on_machine(table)
    assert (code, answer["nranks"], answer["threadblock_GBps"]) == (0, 8, 20.0)
    expected = {(f"GPU{i}", f"GPU{j}"): 20.0 * n for (i, j), n in CUBE_MESH.items()}
    assert links(answer, "nvlink") == {**expected, **{(b, a): GBps for (a, b), GBps in expected.items()}}
    assert set(links(answer, "pcie").values()) == {12.0}
    assert len([node for node in answer["nodes"] if node["kind"] == "cpu"]) == 2
    assert not texts(answer, "fault") + texts(answer, "warning")


def test_a100_with_nvswitch_whose_idle_pcie_links_are_slow(on_machine):
    code, answer = on_machine(gpus(8, 80, 4, "NVIDIA A100-SXM4-40GB") + switched(8, 12))
    up = {(f"GPU{i}", "NVSwitch"): 240.0 for i in range(8)}
    assert code == 0
    assert links(answer, "nvlink") == {**up, **{(b, a): GBps for (a, b), GBps in up.items()}}
    assert set(links(answer, "pcie").values()) == {24.0}


def test_h100_with_nvswitch_and_eight_nics_in_the_pci_tree(on_machine, tmp_path):
    bridge = [f"0000:{0xA0 + i:02x}" for i in range(8)]
    devices = []
    for i in range(8):
        switch = f"{bridge[i]}:01.0/0000:{0xB0 + i:02x}:00.0"
        devices += [(bridge[i], f"{switch}/{address(i).lower()}"), (bridge[i], f"{switch}/0000:{0xC0 + i:02x}:00.0")]
    devices.append((bridge[0], f"{bridge[0]}:02.0/0000:f0:00.0"))
    rdma = [(f"mlx5_{i}", f"0000:{0xC0 + i:02x}:00.0", 400, "4: ACTIVE") for i in range(8)]
    rdma.append(("mlx5_8", "0000:f0:00.0", 100, "1: DOWN"))
    root = sysfs_of(tmp_path / "sys", devices, rdma, numa={at: i // 4 for i, at in enumerate(bridge)})
    code, answer = on_machine(gpus(8, 90, 5, "NVIDIA H100 80GB HBM3") + switched(8, 18), root)
    assert code == 0
    assert set(links(answer, "nvlink").values()) == {370.8}
    nics = {node["name"]: node["line_rate_GBps"] for node in answer["nodes"] if node["kind"] == "nic"}
    assert nics == {f"mlx5_{i}": 50.0 for i in range(8)}
    pcie = links(answer, "pcie")
    for i in range(8):
        assert (f"GPU{i}", f"PCIe switch {i}") in pcie
        assert (f"mlx5_{i}", f"PCIe switch {i}") in pcie
    assert [node["name"] for node in answer["nodes"] if node["kind"] == "cpu"] == ["NUMA node 0", "NUMA node 1"]
    assert texts(answer, "warning") == [("mlx5_8", "its port is not active: left out")]


def test_pcie_only_with_a_narrow_slot_and_no_peer_access(on_machine):
    table = gpus(2, 89, 4, "NVIDIA L40S") + gpus(4, 89, 4, "NVIDIA L40S", width=8)[2:]
    table += ["ancestor 0 1 10", "ancestor 2 3 30", "p2p 2 3 2"]
    code, answer = on_machine(table)
    assert code == 0
    assert links(answer, "nvlink") == {}
    widths = {name: GBps for (name, _), GBps in links(answer, "pcie").items() if name.startswith("GPU")}
    assert widths == {"GPU0": 24.0, "GPU1": 24.0, "GPU2": 12.0, "GPU3": 12.0}
    warnings = texts(answer, "warning")
    assert ("GPU2", "PCIe ×8 where the GPU can ×16: check the slot") in warnings
    assert any(device == "GPU2" and "GNS" in text for device, text in warnings)


def test_one_gpu_off_the_fabric_is_a_fault(on_machine):
    table = gpus(8, 80, 4, "NVIDIA A100-SXM4-80GB") + switched(8, 12, without={5})
    table += [f"link 5 {k} off" for k in range(12)]
    _, answer = on_machine(table)
    assert [device for device, _ in texts(answer, "fault")] == ["GPU5"]
    assert ("GPU5", "NVSwitch") not in links(answer, "nvlink")


def test_mig_is_a_warning(on_machine):
    code, answer = on_machine([*gpus(1, 80, 4, "NVIDIA A100-SXM4-40GB"), "mig 0 1"])
    assert code == 0
    assert any(device == "GPU0" and "MIG" in text for device, text in texts(answer, "warning"))


def test_trays_of_one_nvlink_domain(on_machine):
    table = gpus(4, 100, 5, "NVIDIA GB200") + switched(4, 18) + [f"fabric {i} 3 171 32766" for i in range(4)]
    _, answer = on_machine(table)
    switch = next(node for node in answer["nodes"] if node["name"] == "NVSwitch")
    assert switch["nvlink_domain"] == "ab" * 16 + "/32766"
    _, answer = on_machine([*table[:-1], "fabric 3 2 171 32766"])
    assert any(device == "GPU3" and "fabric manager" in text for device, text in texts(answer, "fault"))


def test_links_that_only_one_end_knows(on_machine):
    table = gpus(3, 86, 4, "NVIDIA RTX A6000")
    table += [f"link 0 {k} gpu 0000{address(1)}" for k in range(4)] + [
        f"link 1 {k} gpu 0000{address(0)}" for k in (0, 1)
    ]
    table += ["link 2 0 gpu 00000000:77:00.0"]
    _, answer = on_machine(table)
    assert links(answer, "nvlink")["GPU0", "GPU1"] == 24.0
    assert {device for device, _ in texts(answer, "fault")} == {"GPU0", "GPU1"}
    assert any(device == "GPU2" and "0000:77:00.0" in text for device, text in texts(answer, "warning"))


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [["# nothing"], ["error nvmlInit 9"], ["error nvmlInit 999"]])
def test_no_gpu_is_one_clear_line(on_machine, table):
    code, answer = on_machine(table)
    assert code == 2
    for tried in ("no GPU here", "NVML", "nvidia-smi", "amdgpu", "topo list"):
        assert tried in answer["error"]


@pytest.mark.parametrize(
    ("call", "code"), [("nvmlDeviceGetCount", 999), ("nvmlDeviceGetHandleByIndex", 15), ("nvmlDeviceGetPciInfo", 4)]
)
def test_a_failed_call_that_all_depends_on_is_named(on_machine, call, code):
    exit_code, answer = on_machine([*gpus(2, 80, 4, "NVIDIA A100-SXM4-40GB"), f"error {call} {code}"])
    assert exit_code == 2
    assert call in answer["error"]


def test_other_failed_calls_are_findings(on_machine):
    table = gpus(2, 80, 4, "NVIDIA A100-SXM4-40GB") + switched(2, 12)
    table += [
        "error nvmlDeviceGetName 999",
        "error nvmlDeviceGetNvLinkRemoteDeviceType 15 1",
        "error nvmlDeviceGetP2PStatus 3",
    ]
    code, answer = on_machine(table)
    assert code == 0
    said = dict(texts(answer, "warning"))
    assert "nvmlDeviceGetName" in said["GPU0"]
    assert any("nvmlDeviceGetNvLinkRemoteDeviceType" in text for _, text in texts(answer, "warning"))
    assert not any("P2PStatus" in text for _, text in texts(answer, "warning"))  # "not supported" is usual


def test_detect_writes_what_show_shows(on_machine, tmp_path):
    table = gpus(8, 80, 4, "NVIDIA A100-SXM4-40GB") + switched(8, 12)
    _, shown = on_machine(table)
    code, answer = on_machine(table, command=("topo", "detect", "-o", str(tmp_path / "here.json")))
    assert (code, answer["file"]) == (0, str(tmp_path / "here.json"))
    assert json.loads((tmp_path / "here.json").read_text())["links"] == shown["links"]


# -- nvidia-smi as the fallback, sysfs, amdgpu -----------------------------------------------------------------


def test_nvidia_smi_is_read_where_nvml_is_not(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    matrix = r"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = topo ] && printf "{matrix}" || echo "GPU 0: NVIDIA A100-PCIE-40GB (UUID: x)"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    detected = live.detect(tmp_path)
    assert {link.bandwidth_GBps for link in detected.topology.links if link.kind == "nvlink"} == {80.0}
    assert "nvidia-smi" in detected.topology.source
    tool.write_text("#!/bin/sh\nsleep 20\n")
    monkeypatch.setattr(live, "NVIDIA_SMI_SECONDS", 0.2)
    with pytest.raises(InputError, match="says nothing"):
        live.detect(tmp_path)


def test_nics_have_their_rates_and_two_ports_their_places(tmp_path):
    root = sysfs_of(
        tmp_path, [("0000:00", "0000:00:01.0/0000:05:00.0")], [("mlx5_10", "0000:05:00.0", 200, "4: ACTIVE")]
    )
    second = tmp_path / "class/infiniband/mlx5_10/ports/2"
    second.mkdir()
    (second / "rate").write_text("0 Gb/sec")
    (second / "state").write_text("1: DOWN")
    nics = rdma_nics(root)
    assert [(nic.name, nic.address, nic.GBps, nic.active) for nic in nics] == [
        ("mlx5_10:1", "0000:05:00.0", 25.0, True),
        ("mlx5_10:2", "0000:05:00.0", None, False),
    ]
    (tree,) = pci_tree({"0000:05:00.0": [nic.name for nic in nics]}, root)
    assert [place.label for place in tree.places[0].below[0].below] == ["mlx5_10:1", "mlx5_10:2"]
    assert pci_tree({"0000:99:00.0": ["GPU0"]}, root) == ()


def test_a_loop_of_links_in_sys_is_survived(tmp_path):
    devices = tmp_path / "bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:01:00.0").symlink_to(devices / "0000:02:00.0")
    (devices / "0000:02:00.0").symlink_to(devices / "0000:01:00.0")
    assert pci_tree({"0000:01:00.0": ["GPU0"]}, tmp_path) == ()


def test_lanes():
    assert [lanes_GBps(speed, 16) for speed in (2.5, 5.0, 8.0, 16.0, 32.0)] == [3, 6, 12, 24, 48]
    assert lanes_GBps(None, 0) == 12
    assert lanes_GBps(16.0, 8) == 12


def kfd(folder, gpu_links, version=90010):
    """A /sys/class/kfd: a CPU and GPUs with (peer, min, max MB/s) links."""
    nodes = folder / "class/kfd/kfd/topology/nodes"
    for i in range(len(gpu_links) + 1):
        (nodes / str(i) / "io_links" / "0").mkdir(parents=True)
        gpu = f"simd_count 440\ngfx_target_version {version}\nlocation_id {(0x10 + i) << 8}\ndomain 0\n"
        (nodes / str(i) / "properties").write_text(gpu if i else "cpu_cores_count 64\nsimd_count 0\n")
        (nodes / str(i) / "io_links/0/properties").write_text(f"type 2\nnode_from {i}\nnode_to 0\n")
        for n, (peer, least, most) in enumerate(gpu_links[i - 1] if i else (), start=1):
            (nodes / str(i) / "io_links" / str(n)).mkdir()
            text = f"type 11\nnode_from {i}\nnode_to {peer}\nmin_bandwidth {least}\nmax_bandwidth {most}\n"
            (nodes / str(i) / "io_links" / str(n) / "properties").write_text(text)


def test_amdgpu_tells_xgmi_links(tmp_path):
    kfd(tmp_path, [[(2, 50000, 200000)], [(1, 50000, 200000), (3, 50000, 50000)], [(2, 50000, 50000)]])
    reading, address = amd.read(tmp_path)
    assert address == {"GPU0": "0000:11:00.0", "GPU1": "0000:12:00.0", "GPU2": "0000:13:00.0"}
    assert {tuple(sorted(ends)): n for ends, n in reading.host.nvlinks.items()} == {
        ("GPU0", "GPU1"): 4,
        ("GPU1", "GPU2"): 1,
    }
    detected = live.detect(tmp_path)
    assert sorted({link.bandwidth_GBps for link in detected.topology.links if link.kind == "xgmi"}) == [36.0, 144.0]
    assert amd.read(tmp_path / "elsewhere") is None

"""`teccl-msccl topo`, as a user calls it."""

import json

import pytest

from teccl_msccl.cli import main
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology

CAPTURE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"


@pytest.fixture
def topo(capsys):
    """Run `topo …`: exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["topo", *map(str, arguments)])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


def test_list_names_every_preset_and_generator(topo):
    code, out, _ = topo("list")
    assert code == 0
    for name in ("dgx1", "ndv4", "p5", "teccl-ndv2", "hypercube-N"):
        assert name in out
    code, out, _ = topo("list", "--json")
    answer = json.loads(out)
    assert {preset["name"]: preset["nranks"] for preset in answer["presets"]}["teccl-dgx2"] == 16
    assert all(preset["source"] for preset in answer["presets"])


def test_show_prints_nodes_link_classes_and_findings(topo, tmp_path):
    path = tmp_path / "pair.txt"
    path.write_text(CAPTURE)
    code, out, err = topo("show", path)
    assert (code, err) == (0, "")
    assert "GPU0, GPU1" in out
    assert "nvlink" in out
    assert "48" in out
    assert "warning: no GPU model" in out


def test_show_counts_hosts_and_names_the_network(topo):
    _, out, _ = topo("show", "dgx-a100", "--hosts", 4, "--network", "single-switch")
    assert "32 GPUs in 4 hosts" in out
    assert "0–3" in out
    assert "network" in out


def test_show_as_json(topo):
    code, out, _ = topo("show", "dgx1x2", "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["name"], answer["nranks"], answer["hosts"]) == ("dgx1x2", 16, 2)
    assert Topology.from_json({key: answer[key] for key in ("name", "nodes", "links")}).nranks == 16
    assert all(set(finding) == {"level", "device", "text"} for finding in answer["findings"])


def test_convert_writes_a_topology(topo, tmp_path):
    (tmp_path / "pair.txt").write_text(CAPTURE)
    code, _, err = topo("convert", tmp_path / "pair.txt", "-o", tmp_path / "pair.json")
    assert code == 0
    assert "warning: no GPU model" in err
    assert Topology.read(tmp_path / "pair.json").nranks == 2


def test_convert_reads_several_outputs_of_one_host(topo, tmp_path):
    (tmp_path / "pair.txt").write_text(CAPTURE)
    (tmp_path / "names.txt").write_text("GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-0)\n")
    topo("convert", tmp_path / "pair.txt", tmp_path / "names.txt", "-o", tmp_path / "pair.json")
    nvlinks = [link for link in Topology.read(tmp_path / "pair.json").links if link.kind == "nvlink"]
    assert {link.bandwidth_GBps for link in nvlinks} == {80.0}


def test_compose_copies_and_mixes(topo, tmp_path):
    out = tmp_path / "cluster.json"
    code, _, _ = topo("compose", "dgx-a100", "--hosts", 3, "-o", out)
    assert code == 0
    assert Topology.read(out) == load("dgx-a100x3").topology
    topo("compose", "dgx-a100", "p4d", "--hosts", 2, "--network", "single-switch", "-o", out)
    mixed = Topology.read(out)
    assert (mixed.nranks, mixed.hosts) == (32, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "dgx-a10"), "did you mean dgx-a100?"),
        (("show", "dgx1", "--hosts", 0), "at least 1"),
        (("show", "dgx1", "--hosts", "two"), "hosts"),
        (("show", "dgx1", "--hosts", 2, "--network", "tree"), "rail, fat-tree, single-switch, ring"),
        (("show",), "TOPOLOGY"),
        (("compose", "dgx1", "dgx1", "--hosts", 0, "-o", "out.json"), "at least 1"),
        (("compose", "dgx1x2", "dgx1", "-o", "out.json"), "already 2 hosts"),
        (("compose", "ring-4", "--hosts", 2, "-o", "out.json"), "no NIC"),
        (("convert", "nowhere.txt", "-o", "out.json"), "nowhere.txt"),
        (("show", "dgx1", "--color"), "--color"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(topo, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = topo(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_match_prints_the_permutation_or_the_difference(topo, tmp_path):
    code, out, _ = topo("match", "torus-2x3", "mesh-2x3")
    assert code == 1
    assert "no match: " in out
    code, out, _ = topo("match", "dgx-a100", "ndv4")
    assert code == 0
    assert "rank for rank" in out or "→" in out
    code, out, _ = topo("match", "dgx-a100", "p4d", "--json")
    answer = json.loads(out)
    assert (code, answer["match"], answer["fabric_only"]) == (0, True, True)
    assert sorted(answer["permutation"]) == list(range(8))
    code, _, err = topo("match", "dgx-a100", "p4d")
    assert "warning: only what NVLink" in err
    code, out, _ = topo("match", "dgx-a100", "p4d", "--whole")
    assert code == 1


def test_local_without_a_gpu(topo, monkeypatch, tmp_path):
    from teccl_msccl.topology.detect import live, nvml

    def no_driver():
        raise nvml.NoDriver("NVML finds no GPU")

    monkeypatch.setattr(nvml, "read", no_driver)
    monkeypatch.setattr(live.detect, "__defaults__", (tmp_path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    for arguments in (("show", "local"), ("detect",), ("match", "local", "dgx1")):
        code, out, err = topo(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: local: no GPU here: NVML finds no GPU; no nvidia-smi")


def test_without_a_command_it_says_what_there_is(topo):
    code, out, _ = topo()
    assert code == 0
    for command in ("list", "show", "detect", "convert", "compose", "match", "calibrate"):
        assert command in out

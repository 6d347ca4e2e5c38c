"""nccl_xml: NCCL's and RCCL's topology files, whole and in part, and files that only look like some."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError
from teccl_msccl.topology.catalog import load, read_captures
from teccl_msccl.topology.detect.nccl_xml import read


def pci(bus, inside="", kind="0x030200", speed="16.0 GT/s PCIe", width=16, **more):
    extra = "".join(f' {key}="{value}"' for key, value in more.items())
    return f'<pci busid="{bus}" class="{kind}" link_speed="{speed}" link_width="{width}"{extra}>{inside}</pci>'


def gpu(i, links="", sm=80, rank=None, **more):
    extra = "".join(f' {key}="{value}"' for key, value in more.items())
    return f'<gpu dev="{i}" sm="{sm}" rank="{i if rank is None else rank}"{extra}>{links}</gpu>'


def nvlink(target, count, tclass="0x030200", tag="nvlink"):
    return f'<{tag} target="{target}" count="{count}" tclass="{tclass}"/>'


def nic(name, speed):
    return f'<nic><net name="{name}" dev="0" speed="{speed}" port="1" guid="0x1"/></nic>'


def cpu(inside, node=0, **more):
    extra = "".join(f' {key}="{value}"' for key, value in {"arch": "x86_64", "vendor": "AuthenticAMD", **more}.items())
    return f'<cpu numaid="{node}" affinity="ff"{extra}>{inside}</cpu>'


def system(*cpus):
    return f'<!-- a comment -->\n<system version="1">{"".join(cpus)}</system>'


def bus(i):
    return f"0000:{0x10 + i:02x}:00.0"


BOX = system(
    *(
        cpu(
            "".join(
                pci(
                    f"0000:{0x80 + i:02x}:00.0",
                    pci(bus(i), gpu(i, nvlink("fffffff:ffff:ff", 12, "0x068000")))
                    + pci(f"0000:{0x40 + i:02x}:00.0", nic(f"mlx5_{i}", 200000), "0x020700"),
                    "0x060400",
                )
                for i in range(4 * node, 4 * node + 4)
            ),
            node,
        )
        for node in range(2)
    )
)
BARE = system(
    *(
        cpu(
            "".join(
                pci(
                    f"ffff:ff:0{1 + i // 2}.0",
                    pci(bus(i)) + pci(bus(i + 1)) + pci(f"0000:{0x40 + i:02x}:00.0", kind="0x020000"),
                    "0x060400",
                    "8 GT/s",
                )
                for i in range(4 * node, 4 * node + 4, 2)
            ),
            node,
            vendor="GenuineIntel",
            familyid=6,
            modelid=85,
        )
        for node in range(2)
    )
)


@pytest.fixture
def loaded(tmp_path):
    def load_text(text, name="box.xml"):
        path = tmp_path / name
        path.write_text(text)
        return load(str(path))

    return load_text


def links(detected, kind):
    name = {node.id: node.name for node in detected.topology.nodes}
    return {(name[x.src], name[x.dst]): x.bandwidth_GBps for x in detected.topology.links if x.kind == kind}


def warnings(detected):
    return [finding.text for finding in detected.findings if finding.level == "warning"]


def test_a_whole_file(loaded):
    detected = loaded(BOX)
    topology = detected.topology
    assert Counter(node.kind for node in topology.nodes) == {"gpu": 8, "nic": 8, "cpu": 2, "switch": 9}
    nvlinks = links(detected, "nvlink")
    assert nvlinks == {ends: 240.0 for i in range(8) for ends in ((f"GPU{i}", "NVSwitch"), ("NVSwitch", f"GPU{i}"))}
    assert links(detected, "pcie")["GPU3", "PCIe switch 3"] == 24.0
    assert links(detected, "socket") == {("NUMA node 0", "NUMA node 1"): 16.0, ("NUMA node 1", "NUMA node 0"): 16.0}
    assert {node.extra["line_rate_GBps"] for node in topology.nodes if node.kind == "nic"} == {25.0}
    assert not warnings(detected)
    assert load("dgx-a100").topology.nranks == topology.nranks


def test_the_pci_tree_alone_says_so_and_is_completed_by_topo_m(loaded, tmp_path):
    detected = loaded(BARE, "bare.xml")
    assert "without gpu or nvlink elements" in warnings(detected)[0]
    assert not links(detected, "nvlink")
    assert links(detected, "pcie")["GPU7", "PCIe switch 3"] == 24.0
    assert links(detected, "pcie")["PCIe switch 3", "NUMA node 1"] == 12.0
    assert links(detected, "socket")["NUMA node 0", "NUMA node 1"] == 10.0
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(8)) + "\tCPU Affinity"]
    lines += [f"GPU{i}\t" + "\t".join(" X " if i == j else "NV12" for j in range(8)) + "\t0-9" for i in range(8)]
    (tmp_path / "topo.txt").write_text("\n".join(lines))
    for order in (["bare.xml", "topo.txt"], ["topo.txt", "bare.xml"]):
        both = read_captures([tmp_path / name for name in order])
        assert len(links(both, "nvlink")) == 16
        assert links(both, "pcie") == links(detected, "pcie")
        assert [node.name for node in both.topology.nodes if node.kind == "nic"] == ["NIC0", "NIC1", "NIC2", "NIC3"]
        assert not any("without gpu" in text for text in warnings(both))


def test_sources_of_different_hosts_are_refused(loaded, tmp_path):
    loaded(BARE, "bare.xml")
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0\nGPU1\tNV4\t X \t0\n")
    with pytest.raises(InputError, match=r"8 GPUs.*one host|2 GPUs.*one host"):
        read_captures([tmp_path / "bare.xml", tmp_path / "topo.txt"])


def test_direct_links_and_generations(loaded):
    pairs = [(0, 1, 4), (2, 3, 2)]
    inside = dict.fromkeys(range(4), "")
    for one, other, count in pairs:
        inside[one] += nvlink(bus(other), count)
        inside[other] += nvlink(bus(one), count)
    detected = loaded(system(cpu("".join(pci(bus(i), gpu(i, inside[i], sm=70)) for i in range(4)))))
    nvlinks = links(detected, "nvlink")
    assert nvlinks == {
        ("GPU0", "GPU1"): 80, ("GPU1", "GPU0"): 80, ("GPU2", "GPU3"): 40, ("GPU3", "GPU2"): 40,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gcn", "GBps"), [("906", 24), ("908", 24), ("910", 36), ("gfx90a:sramecc+", 36), ("gfx942", 48)]
)
def test_xgmi(loaded, gcn, GBps):
    devices = [pci(bus(i), gpu(i, nvlink(bus(1 - i), 1, tag="xgmi"), sm=104, gcn=gcn), "0x038000") for i in range(2)]
    assert set(links(loaded(system(cpu("".join(devices)))), "xgmi").values()) == {GBps}


def test_links_to_oneself_are_doubted(loaded):
    devices = [pci(bus(i), gpu(i, nvlink(bus(i), 12)), device="0x20b5", speed="", width=0) for i in range(4)]
    detected = loaded(system(*(cpu(device, node) for node, device in enumerate(devices))))
    assert links(detected, "nvlink")["GPU2", "GPU3"] == 240
    assert "GPU0–GPU1, GPU2–GPU3 assumed" in warnings(detected)[0]
    assert set(links(detected, "pcie").values()) == {12.0}
    odd = loaded(system(cpu("".join(devices[:3]))))
    assert not links(odd, "nvlink")
    assert "left out" in warnings(odd)[0]


def test_gpus_without_a_rank_are_left_out(loaded):
    text = system(cpu(pci(bus(0), gpu(0)) + pci(bus(1), gpu(1)) + pci(bus(2), '<gpu dev="2" sm="80"/>')))
    detected = loaded(text)
    assert detected.topology.nranks == 2
    assert any("1 GPUs without a rank" in finding.text for finding in detected.findings)


def test_ranks_given_twice_and_targets_that_are_no_device_are_doubted(loaded):
    detected = loaded(system(cpu(pci(bus(0), gpu(0)) + pci(bus(1), gpu(1, nvlink("xyz", 4), rank=0)))))
    assert detected.topology.nranks == 2
    assert not links(detected, "nvlink")
    said = warnings(detected)
    assert any("2 GPUs have rank 0" in text for text in said)
    assert any("links to xyz" in text for text in said)


def test_what_nccl_takes_for_granted(loaded):
    net = pci(bus(5), nic("eth0", 0) + nic("", -1), "0x020000", speed="weird", width=8)
    detected = loaded(system(cpu(pci(bus(0), gpu(0)) + net + nic("tcp", 100000))))
    rates = [node.extra["line_rate_GBps"] for node in detected.topology.nodes if node.kind == "nic"]
    assert rates == [1.25, 1.25, 12.5]
    assert links(detected, "pcie")["NIC0", "PCIe switch 0"] == 12  # two NICs of one device share its link
    assert links(detected, "pcie")["PCIe switch 0", "NUMA node 0"] == 6


def test_grace_gpus_reach_their_cpu_over_c2c(loaded):
    text = system(cpu(pci(bus(0), gpu(0, '<c2c bw="44800" count="10"/>', sm=100)), arch="arm64"))
    assert links(loaded(text), "pcie")["GPU0", "NUMA node 0"] == 448


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><system version="1">&b;</system>'
DEEP = '<pci busid="0000:{}:00.0" class="0x060400">'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "DOCTYPE"),
        ("<system", "not well-formed"),
        ("<algo/>", "a program"),
        ("<graphs/>", "NCCL_TOPO_DUMP_FILE"),
        ("<html/>", "begins with <system>"),
        (system(), "no GPU"),
        (system(cpu(pci(bus(0), gpu(0)) + pci(bus(0), gpu(1)))), "busid 0000:10:00.0 stands at line 2 too"),
        (system(cpu(pci("", gpu(0)))), "lacks busid"),
        (system(cpu("".join(DEEP.format(f"{i:x}") for i in range(40)) + "</pci>" * 40)), "nested"),
        ("<system>" + "<pci>" * 300 + "</pci>" * 300 + "</system>", "not well-formed"),
        ("<system>" + "<a/>" * 50_000 + "</system>", "elements"),
        ("<system>" + " " * 5_000_000 + "</system>", "bytes"),
        (
            system(cpu(pci(bus(0), gpu(0, nvlink(bus(1), 2))) + pci(bus(1), gpu(1, nvlink(bus(0), 1))))),
            "2 links to GPU1",
        ),
        (system(cpu(pci(bus(0), gpu(0, nvlink(bus(1), 99))) + pci(bus(1), gpu(1)))), "'99' nvlinks; a GPU has 1 to 36"),
        (system(cpu(pci(bus(0), gpu(0, nvlink(bus(1), -4))) + pci(bus(1), gpu(1)))), "'-4' nvlinks"),
        (system(cpu(pci(bus(0), gpu(0, nvlink(bus(1), 10**9))) + pci(bus(1), gpu(1)))), "'1000000000' nvlinks"),
        ("host:1:1 [0] NCCL INFO\n" + system(), "not well-formed XML"),
        (system(cpu(pci(bus(0), gpu(0)), host_hash="1"), cpu(pci(bus(1), gpu(1)), host_hash="2")), "2 hosts"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, capsys, text, said):
    path = tmp_path / "box.xml"
    path.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["topo", "show", str(path)])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert said in error
    assert "box.xml" in error
    assert error.count("\n") == 1


@given(
    st.lists(
        st.tuples(st.integers(0, len(BOX)), st.integers(0, 30), st.sampled_from(["", "<", ">", '"', "9", "x", "/"])),
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_damage_is_answered_or_refused(damages):
    text = BOX
    for at, length, word in damages:
        text = text[:at] + word + text[at + length :]
    try:
        reading = read(text.encode(), "box.xml")
    except InputError as refusal:
        assert "\n" not in str(refusal)
    else:
        assert reading.host.gpus


def test_q_and_nvlink_c_are_read_beside_the_matrix(tmp_path):
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    listing = "".join(
        f"GPU 00000000:0{i}:00.0\n    Product Name                          : NVIDIA RTX A6000\n"
        f"    MIG Mode\n        Current                           : {'Enabled' if i else 'N/A'}\n"
        for i in range(2)
    )
    (tmp_path / "all.txt").write_text(
        matrix
        + listing
        + "GPU 0: NVIDIA RTX A6000 (UUID: x)\n\t Link 0, P2P is supported: false\n\t Link 1, P2P is supported: true\n"
    )
    detected = load(str(tmp_path / "all.txt"))
    assert set(links(detected, "nvlink").values()) == {48.0}
    assert any("NVLinks without peer-to-peer" in text for text in warnings(detected))
    assert [f.device for f in detected.findings if "MIG" in f.text] == ["GPU1"]

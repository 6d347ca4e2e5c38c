"""Pictures of topologies."""

import re
import sys

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.picture import draw


@pytest.fixture
def picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'teccl-msccl[report]'")

    def drawn(name, ending="svg"):
        path = tmp_path / f"picture.{ending}"
        draw(load(name).topology, path)
        return path.read_bytes()

    return drawn


def words(svg):
    """The texts of an SVG, which stay words, and those with symbols, which matplotlib writes as comments."""
    text = svg.decode()
    return re.findall(r"<text[^>]*>(.*?)</text>", text, re.DOTALL) + re.findall(r"<!-- (.*?) -->", text, re.DOTALL)


def test_two_hosts_show_every_node_and_class_of_links(picture):
    texts = words(picture("dgx-a100x2"))
    for text in ("dgx-a100x2: 16 GPUs in 2 hosts", "host 0", "host 1", "rank 15", "NVSwitch", "rail7", "CPU1"):
        assert any(text in shown for shown in texts), text
    assert any("nvlink  240 GB/s each way" in shown and "× 16" in shown for shown in texts)
    assert any("network  24 GB/s each way" in shown for shown in texts)


def test_the_same_topology_has_the_same_picture(picture):
    assert re.sub(rb'id="\w+"|#\w+', b"", picture("ring-4")) == re.sub(rb'id="\w+"|#\w+', b"", picture("ring-4"))


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_endings(picture, ending, magic):
    assert picture("teccl-ndv2x2", ending).startswith(magic)


@pytest.mark.parametrize(
    ("name", "file", "said"), [("ring-4", "a.jpg", ".svg"), ("dgx-h100x64", "a.svg", "fewer hosts")]
)
def test_what_cannot_be_drawn(tmp_path, name, file, said):
    with pytest.raises(InputError, match=said):
        draw(load(name).topology, tmp_path / file)


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"teccl-msccl\[report\]"):
        draw(load("ring-4").topology, tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()

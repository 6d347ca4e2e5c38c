"""Captures of `nvidia-smi topo -m` as people paste them: mangled, cut off, contradictory, or something else."""

import re
from collections import Counter

import pytest
from captures import SAMPLES, capture, cube_mesh, devices, links, names, same_machine
from hypothesis import example, given, settings
from hypothesis import strategies as st

from teccl_msccl.errors import InputError
from teccl_msccl.topology.detect.nvidia_smi import parse
from teccl_msccl.topology.detected import Detected


def on_header(change):
    def mutate(text):
        head, *rest = text.split("\n")
        return "\n".join([change(head), *rest])

    return mutate


PASTED = {
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "tabs as spaces": lambda text: text.replace("\t", "   "),
    "runs as one space": lambda text: re.sub(r"[ \t]+", " ", text),
    "underlined header": on_header(lambda head: "\t\x1b[4m" + head.lstrip("\t") + "\x1b[0m"),
    "escape lost": on_header(lambda head: "\t[4m" + head.lstrip("\t") + "[0m"),
    "no leading tab": on_header(lambda head: head.lstrip("\t")),
    "header without tabs": on_header(lambda head: head.replace("\t", "")),
    "header lost": on_header(lambda head: ""),
    "X not padded": lambda text: text.replace(" X ", "X"),
    "legacy SOC": lambda text: text.replace("SYS\t", "SOC\t"),
    "indented": lambda text: "".join("    " + line for line in text.splitlines(keepends=True)),
    "quoted": lambda text: "".join("> " + line for line in text.splitlines(keepends=True)),
    "double spaced": lambda text: text.replace("\n", "\n\n"),
    "trailing tabs": lambda text: text.replace("\n", "\t\t\n"),
    "no legend": lambda text: text.split("\nLegend")[0],
    "prompt and thanks": lambda text: "$ nvidia-smi topo -m\n" + text + "\nThanks, GPU3 looks odd to me!\n",
    "pasted twice": lambda text: text + "\n" + text,
}


@pytest.mark.parametrize("mutation", PASTED)
@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_pasting_changes_nothing(sample, mutation):
    text = SAMPLES[sample]
    before, after = parse(text), parse(PASTED[mutation](text))
    if mutation == "no legend":  # the NICs' device names are in a legend
        assert before.topology.links == after.topology.links
    else:
        assert same_machine(before, after)


def test_affinity_that_runs_into_the_last_cell():
    text = capture(2, lambda i, j: "PHB", nics=("mlx5_0",), affinity=lambda gpu: "0-115")
    pasted = text.replace("PHB\t0-115", "PH0-115")
    assert pasted != text
    assert parse(pasted).topology.links == parse(text).topology.links


def test_affinity_that_runs_into_an_nvlink_cell_goes_by_the_mirror_image():
    text = capture(2, lambda i, j: "NV2", affinity=lambda gpu: "20-39")
    pasted = text.replace("GPU0\t X \tNV2\t20-39", "GPU0\t X \tNV220-39")
    assert pasted != text
    assert links(parse(pasted), "nvlink")["GPU0", "GPU1"] == 40.0


@pytest.mark.parametrize("tail", ["", "0-1", "0,2,4-7", "0-31\t\tN/A", "\t1\t\tN/A", "0\t0\t\tN/A", "N/A\tN/A"])
def test_whatever_stands_in_the_affinity_columns(tail):
    detected = parse(capture(4, lambda i, j: "NV4", affinity=lambda gpu: tail))
    assert len(names(detected, "cpu")) == 1


def test_unsorted_nics_keep_their_columns():
    def cell(i, j):
        return "NV2" if j < 2 else "SYS" if i >= 2 else "PIX" if j - 2 == i else "SYS"

    text = capture(2, cell, nics=("mlx5_2", "mlx5_0"), affinity=lambda gpu: f"{gpu}")
    pcie = links(parse(text), "pcie")
    assert {a for a, b in pcie if b == "PCIe switch 0"} == {"GPU0", "mlx5_2", "CPU0"}


# -- what is missing or contradictory ------------------------------------------------------------------------


def without_rows(text, *labels):
    return "".join(line for line in text.splitlines(keepends=True) if line.split("\t")[0] not in labels)


def test_a_missing_row_is_read_from_the_columns():
    text = capture(8, cube_mesh)
    detected = parse(without_rows(text, "GPU7"))
    assert detected.topology.nranks == 8
    assert links(detected, "nvlink") == links(parse(text), "nvlink")
    assert "GPU7" in devices(detected, "warning")


def test_missing_nic_rows_are_read_from_the_columns():
    text = SAMPLES["hgx-h100.topo.txt"]
    detected = parse(without_rows(text, *(f"NIC{i}" for i in range(8))))
    assert detected.topology.links == parse(text).topology.links


def test_half_a_matrix_with_nvlinks_is_refused_by_row_and_column():
    text = without_rows(capture(8, cube_mesh), "GPU6", "GPU7")
    with pytest.raises(InputError, match="row GPU6, column GPU7"):
        parse(text)


def test_half_a_matrix_without_nvlinks_is_read_with_warnings():
    text = capture(8, lambda i, j: "PIX" if i // 2 == j // 2 else "PHB" if i // 4 == j // 4 else "SYS")
    detected = parse(without_rows(text, "GPU4", "GPU5", "GPU6", "GPU7"))
    assert detected.topology.nranks == 8
    assert {"GPU4", "GPU5", "GPU6", "GPU7"} <= set(devices(detected, "warning"))
    with pytest.raises(InputError, match="row GPU3, column GPU4"):
        parse(without_rows(text, "GPU3", "GPU4", "GPU5", "GPU6", "GPU7"))


def test_a_cut_off_row_is_completed_with_a_warning():
    lines = capture(4, lambda i, j: "NV4").splitlines()
    lines[2] = "GPU1\tNV4\t X \t"
    detected = parse("\n".join(lines))
    assert len(links(detected, "nvlink")) == 12
    assert "GPU1" in devices(detected, "warning")


def with_cell(row, column, cell, ngpus=4, level="NV2"):
    lines = [line.split("\t") for line in capture(ngpus, lambda i, j: level).splitlines()]
    lines[row + 1][column + 1] = cell
    return "\n".join("\t".join(line) for line in lines)


@pytest.mark.parametrize(
    ("row", "column", "cell", "said"),
    [
        (1, 2, "NV1", "row GPU1, column GPU2: NV1 one way, NV2 the other"),
        (3, 0, "SYS", "row GPU0, column GPU3: NV2 one way, SYS the other"),
        (2, 0, "FOO", "row GPU2, column GPU0: 'FOO' is no known cell"),
        (0, 1, "NV0", "row GPU0, column GPU1: NV0 is impossible"),
        (0, 1, "NV99", "row GPU0, column GPU1: NV99 is impossible"),
        (2, 2, "NV2", "row GPU2, column GPU2 (line 4): NV2 instead of X"),
        (2, 1, "NV2\tNV2", "row GPU2 (line 4): 5 cells for 4 named columns"),
        (2, 1, "", "row GPU2 (line 4): its X stands in column GPU1"),
    ],
)
def test_contradictions_are_refused_by_row_and_column(row, column, cell, said):
    with pytest.raises(InputError) as refusal:
        parse(with_cell(row, column, cell), "capture.txt")
    assert said in str(refusal.value)
    assert str(refusal.value).startswith("capture.txt: ")


def test_pcie_levels_that_disagree_are_read_as_the_farther():
    detected = parse(with_cell(0, 1, "PIX", level="PHB"))
    assert names(detected, "switch") == []
    assert "GPU0" in devices(detected, "warning")


def test_a_nic_has_no_nvlinks():
    with pytest.raises(InputError, match="row GPU0, column mlx5_0: NV2 is impossible"):
        parse(capture(2, lambda i, j: "NV2", nics=("mlx5_0",)))


def test_two_machines_in_one_file_are_refused():
    with pytest.raises(InputError, match="two different matrices"):
        parse(capture(4, lambda i, j: "NV2") + capture(4, lambda i, j: "SYS"))
    with pytest.raises(InputError, match="lines 2 and 7 differ"):
        parse(capture(2, lambda i, j: "NV2") + "\n\nand then\nGPU0\t X \tSYS\t\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no GPU rows"),
        ("\tGPU0\tGPU1\n", "no GPU rows"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "NVIDIA-SMI has failed"),
        ("bash: nvidia-smi: command not found", "command not found"),
        ("GPU0\0\t X ", "binary"),
        ("x" * 2_000_000, "characters"),
        ("GPU0 X NV2 NV2\nGPU1 NV2 X NV2\n", "3 cells for 2 named columns"),
        (capture(300, lambda i, j: "SYS"), "300 devices"),
    ],
)
def test_texts_that_are_no_capture(text, said):
    with pytest.raises(InputError) as refusal:
        parse(text)
    assert said in str(refusal.value)


# -- whatever comes ------------------------------------------------------------------------------------------

PIECES = (
    "GPU0|GPU1|GPU2|NIC0|mlx5_0|X|NV1|NV2|NV12|NV|PIX|PXB|PHB|NODE|SYS|SOC|OK|GNS|0-7|N/A|PH0-7|NV12-7|=|:|²|٣|> "
    "|\t|\n|\x1b[4m|CPU Affinity|MIG 1|nvidia-smi topo -p2p r|Link 0: 25 GB/s|GPU 0: Tesla V100|GPU 1: X (UUID"
)
WORDS = st.sampled_from(PIECES.split("|"))
LINES = st.lists(st.tuples(WORDS, st.sampled_from(["\t", " ", "", "\n"])), max_size=60)


def is_answer_or_refusal(text):
    try:
        detected = parse(text)
    except InputError as refusal:
        assert str(refusal)
    else:
        assert isinstance(detected, Detected)
        assert all(finding.text for finding in detected.findings)


@given(LINES)
@settings(max_examples=300, deadline=None)
def test_any_words_are_answered_or_refused(parts):
    is_answer_or_refusal("".join(word + gap for word, gap in parts))


@given(st.text(max_size=300))
@example("GPU²\tX\n")
@settings(max_examples=60, deadline=None)
def test_any_text_is_answered_or_refused(text):
    is_answer_or_refusal(text)


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 40), WORDS), min_size=1, max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_any_damage_to_a_capture_is_answered_or_refused(sample, damages):
    text = SAMPLES[sample]
    for at, length, word in damages:
        text = text[:at] + word + text[at + length :]
    is_answer_or_refusal(text)


def test_the_samples_are_machines_of_eight_gpus_with_nics_that_compose():
    assert Counter(parse(text).topology.nranks for text in SAMPLES.values()) == {8: 3}
    for text in SAMPLES.values():
        assert names(parse(text), "nic")
        assert not devices(parse(text), "fault")

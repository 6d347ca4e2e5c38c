"""What targets ask of a file beyond the executor's limits, each rule broken once, and kept once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from correct_programs import (
    all_pairs_allreduce,
    block,
    chain_broadcast,
    direct_alltoall,
    fused_ring_allreduce,
    program,
    recursive_doubling_allgather,
    ring_allgather,
    ring_reduce_scatter,
    send,
    shipped_allgather,
    with_gpu,
)

from teccl_msccl.errors import InputError
from teccl_msccl.program import xml
from teccl_msccl.program.check import check, check_for, check_text
from teccl_msccl.program.program import Gpu, Program, Step
from teccl_msccl.program.targets import TARGETS, target_named

MSCCL, RCCL = TARGETS["msccl"], TARGETS["rccl"]


def for_msccl(source: Program, mode: str = "outofplace") -> Program:
    return replace(
        source, target="msccl", inplace=mode == "inplace", outofplace=mode == "outofplace", max_bytes=2**27 + 1
    )


def codes(found_by: Program) -> dict[str, str]:
    return {found.code: found.level for found in check(found_by).findings}


def handed_over(buffer: str, protocol: str = "Simple", reader: str = "s") -> Program:
    """Gpu 0 copies its chunk to `buffer` in one threadblock, and another sends it from there."""
    local = block([Step("cpy", "i", 0, "o", 0), Step("cpy", "i", 0, buffer, 1 if buffer == "i" else 0, hasdep=True)])
    source = 1 if buffer == "i" else 0
    reads = [send(buffer, source, depid=0, deps=1)]
    if reader == "cpy":
        reads = [Step("cpy", buffer, source, "o", 0, 1, 0, 1), send("i", 0)]
    arrival = block([Step("r", "i", 0, "o", 0)], recv=0)
    first = Gpu(2, 2, 1, (local, block(reads, send=1)))
    return replace(program("custom", 2, [first, Gpu(2, 2, 0, (arrival,))], protocol=protocol), target="rccl")


# -- msccl -----------------------------------------------------------------------------------------------------------


def test_msccl_takes_what_is_right() -> None:
    for make in (ring_allgather, ring_reduce_scatter, fused_ring_allreduce, chain_broadcast, all_pairs_allreduce):
        assert codes(for_msccl(make())) == ({"suspect": "warning"} if make is chain_broadcast else {})
    assert codes(replace(for_msccl(chain_broadcast()), protocol="LL")) == {}
    assert codes(for_msccl(shipped_allgather(), "inplace")) == {}
    assert codes(for_msccl(direct_alltoall())) == {}


MSCCL_REFUSES: dict[str, tuple[str, Callable[[], Program]]] = {
    "alltoall in place": ("mode", lambda: for_msccl(direct_alltoall(), "inplace")),
    "no upper limit": ("byte-range", lambda: replace(for_msccl(ring_allgather()), max_bytes=0)),
    "an empty range": ("byte-range", lambda: replace(for_msccl(ring_allgather()), min_bytes=64, max_bytes=64)),
    "input chunks": ("buffer-chunks", lambda: with_gpu(for_msccl(fused_ring_allreduce()), 1, input_chunks=4)),
    "a share's chunks": ("buffer-chunks", lambda: with_gpu(for_msccl(ring_allgather()), 2, input_chunks=3)),
    "output chunks": ("buffer-chunks", lambda: with_gpu(for_msccl(ring_reduce_scatter()), 0, output_chunks=3)),
    "gather": ("collective", lambda: replace(for_msccl(chain_broadcast()), collective="gather")),
    "steps": (
        "steps",
        lambda: for_msccl(program("allreduce", 1, [Gpu(1, 1, 0, (block([Step("cpy", "i", 0, "o", 0)] * 257),))])),
    ),
    "threadblocks": (
        "threadblocks",
        lambda: for_msccl(program("allreduce", 1, [Gpu(1, 1, 0, (block([Step("cpy", "i", 0, "o", 0)]),) * 217)])),
    ),
}


@pytest.mark.parametrize("rule", MSCCL_REFUSES)
def test_msccl_refuses(rule: str) -> None:
    code, make = MSCCL_REFUSES[rule]
    assert codes(make()).get(code) == "error"


def test_msccl_takes_no_chunks_for_unchecked() -> None:
    assert "buffer-chunks" not in codes(with_gpu(for_msccl(ring_allgather()), 0, input_chunks=0))


def test_msccl_runs_a_file_in_the_mode_that_inplace_says() -> None:
    both = replace(for_msccl(ring_allgather()), inplace=True, outofplace=True)
    assert codes(both) == {"mode": "warning"}
    assert [proof.name for proof in check(both).proofs][-2:] == ["data in place", "races in place"]
    neither = replace(both, inplace=False, outofplace=False)
    assert codes(neither) == {} and [proof.name for proof in check(neither).proofs][-1] == "races out of place"
    assert codes(replace(neither, target="executor"))["mode"] == "error"


def test_msccl_allocates_scratch_for_max_bytes() -> None:
    huge = replace(for_msccl(all_pairs_allreduce()), max_bytes=2**40)
    assert codes(huge) == {"scratch": "warning"}
    assert codes(replace(huge, target="executor")) == {}


def test_missing_byte_limits_have_mscls_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    text = xml.to_text(for_msccl(ring_reduce_scatter()))
    for attribute in ('minBytes="3072" ', 'minBytes="3072"', f' maxBytes="{2**27 + 1}"', ' outofplace="1"'):
        text = text.replace(attribute, "")
    path.write_text(text)
    (verdict,) = check_text(path.read_bytes(), path)
    assert verdict.target == "msccl" and verdict.ok
    assert xml.read(path).max_bytes == 2**27 and not xml.read(path).inplace
    msccl, executor = check_text(path.read_bytes(), path, [MSCCL, TARGETS["executor"]])
    assert msccl.ok and {found.code for found in executor.findings} >= {"attribute", "spelling"}


# -- rccl ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["s", "cpy"])
def test_rccl_fences_the_output_and_simple_scratch(reader: str) -> None:
    assert "handover" not in codes(handed_over("o", reader=reader))
    assert "handover" not in codes(handed_over("o", "LL", reader))
    assert "handover" not in codes(handed_over("s", reader=reader))
    assert codes(handed_over("s", "LL", reader))["handover"] == "warning"
    assert codes(handed_over("i", reader=reader))["handover"] == "warning"
    assert "handover" not in codes(replace(handed_over("i", reader=reader), target="executor"))


def test_rccl_names_reader_and_writer() -> None:
    found = next(found for found in check(handed_over("i")).findings if found.code == "handover")
    assert (found.gpu, found.tb, found.step) == (0, 1, 0)
    assert found.text.startswith("reads from i what gpu 0 tb 0 step 1 writes, which rccl does not fence")


def test_rccl_executes_no_fused_receives_and_64_threadblocks() -> None:
    fused, apart = check_for(fused_ring_allreduce(), [RCCL, TARGETS["executor"]])
    assert not fused.ok and {found.code for found in fused.findings} == {"fused"} and apart.ok
    crowd = program("allreduce", 1, [Gpu(1, 1, 0, (block([Step("cpy", "i", 0, "o", 0)]),) * 65)])
    assert codes(replace(crowd, target="rccl"))["threadblocks"] == "error"
    assert "channels" not in codes(replace(ring_allgather(), target="rccl", nchannels=128))
    assert codes(replace(ring_allgather(), target="rccl", nchannels=129))["channels"] == "error"


# -- data ------------------------------------------------------------------------------------------------------------


def test_byte_limits() -> None:
    inclusive, exclusive = TARGETS["executor"], MSCCL
    assert inclusive.takes_bytes(16, 64, 64) and not exclusive.takes_bytes(16, 64, 64)
    assert exclusive.takes_bytes(16, 64, 63.9) and not exclusive.takes_bytes(16, 64, 15)
    assert inclusive.takes_bytes(16, 0, 1e12) and not exclusive.takes_bytes(0, 0, 0)
    with pytest.raises(InputError, match=r"unknown target 'nccl'.* use executor, msccl, rccl"):
        target_named("nccl")


@pytest.mark.parametrize("target", TARGETS)
def test_every_spelling_is_read_back(target: str) -> None:
    for collective in TARGETS[target].collectives:
        written = replace(recursive_doubling_allgather(4), collective=collective, target=target)
        assert xml.parse(xml.to_text(written).encode(), target=target) == written

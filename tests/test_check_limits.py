"""The checker's limits and text rules, its command, and files that mean no good."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from correct_programs import (
    all_pairs_allreduce,
    block,
    chain_broadcast,
    direct_gather,
    edit,
    fused_ring_allreduce,
    program,
    receive,
    recursive_doubling_allgather,
    ring_allgather,
    send,
    shipped_allgather,
    with_gpu,
    with_step,
)

from teccl_msccl.cli import main, output
from teccl_msccl.program import xml
from teccl_msccl.program.check import check, check_for, check_text
from teccl_msccl.program.check_text import text_findings
from teccl_msccl.program.program import Gpu, Program, Step, Threadblock
from teccl_msccl.program.targets import TARGETS, Target

EXECUTOR = TARGETS["executor"]
UNFUSED = replace(EXECUTOR, name="unfused", fused_receives=False)
ONE_MODE = replace(
    EXECUTOR, name="one-mode", both_modes=False, collectives={"reduce_scatter": "reduce_scatter", "custom": "custom"}
)


def codes(found_by: Program, target: Target = EXECUTOR) -> dict[str, str]:
    return {found.code: found.level for found in check(found_by, target).findings}


def idle(blocks: int, steps: int = 0, ranks: int = 1) -> Program:
    """Threadblocks that copy one chunk onto the output over and over."""
    work = block([Step("cpy", "i", 0, "o", 0)] * steps)
    return program("allreduce", 1, [Gpu(1, 1, 0, (work,) * blocks)] * ranks, mode="outofplace")


def crowd(channels: int) -> Program:
    """Gpu 0 sends to 33 peers, over `channels` channels in turn."""
    sends = [block([send("i", 0)], send=peer, chan=peer % channels) for peer in range(1, 34)]
    receivers = [Gpu(1, 1, 0, (block([receive("o", 0)], recv=0, chan=peer % channels),)) for peer in range(1, 34)]
    local = block([Step("cpy", "i", 0, "o", 0)])
    return program("broadcast", 1, [Gpu(1, 1, 0, (local, *sends)), *receivers], channels=channels)


OUTSIDE: dict[str, Callable[[], Program]] = {
    "collective": lambda: replace(fused_ring_allreduce(), collective="allgossip"),
    "name": lambda: replace(ring_allgather(), name="n" * 256),
    "mode": lambda: replace(ring_allgather(), inplace=False, outofplace=False),
    "channels": lambda: replace(ring_allgather(), nchannels=33),
    "size": lambda: replace(ring_allgather(), nchunks=0),
    "ranks": lambda: idle(0, 0, 4095),
    "byte-range": lambda: replace(ring_allgather(), min_bytes=10, max_bytes=5),
    "threadblocks": lambda: idle(1025),
    "steps": lambda: idle(1, 65),
    "nodes": lambda: idle(64, 63),
    "peer": lambda: edit(ring_allgather(), 0, 0, send=3),
    "channel": lambda: edit(ring_allgather(), 0, 0, chan=1),
    "channel-crowded": lambda: crowd(1),
    "dep-id": lambda: replace(
        program("allreduce", 1, [Gpu(1, 1, 0, (*[block([])] * 128, *_waiter_on(128)))]), inplace=False
    ),
}


def _waiter_on(tb: int) -> tuple[Threadblock, Threadblock]:
    copy = Step("cpy", "i", 0, "o", 0, hasdep=True)
    return block([copy]), block([Step("cpy", "i", 0, "o", 0, depid=tb, deps=0)])


@pytest.mark.parametrize("code", OUTSIDE)
def test_limits(code: str) -> None:
    assert codes(OUTSIDE[code]()).get(code) == "error"


def test_limits_hold_to_the_last() -> None:
    for inside in (idle(64, 62), idle(1024), idle(1, 64), crowd(2)):
        assert not set(OUTSIDE) & {code for code, level in codes(inside).items() if level == "error"}
    assert codes(replace(ring_allgather(), nchannels=32)) == {}
    assert codes(replace(ring_allgather(), name="n" * 64)) == {"name": "warning"}
    assert codes(idle(81)).get("co-resident") == "warning" and "co-resident" not in codes(idle(80))


@pytest.mark.parametrize("peer", [-2, 0, 3, 2**40, -(2**40)])
@pytest.mark.parametrize("end", ["send", "recv"])
def test_peers_are_other_ranks(end: str, peer: int) -> None:
    verdict = check(edit(ring_allgather(), 0, 0, **{end: peer}))
    assert [found.code for found in verdict.findings] == ["peer"]
    assert {proof.outcome for proof in verdict.proofs} == {"failed", "not attempted"}


def test_absurd_sizes_are_refused_not_allocated() -> None:
    for absurd in (2**31, 2**62, -1):
        assert codes(replace(ring_allgather(), nchunks=absurd)).get("size") == "error"
        assert codes(with_gpu(ring_allgather(), 0, scratch_chunks=absurd)).get("size") == "error"
        assert codes(edit(ring_allgather(), 0, 0, chan=absurd)).get("channel") == "error"
    scratch = with_gpu(ring_allgather(), 0, scratch_chunks=2**31 - 1)
    assert check(scratch).ok  # declared, but not used
    far = edit(scratch, 0, 0, lambda steps: steps.append(Step("cpy", "i", 0, "s", 2**31 - 2)))
    assert codes(far).get("too-large") == "error"


def test_targets_differ_in_limits_only() -> None:
    fused, unfused = check_for(fused_ring_allreduce(), [EXECUTOR, UNFUSED])
    assert fused.ok and not unfused.ok and unfused.min_credits == fused.min_credits == 2
    assert {found.code for found in unfused.findings} == {"fused"}
    assert codes(all_pairs_allreduce(), UNFUSED) == {}
    assert codes(replace(chain_broadcast(), collective="custom"), ONE_MODE)["mode"] == "warning"


def test_doubts_about_sizes() -> None:
    tiny = replace(ring_allgather(), protocol="LL", min_bytes=16 * 3 - 1)
    assert codes(tiny) == {"small-bytes": "warning"}
    assert codes(replace(tiny, min_bytes=16 * 3)) == {}
    assert codes(recursive_doubling_allgather(4, "Simple")) == {}
    mixed = edit(chain_broadcast(), 1, 0, lambda steps: steps.append(Step("cpy", "i", 0, "o", 0)))
    assert codes(mixed) == {"mixed-counts": "warning"}


# -- text -------------------------------------------------------------------------------------------------------------


def text() -> bytes:
    return xml.to_text(ring_allgather()).encode()


REJECTED: dict[str, Callable[[bytes], bytes]] = {
    "<?xml": lambda data: b'<?xml version="1.0"?>\n' + data,
    "CDATA": lambda data: data.replace(b"</gpu>", b"<![CDATA[" + b"<!--" * 10**5 + b"]]></gpu>"),
    "tabs": lambda data: data.replace(b"\n  <gpu", b"\n\t<gpu"),
    "newline": lambda data: data.replace(b' i_chunks="', b'\n i_chunks="'),
    "single quotes": lambda data: data.replace(b'id="0"', b"id='0'"),
    "text between": lambda data: data.replace(b"</gpu>", b"</gpu>hello"),
    "16 attributes": lambda data: data.replace(b"<tb ", b"<tb " + b" ".join(b'x%d="1"' % i for i in range(13)) + b" "),
    "comment": lambda data: data.replace(b"<algo", b"<!--a=b --><algo"),
    "byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
}


@pytest.mark.parametrize("complaint", REJECTED)
def test_text_that_loaders_reject(complaint: str, tmp_path: Path) -> None:
    assert not list(text_findings(text(), EXECUTOR))
    path = tmp_path / "a.xml"
    path.write_bytes(REJECTED[complaint](text()))
    (verdict,) = check_text(path.read_bytes(), path)
    assert [found.code for found in verdict.findings] == ["text"] and complaint in verdict.findings[0].text


def test_text_that_loaders_accept() -> None:
    kept = (
        text()
        .replace(b"\n", b"\r\n")
        .replace(b"<algo", b"<!-- a comment = fine -->\n<algo")
        .replace(b"<tb ", b'<tb note="it\'s" ')
    )
    assert not list(text_findings(kept, EXECUTOR))


def test_missing_attributes_and_foreign_spelling(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(text().replace(b' minBytes="3072"', b"").replace(b' outofplace="1"', b""))
    (verdict,) = check_text(path.read_bytes(), path)
    assert [(found.code, found.level) for found in verdict.findings] == [("attribute", "error")] * 2
    (lenient,) = check_text(path.read_bytes(), path, [replace(EXECUTOR, both_modes=False)])
    assert {found.level for found in lenient.findings if found.code == "attribute"} == {"warning"}
    path.write_bytes(text().replace(b'"allgather" inplace', b'"reduce_scatter" inplace'))
    assert check_text(path.read_bytes(), path)[0].target == "msccl"
    assert "spelling" in {found.code for found in check_text(path.read_bytes(), path, [EXECUTOR])[0].findings}


def test_an_attribute_within_a_comment_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(b'<!-- <algo minBytes="0"> -->' + text().replace(b' minBytes="3072"', b""))
    assert [found.code for found in check_text(path.read_bytes(), path)[0].findings] == ["attribute"]


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["check", *map(str, arguments)])
        written = capsys.readouterr()
        return int(str(stop.value.code)), written.out, written.err

    yield command
    output.as_json = False


def test_command(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    right, wrong = tmp_path / "right.xml", tmp_path / "wrong.xml"
    chain_broadcast().write(right)
    with_step(chain_broadcast(), 1, 0, 1, srcoff=1).write(wrong)
    code, out, _ = run(right)
    assert code == 0 and "ok for executor" in out and "finishes with 1" in out and "root" in out
    code, out, _ = run(wrong)
    assert code == 1 and "NOT OK" in out and "bounds" in out and "not attempted" in out

    code, out, _ = run(wrong, "--json")
    answer = json.loads(out)
    assert code == 1 and answer["ok"] is False and answer["target"] == "executor"
    assert set(answer["findings"][0]) == {"code", "gpu", "tb", "step", "text", "level"}
    everywhere = tmp_path / "everywhere.xml"
    replace(shipped_allgather(), max_bytes=2**20).write(everywhere)
    code, out, _ = run(everywhere, "--target", "all", "--json")
    assert code == 0 and json.loads(out)["ok"] is True and json.loads(out)["min_credits"] == 1
    code, out, _ = run(right, "--target", "all", "--json")
    assert code == 1 and json.loads(out)["targets"] == {"executor": True, "msccl": False, "rccl": False}
    code, out, _ = run(right, "--root", "0", "--json")
    assert code == 1 and json.loads(out)["root"] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\xff",
        b"<algo",
        b"<algo/>",
        b"<gpu/>",
        "<algo>".encode("utf-16"),
        b'<!DOCTYPE a [<!ENTITY b "c">]><algo/>',
    ],
)
def test_unreadable_files_are_bad_input(data: bytes, tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(data)
    code, out, err = run(path)
    assert code == 2 and out == "" and len(err.strip().splitlines()) == 1 and "a.xml" in err
    assert run(tmp_path / "none.xml")[0] == 2
    assert run(path, "--target", "abacus")[0] == 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text.encode("utf-16"), "UTF-8"),
        (lambda text: ('<?xml version="1.0" encoding="UTF-16"?>' + text).encode("utf-16"), "UTF-8"),
        (lambda text: text.replace('name="', 'name="\u00e9').encode("latin-1"), "not well-formed"),
        (lambda text: text.replace('srcoff="0"', 'srcoff="1_0"').encode(), "not a whole number"),
        (lambda text: text.replace('srcoff="0"', 'srcoff="\u0661"').encode(), "not a whole number"),
    ],
)
def test_all_commands_read_alike(
    spoil: Callable[[str], bytes], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(spoil(xml.to_text(direct_gather())))
    for command in (
        ["check", path],
        ["run", path],
        ["simulate", path, "--topology", "full-3", "--size", "1MB"],
        ["lower", path, "--topology", "full-3", "--size", "1MB", "-o", tmp_path / "b.xml"],
        ["report", path, "--topology", "full-3", "-o", tmp_path / "r.html"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in command])
        err = capsys.readouterr().err.strip()
        assert stop.value.code == 2 and words in err and len(err.splitlines()) == 1, (command, err)


@pytest.mark.parametrize(
    ("right", "wrong"), [('cnt="1"', 'cnt="0"'), ('cnt="1"', 'cnt="2147483647"'), ('srcoff="0"', 'srcoff="-1"')]
)
@pytest.mark.parametrize("command", ["check", "run", "simulate", "report"])
def test_places_that_no_buffer_has(
    right: str, wrong: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.xml"
    path.write_text(xml.to_text(direct_gather()).replace(right, wrong, 1))
    on = {"simulate": ["--topology", "full-3", "--size", "1MB"], "report": ["--topology", "full-3", "-o", "r.html"]}
    with pytest.raises(SystemExit) as stop:
        main([command, str(path), *on.get(command, [])])
    assert stop.value.code == (1 if command == "check" else 2)
    assert command == "check" or len(capsys.readouterr().err.strip().splitlines()) == 1


def test_bad_options(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "a.xml"
    direct_gather().write(path)
    assert run(path, "--root", "3")[0] == 2
    assert run(path, "--root", "one")[0] == 2


# -- speed ------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_steps_take_seconds() -> None:
    """32 ranks × 3200 steps of a pipelined chain, each step forwarding what another threadblock received."""
    chunks, ranks = 1600, 32

    def gpu(rank: int) -> Gpu:
        arrive = [
            receive("o", k, hasdep=True) if rank else Step("cpy", "i", k, "o", k, hasdep=True) for k in range(chunks)
        ]
        leave = [send("o", k, depid=0, deps=k) for k in range(chunks)]
        blocks = (block(arrive, recv=rank - 1), block(leave, send=rank + 1))
        return Gpu(chunks, chunks, 0, blocks if rank < ranks - 1 else blocks[:1])

    long = program("broadcast", chunks, [gpu(rank) for rank in range(ranks)])
    began = time.perf_counter()
    verdict = check(long)
    assert time.perf_counter() - began < 10
    assert verdict.min_credits == 1 and verdict.root == 0
    assert {found.code for found in verdict.findings} == {"steps"}  # only the limits of a real runtime
    broken = with_step(long, 31, 0, chunks - 1, dstoff=0)
    assert {found.code for found in check(broken).findings} == {"steps", "output"}


def test_shipped_files_pass_in_their_mode() -> None:
    assert codes(shipped_allgather(8)) == {}
    assert codes(replace(shipped_allgather(8), outofplace=True))["uninitialised"] == "error"

"""The checker against exhaustive search of tiny random programs, and against nonsense."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from step_machine import can_hang, has_race

from teccl_msccl.program.check import check
from teccl_msccl.program.program import PROTOCOLS, STEP_TYPES, Gpu, Program, Step, Threadblock
from teccl_msccl.program.targets import TARGETS

CHUNKS = 3
EXECUTOR = TARGETS["executor"]


@st.composite
def tiny_programs(draw: st.DrawFn) -> Program:
    """Two ranks with a few threadblocks, whose sends and receives match in number but stand in any order."""
    blocks: dict[tuple[int, int], list[str]] = {}
    peers: dict[tuple[int, int], tuple[int, int, int]] = {}
    shape = draw(st.sampled_from(["one pair", "two ways", "separate", "with locals"]))
    match shape:
        case "one pair":  # each rank sends and receives in one threadblock
            layout = [(0, 0, 1, 1, 0), (1, 0, 0, 0, 0)]
        case "two ways":
            layout = [(0, 0, 1, 1, 0), (0, 1, 1, 1, 1), (1, 0, 0, 0, 0), (1, 1, 0, 0, 1)]
        case "separate":
            layout = [(0, 0, 1, -1, 0), (0, 1, -1, 1, 0), (1, 0, 0, -1, 0), (1, 1, -1, 0, 0)]
        case _:
            layout = [(0, 0, 1, 1, 0), (0, 1, -1, -1, 0), (1, 0, 0, 0, 0), (1, 1, -1, -1, 0)]
    for rank, tb, send, recv, chan in layout:
        blocks[rank, tb] = []
        peers[rank, tb] = (send, recv, chan)
    counts: dict[tuple[int, int, int], list[int]] = {}
    for (rank, tb), (send, _, chan) in peers.items():
        if send >= 0:
            counts[rank, send, chan] = draw(st.lists(st.integers(1, 2), max_size=2))
            blocks[rank, tb] += ["send"] * len(counts[rank, send, chan])
    for (rank, tb), (_, recv, chan) in peers.items():
        if recv >= 0:
            blocks[rank, tb] += ["receive"] * len(counts[recv, rank, chan])
        blocks[rank, tb] += ["local"] * draw(st.integers(0, 1))
        blocks[rank, tb] = list(draw(st.permutations(blocks[rank, tb])))

    offset = st.integers(0, CHUNKS - 2)
    buffer = st.sampled_from("os")
    gpus = []
    for rank in range(2):
        threadblocks = []
        for (owner, tb), kinds in blocks.items():
            if owner != rank:
                continue
            send, recv, chan = peers[owner, tb]
            sent, received = iter(counts.get((rank, send, chan), ())), iter(counts.get((recv, rank, chan), ()))
            steps = []
            for kind in kinds:
                step = Step("cpy", draw(buffer), draw(offset), draw(buffer), draw(offset), hasdep=draw(st.booleans()))
                if kind == "send":
                    step = step._replace(type="s", cnt=next(sent))
                elif kind == "receive":
                    step = step._replace(type=draw(st.sampled_from(["r", "rrc"])), cnt=next(received))
                steps.append(step)
            threadblocks.append(Threadblock(send, recv, chan, tuple(_fuse(draw, steps))))
        gpus.append(Gpu(CHUNKS, CHUNKS, CHUNKS, tuple(threadblocks)))
    return _with_dependencies(draw, Program("tiny", "custom", "Simple", 2, 1, False, True, tuple(gpus)))


def _fuse(draw: st.DrawFn, steps: list[Step]) -> list[Step]:
    """Some receives directly before a send of as many chunks become one step with it."""
    result: list[Step] = []
    for step in steps:
        before = result[-1] if result else None
        if before and before.type == "r" and step.type == "s" and before.cnt == step.cnt and draw(st.booleans()):
            result[-1] = before._replace(type="rcs")
        else:
            result.append(step)
    return result


def _with_dependencies(draw: st.DrawFn, program: Program) -> Program:
    gpus = []
    for gpu in program.gpus:
        flagged = [
            (tb, at) for tb, block in enumerate(gpu.threadblocks) for at, step in enumerate(block.steps) if step.hasdep
        ]
        threadblocks = []
        for tb, block in enumerate(gpu.threadblocks):
            others = [place for place in flagged if place[0] != tb]
            steps = []
            for step in block.steps:
                if others and draw(st.booleans()):
                    depid, deps = draw(st.sampled_from(others))
                    step = step._replace(depid=depid, deps=deps)
                steps.append(step)
            threadblocks.append(Threadblock(block.send, block.recv, block.chan, tuple(steps)))
        gpus.append(Gpu(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks, tuple(threadblocks)))
    return Program(
        program.name, program.collective, program.protocol, program.nchannels, program.nchunks, program.inplace,
        program.outofplace, tuple(gpus),
    )  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(tiny_programs())
def test_agrees_with_every_interleaving(program: Program) -> None:
    verdict = check(program)
    codes = {finding.code for finding in verdict.findings}
    assert not codes & {"unmatched", "count-mismatch", "bounds", "dep-missing", "dep-unraised"}
    for credits in (1, 2):
        hangs = verdict.min_credits is None or verdict.min_credits > credits
        assert can_hang(program, credits) == hangs
    assert ("deadlock" in codes) == (verdict.min_credits is None)
    if verdict.min_credits is not None:
        assert ("race" in codes) == has_race(program)


@st.composite
def arbitrary_programs(draw: st.DrawFn) -> Program:
    """Anything that can be packed: mostly nonsense, with the extremes that integers have."""
    number = st.sampled_from([-1, 0, 0, 0, 1, 1, 2, 3, 71, 72, 2**31 - 1, -(2**31) + 1])
    steps = st.lists(
        st.builds(
            Step,
            type=st.sampled_from(STEP_TYPES),
            srcbuf=st.sampled_from("ios"),
            srcoff=number,
            dstbuf=st.sampled_from("ios"),
            dstoff=number,
            cnt=st.one_of(st.just(1), number),
            depid=number,
            deps=number,
            hasdep=st.booleans(),
        ),
        max_size=3,
    )
    peer = st.integers(-2, 3)
    chunks = st.one_of(st.integers(0, 4), number, st.just(2**40))
    blocks = st.lists(st.builds(Threadblock, peer, peer, st.integers(-1, 1), steps.map(tuple)), max_size=3)
    gpus = draw(st.lists(st.builds(Gpu, chunks, chunks, chunks, blocks.map(tuple)), min_size=1, max_size=3))
    collectives = (*EXECUTOR.collectives, "custom")
    return Program(
        name="arbitrary",
        collective=draw(st.sampled_from(collectives)),
        protocol=draw(st.sampled_from(PROTOCOLS)),
        nchannels=draw(number),
        nchunks=draw(st.one_of(st.integers(1, 6), number)),
        inplace=draw(st.booleans()),
        outofplace=draw(st.booleans()),
        gpus=tuple(gpus),
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(arbitrary_programs())
def test_nonsense_is_judged_not_crashed_upon(program: Program) -> None:
    verdict = check(program)
    assert verdict.ok == all(found.level == "warning" for found in verdict.findings)
    assert all(found.text for found in verdict.findings)
    failed = [proof for proof in verdict.proofs if proof.outcome == "failed"]
    assert not (verdict.ok and failed)

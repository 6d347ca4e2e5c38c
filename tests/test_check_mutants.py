"""Every single fault in a correct program is found, or provably makes no difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from correct_programs import CORRECT, edit, with_step
from step_machine import READS_SOURCE, WRITES, Contents, conflict, outputs

from teccl_msccl.program.check import check
from teccl_msccl.program.program import BUFFERS, RECEIVING, SENDING, Program, Step, Threadblock
from teccl_msccl.program.targets import CREDITS


@dataclass(frozen=True)
class Mutant:
    program: Program
    kind: str
    rank: int
    tb: int
    step: int


def mutants(program: Program) -> Iterator[Mutant]:
    """Every program that differs by one fault: a step less, two swapped, a field changed, another peer or channel."""
    for rank, gpu in enumerate(program.gpus):
        for tb, block in enumerate(gpu.threadblocks):
            for field in ("send", "recv"):
                for peer in range(-1, program.nranks):
                    if peer != getattr(block, field):
                        yield Mutant(edit(program, rank, tb, **{field: peer}), field, rank, tb, -1)
            yield Mutant(edit(program, rank, tb, chan=block.chan + 1), "chan", rank, tb, -1)
            for at, step in enumerate(block.steps):

                def place(changed: Program, kind: str, rank: int = rank, tb: int = tb, at: int = at) -> Mutant:
                    return Mutant(changed, kind, rank, tb, at)

                def drop(steps: list[Step], at: int = at) -> None:
                    del steps[at]

                def swap(steps: list[Step], at: int = at) -> None:
                    steps[at : at + 2] = reversed(steps[at : at + 2])

                yield place(edit(program, rank, tb, drop), "drop")
                if at + 1 < len(block.steps) and step != block.steps[at + 1]:
                    yield place(edit(program, rank, tb, swap), "swap")
                for field in ("srcoff", "dstoff", "cnt", "deps"):
                    for by in (-1, 1):
                        changed = {field: getattr(step, field) + by}
                        yield place(with_step(program, rank, tb, at, **changed), field)
                for field in ("srcbuf", "dstbuf"):
                    for buffer in set(BUFFERS) - {getattr(step, field)}:
                        yield place(with_step(program, rank, tb, at, **{field: buffer}), field)
                for depid in range(-1, len(gpu.threadblocks)):
                    if depid != step.depid:
                        yield place(with_step(program, rank, tb, at, depid=depid, deps=max(0, step.deps)), "depid")
                yield place(with_step(program, rank, tb, at, hasdep=not step.hasdep), "hasdep")


def why_harmless(original: Program, mutant: Mutant) -> str | None:
    """The reason that a mutant may mean the same as the original; None when none is known."""
    blocks = original.gpus[mutant.rank].threadblocks
    block = blocks[mutant.tb]
    if mutant.step < 0:
        return "no peer, so any channel" if block.send == block.recv == -1 and mutant.kind == "chan" else None
    step = block.steps[mutant.step]
    changed = (
        step if mutant.kind == "drop" else mutant.program.gpus[mutant.rank].threadblocks[mutant.tb].steps[mutant.step]
    )
    match mutant.kind:
        case "srcoff" | "srcbuf" if step.type not in READS_SOURCE:
            return "an unused source"
        case "dstoff" | "dstbuf" if step.type not in WRITES:
            return "an unused destination"
        case "cnt" if step.type == "nop":
            return "a nop moves nothing"
        case "deps" if step.depid == -1:
            return "a step number without a threadblock"
        case "hasdep" if not step.hasdep:
            return "a flag that only ends waits that may end"
        case "deps" if raised(blocks[step.depid], step.deps) == raised(blocks[step.depid], changed.deps):
            return EXECUTED + "the wait ends at the same flag"
        case "depid" if step.depid == -1:
            return EXECUTED + "one more wait, for what comes first anyway"
        case "depid":
            return EXECUTED + "a wait that implies the old one, or the old one was implied"
        case "drop" if step.type == "nop":
            return EXECUTED + "a wait that another implies"
        case "swap" if independent(step, block.steps[mutant.step + 1]):
            return EXECUTED + "two steps that do not meet"
        case "srcbuf" if (step.type, step.srcbuf) in (("s", "o"), ("s", "i")):
            return EXECUTED + "the input's copy in the output, or the other way round"
        case "dstbuf" if step.type == "re":
            return EXECUTED + "the same sum, added up in another order"
        case "cnt" if step.type == "cpy":
            return EXECUTED + "one more chunk, which is overwritten before it is read"
    return None


#: Reasons that depend on the rest of the program: these mutants are executed to see that they work.
EXECUTED = "executed: "


def raised(block: Threadblock, number: int) -> int:
    """The step that ends a wait for `number`."""
    return next((at for at, step in enumerate(block.steps) if at >= number and step.hasdep), -1)


def independent(a: Step, b: Step) -> bool:
    in_order = (RECEIVING, SENDING)
    return not conflict(a, b) and not any(a.type in kind and b.type in kind for kind in in_order)


def result(program: Program, in_place: bool, seed: int) -> dict[tuple[int, str, int], Contents] | None:
    memory = outputs(program, CREDITS[program.protocol], in_place, seed)
    return memory and {chunk: contents for chunk, contents in memory.items() if chunk[1] != "s"}


@pytest.mark.parametrize("name", CORRECT)
def test_every_mutant_is_caught_or_harmless(name: str) -> None:
    original = CORRECT[name]()
    root = check(original).root
    modes = [mode for mode, claimed in ((True, original.inplace), (False, original.outofplace)) if claimed]
    right = {mode: result(original, mode, 0) for mode in modes}
    caught = Counter[str]()
    for mutant in mutants(original):
        if not check(mutant.program, root=root).ok:
            caught[mutant.kind] += 1
            continue
        reason = why_harmless(original, mutant)
        assert reason is not None, mutant
        if reason.startswith(EXECUTED) and mutant.rank < 2:
            for mode in modes:
                assert all(result(mutant.program, mode, seed) == right[mode] for seed in range(2)), (reason, mutant)
    waits = any(step.depid >= 0 for _, _, _, step in original.steps())
    assert set(caught) >= {"drop", "send", "recv", "chan", "cnt", "srcoff", "dstoff"} | (
        {"deps", "depid"} if waits else set()
    )

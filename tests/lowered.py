"""Schedules to lower, and what every lowered program must live up to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from teccl_msccl.program import xml
from teccl_msccl.program.check import check
from teccl_msccl.program.program import Program
from teccl_msccl.program.targets import CREDITS
from teccl_msccl.runtime.elements import DTYPES
from teccl_msccl.runtime.sweep import Row, Sweep, measure
from teccl_msccl.runtime.threads import ThreadWorld
from teccl_msccl.runtime.world import Settings
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.problem import Problem


def greedy(problem: Problem, nchunks: int = 1, seed: int = 0) -> Schedule:
    """One run of the greedy search for each stage of `problem`."""
    return problem.assemble([GreedySearch(s.topology).trial(s.demand(nchunks), seed) for s in problem.stages])


# -- what must hold ----------------------------------------------------------------------------------------------


def require_right(program: Program, schedule: Schedule, slots: Sequence[int] = (1, 2, 8)) -> None:
    """The program passes the checker with one credit (with its protocol's, where steps are fused), reads back from its
    text, and computes the right data."""
    root = schedule.demand.root
    verdict = check(program, root=root)
    fused = any(step.type in ("rcs", "rrs", "rrcs") for _, _, _, step in program.steps())
    assert verdict.ok and verdict.min_credits, verdict.findings
    assert verdict.min_credits <= (CREDITS[program.protocol] if fused else 1)
    assert {finding.code for finding in verdict.findings} <= {"co-resident", "suspect"}, verdict.findings
    assert {proof.outcome for proof in verdict.proofs} == {"proved"}
    text = xml.to_text(program)
    assert xml.parse(text.encode(), target=program.target) == program
    require_spelling(text, program.target)
    for number in {max(number, verdict.min_credits) for number in slots}:
        rows = execute(program, root, slots=number)
        assert {row.mode for row in rows} == claimed_modes(program)
        assert sum(row.wrong + row.out_of_bounds for row in rows) == 0, rows


def claimed_modes(program: Program) -> set[str]:
    return {mode for mode, claims in (("in-place", program.inplace), ("out-of-place", program.outofplace)) if claims}


def execute(program: Program, root: int | None, elements: int = 5, **settings: int | float) -> list[Row]:
    """`program` over threads on `elements` 4-byte elements a chunk, in slots that hold two of them."""
    sweep = Sweep((elements * 4 * program.chunks_per_size,), (DTYPES["int32"],), ("sum",), iterations=1, warmup=0)
    how = Settings(**({"timeout": 10.0, "slot_bytes": 8, "workers": 2} | settings))
    return [measure(ThreadWorld(program.nranks), case, sweep, how) for case in sweep.cases(program, root, "program")]


# -- the text ----------------------------------------------------------------------------------------------------

_TAG = re.compile(r' *<(?:/(algo|gpu|tb)|(algo|gpu|tb|step)((?: \w+="[^"<>&]*")*)(/?))>')
_ATTRIBUTES = {
    "algo": "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes",
    "gpu": "id i_chunks o_chunks s_chunks",
    "tb": "id send recv chan",
    "step": "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep",
}
Element = dict[str, str]


#: Steps of a threadblock, threadblocks of a GPU, channels.
LIMITS = {"executor": (64, 1024, 32), "msccl": (256, 216, 32), "rccl": (64, 64, 128)}


def require_spelling(text: str, target: str = "executor") -> None:
    """The text obeys the rules of the runtimes' parsers and loaders (MSCCL XML reference §1–§3, §6), read line by
    line, without an XML parser."""
    assert text.isascii() and not set(text) & set("\t\r'")
    elements = list(_elements(text))
    algo, gpus = elements[0][1], [element for tag, element in elements if tag == "gpu"]
    assert [tag for tag, _ in elements[:2]] == ["algo", "gpu"] and int(algo["ngpus"]) == len(gpus)
    assert [gpu["id"] for gpu in gpus] == [str(i) for i in range(len(gpus))]
    assert 0 < int(algo["minBytes"]) <= int(algo["maxBytes"]) and 1 <= int(algo["nchannels"]) <= LIMITS[target][2]
    assert ("reducescatter" in algo["coll"] and target == "msccl") is False and len(algo["name"]) <= 63
    if target == "msccl":
        assert algo["inplace"] != algo["outofplace"]
        _require_agreement(algo, gpus)
    ranks: list[list[tuple[Element, list[Element]]]] = []
    for tag, element in elements[1:]:
        match tag:
            case "gpu":
                ranks.append([])
            case "tb":
                assert element["id"] == str(len(ranks[-1]))
                ranks[-1].append((element, []))
            case "step":
                assert element["s"] == str(len(ranks[-1][-1][1]))
                ranks[-1][-1][1].append(element)
    for blocks in ranks:
        _require_rank(blocks, int(algo["nchannels"]), target)
        assert 1 + len(gpus) + len(blocks) + sum(len(steps) for _, steps in blocks) <= 4095


def _elements(text: str) -> list[tuple[str, Element]]:
    """Start tags; every line is one tag, closed in order, with all its attributes."""
    found, opened = [], []
    for line in text.splitlines():
        match = _TAG.fullmatch(line)
        assert match, line
        if match[1]:
            assert opened.pop() == match[1]
            continue
        attributes = re.findall(r'(\w+)="([^"]*)"', match[3])
        assert [key for key, _ in attributes] == _ATTRIBUTES[match[2]].split()
        assert all(len(value) <= 255 for _, value in attributes)
        found.append((match[2], dict(attributes)))
        if not match[4]:
            opened.append(match[2])
    assert not opened
    return found


def _require_agreement(algo: Element, gpus: Sequence[Element]) -> None:
    for gpu in gpus:
        shares = {"i_chunks": algo["coll"] == "allgather", "o_chunks": algo["coll"] == "reduce_scatter"}
        for attribute, shared in shares.items():
            assert int(gpu[attribute]) * (len(gpus) if shared else 1) in (0, int(algo["nchunksperloop"]))


def _require_rank(blocks: Sequence[tuple[Element, list[Element]]], channels: int, target: str) -> None:
    most_steps, most_blocks, _ = LIMITS[target]
    assert len(blocks) <= most_blocks
    ends: Counter[tuple[str, str]] = Counter()
    owners: Counter[tuple[str, str, str]] = Counter()
    waited = set()
    for tb, (block, steps) in enumerate(blocks):
        assert 1 <= len(steps) <= most_steps and 0 <= int(block["chan"]) < channels
        for way in ("send", "recv"):
            if block[way] != "-1":
                ends[way, block["chan"]] += 1
                owners[way, block[way], block["chan"]] += 1
        pending: list[int] = []
        for step in steps:
            assert 1 <= int(step["cnt"]) <= 71
            assert target != "rccl" or step["type"] not in ("rcs", "rrs", "rrc", "rrcs")
            depid, deps = int(step["depid"]), int(step["deps"])
            assert (depid < 0) == (deps < 0)
            if depid >= 0:
                assert depid not in (tb, *pending) and depid <= 127  # waits for one threadblock are one wait
                assert blocks[depid][1][deps]["hasdep"] == "1"
                waited.add((depid, deps))
                pending.append(depid)
            if step["type"] == "nop":
                assert depid >= 0 and step["hasdep"] == "0"
            else:
                assert depid >= 0 or not pending  # k dependencies: k − 1 nops, and the step has one itself
                pending = []
        assert steps[-1]["type"] != "nop"
        assert len({step["cnt"] for step in steps if step["type"] != "nop"}) == 1
    assert max(ends.values(), default=0) <= 32 and max(owners.values(), default=0) <= 1
    flagged = {(tb, s) for tb, (_, steps) in enumerate(blocks) for s, step in enumerate(steps) if step["hasdep"] == "1"}
    assert flagged == waited

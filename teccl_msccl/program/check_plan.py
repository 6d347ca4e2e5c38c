"""The checker of MSCCL++ plans: an abstract execution that finds hangs, wrong data and races.

It shares nothing with the exporter. Every operation is executed once, on sets of contributions instead of numbers;
vector clocks (Fidge, Mattern) say what is ordered with what. Threads of a threadblock meet at a `nop` only: what an
operation did, and what a wait learned, is known to the operations after the next one. A relaxed signal tells that a
launch has begun, and orders no data. What a port channel puts is read until it is flushed. Of a pipeline, which does
the same to part after part, two iterations are executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .check import LISTED, Proof, Verdict
from .check_plan_limits import plan_limit_findings
from .finding import Finding, error, listed
from .plan_execution import KNOWN, Execution
from .plan_file import PlanFile, plan_file
from .targets import MSCCLPP

#: Findings that leave nothing to execute.
_UNFIT = frozenset({"bounds", "channel", "chunks", "mode", "parts"})
#: Clocks count every threadblock, and every threadblock has four.
_MOST_THREADBLOCKS = 5000


def check_plan(value: Any, where: str = "plan") -> Verdict:
    """Examine the plan in the JSON `value`: limits, progress, data and races. About O(operations · threadblocks).
    Raises `InputError`, naming `where`, when it cannot be read as one at all."""
    plan = plan_file(value, where)
    found = list(plan_limit_findings(plan, MSCCLPP))
    limits_hold = all(finding.level != "error" for finding in found)
    unknown = list(_unexamined(plan))
    outcomes = {"limits": "proved" if limits_hold else "failed"}
    outcomes |= dict.fromkeys(("progress", "data", "races"), "not attempted")
    root = None
    if not unknown and not any(finding.code in _UNFIT for finding in found):
        run = Execution(plan)
        run.all()
        root = run.root
        outcomes |= run.outcomes()
        found += run.findings
    findings = listed([*found, *unknown], LISTED)
    return Verdict(
        ok=all(finding.level != "error" for finding in findings),
        target="mscclpp",
        findings=findings,
        min_credits=None,
        root=root,
        proofs=tuple(Proof(name, outcome) for name, outcome in outcomes.items()),
    )


def _unexamined(plan: PlanFile) -> Iterator[Finding]:
    """Operations beyond what the abstract execution knows, and plans beyond what it can hold."""
    blocks = sum(len(gpu.threadblocks) for gpu in plan.gpus)
    if blocks > _MOST_THREADBLOCKS:
        yield error("size", f"{blocks} threadblocks in all; the checker takes {_MOST_THREADBLOCKS}")
    for rank, gpu in enumerate(plan.gpus):
        for tb, block in enumerate(gpu.threadblocks):
            for op in block.ops:
                if not op.turn and (op.name not in KNOWN or op.divided_twice):
                    what = f"{op.name} with tbg_info in a pipeline" if op.divided_twice else op.name
                    yield error("operation", f"the checker does not know {what}", rank, tb, op.position)

"""`check`: is this program right, and for which runtime?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app

if TYPE_CHECKING:
    from ..program.check import Verdict


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="An MSCCL XML or MSCCL++ JSON plan, ours or anyone's.")],
    target: Annotated[
        str | None, typer.Option(help="A runtime, or all; by default the one whose spelling the file has.")
    ] = None,
    root: Annotated[int | None, typer.Option(help="The root, where the data flow does not tell.")] = None,
) -> None:
    """Prove an MSCCL XML or an MSCCL++ plan: limits, matching, bounds, data, races, deadlocks; exit 1 if wrong."""
    from ..files import read_bytes
    from ..program.check import check_text
    from ..program.kind import plan_in
    from ..program.targets import TARGETS, target_named

    if target not in (None, "all", "mscclpp"):
        target_named(target)  # a wrong name is told before the file is read
    data = read_bytes(file, "a program")  # once: a pipe has it once
    plan = plan_in(data, file)
    if plan is not None:
        verdicts = [_check_plan(plan, file, target)]
    else:
        targets = list(TARGETS.values()) if target == "all" else [target_named(target)] if target else []
        verdicts = check_text(data, file, targets, root)
    output.answer(_answer(verdicts), lambda: _show(file, verdicts))
    if not all(verdict.ok for verdict in verdicts):
        raise typer.Exit(1)


def _check_plan(plan: Any, file: Path, target: str | None) -> Verdict:
    from ..errors import InputError
    from ..program.check_plan import check_plan

    if target not in (None, "all", "mscclpp"):
        raise InputError(f"{file}: a JSON plan is for mscclpp, not for target {target}; leave --target out")
    return check_plan(plan, str(file))


def _answer(verdicts: list[Verdict]) -> dict[str, Any]:
    """The verdict; of several, what holds for all, and each by its target."""
    several = len(verdicts) > 1
    findings = []
    for verdict in verdicts:
        findings += [
            finding._asdict() | ({"target": verdict.target} if several else {}) for finding in verdict.findings
        ]
    answer: dict[str, Any] = {
        "ok": all(verdict.ok for verdict in verdicts),
        "target": "all" if several else verdicts[0].target,
        "min_credits": verdicts[0].min_credits,
        "root": verdicts[0].root,
        "proofs": {proof.name: proof.outcome for proof in verdicts[0].proofs},
        "findings": findings,
    }
    if several:
        answer["targets"] = {verdict.target: verdict.ok for verdict in verdicts}
    return answer


def _show(file: Path, verdicts: list[Verdict]) -> None:
    from rich.table import Table
    from rich.text import Text

    for verdict in verdicts:
        word, style = ("ok", "green") if verdict.ok else ("NOT OK", "bold red")
        output.stdout.print(Text(f"{file}: "), Text(word, style), Text(f" for {verdict.target}"), sep="")
        for proof in verdict.proofs:
            style = {"proved": "green", "failed": "red"}.get(proof.outcome, "yellow")
            line = Text.assemble("  ", f"{proof.name:<20}", (proof.outcome, style))
            if proof.name == "progress" and verdict.min_credits is not None:
                line.append(f" (finishes with {verdict.min_credits} or more transfers in flight)")
            output.stdout.print(line)
        if verdict.root is not None:
            output.stdout.print(Text(f"  {'root':<20}{verdict.root}"))
        if verdict.findings:
            table = Table(box=None, pad_edge=False)
            for heading in ("", "code", "gpu", "tb", "step"):
                table.add_column(heading, no_wrap=True, justify="right" if heading in ("gpu", "tb", "step") else "left")
            table.add_column("finding", overflow="fold")
            for finding in verdict.findings:
                where = ("" if at < 0 else str(at) for at in (finding.gpu, finding.tb, finding.step))
                style = "red" if finding.level == "error" else "yellow"
                table.add_row(Text(finding.level, style), finding.code, *where, Text(finding.text))
            output.stdout.print(table)

"""The checker: is a program right, for a target, whoever made it?

It shares nothing with the lowering: only the Program, the reader of files and the targets' limits. The proofs are
made in the C++ core (csrc/check.hpp says what each of them means); the limits are here, next to the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import _core
from ..errors import InputError, naming
from . import xml
from .check_limits import handover_findings, limit_findings
from .check_text import algo_attributes, text_findings
from .finding import Finding, listed
from .program import Program
from .targets import CREDITS, MAX_COUNT, MAX_DEPENDENCY_TB, Target, target_named

#: Findings of one code that are listed before they are only counted.
LISTED = 20
_PROOFS = ("connections", "matching", "bounds", "dependencies", "progress", "data", "races")


@dataclass(frozen=True)
class Proof:
    """One thing that was to be proved, and whether it was: `proved`, `failed`, `not attempted` (what it builds on
    failed) or `no postcondition` (data of a collective whose result is not known)."""

    name: str
    outcome: str


@dataclass(frozen=True)
class Verdict:
    """What the checker says of a program for a target.

    `ok`: no finding is an error. `min_credits`: the fewest transfers in flight per connection with which every
    threadblock finishes; None when it hangs with any number, or when earlier errors leave that open. `root`: the
    one given or inferred; None for collectives without one.
    """

    ok: bool
    target: str
    findings: tuple[Finding, ...]
    min_credits: int | None
    root: int | None
    proofs: tuple[Proof, ...] = ()


def check(program: Program, target: Target | None = None, root: int | None = None) -> Verdict:
    """Examine `program` for `target` (its own by default).

    `root` is that of a broadcast, reduce, gather or scatter; by default the data flow tells. Raises `InputError`
    for a root that is no rank. A hundred thousand steps take about a second.
    """
    return check_for(program, [target or target_named(program.target)], root)[0]


def check_for(program: Program, targets: Sequence[Target], root: int | None = None) -> list[Verdict]:
    """`check` for several targets at the price of one where they agree on the modes."""
    return _verdicts(((target, program, ()) for target in targets), root)


def check_text(data: bytes, path: str | Path, targets: Sequence[Target] = (), root: int | None = None) -> list[Verdict]:
    """Examine what is in the file at `path`, its text included, for each of `targets` (none: the one whose spelling the
    file has). Raises `InputError` when it cannot be read as a program at all."""
    program = xml.parse(data, str(path))
    unlimited = "maxBytes" not in algo_attributes(data)
    cases = []
    for target in targets or [target_named(program.target)]:
        limit = target.default_max_bytes or 0
        taken = replace(program, max_bytes=limit) if unlimited and program.max_bytes != limit else program
        cases.append((target, taken, text_findings(data, target)))
    with naming(path, program.name):
        return _verdicts(cases, root)


def _verdicts(cases: Iterable[tuple[Target, Program, Iterable[Finding]]], root: int | None) -> list[Verdict]:
    reports: dict[tuple[bool, bool], _Report] = {}  # by modes: all else that differs between targets is in the limits
    verdicts = []
    for target, program, text in cases:
        if root is not None and not 0 <= root < program.nranks:
            raise InputError(f"{program.name}: root {root}; the program has ranks 0 to {program.nranks - 1}")
        limits = list(limit_findings(program, target))
        report: _Report | None = None
        if not any(finding.code in _UNFIT for finding in limits):
            examined = _in_its_modes(program, target)
            modes = (examined.inplace, examined.outofplace)
            if modes not in reports:
                reports[modes] = _examine(examined, root)
            report = reports[modes]
            limits += handover_findings(report.handovers, program, target)
        findings = listed([*text, *limits], LISTED) + (report.findings if report else ())
        limits_hold = all(finding.level != "error" for finding in limits)
        verdicts.append(
            Verdict(
                ok=all(finding.level != "error" for finding in findings),
                target=target.name,
                findings=findings,
                min_credits=report.min_credits if report else None,
                root=report.root if report else None,
                proofs=(
                    Proof("limits", "proved" if limits_hold else "failed"),
                    *(report.proofs if report else (Proof(name, "not attempted") for name in _PROOFS)),
                ),
            )
        )
    return verdicts


def _in_its_modes(program: Program, target: Target) -> Program:
    """The program with the modes in which `target` runs it."""
    inplace, outofplace = target.modes(program.inplace, program.outofplace)
    return replace(program, inplace=inplace, outofplace=outofplace)


#: Errors that leave nothing to examine: peers that do not exist, sizes that no buffer has.
_UNFIT = frozenset({"peer", "ranks", "size"})


@dataclass(frozen=True)
class _Report:
    findings: tuple[Finding, ...]
    handovers: tuple[Finding, ...]
    proofs: tuple[Proof, ...]
    min_credits: int | None
    root: int | None


def _examine(program: Program, root: int | None) -> _Report:
    """The proofs that are the same for every target."""
    raw = _core.check(
        program.core,
        credits=CREDITS[program.protocol],
        max_count=MAX_COUNT,
        max_dependency_tb=MAX_DEPENDENCY_TB,
        listed=LISTED,
        root=-1 if root is None else root,
    )
    return _Report(
        findings=tuple(Finding(*fields) for fields in raw["findings"]),
        handovers=tuple(Finding(*fields) for fields in raw["handovers"]),
        proofs=tuple(Proof(*fields) for fields in raw["proofs"]),
        min_credits=raw["min_credits"],
        root=None if raw["root"] < 0 else raw["root"],
    )

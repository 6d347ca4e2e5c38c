"""One thing that is wrong, or doubtful, with a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Finding(NamedTuple):
    """`code` names the rule; gpu, tb and step say where (−1: not applicable); `level` is error or warning."""

    code: str
    gpu: int
    tb: int
    step: int
    text: str
    level: str


def error(code: str, text: str, gpu: int = -1, tb: int = -1, step: int = -1) -> Finding:
    return Finding(code, gpu, tb, step, text, "error")


def warning(code: str, text: str, gpu: int = -1, tb: int = -1, step: int = -1) -> Finding:
    return Finding(code, gpu, tb, step, text, "warning")


def listed(findings: Iterable[Finding], most: int) -> tuple[Finding, ...]:
    """The findings with at most `most` of each code; then how many more there are of it."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    result: list[Finding] = []
    for code, all_of_it in by_code.items():
        result += all_of_it[:most]
        if len(all_of_it) > most:
            more = f"and {len(all_of_it) - most} more like these"
            result.append(Finding(code, -1, -1, -1, more, all_of_it[0].level))
    return tuple(result)

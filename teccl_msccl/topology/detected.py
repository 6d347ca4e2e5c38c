"""Detected: a topology together with what was believed, doubted and found broken while reading it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .model import Topology

Level = Literal["info", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """One remark on the reading of a machine: "info" an assumption, "warning" a doubt, "fault" a broken part.

    `device` is the label that the source itself uses (GPU3, mlx5_0, NIC2), or empty for the machine as a whole.
    """

    level: Level
    device: str
    text: str


@dataclass(frozen=True)
class Detected:
    """A topology and the findings that came with it."""

    topology: Topology
    findings: tuple[Finding, ...] = ()

    def also(self, *findings: Finding) -> Detected:
        """The same topology with more findings."""
        return replace(self, findings=self.findings + findings)

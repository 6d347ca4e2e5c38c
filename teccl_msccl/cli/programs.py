"""The programs of a schedule: one for all ranks, one for each group's ranks, or none where no XML can say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Refused

if TYPE_CHECKING:
    from ..schedule.schedule import Schedule
    from .proved import ProvedProgram


@dataclass(frozen=True)
class Part:
    """A program and where it goes; or why there is none. `group` is the group whose ranks it is for (None: all)."""

    group: int | None
    proved: ProvedProgram | None
    file: Path | None
    why_not: str = ""

    def to_json(self) -> dict[str, Any]:
        known = self.proved.to_json() if self.proved else {"why_not": self.why_not}
        return {"group": self.group, "file": None if self.file is None else str(self.file), **known}

    def lines(self) -> list[str]:
        head = [] if self.group is None else [f"group {self.group}:"]
        if self.proved is None:
            return [*head, f"no program  {self.why_not}"]
        return [*head, *self.proved.lines(), f"written     {self.file}"]


def programs_of(
    schedules: Sequence[Schedule], file: Path, prove: Callable[[Sequence[Schedule]], ProvedProgram]
) -> list[Part]:
    """The program that `prove` makes of one of the schedules; or those of the first schedule's groups, of which group
    2's goes to NAME.group2.xml beside `file`."""
    schedule = schedules[0]
    if not schedule.demand.groups:
        why_not = untold(schedule.demand.collective)
        return [Part(None, None, None, why_not)] if why_not else [Part(None, prove(schedules), file)]
    return list(_of_groups(schedule, file, prove))


def _of_groups(schedule: Schedule, file: Path, prove: Callable[[Sequence[Schedule]], ProvedProgram]) -> Iterator[Part]:
    from ..schedule.group import of_group

    for number in range(len(schedule.demand.groups)):
        why_not = untold(schedule.demand.collective)
        if not why_not:
            try:
                part = of_group(schedule, number)
            except Refused as error:
                why_not = str(error)
        if why_not:
            yield Part(number, None, None, why_not)
        else:
            yield Part(number, prove([part]), file.with_suffix(f".group{number}{file.suffix}"))


def untold(collective: str) -> str:
    """Why an MSCCL XML, and an MSCCL++ plan made of the same steps, cannot say `collective`; empty where they can."""
    if collective == "alltoallv":
        return (
            "programs (MSCCL XML, and MSCCL++ plans made of the same steps) have chunks of one size and no counts, so "
            "they cannot say an alltoallv's matrix; an alltoall of blocks as large as the largest has a file"
        )
    if collective == "custom":
        return (
            "programs (MSCCL XML, MSCCL++ plans) name a collective of all ranks, so they cannot say a custom demand; a "
            "collective of some ranks (--group) has a file of its own"
        )
    return ""

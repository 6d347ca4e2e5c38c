"""A program on its way to a file: proved, simulated and described."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from ..errors import InputError, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..program.check import Verdict
    from ..program.mscclpp import ExecutionPlan
    from ..program.program import Program
    from ..schedule.schedule import Schedule


@dataclass(frozen=True)
class ProvedProgram:
    """A schedule's program, what the checker proved of it, and its simulated time; with the MSCCL++ plan made of it,
    where that is the target: then it is the plan that was proved and simulated, of whose launch nothing is known."""

    schedule: Schedule
    program: Program
    verdict: Verdict
    finish_us: float
    launch_us: float
    plan: ExecutionPlan | None = None

    def write(self, path: str | Path) -> None:
        """Write the target's file."""
        (self.plan or self.program).write(path)

    @property
    def threadblocks_max(self) -> int:
        """Threadblocks of the GPU that has most."""
        if self.plan is not None:
            return self.plan.threadblocks_max
        return max(len(gpu.threadblocks) for gpu in self.program.gpus)

    @property
    def steps_max(self) -> int:
        """Steps (operations, in a plan) of the longest threadblock."""
        if self.plan is not None:
            return self.plan.operations_max
        return max((len(tb.steps) for gpu in self.program.gpus for tb in gpu.threadblocks), default=0)

    def to_json(self) -> dict[str, Any]:
        """The keys that `synth` and `lower` share."""
        return {
            "target": self.verdict.target,
            "program_finish_us": self.finish_us,
            "launch_us": self.launch_us,
            "nchunks": self.program.nchunks,
            "threadblocks_max": self.threadblocks_max,
            "steps_max": self.steps_max,
            "channels": self.program.nchannels,
            "min_credits": self.verdict.min_credits,
        }

    def lines(self) -> list[str]:
        """The program in a few lines of a report."""
        proved = [proof.name for proof in self.verdict.proofs if proof.outcome == "proved"]
        others = [f"{proof.name}: {proof.outcome}" for proof in self.verdict.proofs if proof.outcome != "proved"]
        modes = [
            name for name, has in (("in place", self.program.inplace), ("out of place", self.program.outofplace)) if has
        ]
        deadlock = f"; deadlock free from {self.verdict.min_credits} credit(s) up" if self.plan is None else ""
        steps = "steps" if self.plan is None else "operations"
        launch = f"plus {self.launch_us:g} µs to launch" if self.plan is None else "launching apart"
        return [
            f"program     target {self.verdict.target}, {self.program.protocol}, {' and '.join(modes)}: "
            f"{self.program.nchannels} channels, at most {self.threadblocks_max} threadblocks a GPU "
            f"and {self.steps_max} {steps} a threadblock, nchunksperloop {self.program.nchunks}",
            f"simulated   {self.finish_us:.3f} µs ({launch})",
            f"proved      {', '.join(proved)}{deadlock}",
            *(f"not proved  {other}" for other in others),
        ]


def check_names(target: str, mode: str | None, protocol: str, instances: int | None) -> None:
    """Raise `InputError` for a name that does not exist, before a search that it would waste."""
    if target != "mscclpp":
        from ..program.lower import check_names as check_program_names

        check_program_names(target, mode, protocol)
        return
    from ..program.lower_plan import check_plan_names

    check_plan_names(mode, protocol)
    if instances is not None:
        raise InputError("target mscclpp has no instances; leave --instances out")


def lower_and_prove(
    schedules: Sequence[Schedule],
    target: str,
    mode: str | None,
    protocol: str,
    instances: int | None = None,
    seconds: float = inf,
) -> ProvedProgram:
    """Lower `schedules` for `target`, MSCCL++ included, in about so many `seconds`; choose the one whose
    program is fastest, and prove it."""
    from ..program.fastest import fastest
    from ..program.lower import lower

    check_names(target, mode, protocol, instances)
    if target != "mscclpp":
        build = partial(lower, target=target, mode=mode, protocol=protocol, instances=instances)
        return prove(*fastest(schedules, build, seconds))
    from ..program.check_plan import check_plan
    from ..program.lower_plan import lower_plan, plan_finish_us

    plans: dict[int, ExecutionPlan] = {}

    def lowered(each: Schedule) -> Program:
        program, plans[id(each)] = lower_plan(each, mode=mode, protocol=protocol)
        return program

    schedule, program = fastest(schedules, lowered, seconds)
    plan = plans[id(schedule)]
    verdict = check_plan(plan.value)
    _require(verdict)
    return ProvedProgram(schedule, program, verdict, plan_finish_us(plan, schedule), 0.0, plan)


def prove(schedule: Schedule, program: Program) -> ProvedProgram:
    """Check and simulate `program`. Raises `Refused`, with the first finding, when it is not right."""
    from ..program.check import check
    from ..program.simulate import simulate

    verdict = check(program, root=schedule.demand.root)
    _require(verdict)
    timing = simulate(program, schedule.topology, schedule.demand.size_bytes)
    return ProvedProgram(schedule, program, verdict, timing.finish_us, timing.launch_us)


def _require(verdict: Verdict) -> None:
    if not verdict.ok:
        first = next(finding for finding in verdict.findings if finding.level == "error")
        raise Refused(f"the lowered program does not pass the checker: {first.code}: {first.text}; please report this")

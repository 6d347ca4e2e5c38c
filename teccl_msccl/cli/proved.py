"""A program on its way to a file: proved, simulated and described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import Refused

if TYPE_CHECKING:
    from ..program.check import Verdict
    from ..program.program import Program
    from ..schedule.schedule import Schedule


@dataclass(frozen=True)
class ProvedProgram:
    """A lowered program, what the checker proved of it, and its simulated time."""

    program: Program
    verdict: Verdict
    finish_us: float
    launch_us: float

    @property
    def threadblocks_max(self) -> int:
        """Threadblocks of the GPU that has most."""
        return max(len(gpu.threadblocks) for gpu in self.program.gpus)

    @property
    def steps_max(self) -> int:
        """Steps of the longest threadblock."""
        return max((len(tb.steps) for gpu in self.program.gpus for tb in gpu.threadblocks), default=0)

    def to_json(self) -> dict[str, Any]:
        """The keys that `synth` and `lower` share."""
        return {
            "target": self.program.target,
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
        proofs = ", ".join(f"{proof.name} {proof.outcome}" for proof in self.verdict.proofs)
        modes = [
            name for name, has in (("in place", self.program.inplace), ("out of place", self.program.outofplace)) if has
        ]
        return [
            f"program     target {self.program.target}, {self.program.protocol}, {' and '.join(modes)}: "
            f"{self.program.nchannels} channels, at most {self.threadblocks_max} threadblocks a GPU "
            f"and {self.steps_max} steps a threadblock, nchunksperloop {self.program.nchunks}",
            f"simulated   {self.finish_us:.3f} µs as this program (plus {self.launch_us:g} µs to launch)",
            f"proved      {proofs}; deadlock free from {self.verdict.min_credits} credit(s) up",
        ]


def prove(schedule: Schedule, program: Program) -> ProvedProgram:
    """Check and simulate `program`. Raises `Refused`, with the first finding, when it is not right."""
    from ..program.check import check
    from ..program.simulate import simulate

    verdict = check(program, root=schedule.demand.root)
    if not verdict.ok:
        first = next(finding for finding in verdict.findings if finding.level == "error")
        raise Refused(f"the lowered program does not pass the checker: {first.code}: {first.text}; please report this")
    timing = simulate(program, schedule.topology, schedule.demand.size_bytes)
    return ProvedProgram(program, verdict, timing.finish_us, timing.launch_us)

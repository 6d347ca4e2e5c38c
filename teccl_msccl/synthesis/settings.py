"""Settings: what a user may ask of every searcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import InputError, unknown, whole
from .epochs import EPOCHS
from .rules import Rules
from .solver import SOLVERS

#: Seeds start below this, so that all that follow are 64-bit numbers.
MOST_SEEDS = 2**63
#: Chunks of a share beyond which searches take hours for what no runtime's file can hold.
MOST_CHUNKS_A_SHARE = 10_000


@dataclass(frozen=True)
class Settings:
    """`nchunks` chunks per rank (None: chosen), the MILP's `epochs` ("fast", "slow" or "auto": both), `thorough`: all
    the time for one method, and `rules` that schedules must keep. Raises `InputError`."""

    nchunks: int | None = None
    solver: str = "cbc"
    epochs: str = "auto"
    seed: int = 0
    jobs: int = 2
    thorough: bool = False
    rounds: int | None = None
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise unknown("solver", self.solver, SOLVERS)
        if self.epochs not in EPOCHS:
            raise unknown("epochs", self.epochs, EPOCHS)
        for name, value, least in (("jobs", self.jobs, 1), ("seed", self.seed, 0)):
            if whole(name, value) < least:
                raise InputError(f"{name} is {value}; it must be {least} or more")
        if self.nchunks is not None and whole("nchunks", self.nchunks) > MOST_CHUNKS_A_SHARE:
            raise InputError(
                f"{self.nchunks} chunks a share are too many for any file; use at most {MOST_CHUNKS_A_SHARE}"
            )
        if self.seed >= MOST_SEEDS:
            raise InputError(f"seed {self.seed} is too large; use less than 2^{MOST_SEEDS.bit_length() - 1}")

"""A world: the ranks that execute a program, wherever they live, and what it is given to execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeVar

from ..errors import InputError, Refused, unknown
from ..program.program import Program
from ..program.targets import CREDITS
from .buffers import Layout, RankBuffers
from .elements import Dtype

Answer = TypeVar("Answer")

#: Bytes of a FIFO slot: what one transfer carries at most (MSCCL XML reference §4).
SLOT_BYTES: Mapping[str, int] = MappingProxyType({"Simple": 512 * 1024, "LL": 32 * 1024, "LL128": 576_000})
MAX_SLOTS = 1024


#: What `--inject` can put a run through (csrc/injection.hpp). One slot is less than any protocol grants, so a right
#: program may need more; it survives the others.
FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "shuffle": "threadblocks move in a random order, one transfer at a time",
        "delay": "threadblocks pause at random",
        "adversarial": "one threadblock of a rank runs alone while another starves, chosen at random",
        "reorder": "connections overtake one another (messages of one connection never do)",
        "one-slot": "one transfer in flight per connection",
    }
)


def faults_named(text: str) -> frozenset[str]:
    """The faults in a comma list, or ("all") all that a right program survives. Raises `InputError`."""
    words = {word.strip().lower() for word in text.split(",") if word.strip()}
    if "all" in words:
        words = words - {"all"} | FAULTS.keys() - {"one-slot"}
    if foreign := sorted(words - FAULTS.keys()):
        raise unknown("fault", foreign[0], FAULTS, also=" or all (all but one-slot)")
    return frozenset(words)


class Stall(Refused):
    """Nothing moved for the watchdog's time. `blocked` has a line for every threadblock that could not go on."""

    def __init__(self, timeout: float, blocked: Sequence[str]) -> None:
        self.blocked = tuple(blocked)
        shown = "; ".join(self.blocked[:8]) + ("; …" if len(self.blocked) > 8 else "")
        super().__init__(f"stalled: nothing moved for {timeout:g} s; {len(self.blocked)} blocked: {shown}")


@dataclass(frozen=True)
class Settings:
    """How to execute. `slots` and `slot_bytes` default to the protocol's; `workers` (threads only) to the smaller of
    ranks and cores; `timeout` is the watchdog's, in seconds; `inject` names the faults (of `FAULTS`) that the run is
    put through under `seed`. A seed other than 0 alone injects `shuffle`."""

    slots: int | None = None
    slot_bytes: int | None = None
    workers: int | None = None
    timeout: float = 30.0
    seed: int = 0
    inject: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, value, most in (("slots", self.slots, MAX_SLOTS), ("slot_bytes", self.slot_bytes, 2**30),
                                  ("workers", self.workers, 256)):  # fmt: skip
            if value is not None and not 1 <= value <= most:
                raise InputError(f"{name.replace('_', ' ')} {value}; use 1..{most}")
        if not 0 < self.timeout <= 86_400:
            raise InputError(f"timeout {self.timeout:g} s; use more than 0 and at most a day")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed {self.seed}; use 0 or a positive number")

    @property
    def injects(self) -> bool:
        return bool(self.inject or self.seed)

    @property
    def faults(self) -> frozenset[str]:
        """What is injected into the order of events."""
        chosen = self.inject - {"one-slot"}
        return chosen or (frozenset({"shuffle"}) if self.seed else chosen)

    def slots_of(self, program: Program) -> int:
        if "one-slot" in self.inject:
            return 1
        return self.slots or CREDITS[program.protocol]

    def slot_bytes_of(self, program: Program) -> int:
        return self.slot_bytes or SLOT_BYTES[program.protocol]


@dataclass(frozen=True)
class Case:
    """One thing to execute: `program` (called `where` in errors) on `chunk_elements` elements a chunk."""

    program: Program
    where: str
    layout: Layout
    dtype: Dtype
    reduction: str
    chunk_elements: int
    in_place: bool
    root: int | None

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_elements * self.dtype.bytes

    @property
    def size_bytes(self) -> int:
        """The collective's size as nccl-tests counts it."""
        return self.chunk_bytes * self.layout.nchunks


class Execution(Protocol):
    """A case with its buffers, ready to execute again and again."""

    @property
    def fifo_bytes(self) -> int:
        """Memory for the FIFOs in this process."""

    def execute(self) -> float:
        """Execute the program once; the seconds that this process' slowest rank took.

        Raises `Stall` (in every process) when nothing moves any more.
        """

    def close(self) -> None:
        """Let go of what the world holds for it."""


class World(Protocol):
    """The ranks of a run. `local` are those in this process; `speaks` says whether it may print."""

    transport: str
    nranks: int
    local: Sequence[int]
    speaks: bool
    processes_here: int

    def prepare(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> Execution:
        """Check that the program can be executed safely, and set it up. Raises `InputError`."""

    def attempt(self, action: Callable[[], Answer]) -> Answer:
        """`action()` in every process; if it raises `InputError` or `Refused` in one, that is raised in all."""

    def share(self, text: str) -> list[str]:
        """Every process' `text` (at most 1000 bytes of it), in rank order."""

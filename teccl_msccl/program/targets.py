"""What each runtime accepts, as data: limits and spelling (MSCCL XML reference §2–§4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import InputError, unknown

#: Transfers in flight per connection before the sender blocks (NCCL_STEPS over steps per transfer).
CREDITS: Mapping[str, int] = MappingProxyType({"Simple": 2, "LL": 8, "LL128": 8})

#: Nodes in a rank's view of a file: the algo, every gpu element, its own threadblocks and steps.
MAX_NODES_PER_RANK = 4095
#: Chunks one step may move.
MAX_COUNT = 71
#: All threadblocks of a rank must be resident on its GPU at once. Of the GPUs that runtimes know, a V100 holds fewest.
FEWEST_SMS = 80
#: Scratch that a runtime may allocate at its start, for sizes that may never be called.
MOST_SCRATCH_BYTES = 2**30
#: A dependency's threadblock id is stored in eight signed bits.
MAX_DEPENDENCY_TB = 127


@dataclass(frozen=True)
class Target:
    """A runtime's limits, its spelling of the collectives (one that is absent is not taken), and its loader's ways.

    `both_modes`: a file can serve in-place and out-of-place calls; else `inplace` alone decides, and `outofplace` is
    ignored. `inplace_refused`: collectives that it never runs in place. `exclusive_max_bytes`: sizes lie below
    maxBytes, and 0 matches none; else maxBytes is included, and 0 is no limit. `default_max_bytes`: what a missing
    maxBytes means (None: it must be there). `checks_buffers`: i_chunks and o_chunks, where they are not 0, must agree
    with nchunksperloop. `scratch_for_max_bytes`: scratch is allocated at the start, for calls of maxBytes.
    `fences_output_only`: threadblocks see what others of their GPU wrote only where they read it from the output, or
    from scratch under another protocol than LL. `suspect_simple`: collectives that are said to go wrong under Simple
    across hosts (MSCCL XML reference §8).
    """

    name: str
    max_steps: int
    max_threadblocks: int
    max_channels: int
    max_threadblocks_per_channel: int
    collectives: Mapping[str, str]
    fused_receives: bool = True
    both_modes: bool = True
    inplace_refused: frozenset[str] = frozenset()
    exclusive_max_bytes: bool = False
    default_max_bytes: int | None = None
    checks_buffers: bool = False
    scratch_for_max_bytes: bool = False
    fences_output_only: bool = False
    suspect_simple: frozenset[str] = frozenset()

    def takes_bytes(self, min_bytes: int, max_bytes: int, size_bytes: float) -> bool:
        """Whether a file with these limits is chosen for `size_bytes`."""
        if self.exclusive_max_bytes:
            return min_bytes <= size_bytes < max_bytes
        return min_bytes <= size_bytes and (max_bytes == 0 or size_bytes <= max_bytes)

    def modes(self, inplace: bool, outofplace: bool) -> tuple[bool, bool]:
        """Whether a file that claims these is run in place, and whether out of place."""
        return inplace, outofplace if self.both_modes else not inplace


_SHARED_NAMES = {name: name for name in ("allgather", "allreduce", "alltoall", "broadcast", "reduce")}
_MSCCL_NAMES = MappingProxyType({**_SHARED_NAMES, "reduce_scatter": "reduce_scatter", "custom": "custom"})
_EXECUTOR_NAMES = MappingProxyType(
    {
        **_SHARED_NAMES,
        "reduce_scatter": "reducescatter",
        "alltoallv": "alltoallv",
        "gather": "gather",
        "scatter": "scatter",
    }
)

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "executor": Target(
            name="executor",
            max_steps=64,
            max_threadblocks=1024,
            max_channels=32,
            max_threadblocks_per_channel=32,
            collectives=_EXECUTOR_NAMES,
        ),
        "msccl": Target(
            name="msccl",
            max_steps=256,
            max_threadblocks=216,
            max_channels=32,
            max_threadblocks_per_channel=32,
            collectives=_MSCCL_NAMES,
            both_modes=False,
            inplace_refused=frozenset({"alltoall"}),
            exclusive_max_bytes=True,
            default_max_bytes=2**27,
            checks_buffers=True,
            scratch_for_max_bytes=True,
            suspect_simple=frozenset({"broadcast", "reduce"}),
        ),
        "rccl": Target(
            name="rccl",
            max_steps=64,
            max_threadblocks=64,
            max_channels=128,
            max_threadblocks_per_channel=32,
            collectives=_EXECUTOR_NAMES,
            fused_receives=False,
            fences_output_only=True,
        ),
    }
)
#: What a file is taken for that several targets could have written.
DEFAULT_TARGET = "executor"


def target_named(name: str) -> Target:
    """The target called `name`."""
    if name == "mscclpp":
        raise InputError(
            "target mscclpp has plans in JSON, not programs; use synth or lower with it, and check on its file"
        )
    if name not in TARGETS:
        raise unknown("target", name, (*TARGETS, "mscclpp"))
    return TARGETS[name]


def target_spelling(collective: str) -> Target:
    """The target whose spelling of its collective a file has: the executor where several share it, or none."""
    speakers = [target for target in TARGETS.values() if collective in target.collectives.values()]
    default = TARGETS[DEFAULT_TARGET]
    return default if default in speakers or not speakers else speakers[0]


@dataclass(frozen=True)
class PlanLimits:
    """What MSCCL++'s executor takes of a JSON execution plan, per GPU, threadblock or operation, and its spelling of
    the collectives (its executor takes any name; its NCCL interface asks for allgather, allreduce, reducescatter and
    broadcast only). Buffers are divided in units of `alignment` bytes, with offsets in 32 bits; scratch that plans
    share (`reuse_resources`) has `shared_scratch_bytes`."""

    max_threadblocks: int
    max_operations: int
    max_channels: int
    max_channels_per_operation: int
    max_semaphores: int
    max_barriers: int
    alignment: int
    max_offset: int
    shared_scratch_bytes: int
    collectives: Mapping[str, str]


#: What a plan's protocol may be.
PLAN_PROTOCOLS = ("Simple", "LL")

MSCCLPP = PlanLimits(
    max_threadblocks=FEWEST_SMS,
    max_operations=64,
    max_channels=16,
    max_channels_per_operation=8,
    max_semaphores=16,
    max_barriers=16,
    alignment=16,
    max_offset=2**32 - 1,
    shared_scratch_bytes=2**26,
    collectives=MappingProxyType(
        {
            "allgather": "allgather",
            "allreduce": "allreduce",
            "reduce_scatter": "reducescatter",
            "broadcast": "broadcast",
            "alltoall": "alltoall",
            "reduce": "reduce",
            "gather": "gather",
            "scatter": "scatter",
        }
    ),
)

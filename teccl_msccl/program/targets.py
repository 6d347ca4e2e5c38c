"""What each runtime accepts, as data: limits and spelling (MSCCL XML reference §2–§4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import InputError

#: Transfers in flight per connection before the sender blocks (NCCL_STEPS over steps per transfer).
CREDITS: Mapping[str, int] = MappingProxyType({"Simple": 2, "LL": 8, "LL128": 8})

#: Nodes in a rank's view of a file: the algo, every gpu element, its own threadblocks and steps.
MAX_NODES_PER_RANK = 4095
#: Chunks one step may move.
MAX_COUNT = 71
#: All threadblocks of a rank must be resident on its GPU at once. Of the GPUs that runtimes know, a V100 holds fewest.
FEWEST_SMS = 80
#: A dependency's threadblock id is stored in eight signed bits.
MAX_DEPENDENCY_TB = 127


@dataclass(frozen=True)
class Target:
    """A runtime's limits and its spelling of the collectives (a collective that is absent is not taken)."""

    name: str
    max_steps: int
    max_threadblocks: int
    max_channels: int
    max_threadblocks_per_channel: int
    fused_receives: bool
    both_modes: bool
    collectives: Mapping[str, str]


_EXECUTOR_NAMES = MappingProxyType(
    {
        "allgather": "allgather",
        "reduce_scatter": "reducescatter",
        "allreduce": "allreduce",
        "alltoall": "alltoall",
        "alltoallv": "alltoallv",
        "broadcast": "broadcast",
        "reduce": "reduce",
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
            fused_receives=True,
            both_modes=True,
            collectives=_EXECUTOR_NAMES,
        ),
    }
)


def target_named(name: str) -> Target:
    """The target called `name`."""
    if name not in TARGETS:
        raise InputError(f"unknown target {name!r}; use {', '.join(TARGETS)}")
    return TARGETS[name]

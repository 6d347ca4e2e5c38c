"""The runtimes' three protocols as data: slots, credits, efficiency and latency (MSCCL XML reference §4–§5, §8b)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .targets import CREDITS, MAX_COUNT


@dataclass(frozen=True)
class Protocol:
    """How a protocol moves data.

    `slot_bytes` is the room of one transfer in a connection's FIFO and `credits` the transfers in flight there;
    `efficiency` the share of a link's bandwidth that carries data; `launch_us` the cost of starting a collective.
    `extra_alpha_us` is what a GPU-to-GPU hop costs on top of the LL latency (which a topology's α is), by the
    kind of link.
    """

    name: str
    slot_bytes: int
    credits: int
    efficiency: float
    launch_us: float
    extra_alpha_us: Mapping[str, float]

    def hop_alpha_us(self, kinds: Iterable[str]) -> float:
        """What a hop over links of `kinds` costs on top of their α: once, as much as the slowest kind asks.

        NCCL's constants are per hop between GPUs, whatever the hop crosses: two NVLinks through an NVSwitch are
        one NVLink hop, and GPU–PCIe–NIC–network–NIC–PCIe–GPU is one network hop.
        """
        return max((self.extra_alpha_us.get(kind, 0.0) for kind in kinds), default=0.0)


def _extra_alpha(nvlink: float, pcie: float, network: float) -> Mapping[str, float]:
    return MappingProxyType({"nvlink": nvlink, "xgmi": nvlink, "pcie": pcie, "socket": pcie, "network": network})


PROTOCOL: Mapping[str, Protocol] = MappingProxyType(
    {
        "Simple": Protocol("Simple", 2 * 2**20, CREDITS["Simple"], 1.0, 8.4, _extra_alpha(2.8, 4.7, 11.3)),
        "LL": Protocol("LL", 32 * 2**10, CREDITS["LL"], 0.5, 6.6, _extra_alpha(0.0, 0.0, 0.0)),
        "LL128": Protocol("LL128", 576_000, CREDITS["LL128"], 0.9375, 14.0, _extra_alpha(1.3, 1.5, 1.3)),
    }
)


@dataclass(frozen=True)
class Slicing:
    """How a runtime cuts chunks to fit the slots: it loops `iterations` times over the program, each time on a
    slice of every chunk, and moves up to `chunks_per_transfer` slices at once."""

    iterations: int
    slice_bytes: float
    last_slice_bytes: float
    chunks_per_transfer: int


def slicing(chunk_bytes: float, protocol: Protocol) -> Slicing:
    """How chunks of `chunk_bytes` (any real number ≥ 0) go through `protocol`'s slots."""
    slot = protocol.slot_bytes
    # A chunk that is larger than a slot by a rounding error only is not worth another round.
    iterations = max(1, math.ceil(chunk_bytes / slot - 1e-9))
    fitting = slot // max(1, math.ceil(chunk_bytes - 1e-9))
    return Slicing(
        iterations=iterations,
        slice_bytes=min(chunk_bytes, slot),
        last_slice_bytes=chunk_bytes - (iterations - 1) * slot,
        chunks_per_transfer=min(max(fitting, 1), MAX_COUNT),
    )

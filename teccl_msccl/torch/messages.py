"""Executing a plan on tensors: messages over an inner group's point-to-point, reductions in place by torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from .layout import Layout, Range
from .plan import Place, Plan

#: Messages of programs have tags from here on, so that a job's own send and recv have those below.
FIRST_TAG = 1 << 20
#: A part of at least so many bytes is cut into slices, so that reducing one overlaps with carrying the next.
SLICE_BYTES = 4 << 20
MOST_SLICES = 4
#: Blocks in which several tensors are reduced into one.
BLOCK_BYTES = 256 << 10

Tensor = Any
Combine = Callable[..., Any]
#: Told of an event: what, the peer, bytes, begin and end in seconds, and what its message is called at both ends.
Tracer = Callable[[str, int, int, float, float, str], None]

COMBINES: dict[str, Combine] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class _Move(NamedTuple):
    """An event with its places as ranges of elements."""

    kind: str
    at: Range | None
    peer: int
    tag: int
    number: int
    source: Range | None
    others: tuple[Range | None, ...]


class Bound:
    """A plan for shares of `share` elements: every place a range of elements, empty messages left out on both sides."""

    def __init__(self, plan: Plan, share: int) -> None:
        self.plan, self.share = plan, share
        layout = Layout(plan.parts, plan.scratch, plan.staging, share)
        self.scratch = layout.scratch_elements
        empty = {
            event.number for event in plan.events if event.kind in ("post", "send") and layout.length(event.at) == 0
        }

        def ranged(place: Place | None) -> Range | None:
            return None if place is None else layout.range(place)

        self.moves = [
            _Move(
                event.kind,
                ranged(event.at),
                event.peer,
                FIRST_TAG + event.channel,
                event.number,
                ranged(event.source),
                tuple(map(ranged, event.others)),
            )
            for event in plan.events
            if not (event.kind in ("wait", "drain") and event.number in empty)
            and not (event.at is not None and layout.length(event.at) == 0)
        ]


class Carrier:
    """The inner group that carries messages, and memory for what is on its way."""

    def __init__(self, inner: Any, timeout: timedelta) -> None:
        self._inner, self._timeout = inner, timeout
        self._arena: Tensor = torch.empty(0, dtype=torch.uint8)

    def scratch(self, elements: int, like: Tensor) -> Tensor:
        """Memory that the next call may have again."""
        nbytes = elements * like.element_size()
        if self._arena.numel() < nbytes:
            self._arena = torch.empty(nbytes, dtype=torch.uint8)
        return self._arena[:nbytes].view(like.dtype)

    def run(self, bound: Bound, source: Tensor, output: Tensor, combine: Combine | None, trace: Tracer | None) -> None:
        """Execute: `source` and `output` are flat, in place they are the same. Raises RuntimeError when a peer is gone
        or silent for the timeout."""
        buffers = (source, output, self.scratch(bound.scratch, output))
        inner, timeout = self._inner, self._timeout
        receives: dict[int, Any] = {}
        sends: dict[int, Any] = {}
        called: dict[int, tuple[int, int, str]] = {}  # traced receives: peer, bytes, and what the message is called
        counts: Counter[str] = Counter()
        for kind, at, peer, tag, number, first, others in bound.moves:
            begin = time.perf_counter() if trace is not None else 0.0
            if kind == "wait":
                receives.pop(number).wait(timeout)
            elif kind == "drain":
                sends.pop(number).wait(timeout)
            else:
                assert at is not None
                place = buffers[at[0]][at[1] : at[2]]
                if kind == "post":
                    receives[number] = inner.recv([place], peer, tag)
                elif kind == "send":
                    sends[number] = inner.send([place], peer, tag)
                else:
                    assert first is not None
                    one = buffers[first[0]][first[1] : first[2]]
                    if kind == "copy":
                        place.copy_(one)
                    else:
                        assert combine is not None
                        reduce_into(combine, place, one, [buffers[o[0]][o[1] : o[2]] for o in others if o is not None])
            if trace is not None:
                end, message = time.perf_counter(), ""
                nbytes = 0 if at is None else (at[2] - at[1]) * output.element_size()
                if kind in ("post", "send"):
                    ends = (peer, bound.plan.rank) if kind == "post" else (bound.plan.rank, peer)
                    connection = f"{ends[0]}>{ends[1]}:{tag}"
                    message = f"{connection}:{counts[connection]}"
                    counts[connection] += 1
                if kind == "post":
                    called[number], message = (peer, nbytes, message), ""
                elif kind == "wait":
                    peer, nbytes, message = called.pop(number)
                trace(kind, peer, nbytes, begin, end, message)
        for send in sends.values():
            send.wait(timeout)


def reduce_into(combine: Combine, place: Tensor, one: Tensor, others: list[Tensor]) -> None:
    """Everything into `place`: several at once block by block, so that what is summed stays in the cache."""
    step = place.numel() if len(others) == 1 else max(1, BLOCK_BYTES // place.element_size())
    for at in range(0, place.numel(), step):
        block = place[at : at + step]
        combine(one[at : at + step], others[0][at : at + step], out=block)
        for other in others[1:]:
            combine(block, other[at : at + step], out=block)


def slices_for(part_bytes: float) -> int:
    """Into how many slices to cut parts of so many bytes."""
    return max(1, min(MOST_SLICES, int(part_bytes // SLICE_BYTES)))

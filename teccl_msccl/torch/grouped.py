"""Executing rounds of grouped messages on tensors of any device: with NCCL's groups, on the current stream."""

from __future__ import annotations

import time
from typing import Any

import torch

from .layout import Layout
from .messages import COMBINES, Tracer, reduce_into
from .programs import Served
from .rounds import Rounds

Tensor = Any


class Grouped:
    """A group with point-to-point messages that can be coalesced (`_start_coalescing`, as ProcessGroupNCCL). Nothing
    here waits on the host: where the group's messages and torch's arithmetic go on streams, so does the program."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rounds: dict[int, tuple[Served, Rounds]] = {}

    def run(
        self, served: Served, share: int, source: Tensor, output: Tensor, reduction: str, trace: Tracer | None
    ) -> None:
        """Execute a program on flat tensors with shares of `share` elements."""
        plan = self._plan(served)
        layout = Layout(plan.parts, plan.scratch, plan.staging, share)
        buffers = (source, output, output.new_empty(layout.scratch_elements))

        def at(place: Any) -> Tensor:
            buffer, first, end = layout.range(place)
            return buffers[buffer][first:end]

        for each in plan.rounds:
            for event in each.computed:
                if layout.length(event.at) == 0:
                    continue
                if event.kind == "copy":
                    at(event.at).copy_(at(event.source))
                else:
                    reduce_into(COMBINES[reduction], at(event.at), at(event.source), [at(o) for o in event.others])
            begin = time.perf_counter()
            sends = [(peer, at(place)) for peer, place in each.sends if layout.length(place)]
            receives = [(peer, at(place)) for peer, place in each.receives if layout.length(place)]
            self._exchange(sends, receives)
            if trace is not None:
                for kind, messages in (("send", sends), ("receive", receives)):
                    for peer, row in messages:
                        trace(kind, peer, row.nbytes, begin, time.perf_counter(), "")

    def _exchange(self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]) -> None:
        if not sends and not receives:
            return
        self._inner._start_coalescing()
        for peer, row in sends:
            self._inner.send([row.view(torch.uint8)], peer, 0)
        for peer, row in receives:
            self._inner.recv([row.view(torch.uint8)], peer, 0)
        self._inner._end_coalescing().wait()  # on NCCL: what follows on this stream comes after it

    def _plan(self, served: Served) -> Rounds:
        known = self._rounds.get(id(served))
        if known is None:  # `served` is kept, so that its id stays its own
            known = self._rounds[id(served)] = (served, served.rounds())
        return known[1]

"""TE-CCL's schedule JSON: flows of chunks, epoch by epoch (microsoft/TE-CCL, `teccl solve`).

A file has `…-Flows`, strings "Chunk 3 from 1 traveled over 1->4 in epoch 0 via switches 2": in an allgather the
chunk is the source's c-th, in an alltoall it is the one for the c-th GPU and flows have a volume, often a fraction of
a chunk. Node ids count switches too. An alltoall has no `…-Demand_Met`. A machine is not in it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import InputError
from .foreign import MOST_SENDS, ForeignSchedule, Hop, Pattern

#: Shares that a chunk is split into, at most, when its flows are fractions.
MOST_SHARES = 24
#: Shares that it is split into when its fractions have no small common denominator.
ROUGH_SHARES = 8
#: Fractions that a solver leaves are this near to what they mean.
NEARLY = 1e-3

_FLOW = re.compile(
    r"Chunk (?P<chunk>\d{1,9}) from (?P<source>\d{1,9}) traveled over (?P<src>\d{1,9})->(?P<dst>\d{1,9})"
    r"(?: with volume (?P<volume>[0-9.eE+-]{1,40}))? in epoch (?P<epoch>\d{1,9})"
    r"(?: via switches (?P<via>\d{1,9}(?:, ?\d{1,9})*))?"
)


def is_teccl(value: Any) -> bool:
    """Whether the JSON `value` is TE-CCL's."""
    return isinstance(value, dict) and _key(value, "Flows") is not None


def read_teccl(value: Mapping[str, Any], where: str) -> ForeignSchedule:
    """The schedule in the JSON `value`. Raises `InputError` where a flow cannot be read, or moves what was never
    there (TE-CCL's A* writes its last round only)."""
    flows = _flows(value, where)
    if not flows:
        raise InputError(f"{where}: has no flows, so there is no schedule in it")
    ranks = _ranks(value, flows, where)
    epoch_us = _epoch_us(value, where)
    if _key(value, "Demand_Met") is not None:
        chunks, hops = _allgather(flows, ranks, epoch_us, where)
        share = 1.0
    else:
        chunks, hops, share = _alltoall(flows, ranks, epoch_us, where)
    labels = tuple(str(node) for node in ranks)
    return ForeignSchedule(where, "TE-CCL", labels, chunks, hops, _rates(flows, epoch_us, share))


class _Flow(NamedTuple):
    chunk: int
    source: int
    src: int
    dst: int
    volume: float
    epoch: int
    via: tuple[int, ...]


def _key(value: Mapping[str, Any], ending: str) -> str | None:
    """TE-CCL numbers its keys, not always alike."""
    return next((key for key in value if re.fullmatch(rf"\d+-{ending}", key)), None)


def _flows(value: Mapping[str, Any], where: str) -> list[_Flow]:
    key = _key(value, "Flows")
    lines = value[key] if key else None
    if not isinstance(lines, list):
        raise InputError(f"{where}: {key} must be a list of flows")
    if len(lines) > MOST_SENDS:
        raise InputError(f"{where}: {len(lines)} flows are too many; {MOST_SENDS} is the most")
    flows = []
    for i, line in enumerate(lines):
        match = _FLOW.fullmatch(line) if isinstance(line, str) else None
        if match is None:
            raise InputError(
                f"{where}: {key}[{i}]: not understood: {str(line)[:80]!r}; TE-CCL writes «Chunk c from s …»"
            )
        try:
            volume = float(match["volume"] or 1.0)
        except ValueError:
            raise InputError(f"{where}: {key}[{i}]: volume {match['volume']!r} is no number") from None
        via = tuple(int(node) for node in (match["via"] or "").replace(" ", "").split(",") if node)
        chunk, source, src, dst = (int(match[name]) for name in ("chunk", "source", "src", "dst"))
        flows.append(_Flow(chunk, source, src, dst, volume, int(match["epoch"]), via))
    return sorted(flows, key=lambda flow: flow.epoch)


def _ranks(value: Mapping[str, Any], flows: Iterable[_Flow], where: str) -> dict[int, int]:
    """Rank of every GPU's node id: ids in ascending order without the switches, which never have a chunk."""
    gpus = {node for flow in flows for node in (flow.source, flow.src, flow.dst)}
    met = value.get(_key(value, "Demand_Met") or "", {})
    for name in met if isinstance(met, dict) else ():
        if match := re.fullmatch(r"GPU (\d{1,9})", name):
            gpus.add(int(match[1]))
    switches = {node for flow in flows for node in flow.via}
    storing = {flow.source for flow in flows}
    if both := switches & storing:
        raise InputError(f"{where}: node {min(both)} is a switch and has a chunk of its own; mend the flows")
    if idle := gpus - storing - switches:
        raise InputError(f"{where}: node {min(idle)} takes part, but has no chunk of its own; every GPU needs one")
    return {node: rank for rank, node in enumerate(sorted(gpus - switches))}


def _epoch_us(value: Mapping[str, Any], where: str) -> float:
    key = _key(value, "Epoch_Duration")
    seconds = value[key] if key else 1.0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
        raise InputError(f"{where}: {key} is {seconds!r}; it must be a positive number of seconds")
    return float(seconds) * 1e6


def _rates(flows: Iterable[_Flow], epoch_us: float, share: float) -> dict[tuple[str, str], float]:
    """How fast the links that flows use are at least, in shares per µs: the most that one carries in an epoch."""
    carried: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    volumes: dict[tuple[int, int, int], float] = defaultdict(float)
    for flow in flows:
        nodes = (flow.src, *flow.via, flow.dst)
        for pair in pairwise(nodes):
            volumes[(*pair, flow.epoch)] += flow.volume
            carried[pair][flow.epoch] += 1
    return {
        (str(src), str(dst)): max(1.0, *(volumes[src, dst, epoch] for epoch in epochs)) / share / epoch_us
        for (src, dst), epochs in carried.items()
    }


# -- allgather -----------------------------------------------------------------------------------------------


def _allgather(
    flows: list[_Flow], ranks: Mapping[int, int], epoch_us: float, where: str
) -> tuple[tuple[Pattern, ...], tuple[Hop, ...]]:
    """Whole chunks, copied; what brings a GPU a chunk that it has is left out."""
    per_rank = max(flow.chunk for flow in flows) + 1
    if per_rank * len(ranks) > MOST_SENDS:
        raise InputError(f"{where}: chunk {per_rank - 1} is a number too high")
    everyone = tuple(range(len(ranks)))
    chunks = tuple(Pattern((rank,), everyone) for rank in everyone for _ in range(per_rank))
    holders = [{pattern.origin[0]} for pattern in chunks]
    hops = []
    for flow in flows:
        if abs(flow.volume - 1.0) > NEARLY:
            raise InputError(
                f"{where}: chunk {flow.chunk} from {flow.source}: volume {flow.volume} cannot be copied on"
            )
        src, dst = ranks[flow.src], ranks[flow.dst]
        chunk = ranks[flow.source] * per_rank + flow.chunk
        if src not in holders[chunk]:
            raise _never_there(flow, where)
        if dst not in holders[chunk]:
            holders[chunk].add(dst)
            hops.append(_hop(chunk, flow, ranks, epoch_us))
    return chunks, tuple(hops)


# -- alltoall ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lot:
    """Part of a chunk that came to where it is by `trail`; it can leave in an epoch after `epoch`."""

    volume: float
    epoch: int
    trail: tuple[_Flow, ...]


def _alltoall(
    flows: list[_Flow], ranks: Mapping[int, int], epoch_us: float, where: str
) -> tuple[tuple[Pattern, ...], tuple[Hop, ...], float]:
    """Fractional flows become trails, and trails become equal shares of their chunk; share = the part of one."""
    nodes = sorted(ranks, key=ranks.__getitem__)
    per_pair = math.ceil((max(flow.chunk for flow in flows) + 1) / len(nodes))
    of_chunk: dict[tuple[int, int], list[_Flow]] = defaultdict(list)
    for flow in flows:
        of_chunk[flow.source, flow.chunk].append(flow)
    trails = {
        (source, chunk): _trails(of_chunk[source, chunk], source, nodes[chunk // per_pair], where)
        for source in nodes
        for chunk in range(per_pair * len(nodes))
        if source != nodes[chunk // per_pair]
    }
    shares = _common_shares(lot.volume for lots in trails.values() for lot in lots)
    chunks: list[Pattern] = []
    hops: list[Hop] = []
    for source in nodes:
        for chunk in range(per_pair * len(nodes)):
            for share, trail in enumerate(_dealt(trails.get((source, chunk), []), shares)):
                hops += [_hop(len(chunks) + share, flow, ranks, epoch_us) for flow in trail]
            chunks += [Pattern((ranks[source],), (chunk // per_pair,))] * shares
    return tuple(chunks), tuple(hops), 1 / shares


def _hop(chunk: int, flow: _Flow, ranks: Mapping[int, int], epoch_us: float) -> Hop:
    return Hop(chunk, ranks[flow.src], ranks[flow.dst], flow.epoch * epoch_us, via=tuple(map(str, flow.via)))


def _trails(flows: list[_Flow], source: int, target: int, where: str) -> list[_Lot]:
    """The ways by which a chunk comes from `source` to `target`; what strays elsewhere is left out."""
    lots: dict[int, list[_Lot]] = defaultdict(list, {source: [_Lot(1.0, -1, ())]})
    for flow in flows:
        left, waiting = flow.volume, []
        for lot in lots[flow.src]:
            part = min(left, lot.volume) if lot.epoch < flow.epoch else 0.0
            if part > NEARLY / 10:
                left -= part
                lots[flow.dst].append(_Lot(part, flow.epoch, (*lot.trail, flow)))
            if lot.volume - part > NEARLY / 10:
                waiting.append(_Lot(lot.volume - part, lot.epoch, lot.trail))
        if left > max(NEARLY, NEARLY * flow.volume):
            raise _never_there(flow, where)
        lots[flow.src] = waiting
    arrived = sum(lot.volume for lot in lots[target])
    if abs(arrived - 1.0) > 10 * NEARLY:
        raise InputError(
            f"{where}: of what GPU {source} has for GPU {target}, {arrived:.4g} of a chunk arrives; mend the flows"
        )
    return lots[target]


def _common_shares(volumes: Iterable[float]) -> int:
    """The fewest equal shares of a chunk that make up every volume."""
    distinct = {round(volume, 4) for volume in volumes}
    for shares in range(1, MOST_SHARES + 1):
        if all(abs(volume * shares - round(volume * shares)) <= NEARLY * shares for volume in distinct):
            return shares
    return ROUGH_SHARES


def _dealt(lots: list[_Lot], shares: int) -> list[tuple[_Flow, ...]]:
    """The trail of every share: in proportion to the volumes, the largest remainders rounded up."""
    due = [lot.volume * shares for lot in lots]
    given = [math.floor(amount + NEARLY) for amount in due]
    for i in sorted(range(len(lots)), key=lambda i: given[i] - due[i])[: max(0, shares - sum(given))]:
        given[i] += 1
    dealt = [lot.trail for lot, count in zip(lots, given, strict=True) for _ in range(count)]
    return dealt[:shares]


def _never_there(flow: _Flow, where: str) -> InputError:
    return InputError(
        f"{where}: chunk {flow.chunk} from {flow.source} leaves node {flow.src} in epoch {flow.epoch}, but has not "
        "come there; if this is the output of TE-CCL's A*, it has the last round only: solve it again without A*"
    )

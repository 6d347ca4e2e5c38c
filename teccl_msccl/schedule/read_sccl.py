"""The algorithm JSON of SCCL (now msccl-tools) and of TACCL, which grew out of it.

Objects name their class in `sccl_type` or `msccl_type`. An algorithm has a collective (chunks, each with the ranks
that have it before and after, and an address: chunks of one address are contributions to be reduced), steps (each
sends [address, source, destination], to which TACCL adds a time in tenths of a µs and a link number) and a topology
(`links[dst][src]`, chunks per round; TACCL: `node_invbws[dst][src]`, µs per chunk).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError
from ..files import require_keys, require_list, require_whole
from .foreign import MOST_SENDS, ForeignSchedule, Hop, Pattern

#: TACCL's unit of time.
_TACCL_US = 0.1
#: Steps have no times in SCCL: they are this far apart.
_STEP_US = 1.0
_MOST_RANKS = 4096


def is_sccl(value: Any) -> bool:
    """Whether the JSON `value` is an SCCL or TACCL object."""
    return isinstance(value, dict) and ("sccl_type" in value or "msccl_type" in value)


def read_sccl(value: Mapping[str, Any], where: str) -> ForeignSchedule:
    """The schedule in the JSON `value`. Raises `InputError` naming the place where it is not SCCL's form."""
    kind = value.get("sccl_type", value.get("msccl_type"))
    if kind != "algorithm":
        raise InputError(f"{where}: is an SCCL {kind}, not an algorithm; name the file that `solve` wrote")
    require_keys(value, ("collective", "steps", "topology"), where)
    collective, topology = value["collective"], value["topology"]
    require_keys(collective, ("nodes", "chunks"), f"{where}: collective")
    nranks = require_whole(collective["nodes"], f"{where}: collective: nodes", 1, _MOST_RANKS)
    chunks, contributors = _chunks(collective["chunks"], nranks, f"{where}: collective")
    hops = tuple(_hops(value["steps"], chunks, contributors, nranks, where))
    taccl = isinstance(topology, dict) and "node_invbws" in topology
    tool = "TACCL" if taccl else "SCCL"
    rates = _taccl_rates(topology, hops, where) if taccl else _sccl_rates(topology, nranks, where)
    labels = tuple(str(rank) for rank in range(nranks))
    return ForeignSchedule(where, tool, labels, tuple(pattern for pattern, _ in chunks.values()), hops, rates)


def _chunks(
    value: Any, nranks: int, where: str
) -> tuple[dict[int, tuple[Pattern, int]], dict[tuple[int, int], frozenset[int]]]:
    """Address → pattern and its position; and who holds which contributions at first, by (address, rank)."""
    origin: dict[int, set[int]] = defaultdict(set)
    want: dict[int, set[int]] = {}
    count: dict[int, int] = defaultdict(int)
    for i, chunk in enumerate(require_list(value, f"{where}: chunks")):
        at = f"{where}: chunks[{i}]"
        require_keys(chunk, ("pre", "post", "addr"), at)
        address = require_whole(chunk["addr"], f"{at}: addr", 0, MOST_SENDS)
        pre, post = (
            {require_whole(rank, f"{at}: {key}", 0, nranks - 1) for rank in require_list(chunk[key], f"{at}: {key}")}
            for key in ("pre", "post")
        )
        if want.setdefault(address, post) != post or len(pre) != 1:
            raise InputError(f"{at}: needs one rank in pre, and the post of the others at address {address}")
        origin[address] |= pre
        count[address] += 1
    patterns = {}
    for position, address in enumerate(sorted(origin)):
        reduce = count[address] > 1
        patterns[address] = (Pattern(tuple(sorted(origin[address])), tuple(sorted(want[address])), reduce), position)
    held = {(address, rank): frozenset({rank}) for address, (pattern, _) in patterns.items() for rank in pattern.origin}
    return patterns, held


def _hops(
    steps: Any,
    chunks: Mapping[int, tuple[Pattern, int]],
    held: dict[tuple[int, int], frozenset[int]],
    nranks: int,
    where: str,
) -> Iterator[Hop]:
    """Every send, reducing what is not whole yet. Sends of a step read what was there before it."""
    total = 0
    for s, step in enumerate(require_list(steps, f"{where}: steps")):
        require_keys(step, ("sends",), f"{where}: steps[{s}]")
        before = dict(held)
        sends = require_list(step["sends"], f"{where}: steps[{s}]: sends")
        total += len(sends)
        if total > MOST_SENDS:
            raise InputError(f"{where}: {total} sends are too many; {MOST_SENDS} is the most")
        for i, send in enumerate(sends):
            at = f"{where}: steps[{s}]: sends[{i}]"
            if not isinstance(send, list) or len(send) < 3:
                raise InputError(f"{at}: must be [address, source, destination, …]")
            address = require_whole(send[0], f"{at}: address", 0, MOST_SENDS)
            src, dst = (require_whole(rank, f"{at}: rank", 0, nranks - 1) for rank in send[1:3])
            if address not in chunks:
                raise InputError(f"{at}: no chunk has address {address}")
            pattern, position = chunks[address]
            moved = before.get((address, src), frozenset())
            if not moved:
                raise InputError(f"{at}: rank {src} has nothing of address {address} before step {s}")
            here = held.get((address, dst), frozenset())
            if moved <= here and not pattern.reduce:
                continue  # brings what is there already
            whole = len(moved) == len(pattern.origin)
            held[address, dst] = moved if whole else here | moved
            start = s * _STEP_US if len(send) < 4 else _number(send[3], f"{at}: time") * _TACCL_US
            yield Hop(position, src, dst, start, pattern.reduce and not whole)


def _sccl_rates(value: Any, nranks: int, where: str) -> dict[tuple[str, str], float]:
    require_keys(value, ("links",), f"{where}: topology")
    links = _square(value["links"], nranks, f"{where}: topology: links")
    counts = ((src, dst, count) for dst, row in enumerate(links) for src, count in enumerate(row))
    return {(str(src), str(dst)): count / _STEP_US for src, dst, count in counts if count > 0}


def _taccl_rates(value: Mapping[str, Any], hops: tuple[Hop, ...], where: str) -> dict[tuple[str, str], float]:
    """The machine of one node, copied; what joins the copies is told by the sends between them."""
    at = f"{where}: topology"
    require_keys(value, ("copies", "ngpus_per_node", "node_invbws"), at)
    copies = require_whole(value["copies"], f"{at}: copies", 1, _MOST_RANKS)
    per_node = require_whole(value["ngpus_per_node"], f"{at}: ngpus_per_node", 1, _MOST_RANKS)
    inverse = _square(value["node_invbws"], per_node, f"{at}: node_invbws")
    rates = {
        (str(copy * per_node + src), str(copy * per_node + dst)): 1 / time
        for copy in range(copies)
        for dst, row in enumerate(inverse)
        for src, time in enumerate(row)
        if time > 0
    }
    between = [(hop.src, hop.dst) for hop in hops if hop.src // per_node != hop.dst // per_node]
    if between:
        remote = _number(value.get("remote_invbw"), f"{at}: remote_invbw")
        if remote <= 0:
            raise InputError(f"{at}: remote_invbw is {remote}; it must be positive")
        rates |= {(str(src), str(dst)): 1 / remote for src, dst in dict.fromkeys(between)}
    return rates


def _square(value: Any, side: int, where: str) -> list[list[float]]:
    rows = require_list(value, where)
    if len(rows) != side or any(not isinstance(row, list) or len(row) != side for row in rows):
        raise InputError(f"{where}: must be {side} rows of {side} numbers")
    return [[_number(entry, where) for entry in row] for row in rows]


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e15 < value < 1e15:
        raise InputError(f"{where}: must be a number, not {str(value)[:40]}")
    return float(value)

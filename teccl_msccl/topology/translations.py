"""Translations: automorphisms that move all GPUs at once, so that what is worked out for one place serves all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from random import Random

import numpy as np
from numpy.typing import NDArray

from .model import Topology
from .symmetry import automorphism_generators, is_automorphism

#: Products of generators among which a cyclic group is sought.
TRIED = 50

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Translations:
    """A group of automorphisms that takes each of some equal parts (hosts, or single GPUs) to each other by exactly
    one of its members.

    `ranks[g, p]` is the GPU at position p of part g. Translation g takes part 0 to part g, position by position, and
    part h to part `table[g, h]`; it takes the link at place l of `topology.links` to the one at `links[g, l]`.
    """

    topology: Topology
    ranks: Indices
    table: Indices
    links: Indices

    @property
    def count(self) -> int:
        """How many there are, the identity (number 0) included."""
        return len(self.ranks)

    @cached_property
    def link_orbits(self) -> Indices:
        """For every link, by place, the first place that a translation takes it to."""
        return np.asarray(self.links.min(axis=0), dtype=np.int64)

    @cached_property
    def moves(self) -> Indices:
        """Where each translation takes every rank. Shape (translations, ranks)."""
        moved = np.empty((self.count, self.ranks.size), dtype=np.int64)
        for there, onto in zip(moved, self.table, strict=True):
            there[self.ranks] = self.ranks[onto]
        return moved

    def lifted(self, path: Sequence[int]) -> list[tuple[int, ...]]:
        """A path (link ids) as every translation takes it, in their order."""
        ids = self._link_ids[self.links[:, [self._place_of[link] for link in path]]]
        return [tuple(links) for links in ids.tolist()]

    @cached_property
    def _link_ids(self) -> Indices:
        return np.array([link.id for link in self.topology.links])

    @cached_property
    def _place_of(self) -> Mapping[int, int]:
        return {link.id: place for place, link in enumerate(self.topology.links)}


def host_translations(topology: Topology) -> Translations | None:
    """Translations of a cluster's hosts, None where it has one host, or unlike ones, or none are found.

    Hosts are compared node by node in the order of their ids, as `fabric.compose` leaves them.
    """
    nodes: dict[int, list[int]] = {host: [] for host in topology.hosts}
    for node in sorted(topology.nodes, key=lambda node: (node.kind != "gpu", node.id)):
        if node.host in nodes:
            nodes[node.host].append(node.id)
    parts = list(nodes.values())
    kinds = {tuple(topology.node_by_id[id].kind for id in ids) for ids in parts}
    return _translations(topology, parts) if len(parts) > 1 and len(kinds) == 1 else None


def block_translations(topology: Topology) -> Iterator[Translations]:
    """Translations of equal blocks of consecutive GPUs, the smallest first (at best single GPUs)."""
    for width in range(1, topology.nranks // 2 + 1):
        if topology.nranks % width == 0:
            blocks = [list(topology.gpus[first : first + width]) for first in range(0, topology.nranks, width)]
            found = _translations(topology, blocks)
            if found is not None:
                yield found


def cyclic_translations(topology: Topology) -> Translations | None:
    """The powers of one automorphism that moves all GPUs in rounds of the same length, as a mesh turns; None where
    none is met among `TRIED` products of generators, the longest of those met."""
    generators = automorphism_generators(topology)
    random, best, longest = Random(0), None, 1
    here = {id: id for id in topology.node_by_id}
    for _ in range(TRIED if generators else 0):
        generator = random.choice(generators)
        here = {id: generator[image] for id, image in here.items()}
        order = _order(here)
        for power in (d for d in range(1, order) if order % d == 0):
            if order // power > longest and _moves_all(topology, powered := _powered(here, power)):
                best, longest = powered, order // power
    if best is None:
        return None
    move = np.array([topology.rank_of[best[gpu]] for gpu in topology.gpus])
    rounds = np.stack([np.arange(topology.nranks), *(_nth(move, g) for g in range(1, longest))])
    ranks = rounds[:, rounds.min(axis=0) == np.arange(topology.nranks)]
    table = (np.arange(longest)[:, None] + np.arange(longest)) % longest
    links = _multiplied(np.arange(len(topology.links))[None, :], _moved_links(topology, best), longest)
    return Translations(topology, ranks, table, links)


def all_translations(topology: Topology) -> Iterator[Translations]:
    """Of blocks of GPUs, or what one automorphism moves round, and of hosts: from the smallest parts to the largest."""
    blocks = block_translations(topology)
    first = next(blocks, None)
    if first is not None:
        yield first
        yield from blocks
    elif (cyclic := cyclic_translations(topology)) is not None:
        yield cyclic
    hosts = host_translations(topology)
    if hosts is not None:
        yield hosts


def _nth(move: Indices, times: int) -> Indices:
    moved = np.arange(len(move))
    for _ in range(times):
        moved = move[moved]
    return moved


def _order(image: Mapping[int, int]) -> int:
    """After how many times a permutation leaves everything where it was."""
    return lcm(*_rounds(image))


def _rounds(image: Mapping[int, int]) -> list[int]:
    """The lengths of a permutation's rounds."""
    lengths, left = [], set(image)
    while left:
        start = here = left.pop()
        length = 1
        while (here := image[here]) != start:
            left.discard(here)
            length += 1
        lengths.append(length)
    return lengths


def _powered(image: Mapping[int, int], power: int) -> dict[int, int]:
    moved = {id: id for id in image}
    for _ in range(power):
        moved = {id: image[there] for id, there in moved.items()}
    return moved


def _moves_all(topology: Topology, image: Mapping[int, int]) -> bool:
    """Whether every GPU's round is as long as that of the whole permutation."""
    lengths = _rounds({gpu: image[gpu] for gpu in topology.gpus})
    return min(lengths) == max(lengths) == _order(image)


def _translations(topology: Topology, parts: list[list[int]]) -> Translations | None:
    """Parts numbered by several digits (host of a leaf, leaf; row, column…) move by counting one digit round.

    Each such move is an automorphism or is not taken; the fewest digits that work are. O(d² · links), d the divisors
    of the number of parts.
    """
    moves: dict[tuple[int, int], Mapping[int, int] | None] = {}

    def possible(stride: int, extent: int) -> bool:
        if (stride, extent) not in moves:
            moves[stride, extent] = _extended(topology, parts, _counted(len(parts), stride, extent))
        return moves[stride, extent] is not None

    def digits(stride: int) -> list[tuple[int, int]] | None:
        if stride == len(parts):
            return []
        for extent in range(len(parts) // stride, 1, -1):
            if len(parts) % (stride * extent) == 0 and possible(stride, extent):
                more = digits(stride * extent)
                if more is not None:
                    return [(stride, extent), *more]
        return None

    found = digits(1)
    if found is None:
        return None
    table, links = np.arange(len(parts))[None, :], np.arange(len(topology.links))[None, :]
    for stride, extent in found:
        move, node_move = np.array(_counted(len(parts), stride, extent)), moves[stride, extent]
        assert node_move is not None, "only possible digits are found"
        table = _multiplied(table, move, extent)
        links = _multiplied(links, _moved_links(topology, node_move), extent)
    ranks = [[topology.rank_of[id] for id in ids if id in topology.rank_of] for ids in parts]
    return Translations(topology, np.array(ranks), table, links)


def _counted(count: int, stride: int, extent: int) -> list[int]:
    """Where each number below `count` goes when its digit of that stride counts on by one."""
    return [n + (stride if n // stride % extent < extent - 1 else -stride * (extent - 1)) for n in range(count)]


def _multiplied(group: Indices, move: Indices, order: int) -> Indices:
    """The group's members followed by 0, 1, … order − 1 times `move`, in this order."""
    powers = [group]
    for _ in range(order - 1):
        powers.append(move[powers[-1]])
    return np.concatenate(powers)


def _extended(topology: Topology, parts: list[list[int]], move: list[int]) -> Mapping[int, int] | None:
    """The automorphism that moves parts so, node by node, and along with them what lies between, if there is one."""
    image = {id: new for part, ids in enumerate(parts) for id, new in zip(ids, parts[move[part]], strict=True)}
    rest = topology.node_by_id.keys() - image.keys()
    beside: dict[int, list[tuple[int, Hashable]]] = defaultdict(list)
    for link in topology.links:
        figures = (link.bandwidth_GBps, link.alpha_us, link.kind)
        beside[link.src].append((link.dst, ("out", *figures)))
        beside[link.dst].append((link.src, ("in", *figures)))
    while rest:  # what stands next to nodes whose images are known goes where the images' neighbours are
        known = {id: [(other, how) for other, how in beside[id] if other in image] for id in sorted(rest)}
        near = {id: seen for id, seen in known.items() if seen}
        takers: dict[Hashable, list[int]] = defaultdict(list)
        for id, seen in reversed(near.items()):
            takers[frozenset(Counter(seen).items())].append(id)
        found: dict[int, int] = {}
        for id, seen in near.items():
            candidates = takers[frozenset(Counter((image[other], how) for other, how in seen).items())]
            if not candidates:
                return None
            found[id] = candidates.pop()
        if not found:
            return None
        image |= found
        rest -= found.keys()
    return image if is_automorphism(topology, image) else None


def _moved_links(topology: Topology, image: Mapping[int, int]) -> Indices:
    """Where an automorphism of the nodes takes each link, by place in `topology.links`; parallel ones in order."""
    between: dict[Hashable, list[int]] = defaultdict(list)
    for place, link in enumerate(topology.links):
        between[link.src, link.dst, link.bandwidth_GBps, link.alpha_us, link.kind].append(place)
    places = np.empty(len(topology.links), dtype=np.int64)
    taken: dict[Hashable, int] = defaultdict(int)
    for place, link in enumerate(topology.links):
        key = (image[link.src], image[link.dst], link.bandwidth_GBps, link.alpha_us, link.kind)
        places[place] = between[key][taken[key]]
        taken[key] += 1
    return places

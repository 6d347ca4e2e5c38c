"""Evenness: where all parts of a symmetric machine want the same, the flows of one part stand for everybody's.

The mean of an optimal flow's images under a group of automorphisms is an optimal flow, too, and they leave it as it is:
so the sources of one part are enough, and an orbit of links, each as busy as the others, counts as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..topology.model import Topology
from ..topology.translations import Translations, all_translations

Wanted = Mapping[tuple[int, int], float]


@dataclass(frozen=True, eq=False)
class EvenPart:
    """Part 0 of the smallest parts of a machine that want the same; all of it where there are no `translations`."""

    topology: Topology
    translations: Translations | None

    @classmethod
    def of(cls, topology: Topology, wanted: Wanted) -> EvenPart:
        """For bytes `wanted` between ranks. O(translations · ranks²)."""
        nbytes = np.zeros((topology.nranks, topology.nranks))
        for (source, target), amount in wanted.items():
            nbytes[source, target] = amount
        for translations in all_translations(topology):
            if all(np.array_equal(nbytes[np.ix_(move, move)], nbytes) for move in translations.moves):
                return cls(topology, translations)
        return cls(topology, None)

    @property
    def count(self) -> int:
        """How many parts there are."""
        return 1 if self.translations is None else self.translations.count

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Those of the part."""
        return frozenset(
            range(self.topology.nranks) if self.translations is None else self.translations.ranks[0].tolist()
        )

    @cached_property
    def orbit(self) -> Mapping[int, int]:
        """For each link the one that stands for its orbit, by id."""
        links = self.topology.links
        if self.translations is None:
            return {link.id: link.id for link in links}
        return {link.id: links[first].id for link, first in zip(links, self.translations.link_orbits, strict=True)}

    @cached_property
    def size(self) -> Mapping[int, int]:
        """How many links each orbit has."""
        sizes = dict.fromkeys(self.orbit.values(), 0)
        for first in self.orbit.values():
            sizes[first] += 1
        return sizes

    def load(self, link: int) -> float:
        """How much every link of an orbit carries for what the part puts on one of them."""
        return self.count / self.size[self.orbit[link]]

    @cached_property
    def moves(self) -> Sequence[Sequence[int]]:
        """Per part the ranks that stand there for all ranks."""
        return [list(range(self.topology.nranks))] if self.translations is None else self.translations.moves.tolist()

    def lifted(self, way: Sequence[int]) -> list[tuple[int, ...]]:
        """A way (link ids) as every part goes it."""
        return [tuple(way)] if self.translations is None else self.translations.lifted(way)

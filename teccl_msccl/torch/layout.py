"""Where the places of a plan lie in real buffers."""

from __future__ import annotations

from .plan import Place

#: A buffer (0 input, 1 output, 2 scratch and staging), the first element and one past the last.
Range = tuple[int, int, int]


class Layout:
    """`parts` of shares of `share` elements; part p has the elements share · p / parts to share · (p + 1) / parts."""

    def __init__(self, parts: int, scratch: int, staging: int, share: int) -> None:
        self._parts, self._scratch, self._share = parts, scratch, share
        self._edges = [share * part // parts for part in range(parts + 1)]
        self._widest = max(b - a for a, b in zip(self._edges, self._edges[1:], strict=False))
        self.scratch_elements = (scratch + staging) * self._widest

    def length(self, place: Place | None) -> int:
        return 0 if place is None else self._edges[place.part + 1] - self._edges[place.part]

    def range(self, place: Place) -> Range:
        if place.buffer in "io":
            share, part = divmod(place.position, self._parts)
            first = share * self._share + self._edges[part]
            return ("io".index(place.buffer), first, first + self.length(place))
        first = (place.position + (self._scratch if place.buffer == "t" else 0)) * self._widest
        return (2, first, first + self.length(place))

"""Edge colouring of bipartite multigraphs: what shares an uplink or a downlink gets a turn of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def edge_colours(edges: Sequence[tuple[Hashable, Hashable]]) -> list[int]:
    """Colours 0, 1, … of the edges (left, right), as many as the largest degree, none twice at a vertex (Kőnig 1916).

    Edge by edge: where no colour is free at both ends, the two colours of an alternating path change places.
    O(edges · vertices) at worst.
    """
    used: list[dict[Hashable, dict[int, int]]] = [{}, {}]  # side → vertex → colour → edge
    colours = [-1] * len(edges)
    for edge, ends in enumerate(edges):
        left, right = (used[side].setdefault(end, {}) for side, end in enumerate(ends))
        a, b = _free(left), _free(right)
        if a != b:
            _swap(edges, colours, used, ends[1], a, b)
        colours[edge] = left_colour = a
        left[left_colour] = right[left_colour] = edge
    return colours


def _free(taken: dict[int, int]) -> int:
    colour = 0
    while colour in taken:
        colour += 1
    return colour


def _swap(
    edges: Sequence[tuple[Hashable, Hashable]],
    colours: list[int],
    used: list[dict[Hashable, dict[int, int]]],
    right: Hashable,
    a: int,
    b: int,
) -> None:
    """Free colour a at `right`, where b is free, by exchanging both along the path from there that starts with a. It
    does not end at a left vertex where a is free: it comes to left vertices by edges of colour a."""
    path = []
    side, vertex, colour = 1, right, a
    while colour in used[side][vertex]:
        edge = used[side][vertex][colour]
        path.append(edge)
        side = 1 - side
        vertex, colour = edges[edge][side], a + b - colour
    for edge in path:
        for end_side in (0, 1):
            del used[end_side][edges[edge][end_side]][colours[edge]]
    for edge in path:
        colours[edge] = a + b - colours[edge]
        for end_side in (0, 1):
            used[end_side][edges[edge][end_side]][colours[edge]] = edge

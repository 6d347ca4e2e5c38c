"""Least arborescences: the cheapest trees out of a root, each arc at its own cost."""

from __future__ import annotations

import igraph
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
#: Arcs this share of the dearest above the cheapest are as cheap.
TIGHT = 1e-13


def arborescence(cost: Matrix, root: int) -> list[int]:
    """The parent of every vertex (the root's is itself) in a least arborescence out of `root` over a complete digraph:
    Chu-Liu and Edmonds, contracting all strong components of tight arcs at once. O(n² · rounds), rounds mostly < log n.
    """
    slack = cost.copy()
    np.fill_diagonal(slack, np.inf)
    slack[:, root] = np.inf
    others = np.arange(len(cost)) != root
    slack[:, others] -= slack[:, others].min(axis=0)  # every vertex but the root is entered once
    tight = slack <= TIGHT * np.max(cost, where=np.isfinite(cost), initial=1e-300)
    parents = _reached(tight, root)
    if len(parents) == len(cost):
        return [parents[v] for v in range(len(cost))]
    groups = [list(group) for group in igraph.Graph.Adjacency(tight.tolist()).connected_components(mode="strong")]
    order = [v for group in groups for v in group]
    begins = np.cumsum([0] + [len(group) for group in groups[:-1]])
    smaller = np.minimum.reduceat(np.minimum.reduceat(slack[order][:, order], begins, axis=0), begins, axis=1)
    top = next(i for i, group in enumerate(groups) if root in group)
    parents = {}
    for i, above in enumerate(arborescence(smaller, top)):
        group = groups[i]
        block = slack[groups[above]][:, group]
        u, entered = divmod(int(block.argmin()), len(group))
        within = _reached(tight[group][:, group], entered)
        parents.update({group[v]: group[parent] for v, parent in within.items()})
        if i != top:  # the root is a group of its own
            parents[group[entered]] = groups[above][u]
    return [parents[v] for v in range(len(cost))]


def _reached(tight: NDArray[np.bool_], root: int) -> dict[int, int]:
    """The vertices that tight arcs lead to from `root`, and a parent of each."""
    parents = {root: root}
    queue = [root]
    for u in queue:
        for v in np.flatnonzero(tight[u]).tolist():
            if v not in parents:
                parents[v] = u
                queue.append(v)
    return parents

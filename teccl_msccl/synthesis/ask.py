"""From what a user asks for — a collective's name, groups, a traffic matrix, a custom demand — to a Problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import networkx as nx

from ..collective.custom import custom, read_demand
from ..collective.demand import GIVEN, Demand, Group, collective_named
from ..collective.groups import parse_group
from ..collective.matrix import Matrix, alltoallv, read_matrix
from ..collective.size import parse_size
from ..errors import InputError, whole
from ..topology.model import Topology
from ..topology.paths import direct_paths
from .problem import Problem

GroupLike = str | Group | Sequence[int]
DemandLike = str | Path | Demand | Mapping[str, Any]


def ask(
    topology: Topology,
    collective: str,
    size: str | float | None = None,
    *,
    root: int = 0,
    groups: str | Sequence[GroupLike] = (),
    matrix: str | Path | Matrix | None = None,
    demand: DemandLike | None = None,
) -> Problem:
    """The problem of `collective` of `size` among all ranks or in each of `groups`; of alltoallv with the bytes in
    `matrix` (a CSV file or rows); of custom with `demand` (a JSON file, its value, or a Demand).

    Raises `InputError` for what does not go together.
    """
    collective = collective_named(collective)
    if matrix is not None and collective == "alltoall":
        collective = "alltoallv"
    for name, needed, given in (("alltoallv", "matrix", matrix), ("custom", "demand", demand)):
        if (collective == name) != (given is not None):
            raise InputError(f"{name} and a {needed} go together: ask for {name} with --{needed} FILE")
    if collective in GIVEN and groups:
        raise InputError(f"{collective} takes no groups; a custom demand lists its own")
    nbytes = None if size is None else parse_size(size)
    if collective not in GIVEN:
        if nbytes is None:
            raise InputError(f"{collective} of what size? give --size, such as 64MB")
        return Problem(topology, collective, nbytes, root, _groups(topology, groups))
    own = _matrix(matrix, topology, nbytes) if matrix is not None else _custom(demand, topology, nbytes)
    return Problem(topology, collective, own.size_bytes, root, own=own)


def _matrix(matrix: str | Path | Matrix, topology: Topology, size: float | None) -> Demand:
    if isinstance(matrix, (str, Path)):
        return alltoallv(read_matrix(matrix), topology.nranks, size, str(matrix))
    return alltoallv(matrix, topology.nranks, size)


def _custom(demand: DemandLike | None, topology: Topology, size: float | None) -> Demand:
    if isinstance(demand, Demand):
        if demand.nranks != topology.nranks:
            raise InputError(f"the demand is for {demand.nranks} ranks and {topology.name} has {topology.nranks}")
        return demand
    if isinstance(demand, (str, Path)):
        return read_demand(demand, topology.nranks, size)
    return custom(demand, topology.nranks, size)


def _groups(topology: Topology, groups: str | Sequence[GroupLike]) -> tuple[Group, ...]:
    """The groups; data stays on a group's own GPUs where these reach each other directly, so that a program for its
    ranks alone can move it."""
    parsed = []
    for group in [groups] if isinstance(groups, str) else groups:
        ours = parse_group(group) if isinstance(group, str) else group
        parsed.append(ours if isinstance(ours, Group) else _group_of(ours))
    return tuple(replace(group, confined=_among_themselves(topology, group.ranks)) for group in parsed)


def _group_of(ranks: Sequence[int]) -> Group:
    try:
        return Group(tuple(whole("rank", rank) for rank in ranks))
    except TypeError:
        raise InputError(f'group {ranks!r}: a group is several ranks; write "0-3" or (0, 1)') from None


def _among_themselves(topology: Topology, ranks: tuple[int, ...]) -> bool:
    known = [rank for rank in ranks if 0 <= rank < topology.nranks]
    graph = nx.DiGraph()
    graph.add_nodes_from(known)
    pairs = frozenset(permutations(set(known), 2))
    graph.add_edges_from((path.src_rank, path.dst_rank) for path in direct_paths(topology, pairs))
    return bool(known) and nx.is_strongly_connected(graph)

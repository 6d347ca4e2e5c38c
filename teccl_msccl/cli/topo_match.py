"""`topo match`: whether two machines are the same but for the numbering of their GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .topo import topo

if TYPE_CHECKING:
    from ..topology.symmetry import Match

Machine = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A preset, NAMExN, a file, or local.")]


@topo.command()
def match(
    one: Machine,
    other: Machine,
    whole: Annotated[
        bool, typer.Option("--whole", help="PCIe and NICs must match too, not only what NVLink or xGMI joins.")
    ] = False,
) -> None:
    """Find the rank permutation that makes one machine the other; exit code 1, and the first difference, if none does.

    Where the machines differ but what NVLink (or xGMI) joins is the same in both, the permutation is of that, with a
    warning: virtual machines hide PCIe, and a program for one host goes by NVLink.
    """
    from ..topology.catalog import load
    from ..topology.symmetry import match as find

    first, second = load(one).topology, load(other).topology
    found = find(first, second, fabric=not whole)
    value = {
        "match": found.permutation is not None,
        "permutation": None if found.permutation is None else list(found.permutation),
        "fabric_only": found.fabric_only,
        "difference": found.difference,
    }
    output.answer(value, lambda: _print(found, one, other))
    if found.permutation is None:
        raise typer.Exit(1)


def _print(found: Match, one: str, other: str) -> None:
    if found.permutation is None:
        output.stdout.print(f"no match: {found.difference}", markup=False, soft_wrap=True)
        return
    if found.fabric_only:
        output.warn(f"only what NVLink or xGMI joins is the same: {found.difference}")
    if found.permutation == tuple(range(len(found.permutation))):
        output.stdout.print(f"{one} and {other} are the same, rank for rank", markup=False, soft_wrap=True)
        return
    output.stdout.print(f"rank of {one} → rank of {other}", markup=False, soft_wrap=True)
    ranks = ", ".join(f"{rank}→{image}" for rank, image in enumerate(found.permutation))
    output.stdout.print(ranks, markup=False, soft_wrap=True)

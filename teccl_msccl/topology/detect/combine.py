"""Combine: one host's facts from several sources, each filling what the others leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...errors import InputError
from ..detected import Finding
from .facts import HostFacts, Pair, Reading

Value = TypeVar("Value")


def combined(readings: Sequence[Reading]) -> Reading:
    """What all readings say of one host, GPUs matched by rank order, labels as in the first.

    NVLinks are the first source's that has some, NICs and PCIe those of a source that knows the PCI tree, if one
    does, and figures (generations, models, rates) whoever's has them. Raises `InputError` where two sources have
    different numbers of GPUs or different NVLinks.
    """
    first = readings[0]
    for other in readings[1:]:
        first = _both(first, other)
    return first


def _both(one: Reading, other: Reading) -> Reading:
    ours = one.host
    if len(ours.gpus) != len(other.host.gpus):
        raise InputError(
            f"{one.source} has {len(ours.gpus)} GPUs, {other.source} {len(other.host.gpus)}; give sources of one host"
        )
    theirs = _relabelled(other.host, dict(zip(other.host.gpus, ours.gpus, strict=True)))
    _check_links(one, other, ours, theirs)
    linked, unlinked = (ours, theirs) if ours.nvlinks or ours.switched else (theirs, ours)
    placed = _with_the_tree(ours, theirs)
    findings = [
        finding
        for finding in (*one.findings, *other.findings)
        if not (finding.text.endswith("use its preset") and (linked.nvlinks or linked.switched))
    ]
    if ours.nics and theirs.nics and len(ours.nics) != len(theirs.nics):
        text = f"one source shows {len(ours.nics)} NICs, another {len(theirs.nics)}: the {len(placed.nics)} taken"
        findings.append(Finding("warning", "", text))
    host = replace(
        placed,
        nvlinks=linked.nvlinks,
        switched=linked.switched,
        link_kind=linked.link_kind,
        generation={**unlinked.generation, **linked.generation},
        models={**theirs.models, **ours.models},
        link_GBps={**theirs.link_GBps, **ours.link_GBps},
        domain={**theirs.domain, **ours.domain},
        pcie_GBps={**theirs.pcie_GBps, **ours.pcie_GBps},
    )
    return Reading(host, tuple(findings), f"{one.source} and {other.source}")


def _with_the_tree(ours: HostFacts, theirs: HostFacts) -> HostFacts:
    """The facts whose PCIe and NICs are taken: with the NICs if only one has some, else those with the PCI tree."""
    if bool(ours.nics) != bool(theirs.nics):
        return ours if ours.nics else theirs
    return theirs if theirs.pci and not ours.pci else ours


def _check_links(one: Reading, other: Reading, ours: HostFacts, theirs: HostFacts) -> None:
    if not (ours.nvlinks and theirs.nvlinks):
        return
    for ends in sorted({*ours.nvlinks, *theirs.nvlinks}, key=sorted):
        here, there = ours.nvlinks.get(ends, 0), theirs.nvlinks.get(ends, 0)
        if here != there:
            raise InputError(
                f"{'–'.join(sorted(ends))}: {here} links in {one.source}, {there} in {other.source}; "
                "give sources of one host"
            )


def _relabelled(host: HostFacts, label: Mapping[str, str]) -> HostFacts:
    """The same facts with the GPUs under other labels."""
    if all(old == new for old, new in label.items()):
        return host
    from .pci_tree import Place, Root

    def of(mapping: Mapping[str, Value]) -> dict[str, Value]:
        return {label.get(device, device): value for device, value in mapping.items()}

    def of_pairs(mapping: Mapping[Pair, Value]) -> dict[Pair, Value]:
        return {frozenset(label.get(device, device) for device in ends): value for ends, value in mapping.items()}

    def of_places(places: tuple[Place, ...]) -> tuple[Place, ...]:
        return tuple(Place(label.get(at.label, at.label), at.GBps, of_places(at.below)) for at in places)

    return replace(
        host,
        gpus=tuple(label[gpu] for gpu in host.gpus),
        nvlinks=of_pairs(host.nvlinks),
        levels=of_pairs(host.levels),
        numa=of(host.numa),
        affinity=of(host.affinity),
        models=of(host.models),
        link_GBps=of(host.link_GBps),
        generation=of(host.generation),
        switched=of(host.switched),
        domain=of(host.domain),
        pcie_GBps=of(host.pcie_GBps),
        pci=tuple(Root(root.name, root.socket_GBps, of_places(root.places)) for root in host.pci),
    )

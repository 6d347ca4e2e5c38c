"""Degraded machines: a topology without a link, a NIC or a GPU, or with some GPUs only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..errors import InputError
from .detected import Detected, Finding
from .model import Node, Topology

_ENDS = "3-5 (GPUs), or names: GPU3-NVSwitch"
_FORMS = "link:3-5 (GPUs, or names: link:GPU3-NVSwitch), nic:2, gpu:4, or host and label: nic:1.2"


def without(topology: Topology, parts: Iterable[str]) -> Detected:
    """`topology` after `parts` have failed, each "link:A-B" (both directions, all parallel ones), "nic:N" or "gpu:N".

    N is a GPU's rank, a device's name ("mlx5_2") or its number on its host ("nic:2" on a single host, "nic:1.2" on
    host 1). All are named as they were before any of them failed. Ids of nodes and links stay; ranks close up, and a
    finding says so. Raises `InputError` for a part that there is not, and where GPUs can no longer reach each other.
    """
    parts = list(parts)
    lost_nodes: set[int] = set()
    lost_links: set[int] = set()
    for part in parts:
        kind, _, name = part.partition(":")
        if kind == "link":
            lost_links |= links_between(topology, name, f"--without {part!r}")
        elif kind in ("nic", "gpu"):
            lost_nodes.add(_device(topology, kind, name, part).id)
        else:
            raise InputError(f"--without {part!r}: write {_FORMS}")
    if not parts:
        return Detected(topology)
    kept = [rank for rank, node in enumerate(topology.gpus) if node not in lost_nodes]
    if not kept:
        raise InputError(f"{topology.name} without {', '.join(parts)}: no GPU is left; leave some out")
    name = f"{topology.name} without {', '.join(parts)}"
    try:
        degraded = _reduced(topology, kept, lost_nodes, lost_links, name)
    except InputError as error:
        text = str(error).removeprefix(f"{name}: ").removesuffix("; add the missing links")
        counted = "" if len(kept) == topology.nranks else " (ranks as they are left)"
        raise InputError(f"{name}: {text}{counted}; these parts cannot all be spared") from None
    return Detected(degraded, tuple(_renumbered(kept, topology.nranks)))


def only(topology: Topology, ranks: Sequence[int]) -> Topology:
    """The GPUs `ranks` as ranks 0, 1, 2… in that order, with all that is no GPU. Node and link ids stay."""
    return _reduced(topology, ranks, set(), set(), f"{topology.name} ranks {','.join(map(str, ranks))}")


def _reduced(
    topology: Topology, kept: Sequence[int], lost_nodes: set[int], lost_links: set[int], name: str
) -> Topology:
    rank_of = {topology.gpus[old]: new for new, old in enumerate(kept)}
    nodes = [
        replace(node, rank=rank_of[node.id]) if node.id in rank_of else node
        for node in topology.nodes
        if node.id in rank_of or (node.kind != "gpu" and node.id not in lost_nodes)
    ]
    there = {node.id for node in nodes}
    links = [x for x in topology.links if x.src in there and x.dst in there and x.id not in lost_links]
    return replace(topology, name=name, nodes=tuple(nodes), links=tuple(links))


def _renumbered(kept: Sequence[int], before: int) -> Iterable[Finding]:
    if len(kept) == before:
        return
    moved = [(old, new) for new, old in enumerate(kept) if old != new]
    text = f"{len(kept)} of {before} GPUs are left, as ranks 0 to {len(kept) - 1}"
    if moved:
        text += ": " + ", ".join(f"rank {old} is now {new}" for old, new in moved[:4])
        text += f"… rank {moved[-1][0]} is now {moved[-1][1]}" if len(moved) > 4 else ""
    yield Finding("warning", "", text)


def links_between(topology: Topology, name: str, where: str) -> set[int]:
    """The links, both ways, between the two ends that `name` names, "A-B"; a name may have dashes of its own. Raises
    `InputError` that begins with `where`."""
    pieces = name.split("-")
    for cut in range(1, len(pieces)):
        ends = [nodes_named(topology, "-".join(half)) for half in (pieces[:cut], pieces[cut:])]
        pairs = [(a, b) for a in ends[0] for b in ends[1]]
        joined = [links for a, b in pairs if (links := _between(topology, a.id, b.id))]
        if len(joined) == 1:
            return joined[0]
        if joined:
            raise InputError(f"{where}: {len(joined)} hosts have such a link; say which: 0.A-0.B")
        if pairs:
            a, b = (node.id for node in pairs[0])
            beside = sorted({_label(topology, x.dst) for x in topology.links if x.src == a})
            raise InputError(
                f"{where}: {topology.name} has no link between {_label(topology, a)} and "
                f"{_label(topology, b)}; {_label(topology, a)} has links to {', '.join(beside) or 'nobody'}"
            )
    raise InputError(f"{where}: {topology.name} has no such two ends; write {_ENDS}")


def nodes_named(topology: Topology, text: str) -> list[Node]:
    """The nodes that `text` may mean: a GPU's rank, a device's name, or either behind its host, "H.N"."""
    return _find(topology, None, text)


def _between(topology: Topology, a: int, b: int) -> set[int]:
    return {link.id for link in topology.links if {link.src, link.dst} == {a, b}}


def _device(topology: Topology, kind: str, name: str, part: str) -> Node:
    found = _find(topology, kind, name)
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(f"{kind}:{node.host}.{name}" for node in found[:3])
        raise InputError(f"--without {part!r}: {len(found)} hosts have one; say which: {named}…")
    known = [_label(topology, node.id) for node in topology.nodes if node.kind == kind]
    there = f"it has {', '.join(known[:12])}{'…' if len(known) > 12 else ''}" if known else f"it has no {kind}"
    raise InputError(f"--without {part!r}: {topology.name} has none such; {there}")


def _find(topology: Topology, kind: str | None, text: str) -> list[Node]:
    """The nodes of `kind` (None: any; a bare number is then a GPU's rank) that `text` names: "N", "NAME" or either
    behind its host, "H.N"."""
    host, dot, rest = text.partition(".")
    on = int(host) if dot and host.isdecimal() else None
    name = rest if on is not None else text
    nodes = [node for node in topology.nodes if kind in (None, node.kind) and on in (None, node.host)]
    if not name.isdecimal():
        return [node for node in nodes if node.name and node.name.lower() == name.lower()]
    number = int(name)
    if kind != "nic" and on is None:
        return [topology.node_by_id[topology.gpus[number]]] if number < topology.nranks else []
    same = [node for node in nodes if node.kind == (kind or "gpu")]
    found = []
    for each in sorted({node.host for node in same}):
        here = [node for node in same if node.host == each]
        labelled = [node for node in here if node.name.lower() == f"{node.kind}{number}"]
        found += labelled or here[number : number + 1]
    return found


def _label(topology: Topology, id: int) -> str:
    node = topology.node_by_id[id]
    if node.rank is not None:
        return f"GPU {node.rank}"
    name = node.name or f"{node.kind} {id}"
    return f"{node.host}.{name}" if len(topology.hosts) > 1 else name

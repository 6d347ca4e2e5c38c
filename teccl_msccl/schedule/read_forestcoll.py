"""ForestColl's spanning trees (liangyuRain/ForestColl, `spanning_trees_to_xml`): an allgather.

`<Algo nchunkspernode>` holds for every root `<tree root index nchunks>` with `<send src dst path>` in the order of a
breadth-first search. Nodes are named as in its topology, such as (0, 'GPU', 3); paths name the switches too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .foreign import MOST_SENDS, ForeignSchedule, Hop, Pattern

if TYPE_CHECKING:
    from lxml import etree

#: Sends deeper in a tree start this much later; trees of higher index follow within it.
_LEVEL_US = 1.0


def read_forestcoll(root: etree._Element, where: str) -> ForeignSchedule:
    """The trees under the element `root`. Raises `InputError` naming the line that is not a tree's."""
    trees = [_Tree(element, where) for element in root.iterchildren("tree")]
    if not trees:
        raise InputError(f"{where}: has no <tree>, so there is no schedule in it")
    if sum(tree.count * len(tree.sends) for tree in trees) > MOST_SENDS:
        raise InputError(f"{where}: its trees make more than {MOST_SENDS} sends")
    labels = sorted({label for tree in trees for label in tree.gpus}, key=_order)
    rank_of = {label: rank for rank, label in enumerate(labels)}
    everyone = tuple(range(len(labels)))
    chunks: list[Pattern] = []
    hops: list[Hop] = []
    for tree in trees:
        for _ in range(tree.count):
            hops += tree.hops(len(chunks), rank_of)
            chunks.append(Pattern((rank_of[tree.root],), everyone))
    return ForeignSchedule(where, "ForestColl", tuple(labels), tuple(chunks), tuple(hops), None)


class _Tree:
    """One `<tree>`: its root, how many chunks it carries, and its sends, parents first."""

    def __init__(self, element: etree._Element, where: str) -> None:
        self.where = f"{where}: line {element.sourceline}"
        self.root = _attribute(element, "root", where)
        self.count = self._whole(element.get("nchunks", "1"), "nchunks", 1)
        self.index = self._whole(element.get("index", "0"), "index", 0)
        self.sends: list[tuple[str, str, tuple[str, ...]]] = []
        self.depth = {self.root: 0}
        waiting = []
        for send in element.iterchildren("send"):
            src, dst = _attribute(send, "src", where), _attribute(send, "dst", where)
            path = _split(send.get("path", ""))
            if path and (path[0] != src or path[-1] != dst):
                raise InputError(f"{where}: line {send.sourceline}: the path does not go from {src} to {dst}")
            waiting.append((src, dst, tuple(path[1:-1])))
        self._grow(waiting)

    def _grow(self, waiting: list[tuple[str, str, tuple[str, ...]]]) -> None:
        """Number the levels; every GPU must hang on the root, and on one parent."""
        children: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
        for send in waiting:
            children.setdefault(send[0], []).append(send)
        level = [self.root]
        while level:
            grown = []
            for parent in level:
                for src, dst, via in children.pop(parent, []):
                    if dst in self.depth:
                        raise InputError(f"{self.where}: {dst} is reached twice in the tree of {self.root}")
                    self.depth[dst] = self.depth[src] + 1
                    self.sends.append((src, dst, via))
                    grown.append(dst)
            level = grown
        if children:
            raise InputError(
                f"{self.where}: {next(iter(children))} sends, but the tree of {self.root} does not reach it"
            )

    @property
    def gpus(self) -> Iterator[str]:
        return iter(self.depth)

    def hops(self, chunk: int, rank_of: dict[str, int]) -> Iterator[Hop]:
        for src, dst, via in self.sends:
            start = self.depth[src] * _LEVEL_US + min(self.index, 1000) * _LEVEL_US / 1000
            yield Hop(chunk, rank_of[src], rank_of[dst], start, via=via)

    def _whole(self, text: str, key: str, least: int) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:9]) == int(text[:12]):
            raise InputError(f"{self.where}: {key}={text[:40]!r} must be a whole number, {least} or more")
        return int(text)


def _attribute(element: etree._Element, key: str, where: str) -> str:
    value = element.get(key)
    if not value:
        raise InputError(f"{where}: line {element.sourceline}: <{element.tag}> lacks {key}")
    return value.strip()


def _split(path: str) -> list[str]:
    """Names separated by commas that are outside of parentheses and quotes."""
    names, depth, quoted, name = [], 0, False, ""
    for letter in path:
        if letter == "'":
            quoted = not quoted
        elif not quoted:
            depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0 and not quoted:
            names.append(name.strip())
            name = ""
        else:
            name += letter
    return [*names, name.strip()] if name.strip() else names


def _order(label: str) -> tuple[Any, ...]:
    """Numbers by value, within tuples too; anything else by spelling, after them."""
    try:
        value = ast.literal_eval(label) if len(label) < 200 else label
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = label
    parts = value if isinstance(value, tuple) else (value,)
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, str(part)) for part in parts)

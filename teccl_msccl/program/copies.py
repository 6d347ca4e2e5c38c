"""Pass: a rank's local copies — in the order in which they are waited for, merged where nobody waits, and shared out
over threadblocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from .actions import Action
from .merging import continues
from .targets import MAX_COUNT


def in_order_of_use(actions: Sequence[Action], lanes: int) -> tuple[list[Action], dict[Action, int]]:
    """The rank's actions with its local copies first, and how many chunks each copy moves.

    Copies that a transfer waits for come in the order of the first that does, as they are; of the others, neighbours
    become one, but leave every one of `lanes` threadblocks its share.
    """
    copies = [action for action in actions if action.is_copy]
    transfers = [action for action in actions if not action.is_copy]
    first_use: dict[Action, int] = {}
    for moment, transfer in enumerate(transfers):
        for earlier in transfer.after:
            first_use.setdefault(earlier, moment)
    used = sorted((copy for copy in copies if copy in first_use), key=first_use.__getitem__)
    sizes = {copy: copy.chunks for copy in used} | _merged([copy for copy in copies if copy not in first_use], lanes)
    return [*sizes, *transfers], sizes


def _merged(copies: Sequence[Action], lanes: int) -> dict[Action, int]:
    """Copies between neighbouring places as one each: the first of them, and how many chunks."""
    most = min(MAX_COUNT, ceil(len(copies) / lanes))
    runs: dict[Action, int] = {}
    first: Action | None = None
    for copy in copies:
        if first is not None and runs[first] < most and continues(first, copy, runs[first]):
            runs[first] += 1
        else:
            first = copy
            runs[first] = 1
    return runs


def share_out(sizes: Mapping[Action, int], lanes: int, max_steps: int) -> dict[Action, tuple[int, int]]:
    """For each copy the threadblock that makes it: (chunks a step, which of those).

    Copies take turns at `lanes` threadblocks, or at as many as hold them. The steps of a threadblock move equally
    many chunks: msccl before its PR 39 goes wrong otherwise (MSCCL XML reference §9).
    """
    copies_of = Counter(sizes.values())
    lanes_of = {chunks: max(min(lanes, copies), ceil(copies / max_steps)) for chunks, copies in copies_of.items()}
    turns: Counter[int] = Counter()
    home = {}
    for copy, chunks in sizes.items():
        home[copy] = (chunks, turns[chunks] % lanes_of[chunks])
        turns[chunks] += 1
    return home

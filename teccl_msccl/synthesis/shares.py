"""Shares of links that others use too, as people write them: a CSV of links, times and shares."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from ..errors import InputError
from ..files import read_bytes
from ..topology.model import Topology
from ..topology.without import links_between, nodes_named
from .rules import Steps


def read_shares(path: str | Path, topology: Topology) -> dict[int, Steps]:
    """The shares in a CSV file, by link id: a line `link,from µs,share`, such as `0-1,250,0.5`.

    Link 0-1 is both directions between GPUs (or names) 0 and 1, 0>1 the one from 0 to 1. From that time on it has that
    share of its bandwidth, up to the link's next line; before its first line it has all. # begins a comment. Raises
    `InputError` naming the line.
    """
    try:
        text = read_bytes(path, "shares of links").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text; write a CSV of lines such as 0-1,250,0.5") from None
    shares: dict[int, dict[float, float]] = {}
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV ({error}); write lines such as 0-1,250,0.5") from None
    for number, cells in enumerate(rows, start=1):
        line = [cell.strip() for cell in cells]
        if not any(line) or line[0].startswith("#"):
            continue
        where = f"{path}: line {number}"
        if len(line) != 3:
            raise InputError(f"{where}: {len(line)} cells; write link,from µs,share, such as 0-1,250,0.5")
        time, share = _figure(line[1], "time in µs", where), _figure(line[2], "share", where)
        if not 0 <= share <= 1:
            raise InputError(f"{where}: a share of {line[2]}; it must be 0 to 1")
        for link in _links(topology, line[0], where):
            if time in shares.setdefault(link, {}):
                raise InputError(f"{where}: link {line[0]} has a share from {line[1]} µs on already; leave one")
            shares[link][time] = share
    for link, steps in shares.items():
        if steps[max(steps)] == 0:
            ends = topology.link_by_id[link]
            raise InputError(
                f"{path}: the link from node {ends.src} to node {ends.dst} has nothing from {max(steps):g} µs on; "
                "give it a later share, or leave it out with --without"
            )
    return {link: tuple(sorted(steps.items())) for link, steps in shares.items()}


def _links(topology: Topology, name: str, where: str) -> list[int]:
    both = sorted(links_between(topology, name.replace(">", "-"), where))
    if ">" not in name:
        return both
    sources = {node.id for node in nodes_named(topology, name.partition(">")[0])}
    return [link for link in both if topology.link_by_id[link].src in sources]


def _figure(text: str, what: str, where: str) -> float:
    try:
        figure = float(text)
    except ValueError:
        figure = math.nan
    if not 0 <= figure < math.inf:
        raise InputError(f"{where}: {text!r} is no {what}; write a number, 0 or more")
    return figure

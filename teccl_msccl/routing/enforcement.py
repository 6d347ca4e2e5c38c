"""Enforcement: what each host is told of its queue pairs, so that they take the routes chosen for them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address
from typing import NamedTuple

from .hash_model import Ends, HashModel
from .rocev2 import FIRST_PORT, LAST_PORT, flow_label
from .traffic import Flow, Route, Traffic

HEADER = (
    "job", "communicator", "rank", "peer", "channel", "qp", "src_ip", "dst_ip", "dst_qpn", "spine", "udp_sport",
    "flow_label", "version",
)  # fmt: skip


class Row(NamedTuple):
    """A queue pair's row; blank where nothing applies or nothing is known."""

    job: str
    communicator: str
    rank: int
    peer: int
    channel: int
    qp: int
    src_ip: str
    dst_ip: str
    dst_qpn: int | str
    spine: int | str
    udp_sport: int | str
    flow_label: int | str
    version: int


@dataclass(frozen=True)
class Enforcement:
    """Rows for all queue pairs, and a line for each whose live spine no known port reaches. Its row has no port, nor
    has that of a queue pair whose route has failed."""

    rows: tuple[Row, ...]
    unreachable: tuple[str, ...]

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(self.rows)
        return out.getvalue()


def enforce(traffic: Traffic, routes: Sequence[Route], model: HashModel, version: int = 1) -> Enforcement:
    """A row for each queue pair (RoCEv2; see `rocev2` for ports and labels).

    What flows do not say is filled in: rank and peer are the hosts, the communicator is the collective, channels count
    the flows of a communicator between two ranks, and host h has address 10.0.0.0 + h + 1.
    """
    rows, unreachable = [], []
    channels: Counter[tuple[str, int, int]] = Counter()
    live: dict[tuple[int, int], list[int]] = {}
    for i, (flow, route) in enumerate(zip(traffic.flows, routes, strict=True)):
        part = i % traffic.queue_pairs
        pair = traffic.fabric.tor_of(flow.src), traffic.fabric.tor_of(flow.dst)
        if pair not in live:
            live[pair] = traffic.fabric.spines_between(*pair)
        key = (flow.collective, flow.src, flow.dst)
        row, found = row_of(flow, channels[key], part, route, live[pair], model, version)
        if part == traffic.queue_pairs - 1:
            channels[key] += 1
        rows.append(row)
        if not found and route in live[pair]:
            unreachable.append(
                f"flows[{i // traffic.queue_pairs}] ({flow.collective}: {flow.src}>{flow.dst}): no known UDP source "
                f"port reaches spine {route} from ToR {pair[0]}"
            )
    return Enforcement(tuple(rows), tuple(unreachable))


def row_of(
    flow: Flow, channel: int, part: int, route: Route, live: Sequence[int], model: HashModel, version: int
) -> tuple[Row, bool]:
    """The row of one queue pair, and whether a port that reaches its spine was found (or none is needed)."""
    known = dict(flow.extra)
    ends = ends_of(flow)
    port: int | None = None
    if route is not None:
        # Neighbours begin their search at different ports, so that few queue pairs share one.
        first = FIRST_PORT + (flow.src * 7919 + flow.dst * 104729 + part * 31) % (LAST_PORT - FIRST_PORT + 1)
        port = model.port_to(ends, route, live, first)
    row = Row(
        job=flow.job,
        communicator=str(known.get("communicator", flow.collective)),
        rank=known.get("rank", flow.src),
        peer=known.get("peer", flow.dst),
        channel=known.get("channel", channel),
        qp=known.get("qp", 0) + part,
        src_ip=ends.src_ip,
        dst_ip=ends.dst_ip,
        dst_qpn=known.get("dst_qpn", ""),
        spine="" if route is None else route,
        udp_sport="" if port is None else port,
        flow_label="" if port is None else flow_label(port),
        version=version,
    )
    return row, route is None or port is not None


def ends_of(flow: Flow) -> Ends:
    """A flow's hosts with their addresses, given or assumed."""
    known = dict(flow.extra)
    return Ends(
        flow.src, flow.dst, known.get("src_ip") or assumed_ip(flow.src), known.get("dst_ip") or assumed_ip(flow.dst)
    )


@lru_cache(maxsize=2**16)
def assumed_ip(host: int) -> str:
    return str(IPv4Address("10.0.0.0") + host + 1)

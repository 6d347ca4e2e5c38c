"""Pass: which connections make do with fewer channels, where a rank has more threadblocks than run at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush

from .channels import Connection, Transfer, most_at_once

#: What it costs a connection to have so many channels, and not one more.
Cost = Callable[[Connection, int], float]


def time_lost(transfers: Iterable[Transfer], credits: int, threadblock_GBps: float | None, finish_us: float) -> Cost:
    """How much later (µs) about a connection's data is with so many channels than with one more: a connection waits
    for a latency whenever its credits are used up, and its threadblocks may be slower than the schedule."""
    of: dict[Connection, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        of[transfer.connection].append(transfer)
    facts = {
        connection: (
            most_at_once(group) / credits,
            max(transfer.arrival_us - transfer.start_us for transfer in group),
            sum(transfer.nbytes for transfer in group) / (threadblock_GBps * 1e3) if threadblock_GBps else 0.0,
        )
        for connection, group in of.items()
    }

    def late_us(connection: Connection, width: int) -> float:
        needed, latency_us, alone_us = facts[connection]
        return max((needed / width - 1) * latency_us, alone_us / width - finish_us, 0.0)

    return lambda connection, width: late_us(connection, width) - late_us(connection, width + 1)


def narrowed(widths: Mapping[Connection, int], most: int, cost: Cost) -> dict[Connection, int]:
    """Widths with which no rank has more than `most` threadblocks, one for each end of a channel, or 1 each.

    Again and again a rank that has too many takes a channel from the connection where it costs least: latencies along
    the way of a chunk add up, so their sum counts. O(W log W) for W channels.
    """
    left = dict(widths)
    of: dict[int, list[Connection]] = defaultdict(list)
    for connection in sorted(left):
        for rank in connection[:2]:
            of[rank].append(connection)
    needs = {rank: sum(left[connection] for connection in mine) for rank, mine in of.items()}
    for rank, mine in of.items():
        queue = [(cost(each, left[each] - 1), -left[each], each) for each in mine if left[each] > 1]
        heapify(queue)
        while needs[rank] > most and queue:
            connection = heappop(queue)[-1]
            left[connection] -= 1
            for end in connection[:2]:
                needs[end] -= 1
            if (width := left[connection]) > 1:
                heappush(queue, (cost(connection, width - 1), -width, connection))
    return left

"""Fewer channels: no rank keeps more threadblocks than it can, and no better choice is left out."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from teccl_msccl.program.channels import Connection, Transfer
from teccl_msccl.program.narrowing import narrowed, time_lost

connections = st.tuples(st.integers(0, 4), st.integers(0, 4), st.just(0)).filter(lambda c: c[0] != c[1])


def late_us(transfers: int, latency_us: float, credits: int, width: int) -> float:
    """A latency for every time that the credits of all channels are used up, and shares of it."""
    return max(transfers / (credits * width) - 1, 0.0) * latency_us


def at_once(connection: Connection, transfers: int, latency_us: float) -> list[Transfer]:
    return [Transfer(connection, 1.0, 0.0, latency_us)] * transfers


@given(st.dictionaries(connections, st.integers(1, 9), min_size=1), st.integers(1, 30))
def test_every_rank_has_few_enough(widths: dict[Connection, int], most: int) -> None:
    left = narrowed(widths, most, lambda connection, width: 1 / width)
    assert all(1 <= left[connection] <= width for connection, width in widths.items())
    for rank in range(5):
        mine = [connection for connection in widths if rank in connection[:2]]
        assert sum(left[each] for each in mine) <= most or all(left[each] == 1 for each in mine)
    before = Counter(rank for c, width in widths.items() for rank in c[:2] for _ in range(width))
    if max(before.values()) <= most:
        assert left == widths


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(4, 10),
)
def test_what_one_rank_loses_is_least(groups: list[tuple[int, float]], credits: int, most: int) -> None:
    """Brute force over all widths of one rank's connections."""
    named = {(0, peer, 0): group for peer, group in enumerate(groups, start=1)}
    transfers = [transfer for c, (count, latency) in named.items() for transfer in at_once(c, count, latency)]
    widths = {c: -(-count // credits) for c, (count, _) in named.items()}
    left = narrowed(widths, most, time_lost(transfers, credits, None, 1.0))

    def lost_us(chosen: dict[Connection, int]) -> float:
        return sum(late_us(count, latency, credits, chosen[c]) for c, (count, latency) in named.items())

    choices = (dict(zip(widths, each, strict=True)) for each in product(*(range(1, w + 1) for w in widths.values())))
    best = min(lost_us(choice) for choice in choices if sum(choice.values()) <= most)
    assert sum(left.values()) <= most
    assert abs(lost_us(left) - best) < 1e-9


def test_slow_threadblocks_are_not_taken_from_who_needs_them() -> None:
    """3e4 bytes at 10 GB/s are 3 µs for one threadblock, and there is 1 µs."""
    busy, idle = (0, 1, 0), (0, 2, 0)
    transfers = [Transfer(busy, 3e4, 0.0, 1.0), Transfer(idle, 3e3, 0.0, 1.0)]
    assert narrowed({busy: 3, idle: 3}, 4, time_lost(transfers, 2, 10.0, 1.0)) == {busy: 3, idle: 1}

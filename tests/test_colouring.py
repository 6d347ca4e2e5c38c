"""Edge colouring: proper, and with no more colours than the largest degree."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from teccl_msccl.synthesis.colouring import edge_colours


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60))
def test_edges_that_meet_differ_and_colours_are_few(edges):
    colours = edge_colours(edges)
    for side in (0, 1):
        turns = Counter((edge[side], colour) for edge, colour in zip(edges, colours, strict=True))
        assert all(count == 1 for count in turns.values())
    degrees = [Counter(edge[side] for edge in edges) for side in (0, 1)]
    assert max(colours, default=-1) + 1 == max((count for degree in degrees for count in degree.values()), default=0)


def test_a_full_graph_has_perfect_matchings():
    edges = [(i, j) for i in range(12) for j in range(12)]
    assert set(Counter(edge_colours(edges)).values()) == {12}

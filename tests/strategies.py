"""Random topologies: by hypothesis, which shrinks them, or by a seed, which is quicker."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from teccl_msccl.topology.model import Link, Node, Topology

BANDWIDTHS_GBPS = (12.5, 25.0, 50.0, 100.0)
ALPHAS_US = (0.0, 0.25, 0.7, 2.6)
KINDS = {"g": "gpu", "s": "switch", "n": "nic", "c": "cpu"}

Choose = Callable[[Sequence[Any]], Any]


def machine(nodes: str, links: Sequence[tuple[int, int, float, float]], *, one_way: bool = False) -> Topology:
    """`nodes`: one letter each, g(pu), s(witch), n(ic), c(pu); `links`: (src, dst, GB/s, α), both ways as a rule."""
    ranks = iter(range(len(nodes)))
    made = tuple(Node(i, KINDS[k], rank=next(ranks) if k == "g" else None) for i, k in enumerate(nodes))
    ways = [(a, b, *figures) for src, dst, *figures in links for a, b in ((src, dst), (dst, src))[: 2 - one_way]]
    return Topology("machine", made, tuple(Link(i, *way) for i, way in enumerate(ways)))


def connected_machine(choose: Choose, least: int = 2, most: int = 6, switches: int = 2) -> Topology:
    """A strongly connected topology: a cycle through all nodes, and more links of any direction, doubled ones too."""
    gpus = choose(range(least, most + 1))
    nodes = gpus + choose(range(switches + 1))
    kinds = ["g"] * gpus + [choose("sn") for _ in range(nodes - gpus)]
    order = _shuffled(choose, list(range(nodes)))
    ends = list(zip(order, order[1:] + order[:1], strict=True))
    for _ in range(choose(range(2 * nodes + 1))):
        src = choose(range(nodes))
        dst = choose([node for node in range(nodes) if node != src])
        ends += [(src, dst)] * choose((1, 1, 1, 2)) + [(dst, src)] * choose((0, 1))
    # a machine of one speed or of many
    speeds = choose((BANDWIDTHS_GBPS, (50.0,)))
    alphas = choose((ALPHAS_US, (0.5,)))
    return machine("".join(kinds), [(*pair, choose(speeds), choose(alphas)) for pair in ends], one_way=True)


def _shuffled(choose: Choose, items: list[int]) -> list[int]:
    out = []
    while items:
        out.append(choose(items))
        items = [item for item in items if item != out[-1]]
    return out


def seeded_machine(seed: int, least: int = 2, most: int = 6, switches: int = 2) -> Topology:
    """The `seed`-th random topology."""
    return connected_machine(random.Random(seed).choice, least, most, switches)


@st.composite
def machines(draw: Any, least: int = 2, most: int = 6, switches: int = 2) -> Topology:
    """Random topologies of `least` to `most` GPUs and up to `switches` switches and NICs."""
    return connected_machine(lambda options: draw(st.sampled_from(list(options))), least, most, switches)

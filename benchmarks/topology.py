"""What the topology part must reach, and what it reaches here: `python benchmarks/topology.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.symmetry import automorphism_generators, is_automorphism, match


def compose_1024() -> str:
    return f"{load('dgx-h100', hosts=128, network='rail').topology.nranks} GPUs"


def automorphisms_of_128() -> str:
    topology = load("dgx-a100x16").topology
    generators = automorphism_generators(topology)
    if not all(is_automorphism(topology, generator) for generator in generators):
        sys.exit("a generator is no automorphism")
    return f"{len(generators)} generators, each verified"


def match_1024() -> str:
    one = load("dgx-h100x128").topology
    return "matched" if match(one, load("dgx-h100x128").topology).permutation else sys.exit("no match")


TARGETS: tuple[tuple[str, Callable[[], str], float | None], ...] = (
    ("compose 1,024 GPUs with rails", compose_1024, 2.0),
    ("automorphisms of 16 × 8 GPUs", automorphisms_of_128, 5.0),
    ("match two clusters of 1,024 GPUs", match_1024, None),
)


def main() -> None:
    """Print each target with the time taken; exit code 1 if one is missed."""
    missed = False
    for what, action, limit_s in TARGETS:
        start = time.perf_counter()
        result = action()
        took_s = time.perf_counter() - start
        met = limit_s is None or took_s <= limit_s
        missed |= not met
        target = "no target" if limit_s is None else f"target {limit_s:g} s: {'met' if met else 'MISSED'}"
        print(f"{what:<34} {took_s:7.3f} s  ({target})  {result}")
    sys.exit(int(missed))


if __name__ == "__main__":
    main()

"""Programs for the driver program, as the file that the interposer reads: python programs.py FILE [RANKS]."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import hand_made

from teccl_msccl.store.rounds_file import Served, packed

#: Sizes from here on have another program than those below.
CHANGE = 3200


def served(nranks: int, root: int = 0) -> list[Served]:
    """Every collective: small sizes straight, larger ones by rings or in more chunks."""
    found = []
    for collective in hand_made.COLLECTIVES:
        rooted = collective in hand_made.ROOTED
        where = {"root": root} if rooted else {}
        ringed = collective in ("allgather", "reduce_scatter", "allreduce")
        small = hand_made.direct(collective, nranks, 2, **where)
        large = hand_made.ring(collective, nranks, 3) if ringed else hand_made.direct(collective, nranks, 3, **where)
        for program, name, low, high in ((small, "small", 0, CHANGE), (large, "large", CHANGE, 1 << 40)):
            named = replace(program, name=f"{collective}-{name}")
            found.append(Served(named, root if rooted else None, low, high))
    return found


if __name__ == "__main__":
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    Path(sys.argv[1]).write_bytes(packed(served(ranks), [0] * ranks))

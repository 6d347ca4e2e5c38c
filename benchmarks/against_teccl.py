"""Side by side in one run: TE-CCL's MILP as the paper has it against ours. python benchmarks/against_teccl.py

Both search for the fewest epochs of the same grid with CBC on one thread; ours (`--method milp`) starts from a greedy
schedule, leaves out what cannot matter and minimises the number of late epochs in one model. Seconds include building
the models, and for ours the greedy search. Speed-up: plain seconds / ours.
"""

from __future__ import annotations

import sys
import time

from plain_teccl import fewest_epochs

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.synthesis.epochs import EpochGrid, fast_epoch_us
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.milp import Milp
from teccl_msccl.synthesis.solver import new_model
from teccl_msccl.topology.model import Topology

LIMIT_S = 60.0
#: Instances that both can solve: (topology, collective, bytes, chunks a share).
INSTANCES = (
    ("ring-4", "allgather", 1e6, 1),
    ("ring-4", "allgather", 1e6, 2),
    ("full-4", "alltoall", 1e6, 2),
    ("line-4", "allgather", 1e6, 1),
    ("ring-6", "allgather", 1e6, 1),
    ("mesh-2x3", "allgather", 1e6, 1),
    ("hypercube-8", "allgather", 1e6, 1),
    ("teccl-dgx1", "broadcast", 1e6, 2),
    ("teccl-dgx1", "allgather", 1e6, 1),
)


def main() -> None:
    """Print a row for each instance; exit code 1 where the two prove different optima."""
    new_model("cbc")  # loads the solver, for both
    wrong = False
    for name, collective, size, nchunks in INSTANCES:
        topology = Topology.load(name)
        demand = demand_for(collective, topology.nranks, size, nchunks)
        tau = fast_epoch_us(topology, demand)
        began = time.perf_counter()
        start = min(GreedySearch(topology).trials(demand, range(20), 1), key=lambda schedule: schedule.finish_us)
        ours = Milp(EpochGrid(topology, demand, tau), start, "cbc").improve(seconds=LIMIT_S, threads=1)
        seconds = time.perf_counter() - began
        plain = fewest_epochs(topology, demand, tau, LIMIT_S)
        proved = ours.outcome.status == "optimal"
        wrong |= proved and plain.proved and ours.epochs != plain.epochs
        print(
            f"{name:12} {collective:10} {nchunks} chunk(s): plain {plain.epochs} epochs "
            f"{'proved' if plain.proved else 'not proved'} {plain.seconds:7.2f} s; ours {ours.epochs} epochs "
            f"{'proved' if proved else 'not proved'} {seconds:6.2f} s; speed-up {plain.seconds / seconds:6.1f} x",
            flush=True,
        )
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()

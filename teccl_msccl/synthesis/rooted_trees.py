"""Trees out of one root, weighed so that the busiest link has the least to do, and the bound that prices prove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mip
import numpy as np
from numpy.typing import NDArray

from ..topology.model import Topology
from ..topology.paths import MANY_GPUS, Path, direct_paths
from .arborescence import TIGHT, Matrix, arborescence
from .budget import UNLIMITED, Budget
from .crossing import filling_time
from .host_trees import HostTrees
from .solver import new_model, solve_linear

#: Paths times links up to which trees are sought link by link, and up to which hosts' trees are put together; rounds of
#: the column generation.
MOST_USES = 2_000_000
MOST_USES_BY_HOSTS = 10_000_000
MAX_ROUNDS = 100
#: The share by which the trees' rate may miss what the prices prove.
CLOSE = 1e-3
#: What a tree may cost more than the cheapest, as a share of the time, to have its turn among them; and how much a link
#: counts more than one that has carried the largest load of a tree less.
NEARLY_CHEAPEST = 0.02
EVENNESS = 1.0
#: A price that every path has, so that none is free.
_FLOOR = 1e-12
#: Bytes in chunks so many that depth counts little.
_PLENTY, _CHUNKS = 1e9, 1000
#: What depth counts against price in the shallower trees that are grown beside the cheapest.
DEPTH_WEIGHTS = (0.02, 0.1, 0.5, 2.5, 10.0)

Latencies = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True, eq=False)
class Tree:
    """Paths (by position in `direct_paths`) from the root down; how long a byte occupies each link (by position), ns;
    and to the farthest leaf a byte's time, stored and forwarded at the paths' bandwidths, ns, and the α, µs."""

    paths: tuple[int, ...]
    load: Matrix
    depth: float
    alpha_us: float


@dataclass(frozen=True)
class RootedBound:
    """A lower bound and the link prices that prove it."""

    bound_us: float
    prices: Mapping[int, float]


class TreePacking:
    """The linear program over spanning trees t of direct paths out of `root`, by column generation:

        min T   s.t.  Σ_t x_t = 1;   Σ_t load_t(l) x_t ≤ T  on every link l

    With prices y on the links, Σ y = 1, a tree of least Σ_l y_l load_t(l) is a least arborescence (Edmonds 1967), so
    that the optimum is the time a byte takes, at the bandwidth of the least cut (Edmonds 1973). With it come shallower
    trees at the same prices, which `weights` may prefer. A round is O(paths + GPUs²) and a small linear program.
    `by_hosts` puts trees together instead.
    """

    def __init__(
        self, topology: Topology, root: int, budget: Budget = UNLIMITED, *, by_hosts: HostTrees | None = None
    ) -> None:
        self.topology, self.root = topology, root
        self.paths = direct_paths(topology)
        place = {link.id: i for i, link in enumerate(topology.links)}
        self._src = np.array([path.src_rank for path in self.paths])
        self._dst = np.array([path.dst_rank for path in self.paths])
        self._uses = np.zeros((len(self.paths), len(topology.links)))
        for p, path in enumerate(self.paths):
            np.add.at(self._uses[p], [place[link] for link in path.links], 1.0)
        self._uses /= np.array([link.bandwidth_GBps for link in topology.links])
        self._hop = self._uses.max(axis=1)
        self.trees: list[Tree] = []
        self.prices = np.full(len(topology.links), 1 / len(topology.links))
        self._model = new_model("cbc")
        self._time = self._model.add_var(obj=1.0)
        self._one = self._model.add_constr(mip.LinExpr() == 1.0)
        self._rows = [self._model.add_constr(-1.0 * self._time <= 0) for _ in topology.links]
        self._shares: list[mip.Var] = []
        if by_hosts:
            for tree in by_hosts(topology, self.paths, root, _packed):
                self._add(tree)
        else:
            self._generate(budget)

    def weights(self, nbytes: float, chunks: int) -> NDArray[np.float64]:
        """Every tree's share of the data, Σ = 1, for the least time of the busiest link and of a chunk's way down a
        tree, on the average, when `nbytes` are so many chunks."""
        for tree, share in zip(self.trees, self._shares, strict=True):
            share.obj = tree.depth / chunks + tree.alpha_us * 1e3 / nbytes
        solve_linear(self._model)
        shares = np.array([max(0.0, float(share.x or 0.0)) for share in self._shares])
        shares[shares < 1e-6] = 0.0
        return np.asarray(shares / shares.sum(), dtype=np.float64)

    def balanced(self, chunks: int) -> list[int]:
        """A tree for every chunk in turn, after `weights`, of those that cost hardly more at its prices: the one whose
        links have fallen least behind, each weighed by e to what it has carried (Garg & Könemann 1998). Trees that are
        alike take turns, and no link waits for a round of many trees to end. O(chunks · trees · links)."""
        prices = np.array([abs(float(row.pi)) for row in self._rows])
        loads = np.array([tree.load for tree in self.trees])
        cost = loads @ prices + np.array([float(share.obj) for share in self._shares])
        cheap = np.flatnonzero(cost <= cost.min() + NEARLY_CHEAPEST * float(self._time.x))
        loads = loads[cheap] / loads[cheap].max()
        carried, turns = np.zeros(loads.shape[1]), []
        for _ in range(chunks):
            turns.append(int((loads @ np.exp(EVENNESS * (carried - carried.max()))).argmin()))
            carried += loads[turns[-1]]
        return [int(tree) for tree in cheap[turns]]

    def least(self, prices: Matrix) -> float:
        """What a byte's cheapest tree costs at these prices, less what ties may have cost."""
        cost, _ = self._costs(prices)
        tree = [float(cost[parent, v]) for v, parent in enumerate(arborescence(cost, self.root)) if v != self.root]
        return sum(tree) - 4 * len(cost) * (TIGHT * float(cost.max()) + _FLOOR)

    def _generate(self, budget: Budget) -> None:
        """Rounds of prices and trees until they agree; the prices that prove most are kept, and the search goes on
        halfway from them to the program's."""
        centre, proved = self.prices, 0.0
        for _ in range(MAX_ROUNDS):
            cost, by = self._costs(centre)
            parents = arborescence(cost, self.root)
            least = [int(by[parent, v]) for v, parent in enumerate(parents) if v != self.root]
            rate = float((self._uses[least] @ centre).sum())
            self._add(least)
            for weight in DEPTH_WEIGHTS:
                self._add(self._shallow(cost, by, weight * rate / len(parents)))
            if rate > proved:
                proved, self.prices = rate, centre
            if not solve_linear(self._model) or self._time.x <= proved * (1 + CLOSE) or budget.spent:
                return
            prices = np.array([abs(float(row.pi)) for row in self._rows])
            centre = 0.5 * self.prices + 0.5 * prices / prices.sum()

    def _costs(self, prices: Matrix) -> tuple[Matrix, NDArray[np.int64]]:
        """The cheapest path from GPU to GPU: its price (where there is none, more than any tree's) and number."""
        of = self._uses @ prices + _FLOOR
        n = self.topology.nranks
        cost, by = np.full((n, n), 2 * n * float(of.max())), np.full((n, n), -1, dtype=np.int64)
        dearest_first = np.argsort(-of, kind="stable")
        cost[self._src[dearest_first], self._dst[dearest_first]] = of[dearest_first]
        by[self._src[dearest_first], self._dst[dearest_first]] = dearest_first
        return cost, by

    def _shallow(self, cost: Matrix, by: NDArray[np.int64], unit: float) -> list[int]:
        """A tree grown GPU by GPU (Prim), depth counted as `unit` for every hop as fast as the fastest."""
        n = len(cost)
        hop = np.where(by >= 0, self._hop[by], np.inf)
        depth, done, tree = np.zeros(n), np.zeros(n, dtype=bool), []
        done[self.root] = True
        while not done.all():
            weighed = cost + unit / float(self._hop.min()) * (depth[:, None] + hop)
            weighed[~done] = np.inf
            weighed[:, done] = np.inf
            u, v = divmod(int(weighed.argmin()), n)
            depth[v], done[v] = depth[u] + hop[u, v], True
            tree.append(int(by[u, v]))
        return tree

    def _add(self, paths: list[int]) -> None:
        tree = self._tree(paths)
        if any(tree.paths == known.paths for known in self.trees):
            return
        self.trees.append(tree)
        used = np.flatnonzero(tree.load)
        column = mip.Column(
            [self._one, *(self._rows[link] for link in used)], [1.0, *(float(tree.load[link]) for link in used)]
        )
        self._shares.append(self._model.add_var(column=column))

    def _tree(self, paths: list[int]) -> Tree:
        """The paths in an order in which data flows."""
        below: dict[int, list[int]] = {}
        for p in sorted(paths):
            below.setdefault(int(self._src[p]), []).append(p)
        depth, alpha, ordered = {self.root: 0.0}, {self.root: 0.0}, []
        queue = [self.root]
        for u in queue:
            for p in below.get(u, ()):
                v = int(self._dst[p])
                depth[v] = depth[u] + float(self._hop[p])
                alpha[v] = alpha[u] + self.paths[p].alpha_us
                ordered.append(p)
                queue.append(v)
        return Tree(tuple(ordered), self._uses[ordered].sum(axis=0), max(depth.values()), max(alpha.values()))


def small_enough(topology: Topology) -> bool:
    """Whether a packing takes a second or two, not more."""
    return len(direct_paths(topology)) * len(topology.links) <= MOST_USES


def small_enough_by_hosts(topology: Topology) -> bool:
    """Whether it is a cluster of which a packing by hosts takes a second or two, not more."""
    if not 1 < len(topology.hosts) < topology.nranks <= MANY_GPUS:
        return False
    return len(direct_paths(topology)) * len(topology.links) <= MOST_USES_BY_HOSTS


def _packed(host: Topology, root: int) -> list[list[Path]]:
    """A host's trees: the shallowest, and those of the best packing."""
    packing = TreePacking(host, root)
    weights = packing.weights(_PLENTY, _CHUNKS)
    packed = [tree for tree, weight in zip(packing.trees, weights, strict=True) if weight]
    shallowest = min(packing.trees, key=lambda tree: (tree.depth, tree.alpha_us))
    return [[packing.paths[p] for p in tree.paths] for tree in dict.fromkeys((shallowest, *packed))]


def rooted_bound(
    topology: Topology, nbytes: float, root: int, latency: Latencies, budget: Budget = UNLIMITED
) -> RootedBound | None:
    """The bound that the packing's prices prove for a broadcast of `nbytes` from `root` over direct paths; None for
    large topologies, multicast switches, or without a budget. What it proves needs only the prices."""
    if nbytes <= 0 or budget.spent or not small_enough(topology) or any(node.multicast for node in topology.nodes):
        return None
    packed = TreePacking(topology, root, budget)
    prices = {link.id: float(price) for link, price in zip(topology.links, packed.prices, strict=True)}
    return RootedBound(price_bound_us(packed, nbytes, prices, latency), prices)


def price_bound_us(packing: TreePacking, nbytes: float, prices: Mapping[int, float], latency: Latencies) -> float:
    """The bound that link prices (by link id, of a byte's time on the link) prove for a broadcast of `nbytes`.

    For any prices y ≥ 0 the sends by which GPUs first get a byte cost at least a least arborescence out of the root,
    and link l, idle for a_l at the beginning and the end, earns at most y_l · max(0, T − a_l).
    """
    topology, start = packing.topology, latency[packing.topology.gpus[packing.root]]
    since = {node.id: min(latency[node.id].get(gpu, np.inf) for gpu in topology.gpus) for node in topology.nodes}
    cost = packing.least(np.array([max(0.0, prices[link.id]) for link in topology.links]))
    earning = [
        (prices[link.id], start.get(link.src, np.inf) + link.alpha_us + since[link.dst])
        for link in topology.links
        if prices[link.id] > 0
    ]
    return filling_time(nbytes * cost, earning) if earning and cost > 0 else 0.0

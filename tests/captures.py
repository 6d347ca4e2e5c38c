"""Captures of `nvidia-smi topo -m` for tests, and what was read of them."""

from pathlib import Path

SAMPLES = {path.name: path.read_text() for path in (Path(__file__).parents[1] / "samples").glob("*.topo.txt")}
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def capture(ngpus, cell, nics=(), affinity=lambda gpu: "0-63\t0", columns=("CPU Affinity", "NUMA Affinity")):
    """A matrix in nvidia-smi's format; `cell(i, j)` is the level of devices i < j, GPUs counted first."""
    labels = [f"GPU{i}" for i in range(ngpus)] + list(nics)
    lines = ["\t".join(["", *labels, *columns])]
    for i, label in enumerate(labels):
        cells = [" X " if i == j else cell(min(i, j), max(i, j)) for j in range(len(labels))]
        lines.append("\t".join([label, *cells, affinity(i) if i < ngpus else ""]))
    return "\n".join(lines) + "\n"


def links(detected, kind):
    """(one name, other name) → GB/s, for links of a kind."""
    topology = detected.topology
    name = {node.id: node.name for node in topology.nodes}
    return {(name[x.src], name[x.dst]): x.bandwidth_GBps for x in topology.links if x.kind == kind}


def names(detected, kind):
    return [node.name for node in detected.topology.nodes if node.kind == kind]


def devices(detected, level):
    return [finding.device for finding in detected.findings if finding.level == level]


def same_machine(one, other):
    return (one.topology.nodes, one.topology.links) == (other.topology.nodes, other.topology.links)


def cube_mesh(i, j):
    return f"NV{CUBE_MESH[i, j]}" if (i, j) in CUBE_MESH else "SYS" if i // 4 != j // 4 else "NODE"

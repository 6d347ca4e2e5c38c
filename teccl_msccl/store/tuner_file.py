"""The cost file of the NCCL tuner plugin: NCCL's own algorithms, simulated on a machine (csrc/nccl/tuner_costs.hpp has
its grammar, and that of the file of overrides)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, Refused
from ..files import write_text
from ..program.lower import lower
from ..program.program import Program
from ..program.protocol import PROTOCOL, slicing
from ..program.simulate import simulate
from ..topology.model import Topology
from .store import Machine

#: Sizes in bytes at which NCCL's algorithms are simulated; between them the plugin interpolates.
SIZES = (*(1024 * 8**k for k in range(7)), 2**30)
#: Beyond these sizes a protocol's time is a straight line, which the plugin draws on.
_LONGEST = {"LL": 2**22, "LL128": 2**28, "Simple": SIZES[-1]}
#: What NCCL has of each algorithm. Its ring, tree and NVLS are ours; its PAT and CollNet keep NCCL's own times.
_SERVES: Mapping[str, tuple[str, ...]] = {
    "ring": ("broadcast", "reduce", "allgather", "reduce_scatter", "allreduce"),
    "tree": ("allreduce",),
    "nvls": ("allgather", "reduce_scatter", "allreduce"),
}
#: Parts that move side by side, and channels for each connection: from few, for latency, to many, for bandwidth.
_WIDTHS = ((1, 1), (4, 4), (16, 4))


@dataclass(frozen=True)
class Cost:
    """`collective` of `size_bytes` (NCCL's nBytes) takes `time_us`, launch included, by an algorithm and protocol of
    NCCL's with so many `channels`, each in pieces of `chunk_bytes` (0: whatever NCCL takes)."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    time_us: float
    channels: int = 0
    chunk_bytes: int = 0

    def __str__(self) -> str:
        line = f"cost {self.collective} {self.size_bytes} {self.algorithm} {self.protocol.lower()} {self.time_us:.3f}"
        channels = f" channels={self.channels}" if self.channels else ""
        return line + channels + (f" chunk={self.chunk_bytes}" if self.chunk_bytes else "")


def costs(topology: Topology, sizes: tuple[int, ...] = SIZES) -> Iterator[Cost]:
    """Every algorithm of NCCL's that we know, at every size, the fastest of a few widths."""
    for algorithm in ("ring", "tree"):
        for collective in _SERVES[algorithm]:
            for protocol in PROTOCOL:
                programs = list(_programs(topology, collective, algorithm, protocol))
                for size in sizes:
                    if programs and size <= _LONGEST[protocol]:
                        yield _fastest(topology, programs, collective, algorithm, size)
    yield from _nvls(topology, sizes)


def _programs(topology: Topology, collective: str, algorithm: str, protocol: str) -> Iterator[Program]:
    """NCCL's algorithm in one chunk for every ring or tree, as wide as asked; more data loops over the program."""
    from ..synthesis.baselines.plan import teams_of
    from ..synthesis.baselines.search import BASELINES, baseline_schedule
    from ..synthesis.problem import Problem

    problem, baseline = Problem(topology, collective, float(2**20), 0), BASELINES[algorithm]
    pieces = baseline.pieces(topology, teams_of(problem.demand(1)))
    demand = problem.demand(pieces) if baseline.root is None or pieces == 1 else problem.split(pieces)
    schedule = baseline_schedule(topology, demand, baseline)
    for instances, spread in _WIDTHS:
        with suppress(Refused):  # more threadblocks or steps than a GPU holds
            yield lower(schedule, protocol=protocol, instances=instances, spread=spread)


def _fastest(topology: Topology, programs: list[Program], collective: str, algorithm: str, size: int) -> Cost:
    def time_us(program: Program) -> float:
        timing = simulate(program, topology, size)
        return timing.finish_us + timing.launch_us

    times = [time_us(program) for program in programs]
    best = min(range(len(programs)), key=lambda number: times[number])
    program = programs[best]
    chunk = slicing(size / program.chunks_per_size, PROTOCOL[program.protocol]).slice_bytes
    return Cost(collective, size, algorithm, program.protocol, times[best], program.nchannels, max(1, round(chunk)))


def _nvls(topology: Topology, sizes: tuple[int, ...]) -> Iterator[Cost]:
    """NVLink SHARP on one host whose GPUs all hang on NVSwitches, by its α and β (whether the switches can reduce and
    multicast, NCCL knows: elsewhere its entry cannot be used and stays as it is).

    A GPU reduces its share by loads that switches sum over all GPUs (a request's way there and back) and hands it out
    by one store, which they multicast: every port carries `size` for either, and a share more for both.
    """
    up: dict[int, float] = dict.fromkeys(topology.gpus, 0.0)
    down, alphas = dict(up), [0.0]
    for link in topology.links:
        ends = topology.node_by_id[link.src].kind, topology.node_by_id[link.dst].kind
        if link.kind == "nvlink" and ends in (("gpu", "switch"), ("switch", "gpu")):
            side, gpu = (up, link.src) if ends[0] == "gpu" else (down, link.dst)
            side[gpu] += link.bandwidth_GBps
            alphas.append(2 * link.alpha_us)
    port_GBps = min(*up.values(), *down.values())
    if len(topology.hosts) > 1 or topology.nranks < 2 or port_GBps <= 0:
        return
    simple = PROTOCOL["Simple"]
    hop_us = max(alphas) + simple.hop_alpha_us(["nvlink"])
    for collective in _SERVES["nvls"]:
        hops = {"allgather": 1, "reduce_scatter": 2, "allreduce": 3}[collective]
        load = 1 + 1 / topology.nranks if collective == "allreduce" else 1.0
        for size in sizes:
            time_us = simple.launch_us + hops * hop_us + load * size / (port_GBps * 1e3)
            yield Cost(collective, size, "nvls", "Simple", time_us)


def tuner_text(topology: Topology, sizes: tuple[int, ...] = SIZES) -> str:
    """The cost file of a machine."""
    name = "".join(letter if letter.isprintable() and letter not in " #" else "-" for letter in topology.name)
    lines = [
        "# Simulated times of NCCL's algorithms, for its tuner plugin: collective, bytes, algorithm, protocol, us",
        f"machine {name or 'unnamed'} ranks={topology.nranks} nodes={len(topology.hosts)}",
        *map(str, costs(topology, sizes)),
    ]
    return "\n".join(lines) + "\n"


def _path(machine: Machine) -> Path:
    import teccl_msccl

    return machine.folder / "exports" / f"nccl-tuner-{teccl_msccl.__version__}.txt"


def cost_file(machine: Machine) -> Path:
    """The machine's cost file beside its programs, made if it is not there (a minute for eight GPUs). Raises
    `InputError` where it cannot be written."""
    path = _path(machine)
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent}: cannot write there: {error.strerror}; choose another --store") from None
        write_text(path, tuner_text(machine.topology))
    return path


def tuned(machine: Machine) -> dict[str, str]:
    """The variables that make NCCL load the plugin, and the plugin the machine's cost file; none where there is no such
    file yet. Raises `Refused` in a build without the plugin."""
    from ..runtime.doctor import libraries

    path, plugin = _path(machine), libraries()["nccl_tuner"]
    if not path.exists():
        return {}
    if plugin is None:
        raise Refused("this build of teccl-msccl has no libnccl-tuner-teccl.so; pip install it anew")
    return {"NCCL_TUNER_PLUGIN": plugin, "TECCL_TUNER_COSTS": str(path.absolute())}

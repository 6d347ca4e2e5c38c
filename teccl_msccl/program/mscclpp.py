"""MSCCL++: a Program as a JSON execution plan for `libmscclpp_nccl.so` and MSCCL++'s Python executor.

s → put + signal; r → wait; rrc → wait + re from a slot of scratch; cpy → copy; dependencies between threadblocks →
semaphores. There is no FIFO: where a place is used again, the receiver's signal says that it is free. A launch begins
with a handshake (who receives tells who sends that its buffers are its own now). All that is put is waited for, and
what a port channel puts is flushed, so that a launch which ends is done with everybody's memory: no handshake at the
end is needed.

Under protocol LL, packets instead: s → put of packets (ppkt; across hosts cpkt and, through the port, rppkt), r → upkt,
rrc → repkt. Who reads them waits for their flags, so there are no signals and no handshake; launches use the halves of
scratch in turns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, Refused
from ..files import write_text
from .mscclpp_gpu import GpuPlan, user_chunks
from .mscclpp_order import Connection, Traffic, global_order, packet_traffic, plan_traffic
from .mscclpp_threadblock import Channel
from .program import Program
from .targets import MSCCLPP, PLAN_PROTOCOLS, PlanLimits


@dataclass(frozen=True)
class ExecutionPlan:
    """A plan in MSCCL++'s JSON form."""

    value: Mapping[str, Any]

    def write(self, path: str | Path) -> None:
        """Write the JSON form, atomically."""
        write_text(path, json.dumps(self.value, indent=1) + "\n")

    @property
    def threadblocks_max(self) -> int:
        """Threadblocks of the GPU that has most."""
        return max(len(gpu["threadblocks"]) for gpu in self.value["gpus"])

    @property
    def multicasts(self) -> bool:
        """Whether switches copy data."""
        ops = (op for gpu in self.value["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"])
        return any(op["name"] == "gstore" for op in ops)

    @property
    def operations_max(self) -> int:
        """Operations of the longest threadblock."""
        return max((len(tb["ops"]) for gpu in self.value["gpus"] for tb in gpu["threadblocks"]), default=0)


def execution_plan(
    program: Program,
    *,
    inplace: bool | None = None,
    hosts: Sequence[int] | None = None,
    threads: int = 1024,
    limits: PlanLimits = MSCCLPP,
) -> ExecutionPlan:
    """`program` as a plan of its protocol, Simple or LL: reductions are sums.

    `inplace`: which calls it is for (by default out of place, if the program can). `hosts`: the host of every rank;
    ranks of different ones are joined by port channels, all others by memory channels. Threadblocks keep the
    program's division as long as semaphores, channels and operations suffice, then are joined.

    Raises `InputError` for an option that does not fit, `Refused` where the plan would break a limit.
    """
    inplace = not program.outofplace if inplace is None else inplace
    if not (program.inplace if inplace else program.outofplace):
        raise InputError(f"{program.name}: is not for {'in-place' if inplace else 'out-of-place'} calls")
    if hosts is not None and len(hosts) != program.nranks:
        raise InputError(f"{program.name}: {len(hosts)} hosts for {program.nranks} ranks; name each rank's")
    if program.protocol not in PLAN_PROTOCOLS:
        raise Refused(f"target mscclpp has no {program.protocol}; use protocol {' or '.join(PLAN_PROTOCOLS)}")
    if program.collective not in limits.collectives:
        raise Refused(f"target mscclpp does not take {program.collective}, but {', '.join(limits.collectives)}")
    hosts = hosts or [0] * program.nranks
    packets = program.protocol == "LL"
    traffic = packet_traffic(program, hosts) if packets else plan_traffic(program, inplace)
    order = global_order(program, traffic)
    channels = _channels(traffic, hosts)
    gpus = [
        GpuPlan(program, rank, inplace, traffic, order, mine, limits).to_json() for rank, mine in enumerate(channels)
    ]
    low, high = _sizes(program, traffic, limits)
    return ExecutionPlan(
        {
            "name": program.name,
            "collective": limits.collectives[program.collective],
            "protocol": program.protocol,
            "inplace": inplace,
            "reuse_resources": False,
            "gpus": gpus,
            "num_threads_per_block": threads,
            "use_double_scratch_buffer": packets,
            "buffer_alignment": limits.alignment,
            "min_message_size": low,
            "max_message_size": high,
        }
    )


def _sizes(program: Program, traffic: Traffic, limits: PlanLimits) -> tuple[int, int]:
    """The message sizes that the plan takes: chunks are whole units, and offsets are stored in 32 bits. The executor
    counts the output of an allgather, else the input."""
    user = [user_chunks(program, rank) for rank in range(program.nranks)]
    room = 4 if program.protocol == "LL" else 1  # flags beside the data, and two halves
    largest = max(max(*user[rank], room * traffic.scratch[rank]) for rank in range(program.nranks))
    highest = limits.max_offset // largest // limits.alignment * limits.alignment  # of a chunk
    message = user[0][1] if program.collective == "allgather" else user[0][0]
    low = max(-(-program.min_bytes // program.nchunks), limits.alignment)
    return low * message, min(program.max_bytes // program.nchunks or highest, highest) * message


# -- channels --------------------------------------------------------------------------------------------------


def _channels(traffic: Traffic, hosts: Sequence[int]) -> list[dict[Connection, Channel]]:
    """Every rank's channels, one for each direction of each connection. The k-th of a rank to a peer is joined to
    the k-th of the peer to it, so both list them in one order."""
    found: list[dict[Connection, Channel]] = [{} for _ in hosts]
    number: list[Counter[str]] = [Counter() for _ in hosts]
    connections = {transfer.connection for transfer in traffic.sends.values()}
    for connection in sorted(connections, key=lambda c: (min(c.src, c.dst), max(c.src, c.dst), c)):
        kind = "memory" if hosts[connection.src] == hosts[connection.dst] else "port"
        for rank, peer in ((connection.src, connection.dst), (connection.dst, connection.src)):
            found[rank][connection] = Channel(kind, number[rank][kind], peer)
            number[rank][kind] += 1
    return found

"""An MSCCL++ execution plan as its executor reads it: for the checker, whoever wrote the file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import require_flag, require_keys

BUFFERS = ("i", "o", "s")
#: A channel as one rank has it: rank, type, position.
End = tuple[int, str, int]
CHANNEL_TYPES = ("memory", "port", "switch", "none")
#: Chunks, channels and the like beyond this are no plan's.
_MOST = 2**20


class Part(NamedTuple):
    """Chunks that an operation reads or writes: of the own `buffer`, or of a peer's (`rank`); on a switch channel
    (`ranks`), of all of these."""

    ranks: tuple[int, ...]
    buffer: str
    first: int
    size: int


@dataclass(frozen=True)
class Op:
    """One operation. `channels` are (type, position among the rank's of this type)."""

    name: str
    channel_type: str
    channels: tuple[tuple[str, int], ...]
    sources: tuple[Part, ...]
    targets: tuple[Part, ...]
    semaphores: tuple[int, ...]
    barrier: int
    barrier_threadblocks: int
    shared_by_threadblocks: bool
    inner: int


@dataclass(frozen=True)
class PlanThreadblock:
    ops: tuple[Op, ...]
    channels_by_type: dict[str, int]
    remote_by_type: dict[str, int]


@dataclass(frozen=True)
class PlanGpu:
    """`peers`: of every channel of a type, whom it joins; `semaphores`: their values at the start."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[PlanThreadblock, ...]
    peers: dict[str, tuple[int, ...]]
    semaphores: tuple[int, ...]

    def chunks(self, buffer: str) -> int:
        return {"i": self.input_chunks, "o": self.output_chunks, "s": self.scratch_chunks}[buffer]


@dataclass(frozen=True)
class PlanFile:
    name: str
    collective: str
    protocol: str
    inplace: bool
    reuse_resources: bool
    alignment: int
    threads: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[PlanGpu, ...]


def is_plan(value: Any) -> bool:
    """Whether the JSON `value` is a plan rather than anything else of ours."""
    return isinstance(value, dict) and "gpus" in value and "collective" in value


def plan_file(value: Any, where: str) -> PlanFile:
    """The plan in the JSON `value`. Raises `InputError` naming what the executor could not read."""
    require_keys(value, ("name", "collective", "protocol", "inplace", "gpus"), where)
    gpus = _list(value["gpus"], f"{where}: gpus")
    if not gpus:
        raise InputError(f"{where}: gpus is empty; a plan needs at least one")
    return PlanFile(
        name=_text(value["name"], f"{where}: name"),
        collective=_text(value["collective"], f"{where}: collective"),
        protocol=_text(value["protocol"], f"{where}: protocol"),
        inplace=require_flag(value["inplace"], f"{where}: inplace"),
        reuse_resources=require_flag(value.get("reuse_resources", False), f"{where}: reuse_resources"),
        alignment=_whole(value.get("buffer_alignment", 16), f"{where}: buffer_alignment", 1),
        threads=_whole(value.get("num_threads_per_block", 1024), f"{where}: num_threads_per_block", 0),
        min_bytes=_whole(value.get("min_message_size", 0), f"{where}: min_message_size", 0, 2**64),
        max_bytes=_whole(value.get("max_message_size", 2**64 - 1), f"{where}: max_message_size", 0, 2**64),
        gpus=tuple(_Reader(gpu, rank, len(gpus), f"{where}: gpus[{rank}]").gpu() for rank, gpu in enumerate(gpus)),
    )


def channel_pairs(plan: PlanFile) -> Iterator[tuple[End, End]]:
    """Every channel end and the peer's: the k-th to a peer is joined to the peer's k-th back."""
    for rank, gpu in enumerate(plan.gpus):
        for kind, peers in gpu.peers.items():
            if kind == "switch":
                continue
            count: Counter[int] = Counter()
            for position, peer in enumerate(peers):
                back = [i for i, other in enumerate(plan.gpus[peer].peers[kind]) if other == rank]
                yield (rank, kind, position), (peer, kind, back[count[peer]])
                count[peer] += 1


class _Reader:
    """One GPU of the file."""

    def __init__(self, value: Any, rank: int, nranks: int, where: str) -> None:
        require_keys(
            value, ("id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels"), where
        )
        self.value, self.rank, self.nranks, self.where = value, rank, nranks, where
        if _whole(value["id"], f"{where}: id") != rank:
            raise InputError(f"{where}: has id {value['id']}; the executor takes the GPU of rank {rank} from here")
        self.peers: dict[str, list[int]] = defaultdict(list)
        self.switches: list[tuple[str, tuple[int, ...]]] = []
        self._channels()
        remote = _list(value.get("remote_buffers", []), f"{where}: remote_buffers")
        self.remote = [self._remote(item, f"{where}: remote_buffers[{i}]") for i, item in enumerate(remote)]

    def gpu(self) -> PlanGpu:
        value, where = self.value, self.where
        blocks = _list(value["threadblocks"], f"{where}: threadblocks")
        semaphores = _list(value.get("semaphores", []), f"{where}: semaphores")
        for i, semaphore in enumerate(semaphores):
            require_keys(semaphore, ("init_value",), f"{where}: semaphores[{i}]")
        return PlanGpu(
            input_chunks=_whole(value["input_chunks"], f"{where}: input_chunks"),
            output_chunks=_whole(value["output_chunks"], f"{where}: output_chunks"),
            scratch_chunks=_whole(value["scratch_chunks"], f"{where}: scratch_chunks"),
            threadblocks=tuple(
                self._threadblock(block, i, f"{where}: threadblocks[{i}]") for i, block in enumerate(blocks)
            ),
            peers={kind: tuple(peers) for kind, peers in self.peers.items()} | {"switch": (-1,) * len(self.switches)},
            semaphores=tuple(_whole(item["init_value"], f"{where}: semaphores: init_value") for item in semaphores),
        )

    def _channels(self) -> None:
        for i, item in enumerate(_list(self.value["channels"], f"{self.where}: channels")):
            at = f"{self.where}: channels[{i}]"
            require_keys(item, ("channel_type",), at)
            kind = _choice(item["channel_type"], CHANNEL_TYPES, f"{at}: channel_type")
            if kind != "switch":
                require_keys(item, ("connected_to",), at)
                peers = _list(item["connected_to"], f"{at}: connected_to")
                self.peers[kind] += [self._peer(peer, f"{at}: connected_to") for peer in peers]
                continue
            require_keys(item, ("buffer_type", "rank_groups"), at)
            buffer = _choice(item["buffer_type"], BUFFERS, f"{at}: buffer_type")
            for group in _list(item["rank_groups"], f"{at}: rank_groups"):
                require_keys(group, ("size", "ranks"), f"{at}: rank_groups")
                ranks = [_whole(rank, f"{at}: ranks", 0, self.nranks) for rank in _list(group["ranks"], f"{at}: ranks")]
                self.switches.append((buffer, tuple(ranks)))

    def _peer(self, value: Any, where: str) -> int:
        peer = _whole(value, where, 0, self.nranks)
        if peer == self.rank:
            raise InputError(f"{where}: {peer} is the GPU itself")
        return peer

    def _remote(self, value: Any, where: str) -> tuple[int, str]:
        require_keys(value, ("rank", "type", "access_channel_types"), where)
        return self._peer(value["rank"], f"{where}: rank"), _choice(value["type"], BUFFERS, f"{where}: type")

    def _threadblock(self, value: Any, position: int, where: str) -> PlanThreadblock:
        require_keys(value, ("id", "ops", "channels"), where)
        if _whole(value["id"], f"{where}: id") != position:
            raise InputError(f"{where}: has id {value['id']}; it must be its position {position}")
        channels: dict[str, list[int]] = defaultdict(list)
        for item in _list(value["channels"], f"{where}: channels"):
            require_keys(item, ("channel_type", "channel_ids"), f"{where}: channels")
            kind = _choice(item["channel_type"], CHANNEL_TYPES, f"{where}: channels: channel_type")
            most = len(self.switches) if kind == "switch" else len(self.peers[kind])
            channels[kind] += [_index(id, most, f"{where}: channels: {kind} channel") for id in
                               _list(item["channel_ids"], f"{where}: channel_ids")]  # fmt: skip
        remote: dict[str, list[int]] = defaultdict(list)
        for item in _list(value.get("remote_buffer_refs", []), f"{where}: remote_buffer_refs"):
            require_keys(item, ("access_channel_type", "remote_buffer_ids"), f"{where}: remote_buffer_refs")
            kind = _choice(item["access_channel_type"], CHANNEL_TYPES, f"{where}: remote_buffer_refs")
            remote[kind] += [_index(id, len(self.remote), f"{where}: remote buffer") for id in
                             _list(item["remote_buffer_ids"], f"{where}: remote_buffer_ids")]  # fmt: skip
        ops = _list(value["ops"], f"{where}: ops")
        return PlanThreadblock(
            tuple(self._op(op, channels, remote, f"{where}: ops[{i}]") for i, op in enumerate(ops)),
            {kind: len(ids) for kind, ids in channels.items()},
            {kind: len(ids) for kind, ids in remote.items()},
        )

    def _op(self, value: Any, channels: dict[str, list[int]], remote: dict[str, list[int]], where: str) -> Op:
        require_keys(value, ("name",), where)
        kind = _choice(value.get("channel_type", "none"), CHANNEL_TYPES, f"{where}: channel_type")
        mine = channels.get(kind, [])
        ids = [_index(id, len(mine), f"{where}: {kind} channel of the threadblock") for id in
               _list(value.get("channel_ids", []), f"{where}: channel_ids")]  # fmt: skip
        parts = [
            tuple(
                self._part(part, mine, remote.get(kind, []), f"{where}: {key}[{i}]")
                for i, part in enumerate(_list(value.get(key, []), f"{where}: {key}"))
            )
            for key in ("src_buff", "dst_buff")
        ]
        semaphores = _list(value.get("semaphore_ids", []), f"{where}: semaphore_ids")
        known = len(_list(self.value.get("semaphores", []), self.where))
        return Op(
            name=_text(value["name"], f"{where}: name"),
            channel_type=kind,
            channels=tuple((kind, mine[id]) for id in ids),
            sources=parts[0],
            targets=parts[1],
            semaphores=tuple(_index(id, known, f"{where}: semaphore") for id in semaphores),
            barrier=_whole(value.get("barrier_id", 0), f"{where}: barrier_id"),
            barrier_threadblocks=_whole(value.get("num_threadblocks", 0), f"{where}: num_threadblocks"),
            shared_by_threadblocks="tbg_info" in value,
            inner=len(_list(value.get("ops", []), f"{where}: ops")),
        )

    def _part(self, value: Any, channels: list[int], remote: list[int], where: str) -> Part:
        require_keys(value, ("index", "size"), where)
        index, size = _whole(value["index"], f"{where}: index"), _whole(value["size"], f"{where}: size")
        if "switch_channel_id" in value:
            position = _index(value["switch_channel_id"], len(channels), f"{where}: switch channel of the threadblock")
            buffer, ranks = self.switches[channels[position]]
            return Part(ranks, buffer, index, size)
        if "buffer_id" in value:
            position = _index(value["buffer_id"], len(remote), f"{where}: remote buffer of the threadblock")
            peer, buffer = self.remote[remote[position]]
            return Part((peer,), buffer, index, size)
        require_keys(value, ("type",), where)
        return Part((self.rank,), _choice(value["type"], BUFFERS, f"{where}: type"), index, size)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: must be a list")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: must be a string, not {str(value)[:40]}")
    return value


def _choice(value: Any, choices: tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise InputError(f"{where}: {str(value)[:40]!r}; use {', '.join(choices)}")
    return str(value)


def _whole(value: Any, where: str, least: int = 0, below: int = _MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < below:
        raise InputError(f"{where}: must be a whole number from {least} to {below - 1}, not {str(value)[:40]}")
    return value


def _index(value: Any, length: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < length:
        raise InputError(f"{where} {str(value)[:40]} is not among its {length}")
    return value

"""An MSCCL++ execution plan as its executor reads it: for the checker, whoever wrote the file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import require_flag, require_index, require_keys, require_list, require_text, require_whole
from .plan_packets import PACKETS

BUFFERS = ("i", "o", "s")
#: A channel as one rank has it: rank, type, position.
End = tuple[int, str, int]
CHANNEL_TYPES = ("memory", "port", "switch", "none")
#: Chunks, channels and the like beyond this are no plan's.
_MOST = 2**20 - 1
_MOST_BYTES = 2**64 - 1
#: Iterations that stand for all of a pipeline's: each does the same to its own part of the chunks.
_TURNS = 2
#: Parts of a chunk beyond this are no plan's.
_MOST_PARTS = 256


class Part(NamedTuple):
    """Parts of chunks that an operation reads or writes: of the own `buffer`, or of a peer's (`rank`); on a switch
    channel (`ranks`), of all of these."""

    ranks: tuple[int, ...]
    buffer: str
    first: int
    size: int


@dataclass(frozen=True)
class Op:
    """One operation. `channels` are (type, position among the rank's of this type). What a pipeline repeats is here
    once for each of its iterations: `position` is the pipeline's, and `turn` the iteration."""

    name: str
    channel_type: str
    channels: tuple[tuple[str, int], ...]
    sources: tuple[Part, ...]
    targets: tuple[Part, ...]
    semaphores: tuple[int, ...]
    barrier: int
    barrier_threadblocks: int
    position: int
    turn: int
    divided_twice: bool


@dataclass(frozen=True)
class PlanThreadblock:
    """`operations` counts them as the executor stores them."""

    ops: tuple[Op, ...]
    operations: int
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
    """The plan. Where threadblocks share an operation, or a pipeline repeats it on part after part, chunks are counted
    in `parts`: every chunk is so many of them. With `double_scratch`, launches use the halves of scratch in turns."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    reuse_resources: bool
    double_scratch: bool
    parts: int
    alignment: int
    threads: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[PlanGpu, ...]

    def chunk(self, k: int) -> str:
        """The k-th part, as the file would say it."""
        return str(k) if self.parts == 1 else f"{k // self.parts} (part {k % self.parts + 1} of {self.parts})"


def is_plan(value: Any) -> bool:
    """Whether the JSON `value` is a plan rather than anything else of ours."""
    return isinstance(value, dict) and "gpus" in value and "collective" in value


def plan_file(value: Any, where: str) -> PlanFile:
    """The plan in the JSON `value`. Raises `InputError` naming what the executor could not read."""
    require_keys(value, ("name", "collective", "protocol", "inplace", "gpus"), where)
    gpus = require_list(value["gpus"], f"{where}: gpus")
    if not gpus:
        raise InputError(f"{where}: gpus is empty; a plan needs at least one")
    parts = _parts(gpus, where)
    return PlanFile(
        name=require_text(value["name"], f"{where}: name"),
        collective=require_text(value["collective"], f"{where}: collective"),
        protocol=require_text(value["protocol"], f"{where}: protocol"),
        inplace=require_flag(value["inplace"], f"{where}: inplace"),
        reuse_resources=require_flag(value.get("reuse_resources", False), f"{where}: reuse_resources"),
        double_scratch=require_flag(
            value.get("use_double_scratch_buffer", False), f"{where}: use_double_scratch_buffer"
        ),
        parts=parts,
        alignment=require_whole(value.get("buffer_alignment", 16), f"{where}: buffer_alignment", 1, _MOST),
        threads=_count(value.get("num_threads_per_block", 1024), f"{where}: num_threads_per_block"),
        min_bytes=require_whole(value.get("min_message_size", 0), f"{where}: min_message_size", 0, _MOST_BYTES),
        max_bytes=require_whole(
            value.get("max_message_size", _MOST_BYTES), f"{where}: max_message_size", 0, _MOST_BYTES
        ),
        gpus=tuple(
            _Reader(gpu, rank, len(gpus), parts, f"{where}: gpus[{rank}]").gpu() for rank, gpu in enumerate(gpus)
        ),
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


def _count(value: Any, where: str) -> int:
    return require_whole(value, where, 0, _MOST)


def _parts(gpus: list[Any], where: str) -> int:
    """So many parts of a chunk let every threadblock of a group, and every iteration of a pipeline, have whole ones."""
    parts = 1
    for op in _listed(_listed(gpus, "threadblocks"), "ops"):
        if isinstance(op, dict) and "tbg_info" in op:
            parts = lcm(parts, _group(op["tbg_info"], f"{where}: tbg_info")[1])
        if isinstance(op, dict) and op.get("name") == "pipeline":
            parts = lcm(parts, _TURNS)
        if parts > _MOST_PARTS:
            raise InputError(f"{where}: tbg_size of all kinds makes {parts} parts of a chunk; use fewer")
    return parts


def _listed(values: Iterable[Any], key: str) -> Iterator[Any]:
    """All that the values list under `key`; who lists nothing there is told so elsewhere."""
    for value in values:
        items = value.get(key) if isinstance(value, dict) else None
        yield from items if isinstance(items, list) else ()


def _group(value: Any, where: str) -> tuple[int, int]:
    """Which threadblock of how many that share an operation."""
    require_keys(value, ("tb_id", "tbg_size"), where)
    size = require_whole(value["tbg_size"], f"{where}: tbg_size", 1, _MOST_PARTS)
    return require_whole(value["tb_id"], f"{where}: tb_id", 0, size - 1), size


class _Cut(NamedTuple):
    """An iteration of a pipeline: the parts that it does, counted from an operation's own first."""

    turn: int
    first: int
    size: int


class _Reader:
    """One GPU of the file."""

    def __init__(self, value: Any, rank: int, nranks: int, parts: int, where: str) -> None:
        require_keys(
            value, ("id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels"), where
        )
        self.value, self.rank, self.nranks, self.parts, self.where = value, rank, nranks, parts, where
        if _count(value["id"], f"{where}: id") != rank:
            raise InputError(f"{where}: has id {value['id']}; the executor takes the GPU of rank {rank} from here")
        self.peers: dict[str, list[int]] = defaultdict(list)
        self.switches: list[tuple[str, tuple[int, ...]]] = []
        self._channels()
        remote = require_list(value.get("remote_buffers", []), f"{where}: remote_buffers")
        self.remote = [self._remote(item, f"{where}: remote_buffers[{i}]") for i, item in enumerate(remote)]

    def gpu(self) -> PlanGpu:
        value, where = self.value, self.where
        blocks = require_list(value["threadblocks"], f"{where}: threadblocks")
        semaphores = require_list(value.get("semaphores", []), f"{where}: semaphores")
        for i, semaphore in enumerate(semaphores):
            require_keys(semaphore, ("init_value",), f"{where}: semaphores[{i}]")
        return PlanGpu(
            input_chunks=_count(value["input_chunks"], f"{where}: input_chunks") * self.parts,
            output_chunks=_count(value["output_chunks"], f"{where}: output_chunks") * self.parts,
            scratch_chunks=_count(value["scratch_chunks"], f"{where}: scratch_chunks") * self.parts,
            threadblocks=tuple(
                self._threadblock(block, i, f"{where}: threadblocks[{i}]") for i, block in enumerate(blocks)
            ),
            peers={kind: tuple(peers) for kind, peers in self.peers.items()} | {"switch": (-1,) * len(self.switches)},
            semaphores=tuple(_count(item["init_value"], f"{where}: semaphores: init_value") for item in semaphores),
        )

    def _channels(self) -> None:
        for i, item in enumerate(require_list(self.value["channels"], f"{self.where}: channels")):
            at = f"{self.where}: channels[{i}]"
            require_keys(item, ("channel_type",), at)
            kind = require_text(item["channel_type"], f"{at}: channel_type", CHANNEL_TYPES)
            if kind != "switch":
                require_keys(item, ("connected_to",), at)
                peers = require_list(item["connected_to"], f"{at}: connected_to")
                self.peers[kind] += [self._peer(peer, f"{at}: connected_to") for peer in peers]
                continue
            require_keys(item, ("buffer_type", "rank_groups"), at)
            buffer = require_text(item["buffer_type"], f"{at}: buffer_type", BUFFERS)
            for group in require_list(item["rank_groups"], f"{at}: rank_groups"):
                require_keys(group, ("size", "ranks"), f"{at}: rank_groups")
                ranks = [
                    require_whole(rank, f"{at}: ranks", 0, self.nranks - 1)
                    for rank in require_list(group["ranks"], f"{at}: ranks")
                ]
                self.switches.append((buffer, tuple(ranks)))

    def _peer(self, value: Any, where: str) -> int:
        peer = require_whole(value, where, 0, self.nranks - 1)
        if peer == self.rank:
            raise InputError(f"{where}: {peer} is the GPU itself")
        return peer

    def _remote(self, value: Any, where: str) -> tuple[int, str]:
        require_keys(value, ("rank", "type", "access_channel_types"), where)
        return self._peer(value["rank"], f"{where}: rank"), require_text(value["type"], f"{where}: type", BUFFERS)

    def _threadblock(self, value: Any, position: int, where: str) -> PlanThreadblock:
        require_keys(value, ("id", "ops", "channels"), where)
        if _count(value["id"], f"{where}: id") != position:
            raise InputError(f"{where}: has id {value['id']}; it must be its position {position}")
        channels: dict[str, list[int]] = defaultdict(list)
        for item in require_list(value["channels"], f"{where}: channels"):
            require_keys(item, ("channel_type", "channel_ids"), f"{where}: channels")
            kind = require_text(item["channel_type"], f"{where}: channels: channel_type", CHANNEL_TYPES)
            most = len(self.switches) if kind == "switch" else len(self.peers[kind])
            channels[kind] += [require_index(id, most, f"{where}: channels: {kind} channel") for id in
                               require_list(item["channel_ids"], f"{where}: channel_ids")]  # fmt: skip
        remote: dict[str, list[int]] = defaultdict(list)
        for item in require_list(value.get("remote_buffer_refs", []), f"{where}: remote_buffer_refs"):
            require_keys(item, ("access_channel_type", "remote_buffer_ids"), f"{where}: remote_buffer_refs")
            kind = require_text(item["access_channel_type"], f"{where}: remote_buffer_refs", CHANNEL_TYPES)
            remote[kind] += [require_index(id, len(self.remote), f"{where}: remote buffer") for id in
                             require_list(item["remote_buffer_ids"], f"{where}: remote_buffer_ids")]  # fmt: skip
        ops = require_list(value["ops"], f"{where}: ops")
        read = [self._operations(op, i, channels, remote, f"{where}: ops[{i}]") for i, op in enumerate(ops)]
        return PlanThreadblock(
            tuple(op for operations, _ in read for op in operations),
            sum(count for _, count in read),
            {kind: len(ids) for kind, ids in channels.items()},
            {kind: len(ids) for kind, ids in remote.items()},
        )

    def _operations(
        self, value: Any, at: int, channels: dict[str, list[int]], remote: dict[str, list[int]], where: str
    ) -> tuple[list[Op], int]:
        """The operation, or all that a pipeline repeats; and how many the executor stores."""
        require_keys(value, ("name",), where)
        if value["name"] != "pipeline":
            return [self._op(value, at, None, channels, remote, where)], 1
        require_keys(value, ("iter_context", "ops"), where)
        require_keys(value["iter_context"], ("unit_size", "num_chunks"), f"{where}: iter_context")
        require_whole(value["iter_context"]["unit_size"], f"{where}: unit_size", 1, _MOST_BYTES)
        chunks = require_whole(value["iter_context"]["num_chunks"], f"{where}: num_chunks", 1, _MOST)
        inner = require_list(value["ops"], f"{where}: ops")
        size = chunks * self.parts // _TURNS
        cuts = [_Cut(turn, turn * size, size) for turn in range(_TURNS)]
        return [
            self._op(op, at, cut, channels, remote, f"{where}: ops[{i}]") for cut in cuts for i, op in enumerate(inner)
        ], 1 + len(inner)

    def _op(
        self,
        value: Any,
        position: int,
        cut: _Cut | None,
        channels: dict[str, list[int]],
        remote: dict[str, list[int]],
        where: str,
    ) -> Op:
        require_keys(value, ("name",), where)
        name = require_text(value["name"], f"{where}: name")
        group = _group(value["tbg_info"], f"{where}: tbg_info") if "tbg_info" in value else None
        kind = require_text(value.get("channel_type", "none"), f"{where}: channel_type", CHANNEL_TYPES)
        mine = channels.get(kind, [])
        ids = [require_index(id, len(mine), f"{where}: {kind} channel of the threadblock") for id in
               require_list(value.get("channel_ids", []), f"{where}: channel_ids")]  # fmt: skip
        parts = [
            tuple(
                self._part(
                    part, None if name in PACKETS else cut, group, mine, remote.get(kind, []), f"{where}: {key}[{i}]"
                )
                for i, part in enumerate(require_list(value.get(key, []), f"{where}: {key}"))
            )
            for key in ("src_buff", "dst_buff")
        ]
        semaphores = require_list(value.get("semaphore_ids", []), f"{where}: semaphore_ids")
        known = len(require_list(self.value.get("semaphores", []), self.where))
        return Op(
            name=name,
            channel_type=kind,
            channels=tuple((kind, mine[id]) for id in ids),
            sources=parts[0],
            targets=parts[1],
            semaphores=tuple(require_index(id, known, f"{where}: semaphore") for id in semaphores),
            barrier=_count(value.get("barrier_id", 0), f"{where}: barrier_id"),
            barrier_threadblocks=_count(value.get("num_threadblocks", 0), f"{where}: num_threadblocks"),
            position=position,
            turn=cut.turn if cut else 0,
            divided_twice=cut is not None and group is not None,
        )

    def _part(
        self,
        value: Any,
        cut: _Cut | None,
        group: tuple[int, int] | None,
        channels: list[int],
        remote: list[int],
        where: str,
    ) -> Part:
        require_keys(value, ("index", "size"), where)
        first = _count(value["index"], f"{where}: index") * self.parts
        size = _count(value["size"], f"{where}: size") * self.parts
        if cut is not None:
            first, size = first + cut.first, cut.size
        elif group is not None:
            first, size = first + group[0] * (size // group[1]), size // group[1]
        if "switch_channel_id" in value:
            id = require_index(value["switch_channel_id"], len(channels), f"{where}: switch channel of the threadblock")
            buffer, ranks = self.switches[channels[id]]
            return Part(ranks, buffer, first, size)
        if "buffer_id" in value:
            id = require_index(value["buffer_id"], len(remote), f"{where}: remote buffer of the threadblock")
            peer, buffer = self.remote[remote[id]]
            return Part((peer,), buffer, first, size)
        require_keys(value, ("type",), where)
        return Part((self.rank,), require_text(value["type"], f"{where}: type", BUFFERS), first, size)

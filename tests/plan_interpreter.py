"""A little machine for MSCCL++ plans that moves real numbers, one small event at a time in any order.

A threadblock has two threads that share every data operation's elements and meet at `nop`; the i-th channel of a
signal or wait belongs to thread i mod 2. What a port channel puts is moved later, in the channel's order. A rank
begins its next launch, with other data, as soon as its own threads are done with the last one. Packets are numbers with
the launch beside each: a thread goes on when its own share of them has this launch's.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

THREADS = 2
ELEMENTS = 4


class Stuck(AssertionError):
    """Nothing can move."""


class Machine:
    """`plan` over as many launches as asked; `inputs(launch, rank)` is a rank's input, `check` gets every output."""

    def __init__(
        self,
        plan: dict[str, Any],
        inputs: Callable[[int, int], np.ndarray],
        check: Callable[[int, int, np.ndarray], None],
        seed: int = 0,
        root: int = 0,
    ) -> None:
        self.root = root
        self.plan, self.inputs, self.check, self.random = plan, inputs, check, Random(seed)
        self.gpus = plan["gpus"]
        self.memory: list[dict[str, np.ndarray]] = [{} for _ in self.gpus]
        shape = [(2, gpu["scratch_chunks"], ELEMENTS) for gpu in self.gpus]
        self.packets = [(np.zeros(each, dtype=np.int64), np.full(each, -1)) for each in shape]
        self.launch = [-1] * len(self.gpus)
        self.signals: Counter[tuple[int, str, int]] = Counter()
        self.semaphores = [[s["init_value"] for s in gpu["semaphores"]] for gpu in self.gpus]
        self.ports: dict[tuple[int, int], deque[Callable[[], None]]] = defaultdict(deque)
        self.at: dict[tuple[int, int, int], tuple[int, int]] = {}  # thread → operation, part of it
        self.met: Counter[tuple[int, int, int]] = Counter()
        self.peer = {}
        for rank in range(len(self.gpus)):
            for kind in ("memory", "port"):
                for i, peer in enumerate(self._peers(rank, kind)):
                    nth = self._peers(rank, kind)[:i].count(peer)
                    back = [j for j, other in enumerate(self._peers(peer, kind)) if other == rank][nth]
                    self.peer[rank, kind, i] = (peer, kind, back)

    def _peers(self, rank: int, kind: str) -> list[int]:
        return [p for c in self.gpus[rank]["channels"] if c["channel_type"] == kind for p in c["connected_to"]]

    def run(self, launches: int = 2) -> None:
        for rank in range(len(self.gpus)):
            self._begin(rank)
        while True:
            moves: list[Callable[[], bool]] = [lambda key=key: self._thread(key) for key in self.at]
            moves += [lambda key=key: self._port(key) for key, queue in self.ports.items() if queue]
            self.random.shuffle(moves)
            if not any(move() for move in moves):
                if self.at:
                    raise Stuck({key: self._op(key)["name"] for key in self.at})
                assert not any(self.signals.values()) and not any(self.ports.values())
                return
            for rank in range(len(self.gpus)):
                if self.launch[rank] < launches and not any(key[0] == rank for key in self.at):
                    self._end(rank)
                    if self.launch[rank] + 1 < launches:
                        self._begin(rank)
                    else:
                        self.launch[rank] = launches

    def _begin(self, rank: int) -> None:
        self.launch[rank] += 1
        gpu, mine, inplace = self.gpus[rank], self.memory[rank], self.plan["inplace"]
        if self.plan["collective"] in ("gather", "scatter"):
            inplace = inplace and rank == self.root
        data = self.inputs(self.launch[rank], rank)
        rows = {"i": gpu["input_chunks"], "o": gpu["output_chunks"], "s": gpu["scratch_chunks"]}
        buffers = {kind: np.full((count, ELEMENTS), -(10**12) - rank) for kind, count in rows.items()}
        if inplace:
            big, small = ("i", "o") if rows["i"] > rows["o"] else ("o", "i")
            first = rank * rows[small] if rows[big] > rows[small] else 0
            buffers[small] = buffers[big][first : first + rows[small]]
        buffers["i"][:] = data
        if mine:  # the same memory as in the launch before: what comes late from it does harm
            if inplace:
                mine[big][:] = buffers[big]
                mine[small][:] = buffers[small]
            else:
                mine["i"][:], mine["o"][:] = buffers["i"], buffers["o"]
        else:
            mine.update(buffers)
        self.at |= {
            (rank, tb, t): (0, 0) for tb, b in enumerate(gpu["threadblocks"]) if b["ops"] for t in range(THREADS)
        }

    def _end(self, rank: int) -> None:
        self.check(self.launch[rank], rank, self.memory[rank]["o"].copy())

    def _op(self, key: tuple[int, int, int]) -> dict[str, Any]:
        return self.gpus[key[0]]["threadblocks"][key[1]]["ops"][self.at[key][0]]

    def _thread(self, key: tuple[int, int, int]) -> bool:
        """One move of one thread; False if it waits. A burst of moves now and then keeps it quick."""
        moved = False
        for _ in range(self.random.choice((1, 1, 2, 8))):
            if key not in self.at or not self._move(key):
                break
            moved = True
        return moved

    def _move(self, key: tuple[int, int, int]) -> bool:
        rank, tb, thread = key
        position, part = self.at[key]
        op, block = self._op(key), self.gpus[rank]["threadblocks"][tb]
        kind = op.get("channel_type", "")
        own = [c for channels in block["channels"] if channels["channel_type"] == kind for c in channels["channel_ids"]]
        mine = [own[c] for i, c in enumerate(op.get("channel_ids", [])) if i % THREADS == thread]
        match op["name"]:
            case "nop":
                if not part:
                    self.met[rank, tb, position] += 1
                    self.at[key] = (position, 1)
                if self.met[rank, tb, position] % THREADS and self._others_before(key):
                    return not part
            case "signal" | "rlxsignal":
                for channel in mine:
                    self._signal(rank, kind, channel)
            case "wait" | "rlxwait":
                if part < len(mine):
                    end = (rank, kind, mine[part])
                    if not self.signals[end]:
                        return False
                    self.signals[end] -= 1
                    self.at[key] = (position, part + 1)
                    return True
            case "sem_release":
                for i, s in enumerate(op["semaphore_ids"]):
                    self.semaphores[rank][s] += i % THREADS == thread
            case "sem_acquire":
                needed = [s for i, s in enumerate(op["semaphore_ids"]) if i % THREADS == thread]
                if any(not self.semaphores[rank][s] for s in needed):
                    return False
                for s in needed:
                    self.semaphores[rank][s] -= 1
            case "flush":
                if op["dst_buff"] and any(self.ports[rank, channel] for channel in mine):
                    return False
            case "put" | "copy":
                for i, (source, target) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
                    if kind == "port":
                        if i % THREADS == thread:
                            channel = own[op["channel_ids"][i]]
                            self.ports[rank, channel].append(self._copier(key, source, target, kind, slice(None)))
                    else:
                        self._copier(key, source, target, kind, slice(thread, None, THREADS))()
            case "re":
                share = slice(thread, None, THREADS)
                total = sum(self._rows(key, source, kind)[:, share] for source in op["src_buff"])
                self._rows(key, op["dst_buff"][0], kind)[:, share] = total
            case "ppkt" | "rppkt" | "cpkt" | "upkt" | "repkt" | "respkt" | "recpkt" | "recspkt":
                if not self._packet_op(key, op, kind, own):
                    return False
                if key in self.at and self.at[key] == (position, 1) and part == 0:
                    return True  # its share is there; others' may not be
            case "gstore" | "glres":
                self._multicast(key, op, slice(thread, None, THREADS))
            case other:
                raise AssertionError(other)
        return self._next(key)

    def _packet_op(self, key: tuple[int, int, int], op: dict[str, Any], kind: str, own: list[int]) -> bool:
        """A thread's share of an operation on packets; False if it waits."""
        rank, _, thread = key
        position, part = self.at[key]
        name, sources, targets, share = op["name"], op["src_buff"], op["dst_buff"], slice(thread, None, THREADS)
        if kind == "port":
            if name == "rppkt" and part == 0:
                if self._flagged(rank, sources[0], share) is None:
                    return False
                self.at[key] = (position, 1)
                return True
            if name == "rppkt" and self._others_before(key):
                return False
            for i, target in enumerate(targets):
                if i % THREADS == thread:
                    source = sources[i if name == "ppkt" else 0]
                    channel = own[op["channel_ids"][i]]
                    self.ports[rank, channel].append(self._packet_mover(key, source, target))
            return True
        if name == "ppkt":
            for source, target in zip(sources, targets, strict=True):
                self._flag(key, target, kind, self._rows(key, source, kind)[:, share], share)
            return True
        packed = {"rppkt": sources[:1], "upkt": sources[:1], "cpkt": []}.get(name, sources[1:])
        found = [self._flagged(rank, source, share) for source in packed]
        if any(rows is None for rows in found):
            return False
        plain = [self._rows(key, source, kind)[:, share] for source in sources[:1] if source not in packed]
        total = sum([*plain, *(rows for rows in found if rows is not None)])
        if name not in ("rppkt", "cpkt"):
            self._rows(key, targets[0], kind)[:, share] = total
            targets = {"upkt": [], "repkt": [], "recpkt": targets[1:2]}.get(name, targets[1:])
        for target in targets:
            self._flag(key, target, kind, total, share)
        return True

    def _half(self, rank: int) -> int:
        return self.launch[rank] % 2 if self.plan["use_double_scratch_buffer"] else 0

    def _flagged(self, rank: int, part: dict[str, Any], share: slice) -> np.ndarray | None:
        numbers, flags = (
            each[self._half(rank), part["index"] : part["index"] + part["size"], share] for each in self.packets[rank]
        )
        assert part["type"] == "s" and len(numbers) == part["size"]
        return numbers if (flags == self.launch[rank]).all() else None

    def _flag(self, key: tuple[int, int, int], part: dict[str, Any], kind: str, rows: np.ndarray, share: slice) -> None:
        owner = self._owner(key, part, kind)
        numbers, flags = self.packets[owner]
        place = (self._half(key[0]), slice(part["index"], part["index"] + part["size"]), share)
        assert numbers[place].shape == rows.shape
        numbers[place], flags[place] = rows, self.launch[key[0]]

    def _packet_mover(self, key: tuple[int, int, int], source: Any, target: Any) -> Callable[[], None]:
        half, rank, owner = self._half(key[0]), key[0], self._owner(key, target, "port")

        def move() -> None:
            for mine, theirs in zip(self.packets[rank], self.packets[owner], strict=True):
                theirs[half, target["index"] : target["index"] + target["size"]] = mine[
                    half, source["index"] : source["index"] + source["size"]
                ]

        return move

    def _owner(self, key: tuple[int, int, int], part: dict[str, Any], kind: str) -> int:
        if "buffer_id" not in part:
            assert part["type"] == "s"
            return key[0]
        refs = self.gpus[key[0]]["threadblocks"][key[1]]["remote_buffer_refs"]
        ids = [i for ref in refs if ref["access_channel_type"] == kind for i in ref["remote_buffer_ids"]]
        remote = self.gpus[key[0]]["remote_buffers"][ids[part["buffer_id"]]]
        assert remote["type"] == "s"
        return remote["rank"]

    def _others_before(self, key: tuple[int, int, int]) -> bool:
        rank, tb, thread = key
        return any(self.at.get((rank, tb, t), (10**9, 0)) < (self.at[key][0], 1) for t in range(THREADS) if t != thread)

    def _next(self, key: tuple[int, int, int]) -> bool:
        position = self.at[key][0] + 1
        if position == len(self.gpus[key[0]]["threadblocks"][key[1]]["ops"]):
            del self.at[key]
        else:
            self.at[key] = (position, 0)
        return True

    def _signal(self, rank: int, kind: str, channel: int) -> None:
        end = self.peer[rank, kind, channel]
        if kind == "port":
            self.ports[rank, channel].append(lambda: self.signals.update([end]))
        else:
            self.signals[end] += 1

    def _port(self, key: tuple[int, int]) -> bool:
        if self.random.random() < 0.5:
            return True  # in its own time
        self.ports[key].popleft()()
        return True

    def _copier(self, key: Any, source: Any, target: Any, kind: str, share: slice) -> Callable[[], None]:
        read, write = self._rows(key, source, kind), self._rows(key, target, kind)

        def copy() -> None:
            write[:, share] = read[:, share]

        return copy

    def _rows(self, key: tuple[int, int, int], part: dict[str, Any], kind: str, owner: int | None = None) -> np.ndarray:
        rank, tb, _ = key
        if "buffer_id" in part:
            refs = self.gpus[rank]["threadblocks"][tb]["remote_buffer_refs"]
            ids = [i for ref in refs if ref["access_channel_type"] == kind for i in ref["remote_buffer_ids"]]
            remote = self.gpus[rank]["remote_buffers"][ids[part["buffer_id"]]]
            owner, buffer = remote["rank"], remote["type"]
            assert kind in remote["access_channel_types"]
        elif "switch_channel_id" in part:
            buffer = self._group(key, part)[0]
        else:
            owner, buffer = rank, part["type"]
        rows = self.memory[owner][buffer][part["index"] : part["index"] + part["size"]]
        assert len(rows) == part["size"]
        return rows

    def _group(self, key: tuple[int, int, int], part: dict[str, Any]) -> tuple[str, list[int]]:
        rank, tb, _ = key
        own = [c for channels in self.gpus[rank]["threadblocks"][tb]["channels"]
               if channels["channel_type"] == "switch" for c in channels["channel_ids"]]  # fmt: skip
        groups = [(c["buffer_type"], g["ranks"]) for c in self.gpus[rank]["channels"] if c["channel_type"] == "switch"
                  for g in c["rank_groups"]]  # fmt: skip
        return groups[own[part["switch_channel_id"]]]

    def _multicast(self, key: tuple[int, int, int], op: dict[str, Any], share: slice) -> None:
        source, target = op["src_buff"][0], op["dst_buff"][0]
        if op["name"] == "glres":
            value = sum(self._rows(key, source, "", owner)[:, share] for owner in self._group(key, source)[1])
        else:
            value = self._rows(key, source, "")[:, share].copy()
        for owner in self._group(key, target)[1]:
            self._rows(key, target, "", owner)[:, share] = value

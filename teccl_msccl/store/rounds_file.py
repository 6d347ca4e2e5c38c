"""The file that the NCCL interposer reads: a machine's programs as rounds, and which of them serves which sizes.

Little-endian, everything at multiples of 8 bytes. Offsets count from the beginning of the file.

    "TECCLNC1"  SHA-256 of all that follows
    header      ranks, programs, entries, 0                                                      4 × u32
    entries     collective, root (−1: none), min bytes, max bytes (exclusive), program, 0        u32 i32 u64 u64 u32 u32
    programs    parts, most scratch, flags (1 in place, 2 reduces, 4 writes its input), name's length and offset
                                                                                                 4 × u32 u64
    offsets     of every rank of every program                                                   u64
    hosts       of every rank                                                                    u32
    names, and for every rank of every program
    rank        rounds, acts, scratch, flags (1 writes its input)                                4 × u32
    rounds      the end of its local acts, and of its messages                                   2 × u32
    acts        kind, buffers of at, source and other, part, length, their places, peer, 0        4 × u8, 7 × u32

csrc/nccl/programs.cpp reads it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..errors import InputError, Refused
from ..program.program import Program
from ..program.rounds import Place, RankRounds, Rounds, rounds_of
from .manifest import Entry
from .store import Machine

MAGIC = b"TECCLNC1"
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")
_KINDS = {"copy": 0, "reduce": 1, "send": 2, "receive": 3}
_BUFFERS = {"i": 0, "o": 1, "s": 2}
_NONE = Place("", 0)
_ACT = np.dtype(
    [("kind", "u1"), ("buffers", "u1", 3), ("part", "<u4"), ("length", "<u4"), ("places", "<u4", 3), ("peer", "<i4"),
     ("unused", "<u4")]
)  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A program in a file, and the sizes (as nccl-tests count them) that it serves."""

    program: Program
    root: int | None
    min_bytes: int
    max_bytes: int


def rounds_file(machine: Machine) -> tuple[bytes, list[str]]:
    """The file for a machine's ranks as the user numbers them, and why programs were left out.

    Raises `Refused` where none is left, `InputError` where the store's files are damaged."""
    nodes = {node.rank: node.host for node in machine.topology.nodes if node.rank is not None}
    served: list[Served] = []
    left_out: list[str] = []
    user_rank = {theirs: rank for rank, theirs in enumerate(machine.permutation)}
    for entry in machine.manifest.entries:
        if entry.target != "executor" or entry.collective not in COLLECTIVES:
            continue
        try:
            served.append(_served(machine, entry, user_rank))
        except Refused as error:
            left_out.append(str(error))
    if not served:
        why = left_out[0] if left_out else "nothing for target executor; run store build with --targets executor"
        raise Refused(f"{machine.folder}: {why}")
    return packed(served, [nodes[theirs] for theirs in machine.permutation]), left_out


def _served(machine: Machine, entry: Entry, user_rank: dict[int, int]) -> Served:
    program = machine.program(entry)
    rounds_of(program)
    return Served(program, None if entry.root is None else user_rank[entry.root], entry.min_bytes, entry.max_bytes)


def packed(served: Sequence[Served], hosts: Sequence[int]) -> bytes:
    """The file of programs for ranks that lie on `hosts`. Raises `Refused` for a program that has no rounds."""
    nranks = len(hosts)
    programs = list({id(each.program): each.program for each in served}.values())
    if any(program.nranks != nranks for program in programs):
        raise InputError(f"a program is not for {nranks} ranks; build the store anew")
    all_rounds = [rounds_of(program) for program in programs]
    numbers = {id(program): number for number, program in enumerate(programs)}
    entries = b"".join(
        struct.pack(
            "<IiQQII",
            COLLECTIVES.index(each.program.collective),
            -1 if each.root is None else each.root,
            each.min_bytes,
            each.max_bytes,
            numbers[id(each.program)],
            0,
        )
        for each in served
    )
    fixed = len(MAGIC) + 32 + 16 + len(entries) + len(programs) * (24 + 8 * nranks)
    tail = bytearray()

    def put(data: bytes) -> int:
        """Where `data` stands in the file."""
        tail.extend(data + bytes(-len(data) % 8))
        return fixed + len(tail) - len(data) - -len(data) % 8

    put(struct.pack(f"<{nranks}I", *hosts))
    records, offsets = [], []
    for program, rounds in zip(programs, all_rounds, strict=True):
        name = program.name.encode()[:200]
        records.append(struct.pack("<4IQ", *_facts(program, rounds), len(name), put(name)))
        offsets += [put(_rank(rank)) for rank in rounds.ranks]
    body = b"".join(
        (
            struct.pack("<4I", nranks, len(programs), len(served), 0),
            entries,
            *records,
            struct.pack(f"<{len(offsets)}Q", *offsets),
            bytes(tail),
        )
    )
    return MAGIC + hashlib.sha256(body).digest() + body


def _facts(program: Program, rounds: Rounds) -> tuple[int, int, int]:
    reduces = any(act.kind == "reduce" for rank in rounds.ranks for some in rank.rounds for act in some[0])
    writes_input = any(rank.writes_input for rank in rounds.ranks)
    flags = program.inplace | reduces << 1 | writes_input << 2
    return rounds.parts, max(rank.scratch for rank in rounds.ranks), flags


def _rank(rank: RankRounds) -> bytes:
    acts = [act for some in rank.rounds for act in chain(*some)]
    ends, at = [], 0
    for local, messages in rank.rounds:
        ends += [at + len(local), at + len(local) + len(messages)]
        at = ends[-1]
    table = np.zeros(len(acts), _ACT)
    for row, act in zip(table, acts, strict=True):
        places = [place or _NONE for place in (act.at, act.source, act.other)]
        row["kind"], row["part"], row["length"] = _KINDS[act.kind], act.part, act.length
        row["buffers"] = [_BUFFERS.get(place.buffer, 3) for place in places]
        row["places"] = [place.position for place in places]
        row["peer"] = act.peer
    head = struct.pack("<4I", len(rank.rounds), len(acts), rank.scratch, rank.writes_input)
    return head + struct.pack(f"<{len(ends)}I", *ends) + table.tobytes()

"""Hash models: to which spine a ToR's ECMP sends a queue pair's packets."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import InputError
from ..files import read_bytes
from .rocev2 import FIRST_PORT, LAST_PORT, ROCE_PORT

_UDP = 17
_PORTS = range(FIRST_PORT, LAST_PORT + 1)
#: What follows the addresses and the protocol in a packet's five-tuple, for each source port.
_TAILS = tuple(port.to_bytes(2, "big") + ROCE_PORT.to_bytes(2, "big") for port in _PORTS)


class Ends(NamedTuple):
    """Hosts that a queue pair joins, and their addresses."""

    src: int
    dst: int
    src_ip: str
    dst_ip: str


class HashModel(Protocol):
    """What is known of the switches' hash. `live` are the spines that the ToR may choose from."""

    def spine(self, ends: Ends, sport: int, live: Sequence[int]) -> int | None:
        """Where a UDP source port leads; None if that is not known."""

    def port_to(self, ends: Ends, spine: int, live: Sequence[int], first: int) -> int | None:
        """A UDP source port that leads to a spine, `first` or the next after it that does; None if none does."""


class CrcHash:
    """CRC-32 (IEEE 802.3) over source and destination address, protocol, source and destination port, from `seed` on,
    modulo the number of live spines."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed & 0xFFFFFFFF

    def spine(self, ends: Ends, sport: int, live: Sequence[int]) -> int | None:
        return live[zlib.crc32(_TAILS[sport - FIRST_PORT], self._addresses(ends)) % len(live)]

    def port_to(self, ends: Ends, spine: int, live: Sequence[int], first: int) -> int | None:
        if spine not in live:
            return None
        wanted, begin, choices = live.index(spine), self._addresses(ends), len(live)
        start = first - FIRST_PORT
        for i in chain(range(start, len(_TAILS)), range(start)):
            if zlib.crc32(_TAILS[i], begin) % choices == wanted:
                return FIRST_PORT + i
        return None

    def _addresses(self, ends: Ends) -> int:
        packed = address(ends.src_ip) + address(ends.dst_ip)
        return zlib.crc32(packed + bytes([_UDP]), self.seed)


class ProbedTable:
    """Ports that were tried on the fabric itself: a CSV with the columns src, dst (hosts), udp_sport and spine."""

    def __init__(self, rows: Iterable[tuple[int, int, int, int]]) -> None:
        self.spine_of: dict[tuple[int, int], dict[int, int]] = {}
        for src, dst, port, spine in rows:
            self.spine_of.setdefault((src, dst), {})[port] = spine

    def spine(self, ends: Ends, sport: int, live: Sequence[int]) -> int | None:
        return self.spine_of.get((ends.src, ends.dst), {}).get(sport)

    def port_to(self, ends: Ends, spine: int, live: Sequence[int], first: int) -> int | None:
        probed = self.spine_of.get((ends.src, ends.dst), {})
        ports = sorted(port for port, reached in probed.items() if reached == spine)
        return next((port for port in ports if port >= first), ports[0] if ports else None)

    @classmethod
    def read(cls, path: str | Path) -> ProbedTable:
        """Read the CSV. Raises `InputError` naming the line."""
        text = read_bytes(path, "a probed table").decode(errors="replace")
        reader = csv.DictReader(io.StringIO(text))
        columns = ("src", "dst", "udp_sport", "spine")
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: line 1: no column {missing[0]!r}; a probed table has {','.join(columns)}")
        rows = []
        for row in reader:
            try:
                src, dst, port, spine = (int(row[name]) for name in columns)
            except (TypeError, ValueError):
                raise InputError(f"{path}: line {reader.line_num}: four whole numbers are needed") from None
            if port not in _PORTS:
                raise InputError(f"{path}: line {reader.line_num}: port {port} is not in {FIRST_PORT}..{LAST_PORT}")
            rows.append((src, dst, port, spine))
        return cls(rows)


def hash_model(name: str, seed: int = 0) -> HashModel:
    """`crc`, or the file of a probed table."""
    return CrcHash(seed) if name == "crc" else ProbedTable.read(name)


@lru_cache(maxsize=2**16)
def address(ip: str) -> bytes:
    """The four bytes of an IPv4 address. Raises `InputError`."""
    try:
        return IPv4Address(ip).packed
    except AddressValueError:
        raise InputError(f"{ip!r} is no IPv4 address; mend src_ip or dst_ip") from None

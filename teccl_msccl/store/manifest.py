"""The manifest of one machine in a store: which file serves which sizes, and why."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ..errors import InputError
from ..files import require_keys

#: Of the manifest's layout; a store with a later one is refused.
FORMAT = 1

#: Collective, root and target.
Key = tuple[str, int | None, str]


@dataclass(frozen=True)
class Entry:
    """A program file and the sizes min_bytes ≤ size < max_bytes for which it is the fastest known.

    `method` is what found its schedule for `made_for_bytes`; `predicted` has a row for each size simulated: bytes, µs
    of this program, of the fastest baseline (and its name), and the lower bound.
    """

    collective: str
    root: int | None
    target: str
    mode: str
    protocol: str
    min_bytes: int
    max_bytes: int
    file: str
    sha256: str
    nranks: int
    nchunks: int
    method: str
    made_for_bytes: int
    predicted: tuple[dict[str, Any], ...] = ()

    @property
    def key(self) -> Key:
        """What is asked for besides a size."""
        return (self.collective, self.root, self.target)


@dataclass(frozen=True)
class Manifest:
    """A machine's entries. `fingerprint` is that of the topology beside it, whose hash is `topology_sha256`."""

    fingerprint: str
    topology: str
    topology_sha256: str
    entries: tuple[Entry, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    def with_entries(self, replaced: set[Key], entries: Iterable[Entry]) -> Manifest:
        """The same with all entries of the keys `replaced` replaced by `entries`."""
        kept = [entry for entry in self.entries if entry.key not in replaced]
        everything = sorted([*kept, *entries], key=lambda e: (e.collective, e.root or 0, e.target, e.min_bytes))
        return replace(self, entries=tuple(everything))

    @cached_property
    def _ranges(self) -> dict[Key, tuple[list[int], list[Entry]]]:
        ranges: dict[Key, tuple[list[int], list[Entry]]] = defaultdict(lambda: ([], []))
        for entry in sorted(self.entries, key=lambda entry: entry.min_bytes):
            firsts, entries = ranges[entry.key]
            firsts.append(entry.min_bytes)
            entries.append(entry)
        return dict(ranges)

    def select(self, collective: str, size_bytes: int, target: str, root: int | None = None) -> Entry | None:
        """The entry that serves a size, or None. O(log entries), microseconds."""
        found = self._ranges.get((collective, root, target))
        if found is None:
            return None
        firsts, entries = found
        position = bisect_right(firsts, size_bytes) - 1
        return entries[position] if position >= 0 and size_bytes < entries[position].max_bytes else None

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Manifest:
        """Raises `InputError` for one of a newer format, or that is no manifest."""
        require_keys(value, ("format", "fingerprint", "topology", "topology_sha256", "entries", "versions"), where)
        if value["format"] != FORMAT:
            newer = isinstance(value["format"], int) and value["format"] > FORMAT
            raise InputError(
                f"{where}: has format {value['format']!r} and this version reads {FORMAT}; "
                + ("upgrade teccl-msccl" if newer else "build the store anew")
            )
        if not isinstance(value["entries"], list) or not isinstance(value["versions"], dict):
            raise InputError(f"{where}: entries must be a list and versions an object; build the store anew")
        return cls(
            str(value["fingerprint"]),
            str(value["topology"]),
            str(value["topology_sha256"]),
            tuple(_entry(each, f"{where}: entry {number}") for number, each in enumerate(value["entries"])),
            {str(name): str(version) for name, version in value["versions"].items()},
        )


_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("min_bytes", "max_bytes", "nranks", "nchunks", "made_for_bytes"), int),
    "root": (int, type(None)),
    "predicted": (list, tuple),
}


def _entry(value: Any, where: str) -> Entry:
    names = [each.name for each in fields(Entry)]
    require_keys(value, tuple(names), where)
    for name in names:
        if not isinstance(value[name], _TYPES.get(name, str)):
            raise InputError(f"{where}: {name} is {value[name]!r}; build the store anew")
    file = value["file"]
    if "/" in file or file.startswith("."):
        raise InputError(f"{where}: file {file!r} lies outside the store; build the store anew")
    taken: dict[str, Any] = {name: value[name] for name in names}
    return Entry(**taken | {"predicted": tuple(value["predicted"])})

"""Custom demands: a JSON list of chunks, who has them and who wants them, for one tenant or several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json, require_flag, require_keys, require_number, require_whole
from .demand import Chunk, Demand, Group


def read_demand(path: str | Path, nranks: int, size_bytes: float | None = None) -> Demand:
    """The demand in a JSON file (see `custom`)."""
    return custom(read_json(path, "a demand"), nranks, size_bytes, str(path))


def custom(value: Any, nranks: int, size_bytes: float | None = None, where: str = "demand") -> Demand:
    """The demand `{"chunks": [{"id", "origin": [ranks], "want": [ranks], "reduce": false, "bytes", "group": 0}]}`,
    with `"groups": [{"ranks", "weight": 1, "confined": false}]` if there are tenants.

    Ids may be left out: chunks are counted 0, 1, 2… A size is that of all chunks together: it scales the bytes given,
    or is divided equally where none are. Raises `InputError` naming the place.
    """
    if not isinstance(value, dict) or not isinstance(value.get("chunks"), list):
        raise InputError(f'{where}: a demand is an object {{"chunks": [{{"origin", "want"}}…]}}')
    items, listed = value["chunks"], value.get("groups", [])
    if not isinstance(listed, list):
        raise InputError(f"{where}: 'groups' must be a list of objects with ranks")
    try:
        groups = tuple(group_from_json(item, f"groups[{i}]") for i, item in enumerate(listed))
        told = ["bytes" in item for item in items if isinstance(item, dict)]
        if any(told) and not all(told):
            raise InputError(f"chunks[{told.index(False)}]: 'bytes' is missing, while others have it; add it")
        if size_bytes is None and not any(told) and items:
            raise InputError("no chunk has 'bytes'; add them, or give a --size for all chunks together")
        chunks = [_chunk(item, i, f"chunks[{i}]") for i, item in enumerate(items)]
        total = sum(chunk.bytes for chunk in chunks)
        if size_bytes is not None and total > 0:
            chunks = [replace(chunk, bytes=chunk.bytes * (size_bytes / total)) for chunk in chunks]
            total = size_bytes
        return Demand("custom", nranks, tuple(chunks), 1, total, None, groups)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _chunk(item: Any, position: int, where: str) -> Chunk:
    require_keys(item, ("origin", "want"), where)
    return chunk_from_json({"id": position, "bytes": 1.0, **item}, where)


def chunk_from_json(value: Any, where: str) -> Chunk:
    """A chunk of a Demand or a Schedule."""
    require_keys(value, ("id", "origin", "want", "bytes"), where)
    reduce = require_flag(value.get("reduce", False), f"{where}: reduce")
    return Chunk(
        id=require_whole(value["id"], f"{where}: id"),
        origin=_ranks(value["origin"], f"{where}: origin"),
        want=_ranks(value["want"], f"{where}: want"),
        bytes=require_number(value["bytes"], f"{where}: bytes"),
        reduce=reduce,
        group=require_whole(value.get("group", 0), f"{where}: group"),
    )


def group_from_json(value: Any, where: str) -> Group:
    """A group of a Demand or a Schedule."""
    require_keys(value, ("ranks",), where)
    confined = require_flag(value.get("confined", False), f"{where}: confined")
    weight = require_number(value.get("weight", 1.0), f"{where}: weight")
    return Group(_ranks(value["ranks"], f"{where}: ranks"), weight, confined)


def _ranks(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where}: must be a list of ranks")
    return tuple(require_whole(rank, where) for rank in value)

"""What a program's file is, MSCCL XML or MSCCL++ plan: its content tells, not its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import parse_json
from ..schedule.read import is_ours
from ..schedule.read_sccl import is_sccl
from ..schedule.read_teccl import is_teccl
from .plan_file import is_plan


def is_json(data: bytes) -> bool:
    """Whether a file's `data` is a JSON object or list rather than XML."""
    return data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def plan_in(data: bytes, path: str | Path) -> dict[str, Any] | None:
    """The JSON of the file at `path`, that of an MSCCL++ plan if it is right; None where its `data` is to be read as
    MSCCL XML. Raises `InputError` for JSON of another kind, a schedule by name."""
    if not is_json(data) and Path(path).suffix != ".json":
        return None
    value = parse_json(data, path, "a plan")
    if not is_plan(value) and (is_teccl(value) or is_sccl(value) or is_ours(value)):
        raise InputError(f"{path}: is a schedule, not a program; make it one: teccl-msccl lower {path} -o FILE")
    if not isinstance(value, dict):
        raise InputError(f"{path}: a plan is an object with name, collective, protocol, inplace and gpus")
    return value

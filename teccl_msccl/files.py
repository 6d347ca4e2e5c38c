"""Reading and writing files so that a bad one is named and a good one is never half-written."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError

if TYPE_CHECKING:
    from lxml import etree

MAX_BYTES = 256 * 1024 * 1024


def read_bytes(path: str | Path, what: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of `path`; `what` names it in errors ("a topology", "a program")."""
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory, not {what}; name a file in it")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)  # devices and pipes have no size to ask for, and may never end
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot read {what}: {reason}; check the path") from None
    if len(data) > max_bytes:
        raise InputError(f"{path}: larger than {max_bytes // 2**20} MiB, too large for {what}")
    return data


def read_json(path: str | Path, what: str) -> Any:
    """The JSON value in `path`."""
    return parse_json(read_bytes(path, what), path, what)


def parse_json(data: bytes, path: str | Path, what: str) -> Any:
    """The JSON value in `data`, which came from `path`."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: line {error.lineno} column {error.colno}: not JSON ({error.msg}); mend {what} there"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text, so not {what}") from None
    except ValueError:  # Python converts no integer of more than 4300 digits
        raise InputError(f"{path}: has a number of absurd length; mend {what}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be {what}") from None


def check_writable(*paths: str | Path | None) -> None:
    """Raise `InputError` where one of the files to be written could not be, before any work is done for it."""
    named = [Path(path) for path in paths if path is not None]
    for path in named:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; name a file to write")
        if not path.parent.is_dir():
            raise InputError(f"{path}: cannot write: there is no directory {path.parent}; make it or choose another -o")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(f"{path}: cannot write in {path.parent}: permission denied; choose another -o")
    twice = next((path for path in named if sum(path.absolute() == other.absolute() for other in named) > 1), None)
    if twice is not None:
        raise InputError(f"{twice}: is to be written twice; give each output a name of its own")


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to a temporary name beside `path`, then rename: `path` is whole or untouched."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` as `write_text` does its text."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a directory; name a file to write")
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot write: {reason}; choose another -o") from None


def require_keys(value: Any, keys: tuple[str, ...], where: str) -> None:
    """Raise `InputError` unless `value` is a JSON object that has `keys`; `where` is its place."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be an object with {', '.join(keys)}")
    for key in keys:
        if key not in value:
            raise InputError(f"{where}: {key!r} is missing; add it")


def require_whole(value: Any, where: str, least: int | None = None, most: int | None = None) -> int:
    """`value`, a whole number of a JSON file, within the bounds where there are some. Raises `InputError` with its
    place if it is none."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (least is not None and value < least) or (most is not None and value > most):
        bounds = "" if least is None else f" from {least}"
        bounds += "" if most is None else f" to {most}"
        raise InputError(f"{where}: must be a whole number{bounds}, not {str(value)[:40]}")
    return int(value)


def require_index(value: Any, length: int, where: str) -> int:
    """`value`, a position in a list of `length`. Raises `InputError` with its place if it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < length:
        raise InputError(f"{where} {str(value)[:40]} is not among its {length}")
    return value


def require_list(value: Any, where: str) -> list[Any]:
    """`value`, a list of a JSON file. Raises `InputError` with its place if it is none."""
    if not isinstance(value, list):
        raise InputError(f"{where}: must be a list")
    return value


def require_text(value: Any, where: str, choices: tuple[str, ...] = ()) -> str:
    """`value`, a string of a JSON file, one of `choices` where there are some. Raises `InputError` with its place if
    it is none."""
    if not isinstance(value, str):
        raise InputError(f"{where}: must be a string, not {str(value)[:40]}")
    if choices and value not in choices:
        raise InputError(f"{where}: {value[:40]!r}; use {', '.join(choices)}")
    return value


def require_number(value: Any, where: str) -> float:
    """`value`, a finite number of a JSON file. Raises `InputError` with its place if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: must be a number, not {repr(value)[:40]}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{where}: must be a finite number")
    return number


def require_flag(value: Any, where: str) -> bool:
    """`value`, true or false in a JSON file. Raises `InputError` with its place if it is neither."""
    if not isinstance(value, bool):
        raise InputError(f"{where}: must be true or false, not {repr(value)[:40]}")
    return value


def xml_parser(encoding: str | None = None) -> etree.XMLParser:
    """A parser for files that may be hostile: no entities, DTDs, network or huge nodes; comments are dropped.
    `encoding`: the only one, instead of what the file says."""
    from lxml import etree  # only readers of XML pay for it

    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, remove_comments=True,
        remove_pis=True, huge_tree=False, encoding=encoding,
    )  # fmt: skip

"""The controller's state and tables on disk, so that a restart, after kill -9 too, finds the tables in force."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json, require_keys, write_text
from .controller import Controller, Policy

#: Tables that are kept, the one in force among them.
TABLES_KEPT = 8


class StateDirectory:
    """`state.json`, and a `routes-N.csv` for each version N.

    Order of writing: the table, then the state that names it, each renamed into place; only then is a version
    announced. So whatever was announced can be read back, and the state always names a whole table. One process at a
    time uses a directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table: str | None = None  # the one in force
        self._table_bytes: int | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{path}: cannot keep state there: {error.strerror}; choose another --state") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise InputError(
                f"{path}: another `route serve` uses it; stop that one or choose another --state"
            ) from None

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    def table_file(self, version: int) -> Path:
        return self.path / f"routes-{version:06d}.csv"

    def load(self, policy: Policy) -> Controller | None:
        """The controller that was saved; None where there is none yet. Raises `InputError` and touches nothing where
        the state or its table is not whole."""
        if not self.state_file.exists():
            left = sorted(self.path.glob("routes-*.csv"))
            if left:
                raise InputError(
                    f"{self.state_file}: is missing, but {left[-1].name} is there; restore it or choose another --state"
                )
            return None
        where = f"{self.state_file}"
        try:
            value = read_json(self.state_file, "the state")
            require_keys(value, ("controller", "table", "table_bytes"), where)
            controller = Controller.from_json(value["controller"], where, policy)
        except InputError as error:
            raise InputError(
                f"{error}; tables on disk are untouched: restore this file or choose another --state"
            ) from None
        table = value["table"]
        if table is not None:
            file = self.path / str(table)
            if not file.is_file() or file.stat().st_size != value["table_bytes"]:
                raise InputError(
                    f"{file}: the table in force is missing or truncated; restore it or choose another --state"
                )
        self._table, self._table_bytes = table, value["table_bytes"]
        return controller

    def save(self, controller: Controller, table: str | None = None) -> Path | None:
        """Save the state, with the text of a new table if there is one; the table's file."""
        file = None
        if table is not None:
            file = self.table_file(controller.version)
            write_text(file, table)
            self._table, self._table_bytes = file.name, len(table.encode())
        value: dict[str, Any] = {"table": self._table, "table_bytes": self._table_bytes}
        write_text(self.state_file, json.dumps({**value, "controller": controller.to_json()}) + "\n")
        if file is not None:
            for old in sorted(self.path.glob("routes-*.csv"))[:-TABLES_KEPT]:
                old.unlink(missing_ok=True)
        return file

    def __enter__(self) -> StateDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

"""The service: events in as JSON lines, versioned tables out."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..files import parse_json
from .controller import Change, Controller
from .enforcement import enforce
from .events import event_from_json
from .hash_model import HashModel
from .state import StateDirectory

#: A line may have as many bytes; a job of a million hosts fits.
LONGEST_LINE = 16 * 2**20
_BLOCK = 2**16
#: Warnings of a kind that one event may bring.
TOLD = 3

Say = Callable[[dict[str, Any]], None]


@dataclass
class Service:
    """Feeds events to the controller and publishes what it answers. `warn` takes lines for people."""

    controller: Controller
    state: StateDirectory
    model: HashModel
    warn: Callable[[str], None]
    period_s: float | None = None

    def wait(self, streams: Sequence[Any], say: Say) -> list[Any]:
        """The streams that have something, once one has. What may be improved is, while nothing waits; every
        `period_s` seconds without an event all is looked at again."""
        while True:
            timeout = 0 if self.controller.due else self.period_s
            ready, _, _ = select.select(streams, [], [], timeout)
            if ready:
                return ready
            self.controller.due = True
            self.rest(say)

    def take(self, line: bytes, where: str, say: Say) -> None:
        """One event. Each change of the table is said once it is on disk; a bad event changes nothing, and its error
        is raised with `where` before it."""
        if not line.strip():
            return
        try:
            event = event_from_json(parse_json(line, "event", "the event"))
            changes = self.controller.handle(event)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        self._publish(changes, say)
        if event.kind in ("link", "spine"):
            self._tell(
                f"{flow.collective}: {flow.src}>{flow.dst}: no spine has both hops alive; it keeps its route"
                for flow in self.controller.unreachable
            )

    def rest(self, say: Say) -> None:
        """What is left to do while no event waits."""
        if changes := self.controller.background():
            self._publish(changes, say)

    def _publish(self, changes: list[Change], say: Say) -> None:
        if not changes:
            self.state.save(self.controller)
            return
        change = changes[-1]
        rows = enforce(self.controller.traffic, self.controller.routes, self.model, change.version)
        path = self.state.save(self.controller, rows.csv())
        self._tell(rows.unreachable)
        say({"version": change.version, "moved": change.moved, "phi": change.phi, "table": str(path)})

    def _tell(self, texts: Iterable[str]) -> None:
        for number, text in enumerate(listed := list(texts)):
            if number == TOLD:
                self.warn(f"… and {len(listed) - TOLD} more")
                return
            self.warn(text)


class Lines:
    """Whole lines from a stream of bytes."""

    def __init__(self) -> None:
        self._partial = b""
        self.number = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises `InputError` for one that does not end."""
        *whole, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LONGEST_LINE:
            raise InputError(
                f"line {self.number + len(whole) + 1}: longer than {LONGEST_LINE // 2**20} MiB; split the job"
            )
        return whole

    def rest(self) -> list[bytes]:
        """The last line, where the stream ended without a newline."""
        rest, self._partial = self._partial, b""
        return [rest] if rest.strip() else []


def serve_stream(service: Service, descriptor: int, say: Say, refuse: Callable[[str], None]) -> None:
    """Serve events from a file descriptor until it ends. The background work is done while nothing waits."""
    lines = Lines()

    def take(found: list[bytes]) -> None:
        for line in found:
            lines.number += 1
            try:
                service.take(line, f"line {lines.number}", say)
            except InputError as error:
                refuse(str(error))

    while True:
        service.wait([descriptor], say)
        data = os.read(descriptor, _BLOCK)
        if not data:
            break
        take(lines.feed(data))
    take(lines.rest())
    if service.controller.due:
        service.rest(say)


def listen(address: str) -> socket.socket:
    """A listening socket at HOST:PORT (port 0: any). Raises `InputError`."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {address}: give HOST:PORT, such as 127.0.0.1:7331")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen()
    except OSError as error:
        raise InputError(f"--listen {address}: {error.strerror or error}; choose another address") from None
    return listener


def serve_socket(service: Service, listener: socket.socket, refuse: Callable[[str], None]) -> None:
    """Serve events from all connections, in the order in which they come, for ever. Every connection hears of every
    change of the table; a bad event is answered to its sender alone, with {"error": …}."""
    connections: dict[socket.socket, Lines] = {}

    def send(connection: socket.socket, value: dict[str, Any]) -> None:
        try:
            connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError:
            drop(connection)

    def say(value: dict[str, Any]) -> None:
        for connection in list(connections):
            send(connection, value)

    def drop(connection: socket.socket) -> None:
        connections.pop(connection, None)
        connection.close()

    def hear(connection: socket.socket) -> None:
        lines = connections[connection]
        try:
            data = connection.recv(_BLOCK)
        except OSError:
            data = b""
        try:
            for line in lines.feed(data) if data else lines.rest():
                lines.number += 1
                try:
                    service.take(line, f"line {lines.number}", say)
                except InputError as error:
                    refuse(str(error))
                    send(connection, {"error": str(error)})
        except InputError as error:  # a line without an end
            send(connection, {"error": str(error)})
            data = b""
        if not data:
            drop(connection)

    while True:
        for stream in service.wait([listener, *connections], say):
            if stream is listener:
                connection, _ = listener.accept()
                connection.settimeout(10)
                connections[connection] = Lines()
            elif stream in connections:
                hear(stream)

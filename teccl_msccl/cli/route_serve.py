"""`route serve`: the periodic controller as a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import output
from .route import route


@route.command()
def serve(
    state: Annotated[Path, typer.Option(help="A directory for the state and the tables; made if missing.")],
    listen: Annotated[
        str | None,
        typer.Option(metavar="127.0.0.1:PORT", help="Take events from TCP connections, not stdin (port 0: any)."),
    ] = None,
    fabric: Annotated[
        Path | None,
        typer.Option(help="A JSON with `fabric`, for a new state. Default: 64 ToRs × 32 spines × 32 hosts."),
    ] = None,
    mode: Annotated[str, typer.Option(help="coll, flow or static.")] = "coll",
    gain: Annotated[float, typer.Option(help="What new routes must gain in φ's first differing component.")] = 0.05,
    most_moved: Annotated[
        float, typer.Option("--most-moved", help="Share of the flows that one change may move, failures apart.")
    ] = 0.05,
    period: Annotated[
        float | None, typer.Option(help="Seconds without an event after which routes are looked at again.")
    ] = None,
    hash_name: Annotated[str, typer.Option("--hash", metavar="crc|FILE", help="See `route optimize`.")] = "crc",
    hash_seed: Annotated[int, typer.Option("--hash-seed", help="What the CRC starts from.")] = 0,
) -> None:
    """Read events (JSON lines) and keep a table of routes in force, in DIR/routes-N.csv; each change is answered with
    one line. Started again on the same DIR it goes on where it was.

    Events have "t" (seconds, never decreasing) and "event": job_arrive ("job": {…}, see `route simulate`), job_leave
    ("job"), collective_start and collective_end ("job", "collective": "dp", "dp3"…), link ("kind", "tor", "spine" or
    "host", "capacity"), spine ("spine", "alive"), timer, nack ("job", "collective", "src", "dst": a host kept its old
    route). A bad line is refused, and the tables in force stay; the exit code at the end of stdin is then 2.
    """
    import json
    import signal
    import sys

    from ..errors import InputError, unknown
    from ..files import read_json, require_keys
    from ..routing.controller import Controller, Policy
    from ..routing.fabric import Clos
    from ..routing.hash_model import hash_model
    from ..routing.metric import MODES
    from ..routing.serve import Service, serve_socket, serve_stream
    from ..routing.serve import listen as open_socket
    from ..routing.state import StateDirectory

    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    if not (0 <= gain < float("inf") and 0 <= most_moved <= 1):
        raise InputError("--gain must be 0 or more, and --most-moved from 0 to 1")
    if period is not None and not 0 < period < float("inf"):
        raise InputError(f"--period is {period}; use more than 0 seconds")
    policy = Policy(mode=mode, gain=gain, most_moved=most_moved)
    model = hash_model(hash_name, hash_seed)
    given = None
    if fabric is not None:
        value = read_json(fabric, "a fabric")
        require_keys(value, ("fabric",), str(fabric))
        given = Clos.from_json(value["fabric"], f"{fabric}: fabric")
    listener = None if listen is None else open_socket(listen)
    refused = 0

    def refuse(text: str) -> None:
        nonlocal refused
        refused += 1
        output.stderr.print(f"error: {' '.join(text.split())}; the tables in force stay", markup=False, soft_wrap=True)

    def say(value: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def stop(number: int, frame: Any) -> None:
        raise typer.Exit(0)

    signal.signal(signal.SIGTERM, stop)
    with StateDirectory(state) as directory:
        controller = directory.load(policy)
        if controller is None:
            if given is None:
                output.note("no fabric was given: 64 ToRs × 32 spines × 32 hosts per ToR, 100 Gb/s")
            controller = Controller(given or Clos(64, 32, 32), policy)
            directory.save(controller)
        else:
            if given is not None:
                output.warn(f"{fabric}: not used; {state} has a fabric already")
            output.note(f"{state}: version {controller.version}, {len(controller.routes)} flows, as they were")
        service = Service(controller, directory, model, output.warn, period)
        if listener is not None:
            host, port = listener.getsockname()[:2]
            output.note(f"listening on {host}:{port}")
            if host not in ("127.0.0.1", "::1"):
                output.warn(f"{host} is not a loopback address: anyone who reaches it can change routes")
            serve_socket(service, listener, refuse)
        else:
            serve_stream(service, sys.stdin.fileno(), say, refuse)
    if refused:
        raise typer.Exit(2)

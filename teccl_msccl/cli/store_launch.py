"""`store env` and `store launch`: a runtime and the store's files, brought together."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Annotated

import typer

from ..errors import InputError
from . import output
from .options import HostsOption, NetworkOption
from .store import StoreOption, machine_of, store_app

RuntimeOption = Annotated[str, typer.Option("--runtime", help="msccl, executor, rccl, torch or nccl.")]
LaunchTopology = Annotated[
    str,
    typer.Option("--topology", help="As of `synth` [default: $TECCL_TOPOLOGY, else local].", envvar="TECCL_TOPOLOGY"),
]


@store_app.command("env")
def env(
    runtime: RuntimeOption,
    topology: LaunchTopology = "local",
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    store: StoreOption = None,
) -> None:
    """The variables to set on every rank, as shell commands."""
    from ..store.launch import environment, require_runtime
    from ..store.store import Store

    require_runtime(runtime)
    home = Store(store)
    variables = environment(machine_of(home, topology, hosts, network), runtime, home.root, output.note)

    def show() -> None:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")

    output.answer(dict(variables), show)


@store_app.command("launch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def launch(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="torchrun, mpirun or srun, and so on.")],
    runtime: RuntimeOption,
    topology: LaunchTopology = "local",
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    store: StoreOption = None,
) -> None:
    """Set the variables and run COMMAND in this process' place; refuse where the runtime cannot take the files."""
    from ..store.launch import environment, require_launchable, require_runtime
    from ..store.store import Store

    require_runtime(runtime)
    home = Store(store)
    machine = machine_of(home, topology, hosts, network)
    require_launchable(machine, runtime, command)
    variables = environment(machine, runtime, home.root, output.note)
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]}: no such command; check the PATH")
    if os.path.basename(command[0]) == "mpirun":  # Open MPI passes its own variables on, and no others
        forwarded = [word for name in variables for word in ("-x", name)]
        command = [command[0], *forwarded, *command[1:]]
    os.execve(program, command, {**os.environ, **variables})

"""teccl-msccl: hardware → Topology → Schedule → Program → a file that GPUs execute, proved at every arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .collective.demand import Demand
    from .errors import InputError, Refused
    from .program.lower import lower
    from .program.program import Program
    from .schedule.read import read_schedule
    from .schedule.schedule import Schedule
    from .synthesis.portfolio import synthesize
    from .topology.model import Topology

__version__ = "0.1.0"
__all__ = ["Demand", "InputError", "Program", "Refused", "Schedule", "Topology", "lower", "read_schedule", "synthesize"]

_HOMES = {
    "Demand": "collective.demand",
    "InputError": "errors",
    "Program": "program.program",
    "Refused": "errors",
    "Schedule": "schedule.schedule",
    "Topology": "topology.model",
    "lower": "program.lower",
    "read_schedule": "schedule.read",
    "synthesize": "synthesis.portfolio",
}


def _find_core() -> None:
    """Where a checkout's sources shadow the installed package (its root is the working directory), the compiled
    core is with the installed one."""
    import os

    if any(name.startswith("_core.") and name.endswith(".so") for name in os.listdir(__path__[0])):
        return
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, distribution  # slow, and seldom needed

    with suppress(PackageNotFoundError):
        __path__.append(str(distribution("teccl-msccl").locate_file("teccl_msccl")))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import teccl_msccl` itself costs nothing."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_find_core()

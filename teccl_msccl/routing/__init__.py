"""Routes for the flows of training jobs over a Clos fabric: how efficiently the network serves them, and better ones
(arXiv 2503.05324).

    traffic, routes = Traffic.read("traffic.json")
    better = optimize(traffic, "auto").routes
    print(Report(traffic, better, "coll").to_json())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .controller import Controller
    from .efficiency import Report
    from .fabric import Clos
    from .job import Job
    from .metric import rates
    from .routers import optimize
    from .scenario import Scenario
    from .traffic import Flow, Traffic

_HOMES = {
    "Clos": "fabric",
    "Controller": "controller",
    "Flow": "traffic",
    "Job": "job",
    "Report": "efficiency",
    "Scenario": "scenario",
    "Traffic": "traffic",
    "optimize": "routers",
    "rates": "metric",
}
__all__ = ["Clos", "Controller", "Flow", "Job", "Report", "Scenario", "Traffic", "optimize", "rates"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The command line: one file per command. Command files import what is heavy inside their functions, so that
`--help` does not pay for it."""

from .app import main

__all__ = ["main"]

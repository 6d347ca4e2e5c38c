"""The commands in the order that `--help` lists them: importing a file registers its command."""

from . import run

__all__ = ["run"]

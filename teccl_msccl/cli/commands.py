"""The commands in the order that `--help` lists them: importing a file registers its command."""

from . import check

__all__ = ["check"]

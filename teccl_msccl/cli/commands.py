"""The commands in the order that `--help` lists them: importing a file registers its command."""

from . import topo  # noqa: F401, I001
from . import check  # noqa: F401
from . import simulate  # noqa: F401

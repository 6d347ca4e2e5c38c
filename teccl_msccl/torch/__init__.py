"""The PyTorch backend `teccl`: `import teccl_msccl.torch`, then `init_process_group("teccl")`.

Importing registers it; torch does so by itself where the package is installed (its entry point `torch.backends`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from .ledger import reset, stats

__all__ = ["register", "reset", "stats"]


def _create(options: Any, _: Any) -> Any:
    """A group from torch's extended options."""
    import torch.distributed as dist

    from .group import TecclGroup

    ranks = list(options.global_ranks_in_group or ())
    world = not dist.is_initialized() or len(ranks) in (0, dist.get_world_size())
    job_rank = ranks[options.group_rank] if ranks else options.group_rank
    return TecclGroup(options.store, options.group_rank, options.group_size, options.timeout, world, job_rank)


def register() -> None:
    """Make `teccl` known to torch.distributed. Idempotent; nothing where torch has no distributed package."""
    import torch.distributed as dist

    if dist.is_available() and "TECCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("teccl", _create, extended_api=True, devices=["cpu", "cuda"])


def _autoload() -> None:
    """What torch calls at its own import: nothing heavier than a registration."""
    register()


with suppress(ImportError):  # without torch there is nobody to register with
    register()

"""What a MILP may be asked to heed beyond a demand on a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ..errors import InputError


@dataclass(frozen=True)
class Tenant:
    """Chunks that belong together, and what an epoch in which some of them are missing costs against other tenants'."""

    chunks: frozenset[int]
    weight: float = 1.0


@dataclass(frozen=True)
class Rules:
    """`tenants` share the links (none: all chunks are one's). A GPU holds at most `relay_chunks` chunks that it neither
    has from the beginning nor wants (None: any number). `shares` is what of its bandwidth a link has, by link id, in
    every epoch, 0…1, the last value for good (absent: all). (TE-CCL, arXiv 2305.13479, appendix.)
    """

    tenants: tuple[Tenant, ...] = ()
    relay_chunks: int | None = None
    shares: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InputError` for figures that mean nothing."""
        if self.relay_chunks is not None and self.relay_chunks < 0:
            raise InputError(f"relay_chunks is {self.relay_chunks}; it must be 0 or more")
        for tenant in self.tenants:
            if not 0 < tenant.weight < inf:
                raise InputError(f"a tenant's weight is {tenant.weight}; it must be positive")
        for link, shares in self.shares.items():
            if not shares or not all(0 <= share <= 1 for share in shares) or shares[-1] == 0:
                raise InputError(f"link {link}: shares must be 0…1 and not end with 0")

    @property
    def constrain(self) -> bool:
        """Whether a schedule made without them may break them, and moving a send to an earlier time, too."""
        return self.relay_chunks is not None or bool(self.shares)

    def share(self, link: int, epoch: int) -> float:
        """What of its bandwidth the link has in that epoch."""
        shares = self.shares.get(link)
        return 1.0 if shares is None else shares[min(epoch, len(shares) - 1)]

    def span(self, link: int, epoch: int, epochs: float) -> int:
        """How many epochs from `epoch` on a transfer occupies the link that takes `epochs` of its full bandwidth."""
        done, count = 0.0, 0
        while done < epochs - 1e-9:
            done += self.share(link, epoch + count)
            count += 1
        return max(1, count)

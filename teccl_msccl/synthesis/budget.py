"""A budget: how long a computation may go on before it has to do with what it has."""

from __future__ import annotations

from math import inf
from time import thread_time


class Budget:
    """Seconds of the calling thread on a processor, from now on: a busy machine leaves the same work in them."""

    def __init__(self, seconds: float = inf) -> None:
        self._until = thread_time() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._until - thread_time())

    @property
    def spent(self) -> bool:
        return self.seconds_left <= 0

    def part(self, share: float) -> Budget:
        """That share of what is left."""
        return Budget(share * self.seconds_left)


UNLIMITED = Budget()

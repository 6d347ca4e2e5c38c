"""Types of the C++ core (csrc/python)."""

import numpy as np
from numpy.typing import NDArray

class Program:
    def __init__(
        self,
        *,
        collective: str,
        protocol: str,
        channels: int,
        chunks_per_loop: int,
        in_place: bool,
        out_of_place: bool,
        gpus: NDArray[np.int64],
        threadblocks: NDArray[np.int64],
        steps: NDArray[np.int64],
    ) -> None: ...
    @property
    def ranks(self) -> int: ...

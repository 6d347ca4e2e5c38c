"""The processes that torchrun starts, one rank each, and their exchanges over torch.distributed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

from ..errors import InputError
from .agreement import attempt
from .launch import Launch
from .world import Answer

#: A process that has not answered for so long is taken for lost.
PATIENCE = timedelta(minutes=5)

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torch_launched() -> Launch | None:
    """The launch by torchrun (or whoever sets its variables) that this process is part of. Raises `InputError` for
    a RANK and WORLD_SIZE that are no such numbers."""
    if not all(os.environ.get(variable) for variable in _VARIABLES):
        return None
    rank, size = (_number(variable) for variable in ("RANK", "WORLD_SIZE"))
    if not rank < size:
        raise InputError(f"RANK={rank} with WORLD_SIZE={size}; ranks are 0 to {max(0, size - 1)}")
    return Launch("torch", size, rank)


def _number(variable: str) -> int:
    text = os.environ[variable]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"{variable}={text[:40]!r} in the environment is no number; start with torchrun")
    return int(text)


class TorchRanks:
    """The process group of torchrun's processes: over NCCL between the GPUs, each process having that of its
    LOCAL_RANK; over gloo between host memories where torch sees no GPU.

    As a context manager it leaves no process waiting: an error that all have agreed on (see `attempt`) passes
    through, any other is printed and ends this process, upon which torchrun ends the others.
    """

    def __init__(self, launch: Launch) -> None:
        """Join the others. Raises `InputError` if torch is missing or the group does not come together."""
        # rank i is to be the i-th GPU as nvidia-smi counts, not as CUDA guesses their speeds
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        try:
            import torch
            import torch.distributed
        except ImportError as error:
            what = "torch is not installed" if error.name == "torch" else f"torch cannot be loaded ({error})"
            raise InputError(f"started by torchrun, but {what}; pip install 'teccl-msccl[torch]'") from None
        if not torch.distributed.is_available():
            raise InputError("started by torchrun, but this torch has no torch.distributed; use another build of it")
        self._torch = torch
        self.rank, self.nranks = launch.rank, launch.size
        self.speaks = self.rank == 0
        self.on_gpus: bool = torch.cuda.is_available()
        self.device = torch.device("cpu")
        self._agreed: BaseException | None = None
        try:  # what the processes tell each other stays on gloo, which waits without spinning
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if self.on_gpus else "gloo", timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"cannot join torchrun's process group at {address}: {reason[:200]}") from None

    def __enter__(self) -> TorchRanks:
        if self.on_gpus:
            self.device = self.attempt(self._own_gpu)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or error is self._agreed:
            self._torch.distributed.destroy_process_group()
            return
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"error: rank {self.rank}: {line}", file=sys.stderr, flush=True)
        os._exit(2 if isinstance(error, InputError) else 1)  # a group whose ranks are apart cannot be taken down

    def _own_gpu(self) -> Any:
        cuda = self._torch.cuda
        local = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else self.rank
        ngpus = cuda.device_count()
        if local >= ngpus:
            raise InputError(
                f"process {local} of this host has no GPU, there are {ngpus}; use --nproc-per-node {ngpus}"
            )
        cuda.set_device(local)
        return self._torch.device("cuda", local)

    # -- agreement --------------------------------------------------------------------------------------------

    def gather(self, mine: Any) -> list[Any]:
        """Every process' object, in the order of ranks."""
        everyone: list[Any] = [None] * self.nranks
        self._torch.distributed.all_gather_object(everyone, mine)
        return everyone

    def attempt(self, action: Callable[[], Answer]) -> Answer:
        answer, self._agreed = attempt(action, self.gather)
        if self._agreed is not None:
            raise self._agreed
        return answer  # type: ignore[return-value]

    # -- what is timed ----------------------------------------------------------------------------------------

    def meet(self) -> None:
        self._torch.distributed.all_reduce(self._torch.zeros(1))

    def buffer(self, nbytes: int) -> Any:
        return self._torch.zeros(nbytes, dtype=self._torch.uint8, device=self.device)

    def send(self, buffer: Any, peer: int) -> None:
        self._torch.distributed.send(buffer, peer)

    def receive(self, buffer: Any, peer: int) -> None:
        self._torch.distributed.recv(buffer, peer)

    def settle(self) -> None:
        if self.on_gpus:
            self._torch.cuda.synchronize()

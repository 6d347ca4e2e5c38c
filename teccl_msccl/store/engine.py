"""Where a build's jobs run: processes of this machine, or an existing engine's workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from ..errors import InputError, unknown

ENGINES = ("local", "dask")


@contextmanager
def engine_named(name: str, jobs: int, scheduler: str | None) -> Iterator[Executor]:
    """An executor: "local" has `jobs` processes; "dask" the workers of the cluster at `scheduler` (None: one made
    here of `jobs` workers), which redo what a lost worker had begun. Workers elsewhere must see the store's folder."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "local":
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--engine dask needs dask.distributed; pip install 'teccl-msccl[dask]'") from None
    how = {"address": scheduler} if scheduler else {"n_workers": jobs, "threads_per_worker": 1}
    try:
        client = Client(**how, timeout=30)
    except OSError as error:
        raise InputError(f"{scheduler}: no dask scheduler answers there ({error}); check --scheduler") from None
    with client:
        yield client.get_executor(pure=False, retries=3)

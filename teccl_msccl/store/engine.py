"""Where a build's jobs run: processes of this machine, or an existing engine's workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from ..errors import InputError, unknown

ENGINES = ("local", "dask", "ray")
#: How often a job is begun again when its worker is lost.
RETRIES = 3


@contextmanager
def engine_named(name: str, jobs: int, scheduler: str | None) -> Iterator[Executor]:
    """An executor: "local" has `jobs` processes; "dask" and "ray" the workers of the cluster at `scheduler` (None: one
    made here of `jobs` workers), which redo what a lost worker had begun. Workers elsewhere must see the store's
    folder."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "local":
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    elif name == "dask":
        with _dask(jobs, scheduler) as client:
            yield client.get_executor(pure=False, retries=RETRIES)
    else:
        with _ray(jobs, scheduler) as cluster:
            yield cluster


def _dask(jobs: int, scheduler: str | None) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--engine dask needs dask.distributed; pip install 'teccl-msccl[dask]'") from None
    how = {"address": scheduler} if scheduler else {"n_workers": jobs, "threads_per_worker": 1}
    try:
        return Client(**how, timeout=30)
    except OSError as error:
        raise InputError(f"{scheduler}: no dask scheduler answers there ({error}); check --scheduler") from None


@contextmanager
def _ray(jobs: int, scheduler: str | None) -> Iterator[Executor]:
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs ray; pip install 'teccl-msccl[ray]'") from None
    how: dict[str, Any] = {"address": scheduler} if scheduler else {"address": "local", "num_cpus": jobs}
    try:
        ray.init(**how, include_dashboard=None if scheduler else False, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError) as error:
        line = " ".join(str(error).split())
        raise InputError(f"{scheduler}: no ray cluster answers there ({line}); check --scheduler") from None
    try:
        yield _RayExecutor(ray)
    finally:
        ray.shutdown()


class _RayExecutor(Executor):
    """Ray's tasks as futures."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._ray.remote(fn).options(max_retries=RETRIES).remote(*args, **kwargs).future()
        return future

"""Calls under way: what torch waits for, and the thread that does them in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

Job = Callable[[], Any]

#: Calls that nobody has asked about and that are kept all the same.
MOST_KEPT = 1024


class Pending(dist._Work):  # type: ignore[misc]  # torch is Any here
    """A call under way. torch's own wrapper of futures does not raise their errors where one waits for it.

    torch's C++ side keeps no hold of what is Python in a Work, so the group does (in `kept`) until someone asks; of
    works that nobody asks for, only of the latest.
    """

    def __init__(self, future: Any, kept: dict[int, Pending]) -> None:
        super().__init__()
        self._future, self._kept = future, kept
        kept[id(self)] = self
        if len(kept) > MOST_KEPT:
            kept.pop(next(iter(kept)), None)

    def wait(self, timeout: Any = None) -> bool:
        self._kept.pop(id(self), None)
        self._future.wait()
        return True

    def get_future(self) -> Any:
        self._kept.pop(id(self), None)
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Any:
        return self._future.value()


class Worker:
    """A thread that does jobs in their order. The first failure is what every later job fails with."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Any] | None] = queue.SimpleQueue()
        self._broken = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False
        self._lock = threading.Lock()

    def put(self, job: Job, future: Any) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                self._thread.start()
        self._jobs.put((job, future))

    def require_whole(self) -> None:
        if self._broken:
            raise RuntimeError(self._broken)

    def close(self) -> bool:
        """End after the jobs there are; whether they came to an end soon."""
        with self._lock:
            if self._started and self._thread.is_alive():
                self._jobs.put(None)
                if threading.current_thread() is not self._thread:
                    self._thread.join(1.0)
            return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            try:
                self.require_whole()
                future.set_result(job())
            except BaseException as error:
                self._broken = self._broken or f"teccl: the group is broken: {error}"
                future.set_exception(error if isinstance(error, RuntimeError) else RuntimeError(str(error)))
            del item, job, future  # tensors live no longer than their call


def on_stream(job: Job, tensors: Sequence[Any], streams: dict[Any, Any]) -> Any:
    """Do a job of GPU tensors on a stream of its own, after what the current stream has begun; the future, whose
    waiter's stream goes on when that is done. Nothing waits on the host."""
    device = tensors[0].device
    stream = streams.get(device)
    if stream is None:
        stream = streams[device] = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        future: Any = torch.futures.Future(devices=[device])
        result = job()
        for tensor in tensors:
            tensor.record_stream(stream)  # its memory is not given away before
        future.set_result(result)
    return future

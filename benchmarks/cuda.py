"""The CUDA interpreter's bandwidth against the device's own memcpy: python benchmarks/cuda.py

Target: virtual ranks copy at 70 % of device memcpy or more. Exit code 1 where it is missed; without a GPU it says so.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from teccl_msccl.errors import InputError
from teccl_msccl.program.program import Gpu, Program, Step, Threadblock
from teccl_msccl.runtime.cuda import require_gpu

TARGET = 0.7
THREADBLOCKS = 128


def copies(blocks: int) -> Program:
    """One rank, whose threadblocks each copy their part of its input to its output."""
    tbs = tuple(Threadblock(-1, -1, 0, (Step("cpy", "i", t, "o", t),)) for t in range(blocks))
    return Program("copies", "broadcast", "Simple", 1, blocks, False, True, (Gpu(blocks, blocks, 0, tbs),))


def messages(blocks: int, protocol: str) -> Program:
    """A rank sends its input to another through half as many connections: every byte is copied twice."""
    half = blocks // 2
    sends = tuple(Threadblock(1, -1, c, (Step("s", "i", c, "o", c),)) for c in range(half))
    receives = tuple(Threadblock(-1, 0, c, (Step("r", "i", c, "o", c),)) for c in range(half))
    gpus = (Gpu(half, half, 0, sends), Gpu(half, half, 0, receives))
    return Program("messages", "broadcast", protocol, half, half, False, True, gpus)


def seconds(cuda: Any, program: Program, nbytes: int, times: int) -> float:
    """The best of `times` runs, the memory and the tables there already."""
    memory = [(cuda.Memory(0, nbytes), cuda.Memory(0, nbytes)) for _ in range(program.nranks)]
    run = cuda.GpuRun(
        program.core, dtype="float", op="sum", chunk_elements=nbytes // 4 // program.nchunks, slots=8,
        slot_bytes=512 * 1024,
        buffers=[((i.address, i.nbytes), (o.address, o.nbytes)) for i, o in memory],
    )  # fmt: skip
    best = min(run.run(stream=0, timeout=30)[0] for _ in range(times + 1))
    assert run.run(stream=0, timeout=30)[1] == []
    return float(best)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="of a buffer")
    parser.add_argument("--times", type=int, default=20)
    asked = parser.parse_args()
    try:
        cuda = require_gpu()
    except InputError as error:
        print(f"no GPU: nothing measured ({error})")
        return 0
    nbytes = asked.mib * 2**20
    device = nbytes / cuda.device_copy_seconds(0, nbytes, asked.times) / 1e9
    print(f"device memcpy              {device:8.1f} GB/s of {asked.mib} MiB")
    copied = nbytes / seconds(cuda, copies(THREADBLOCKS), nbytes, asked.times) / 1e9
    share = copied / device
    verdict = "met" if share >= TARGET else "MISSED"
    print(f"virtual ranks, copies      {copied:8.1f} GB/s  {share:6.1%}  target {TARGET:.0%}: {verdict}")
    for protocol in ("Simple", "LL", "LL128"):
        sent = nbytes / seconds(cuda, messages(THREADBLOCKS, protocol), nbytes, asked.times) / 1e9
        print(f"virtual ranks, {protocol:11} {sent:8.1f} GB/s  {sent / device:6.1%}  (two copies of every byte)")
    return 0 if share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())

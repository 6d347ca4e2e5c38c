"""What the NCCL tuner plugin adds to a collective call: python benchmarks/tuner.py

NCCL asks the plugin once for every collective that it enqueues. Printed: nanoseconds a call, with the cost file of a
machine as the store writes it, against a call of an empty function through ctypes, which is in both.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
import tempfile
import time
from pathlib import Path

from teccl_msccl.runtime.doctor import libraries
from teccl_msccl.store.tuner_file import tuner_text
from teccl_msccl.topology.model import Topology

BATCHES, CALLS = 400, 500


def main() -> int:
    plugin = libraries()["nccl_tuner"]
    if plugin is None:
        print("this build has no tuner plugin; see .ci/dev-build")
        return 1
    topology = Topology.load("ring-3")
    begin = time.perf_counter()
    text = tuner_text(topology)
    print(f"cost file of {topology.name}: {text.count(chr(10)) - 2} costs in {time.perf_counter() - begin:.1f} s")

    init = c.CFUNCTYPE(c.c_int, c.c_size_t, c.c_size_t, c.c_void_p, c.c_void_p)
    finish = c.CFUNCTYPE(c.c_int, c.c_void_p)

    class Tuner(c.Structure):
        _fields_ = (("name", c.c_char_p), ("init", init), ("info", c.c_void_p), ("finish", finish))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "costs.txt")
        path.write_text(text)
        os.environ["TECCL_TUNER_COSTS"] = str(path)
        tuner = Tuner.in_dll(c.CDLL(plugin), "ncclTunerPlugin_v4")
        context = c.c_void_p()
        tuner.init(topology.nranks, 1, None, c.addressof(context))
    info = c.CFUNCTYPE(
        c.c_int, c.c_void_p, c.c_int, c.c_size_t, c.c_int, c.c_void_p, c.c_int, c.c_int, c.c_int, c.c_void_p
    )(tuner.info)
    table = (c.c_float * 21)(*[100.0] * 21)
    channels = c.c_int()

    def nanoseconds(context: c.c_void_p) -> float:
        arguments = (context, 4, 1_000_000, 1, c.addressof(table), 7, 3, 0, c.addressof(channels))
        best = float("inf")
        for _ in range(BATCHES):  # the best: others use the machine, too
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                info(*arguments)
            best = min(best, (time.perf_counter_ns() - start) / CALLS)
        return best

    empty, full = nanoseconds(c.c_void_p()), nanoseconds(context)
    print(f"a call: {full - empty:.0f} ns ({full:.0f} with ctypes, of which {empty:.0f} are its own)")
    tuner.finish(context)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Targets and results of the NCCL interposer: `python benchmarks/interposer.py`.

Two ranks call a stand-in for NCCL in host memory, which refuses what the delegated calls ask at once; the least of 50
runs of 2000 calls. Selection is a call inside a group until its program is chosen and put down, over 5000 sizes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from teccl_msccl.runtime.doctor import libraries
from teccl_msccl.store.rounds_file import packed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from nccl_standin.programs import served
from nccl_standin.standin import build_standin

#: What, the driver program's name for it, and nanoseconds at most.
TARGETS = (("overhead of a delegated call", "delegated_ns", 200), ("selection of a program", "selection_ns", 2000))


def main() -> int:
    library = libraries()["nccl_interposer"]
    if library is None:
        print("this build of teccl-msccl has no libteccl_nccl.so; pip install it anew")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = build_standin(folder)
        (folder / "programs.teccl").write_bytes(packed(served(2), [0, 0]))
        variables = {
            "LD_LIBRARY_PATH": name,
            "TECCL_NCCL_PROGRAMS": str(folder / "programs.teccl"),
            "LD_PRELOAD": library,
        }
        command = [str(driver), "overhead", "ranks=2"]
        done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
    measured = next(values for values in map(json.loads, done.stdout.splitlines()) if "delegated_ns" in values)
    missed = 0
    for what, key, most in TARGETS:
        verdict = "ok" if measured[key] <= most else "MISSED"
        missed += verdict != "ok"
        print(f"{what:32} target ≤ {most:5} ns   measured {measured[key]:7.1f} ns   {verdict}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

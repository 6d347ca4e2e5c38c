"""Stock NCCL under the interposer, on the GPUs that are here: several ranks share one where there are too few."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from nccl_standin.programs import served
from nccl_standin.standin import build_driver

from teccl_msccl.runtime.doctor import libraries
from teccl_msccl.store.rounds_file import packed

LIBRARY = libraries()["nccl_interposer"]
RANKS = 4


def gpus() -> int:
    """How many the driver sees."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def nccl_folder() -> Path | None:
    """Where libnccl.so.2 is: $NCCL_HOME, or a wheel of NVIDIA's."""
    homes = [Path(os.environ["NCCL_HOME"])] if "NCCL_HOME" in os.environ else []
    homes += [Path(each or ".") / "nvidia" / "nccl" for each in sys.path]
    return next((home / "lib" for home in homes if (home / "lib" / "libnccl.so.2").exists()), None)


def version(folder: Path) -> int:
    number = ctypes.c_int()
    ctypes.CDLL(str(folder / "libnccl.so.2")).ncclGetVersion(ctypes.byref(number))
    return number.value


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Variables for RANKS ranks under the interposer."""
    folder = nccl_folder()
    if LIBRARY is None:
        pytest.skip("this build has no libteccl_nccl.so")
    if not gpus():
        pytest.skip("no NVIDIA GPU")
    if folder is None:
        pytest.skip("no NCCL: pip install nvidia-nccl-cu13, or set NCCL_HOME")
    if gpus() < RANKS and version(folder) < 23000:
        pytest.skip(f"{RANKS} ranks on {gpus()} GPU(s) need NCCL 2.30 or later")
    path = tmp_path_factory.mktemp("programs") / "programs.teccl"
    path.write_bytes(packed(served(RANKS), [0] * RANKS))
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if gpus() < RANKS else {}
    return {
        **os.environ,
        **shared,
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        "LD_PRELOAD": LIBRARY,
        "TECCL_NCCL_PROGRAMS": str(path),
        "TECCL_DEBUG": "INFO",
    }


@pytest.fixture(scope="module")
def driver(tmp_path_factory, environment) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the driver program")
    folder = nccl_folder()
    links = [f"-L{folder}", "-l:libnccl.so.2", "-l:libcuda.so.1", *(f"-L{each}" for each in driver_folders())]
    return build_driver(tmp_path_factory.mktemp("driver"), links)


def driver_folders() -> list[Path]:
    """Where the linker may find libcuda.so.1."""
    named = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib/aarch64-linux-gnu")]
    return [folder for folder in named if (folder / "libcuda.so.1").exists()]


@pytest.mark.parametrize("scenario", ["all", "group", "graph", "streams", "split"])
def test_every_byte_is_as_nccl_says(driver, environment, scenario) -> None:
    command = [driver, scenario, f"ranks={RANKS}", f"devices={gpus()}", "counts=1,1000,300000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and not any(rank["wrong"] for rank in ranks), done.stderr[-3000:]
    assert " custom" in done.stderr, "nothing ran as a program"


TORCH = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl")
n = dist.get_world_size()
for size in (1, 1000, 300_000):
    mine = torch.arange(size, device="cuda", dtype=torch.float32) % 64 + rank
    whole = torch.empty(n * size, device="cuda")
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole.view(n, size), torch.stack([mine - rank + r for r in range(n)]))
    total = mine.clone()
    dist.all_reduce(total)
    assert torch.equal(total, (mine - rank) * n + n * (n - 1) / 2)
    part = torch.empty(size, device="cuda")
    dist.reduce_scatter_tensor(part, mine.repeat(n))
    assert torch.equal(part, total)
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_pytorch_unchanged(environment, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    script = tmp_path / "job.py"
    script.write_text(TORCH)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={RANKS}",
        f"--master-port={port}",
        script,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "summary: allgather:" in done.stderr and " custom" in done.stderr

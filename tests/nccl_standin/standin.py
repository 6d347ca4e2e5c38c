"""Building the stand-in for NCCL and CUDA, and the driver program that calls it."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
INCLUDE = f"-I{HERE.parents[1] / 'csrc' / 'nccl'}"


def build_standin(folder: Path) -> Path:
    """The stand-in in `folder`, under the names of what it stands for, and a driver program linked to it."""
    sources = [HERE / "standin_cuda.cpp", HERE / "standin_nccl.cpp"]
    options = ["-std=c++17", "-O0", "-fPIC", "-shared", "-pthread"]
    subprocess.run(["c++", *options, INCLUDE, *sources, "-o", folder / "libstandin.so"], check=True)
    for name in ("libnccl.so.2", "libcuda.so.1", "libnvrtc.so.12"):
        (folder / name).symlink_to("libstandin.so")
    return build_driver(folder, [f"-L{folder}", "-l:libnccl.so.2", "-l:libcuda.so.1"])


def build_driver(folder: Path, links: list[str]) -> Path:
    """The driver program in `folder`, for the NCCL and CUDA that `links` name to the linker."""
    command = ["cc", "-O1", INCLUDE, HERE / "driver.c", "-o", folder / "driver", *links, "-ldl", "-pthread"]
    subprocess.run(command, check=True)
    return folder / "driver"

"""What this machine has of all that the tools can use: looked for, never installed or changed."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One thing: whether it is here, what is known of it, and what to do where it is not (or is not enough)."""

    name: str
    found: bool
    detail: str
    advice: str = ""
    needed: bool = False


def examine() -> list[Finding]:
    """Everything, in the order in which a newcomer needs it. Nothing raises."""
    found = []
    for look in (
        _python,
        _core,
        _solvers,
        _pictures,
        _mpi,
        _torch,
        _nvidia,
        _kernel,
        _amd,
        _nccl,
        _rccl,
        _mscclpp,
        _msccl,
    ):
        found += list(look())
    return found


def libraries() -> dict[str, str | None]:
    """Paths of the libraries that come with the package; None for those that this build has not."""
    import teccl_msccl

    names = {"nccl_interposer": "libteccl_nccl.so", "nccl_tuner": "libnccl-tuner-teccl.so"}
    places = [Path(folder) for folder in teccl_msccl.__path__]
    return {
        key: next((str(path) for place in places for path in place.rglob(file)), None) for key, file in names.items()
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _package(name: str, package: str, module: str, advice: str, needed: bool = False) -> Finding:
    there = _importable(module)
    return Finding(
        name, there, f"{package} {_version(package) or ''}".strip() if there else "", "" if there else advice, needed
    )


def _importable(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    yield Finding("python", good, platform.python_version(), "" if good else "use Python 3.11 or later", True)


def _core() -> Iterator[Finding]:
    there = _importable("teccl_msccl._core")
    yield Finding("compiled core", there, "", "" if there else "build it: pip install . (needs a C++ compiler)", True)


def _solvers() -> Iterator[Finding]:
    yield _package("CBC", "mip", "mip", "pip install mip", True)
    yield _package("HiGHS", "highsbox", "highsbox", "optional: pip install highsbox, then synth --solver highs")


def _pictures() -> Iterator[Finding]:
    yield _package("pictures", "matplotlib", "matplotlib", "pip install 'teccl-msccl[report]'")


def _mpi() -> Iterator[Finding]:
    launcher = shutil.which("mpirun") or shutil.which("mpiexec")
    bindings = _importable("mpi4py")
    advice = "" if launcher and bindings else "to execute over ranks and hosts: pip install 'teccl-msccl[mpi]'"
    yield Finding("MPI", bool(launcher and bindings), launcher or "", advice)


def _torch() -> Iterator[Finding]:
    yield _package(
        "PyTorch", "torch", "torch", "for jobs and measurements under torchrun: pip install 'teccl-msccl[torch]'"
    )


def _nvidia() -> Iterator[Finding]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no driver, no library, no permission: NVML says it in many ways
        yield Finding(
            "NVIDIA GPUs", False, str(error), "on a GPU machine: topo detect; here: a preset or a saved capture"
        )
        return
    try:
        names = [_text(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
                 for i in range(pynvml.nvmlDeviceGetCount())]  # fmt: skip
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        kinds = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
        yield Finding(
            "NVIDIA GPUs", bool(names), f"{kinds or 'none'}, driver {driver}", "" if names else "no GPU is visible"
        )
    except Exception as error:
        yield Finding("NVIDIA GPUs", False, str(error), "NVML is here, but does not answer; see nvidia-smi")
    finally:
        pynvml.nvmlShutdown()


def _kernel() -> Iterator[Finding]:
    there = _importable("teccl_msccl._cuda")
    advice = "" if there else "to execute programs on NVIDIA GPUs (run --cuda): pip install . with nvcc on the PATH"
    yield Finding("CUDA kernel", there, "", advice)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _amd() -> Iterator[Finding]:
    there = Path("/sys/class/kfd").exists()
    if there or shutil.which("rocm-smi"):
        yield Finding("AMD GPUs", there, "amdgpu" if there else "", "" if there else "the amdgpu driver is not loaded")


def _library(name: str, version: Callable[[ctypes.CDLL], str]) -> tuple[bool, str]:
    """Whether a shared library loads, and what it says of itself."""
    path = ctypes.util.find_library(name)
    for folder in sys.path:
        hit = next(Path(folder).glob(f"nvidia/{name}/lib/lib{name}.so*"), None) if folder else None
        path = path or (str(hit) if hit else None)
    if path is None:
        return False, ""
    try:
        return True, f"{version(ctypes.CDLL(path))} ({path})"
    except (OSError, AttributeError) as error:
        return False, str(error)


def _nccl_version(library: ctypes.CDLL) -> str:
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def _nccl() -> Iterator[Finding]:
    there, detail = _library("nccl", _nccl_version)
    advice = (
        "" if there else "comes with PyTorch for CUDA; stock NCCL takes no schedules, so run executes them anywhere"
    )
    yield Finding("NCCL", there, detail, advice)


def _rccl() -> Iterator[Finding]:
    there, detail = _library("rccl", _nccl_version)
    if there:
        takes = "up to ROCm 7.2 it takes MSCCL XML: RCCL_MSCCL_ENABLE=1, MSCCL_ALGO_DIR=directory"
        yield Finding("RCCL", True, detail, takes)


def _mscclpp() -> Iterator[Finding]:
    advice = "to execute plans (--target mscclpp) on GPUs: github.com/microsoft/mscclpp"
    yield _package("MSCCL++", "mscclpp", "mscclpp", advice)


def _msccl() -> Iterator[Finding]:
    enabled, folder = os.environ.get("NCCL_MSCCL_ENABLE"), os.environ.get("MSCCL_ALGO_DIR")
    ready = enabled == "1" and folder is not None and Path(folder).is_dir()
    detail = f"NCCL_MSCCL_ENABLE={enabled}, MSCCL_ALGO_DIR={folder}" if enabled or folder else ""
    advice = (
        "" if ready else "with Azure/msccl-executor-nccl: NCCL_MSCCL_ENABLE=1 and MSCCL_ALGO_DIR=directory of the files"
    )
    yield Finding("MSCCL executor's variables", ready, detail, advice)

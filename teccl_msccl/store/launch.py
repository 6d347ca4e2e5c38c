"""Launching: the files of a machine where a runtime looks for them, and the variables that make it look."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import InputError, Refused, unknown
from ..files import write_bytes, write_text
from ..program import xml
from .store import Machine
from .tuner_file import tuned

#: What a runtime is told; the target whose files it takes.
RUNTIMES: Mapping[str, str] = {
    "msccl": "msccl",
    "executor": "executor",
    "rccl": "rccl",
    "torch": "executor",
    "nccl": "executor",
}
#: Files that a runtime loads at most.
_MOST_FILES = {"msccl": 4, "executor": 1024, "rccl": 1024}
#: The first ROCm whose RCCL has no MSCCL any more.
_ROCM_WITHOUT = (7, 13)


def exported(machine: Machine, target: str, directory: Path) -> list[Path]:
    """The machine's files for `target`, with the user's ranks, written to `directory`; each is checked against its
    hash first. Raises `Refused` where there are none or more than the runtime loads."""
    entries = list({entry.file: entry for entry in machine.manifest.entries if entry.target == target}.values())
    if not entries:
        built = sorted({entry.target for entry in machine.manifest.entries})
        raise Refused(
            f"{machine.folder}: nothing for target {target} (it has {', '.join(built) or 'nothing'}); "
            f"run store build with --targets {target}"
        )
    if len(entries) > _MOST_FILES[target]:
        raise Refused(
            f"{machine.folder}: {len(entries)} files for {target}, which loads at most {_MOST_FILES[target]}; build "
            "for fewer collectives or sizes"
        )
    texts = {entry.file: xml.to_text(machine.program(entry)) for entry in entries}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        strangers = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name not in texts)
    except OSError as error:
        raise InputError(f"{directory}: cannot write there: {error.strerror}; choose another -o") from None
    if strangers:  # runtimes parse every file of their directory, and one bad file fails them all
        raise InputError(f"{directory}: has other files ({strangers[0]}); choose an empty directory")
    for name, text in texts.items():
        write_text(directory / name, text)
    return [directory / name for name in texts]


def require_runtime(runtime: str) -> None:
    """Raises `InputError` for an unknown runtime, `Refused` for one that is not told by variables."""
    if runtime == "mscclpp":
        raise Refused(
            "MSCCL++ looks for its plans in no directory, and the store has none: run synth --target mscclpp -o "
            "plan.json, and have the job call teccl_msccl.runtime.mscclpp.register on it; or use --runtime nccl or "
            "torch"
        )
    if runtime not in RUNTIMES:
        raise unknown("runtime", runtime, RUNTIMES)


def environment(
    machine: Machine, runtime: str, store_root: Path, note: Callable[[str], None] = lambda line: None
) -> dict[str, str]:
    """The variables to set for `runtime` on every rank. Exports the files beside the store's, and tells `note` what it
    has left out of them. Raises `InputError` for an unknown runtime, `Refused` for one that cannot take the files."""
    require_runtime(runtime)
    if runtime == "torch":
        if not any(entry.target == "executor" for entry in machine.manifest.entries):
            raise Refused(f"{machine.folder}: nothing for torch; run store build with --targets executor")
        return {
            "TECCL_STORE": str(store_root.absolute()),
            "TECCL_TOPOLOGY": str((machine.folder / "topology.json").absolute()),
        }
    numbering = "-".join(map(str, machine.permutation))
    directory = machine.folder / "exports" / f"{runtime}-{abs(hash_of(numbering)):x}"
    if runtime == "nccl":
        variables = _interposed(machine, directory / "programs.teccl", note) | tuned(machine)
        if not variables:
            raise Refused(
                f"{machine.folder}: nothing for nccl; run store build with --targets executor, or store export --tuner"
            )
        return variables
    files = exported(machine, RUNTIMES[runtime], directory)
    folder = str(files[0].parent.absolute())
    if runtime == "msccl":
        return {"MSCCL_XML_FILES": ":".join(str(path.absolute()) for path in files), "NCCL_ALGO": "MSCCL,RING,TREE"}
    if runtime == "executor":
        return {"NCCL_MSCCL_ENABLE": "1", "MSCCL_ALGO_DIR": folder}
    channels = max(xml.read(path, "rccl").nchannels for path in files)
    return {
        "RCCL_MSCCL_ENABLE": "1",
        "RCCL_MSCCL_FORCE_ENABLE": "1",
        "MSCCL_ALGO_DIR": folder,
        "NCCL_MAX_NCHANNELS": str(channels),
    }


def _interposed(machine: Machine, path: Path, note: Callable[[str], None]) -> dict[str, str]:
    """The interposer before all else that is preloaded, and the programs that it reads, if there are any."""
    from ..runtime.doctor import libraries
    from .rounds_file import rounds_file

    if not any(entry.target == "executor" for entry in machine.manifest.entries):
        return {}
    library = libraries()["nccl_interposer"]
    if library is None:
        raise Refused("this build of teccl-msccl has no libteccl_nccl.so; pip install it anew")
    data, left_out = rounds_file(machine)
    for why in left_out:
        note(f"left out, and left to NCCL: {why}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot write there: {error.strerror}; choose another --store") from None
    write_bytes(path, data)
    others = [each for each in os.environ.get("LD_PRELOAD", "").split(":") if each and each != library]
    return {"LD_PRELOAD": ":".join([library, *others]), "TECCL_NCCL_PROGRAMS": str(path.absolute())}


def hash_of(text: str) -> int:
    """A small number that is the same in every process."""
    import zlib

    return zlib.crc32(text.encode())


def require_launchable(machine: Machine, runtime: str, command: list[str], rocm: str | None = None) -> None:
    """Raise `Refused`, with the reason, for a command that starts ranks which cannot use the files."""
    nranks = machine.topology.nranks
    started = _started(command)
    if started is not None and started != nranks:
        raise Refused(f"the command starts {started} ranks, and the files are for {nranks}; start {nranks}")
    if "-g" in command and command.index("-g") + 1 < len(command):
        per_process = command[command.index("-g") + 1]
        if per_process.isdigit() and int(per_process) > 1 and runtime in ("executor", "msccl", "rccl"):
            raise Refused(f"-g {per_process}: one process with several GPUs cannot use the files; start one per GPU")
    version = rocm if rocm is not None else _rocm()
    if runtime == "rccl" and version and _numbers(version) >= _ROCM_WITHOUT:
        raise Refused(f"ROCm {version}: its RCCL has no MSCCL any more (removed in 7.13); use --runtime torch")


def _started(command: list[str]) -> int | None:
    """How many ranks torchrun, mpirun or srun would start, if the command says."""

    def value(*names: str) -> int | None:
        for position, word in enumerate(command):
            for name in names:
                text = word[len(name) + 1 :] if word.startswith(f"{name}=") else ""
                if word == name and position + 1 < len(command):
                    text = command[position + 1]
                if text.isdigit():
                    return int(text)
        return None

    launcher = Path(command[0]).name if command else ""
    if launcher in ("mpirun", "mpiexec", "mpiexec.hydra"):
        return value("-np", "-n", "--np", "-c")
    if launcher == "srun":
        return value("-n", "--ntasks")
    if launcher == "torchrun" or "torch.distributed.run" in command:
        per_node = value("--nproc-per-node", "--nproc_per_node")
        nodes = value("--nnodes") or 1
        return None if per_node is None else per_node * nodes
    return None


def _rocm() -> str:
    try:
        return Path(os.environ.get("ROCM_PATH", "/opt/rocm"), ".info", "version").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])

"""The first minutes of a newcomer: python benchmarks/newcomer.py [--install]

Medians over fresh processes with byte code written, as pip leaves it: what `import teccl_msccl` adds to an empty
interpreter, and `teccl-msccl --help`, in processor time (which is judged, as other work on the machine disturbs it
less) and in wall time; and what is imported for the help. With --install, a clone of this checkout in a new virtual
environment, the README's commands from install to report word for word, each timed, and what the environment weighs,
its heaviest packages named. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT_MS, HELP_MS, WALK_S, INSTALL_MB = 150, 400, 300, 1000
RUNS = 15


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def medians_ms(*code: str) -> tuple[float, float]:
    """Processor and wall time."""
    processor, wall = [], []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-X", f"pycache_prefix={folder}", "-c", *code]
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        seconds(command)
        for _ in range(RUNS):
            before = processor_seconds()
            wall.append(1e3 * seconds(command))
            processor.append(1e3 * (processor_seconds() - before))
    return statistics.median(processor), statistics.median(wall)


def said(what: str, value: float, target: float, unit: str, more: str = "") -> bool:
    good = value <= target
    print(f"{what:32} {value:8.0f} {unit}  (target {target:.0f}) {'ok' if good else 'MISSED'}{more}", flush=True)
    return good


def start() -> bool:
    """The import and the help."""
    empty, empty_wall = medians_ms("pass")
    imported, imported_wall = medians_ms("import teccl_msccl")
    help_ms, help_wall = medians_ms("from teccl_msccl.cli import main; main()", "--help")
    print(f"{'an empty interpreter':32} {empty:8.0f} ms  ({empty_wall:.0f} ms of wall time)")
    good = said(
        "import teccl_msccl", imported - empty, IMPORT_MS, "ms", f", {imported_wall - empty_wall:.0f} ms of wall time"
    )
    good &= said("teccl-msccl --help, all of it", help_ms, HELP_MS, "ms", f", {help_wall:.0f} ms of wall time")
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from teccl_msccl.cli import main; main()", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)", told.stderr)
    shares: dict[str, int] = {}
    for own, _, _, name in rows:
        shares[name.split(".")[0]] = shares.get(name.split(".")[0], 0) + int(own)
    for name, us in sorted(shares.items(), key=lambda item: -item[1])[:6]:
        print(f"    of which {name:23} {us / 1e3:8.0f} ms of imports, traced")
    return good


def commands() -> list[str]:
    """What the README has one do, from the install to the report: no tests, no mpirun."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks[:3] for line in block.splitlines()]
    return [line for line in lines if "pytest" not in line and not line.startswith("mpirun")]


def walk() -> bool:
    """A newcomer's way."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        taken = {"git clone": seconds(["git", "clone", "-q", str(ROOT), str(clone)])}
        taken["python3 -m venv"] = seconds([sys.executable, "-m", "venv", str(clone / ".venv")])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PATH"] = f"{clone / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
        for line in " && ".join(commands()).split(" && "):
            began = time.perf_counter()
            done = subprocess.run(
                ["bash", "-c", line], cwd=clone, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
                return False
            taken[line] = time.perf_counter() - began
        for line, part in taken.items():
            print(f"    {part:7.1f} s  {line}")
        good = said("all of it", sum(taken.values()), WALK_S, "s")
        packages = next((clone / ".venv").glob("lib/python*/site-packages"))
        sizes = {path.name: _megabytes(path) for path in packages.iterdir()}
        good &= said("installed", _megabytes(clone / ".venv"), INSTALL_MB, "MB")
        for name, megabytes in sorted(sizes.items(), key=lambda item: -item[1])[:5]:
            print(f"    {megabytes:7.0f} MB  {name}")
        return good


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="walk the README in a new environment, too: minutes")
    asked = parser.parse_args()
    good = start()
    return 0 if (walk() if asked.install else True) and good else 1


if __name__ == "__main__":
    sys.exit(main())

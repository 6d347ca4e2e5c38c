"""A store on disk: one folder a machine, named by its topology's fingerprint.

    ROOT/FINGERPRINT/topology.json   the machine, its ranks numbered as the programs number them
    ROOT/FINGERPRINT/manifest.json   replaced as a whole, under the lock
    ROOT/FINGERPRINT/HASH.xml        programs, named by what is in them
    ROOT/FINGERPRINT/candidates/     what builders have finished so far, so that the next can go on
    ROOT/FINGERPRINT/lock

Readers take no lock: files are renamed into place, and everything is checked against its hash when it is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..errors import InputError, Refused
from ..files import parse_json, read_bytes, write_bytes, write_text
from ..program import xml
from ..program.program import Program
from ..program.renumber import renumbered
from ..topology.model import Topology
from ..topology.symmetry import fingerprint, isomorphism, match
from .manifest import Entry, Key, Manifest

VARIABLE = "TECCL_STORE"
DEFAULT = "~/.cache/teccl-msccl"


@dataclass(frozen=True)
class Machine:
    """A machine of the store as its ranks are numbered by a user: rank r of theirs is `permutation[r]` in the files."""

    folder: Path
    manifest: Manifest
    topology: Topology
    permutation: tuple[int, ...]

    def root_in_files(self, root: int | None) -> int | None:
        """Raises `InputError` for a root that is no rank."""
        if root is not None and not 0 <= root < len(self.permutation):
            raise InputError(f"root {root} is not a rank of {self.topology.name}; use 0..{len(self.permutation) - 1}")
        return None if root is None else self.permutation[root]

    def select(
        self, collective: str, size_bytes: int, target: str = "executor", root: int | None = None
    ) -> Entry | None:
        """The entry that serves `size_bytes` (counted as in nccl-tests)."""
        return self.manifest.select(collective, size_bytes, target, self.root_in_files(root))

    def program(self, entry: Entry) -> Program:
        """The program of an entry for the user's ranks. Raises `InputError` where the file is not what was filed."""
        path = self.folder / entry.file
        data = read_bytes(path, "a program")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise InputError(f"{path}: is not the file that was built (its hash differs); run store build again")
        program = xml.parse(data, str(path), entry.target)
        if (program.collective, program.nranks) != (entry.collective, entry.nranks):
            raise InputError(f"{path}: holds another program than its manifest says; run store build again")
        return renumbered(program, self.permutation)


class Store:
    """The store in a directory (default: $TECCL_STORE, else ~/.cache/teccl-msccl)."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root or os.environ.get(VARIABLE) or DEFAULT).expanduser()

    # -- reading ------------------------------------------------------------------------------------------------

    def folders(self) -> list[Path]:
        """The machines' folders."""
        if not self.root.is_dir():
            return []
        try:
            return sorted(path.parent for path in self.root.glob("*/manifest.json"))
        except OSError as error:
            raise InputError(f"{self.root}: cannot read the store: {error.strerror}; check the path") from None

    def manifest(self, folder: Path) -> Manifest:
        path = folder / "manifest.json"
        return Manifest.from_json(parse_json(read_bytes(path, "a manifest"), path, "the manifest"), str(path))

    def topology(self, folder: Path, manifest: Manifest) -> Topology:
        path = folder / "topology.json"
        data = read_bytes(path, "a topology")
        if hashlib.sha256(data).hexdigest() != manifest.topology_sha256:
            raise InputError(f"{path}: is not the topology that the store was built for; run store build again")
        return Topology.from_json(parse_json(data, path, "the topology"), str(path))

    def find(self, topology: Topology) -> Machine:
        """The store's machine that is `topology` but for the numbering. Raises `Refused` with the nearest and what is
        different there."""
        wanted = fingerprint(topology)
        folders = self.folders()
        first = self.root / wanted
        for folder in [first] * (first in folders) + [each for each in folders if each != first]:
            if folder != first and self.manifest(folder).fingerprint == folder.name and len(folders) > 64:
                continue  # another form of the same machine comes only from another BLISS: not worth a long search
            manifest = self.manifest(folder)
            theirs = self.topology(folder, manifest)
            mapping = isomorphism(topology, theirs)
            if mapping is not None:
                permutation = tuple(theirs.rank_of[mapping[gpu]] for gpu in topology.gpus)
                return Machine(folder, manifest, theirs, permutation)
        raise Refused(self._nearest(topology))

    def _nearest(self, topology: Topology) -> str:
        what = f"{self.root}: has nothing for {topology.name} ({topology.nranks} ranks)"
        others = []
        for folder in self.folders():
            try:
                others.append(self.topology(folder, self.manifest(folder)))
            except InputError:
                continue
        if not others:
            return f"{what}: the store is empty; run store build {topology.name}"

        def distance(other: Topology) -> tuple[int, int]:
            return abs(other.nranks - topology.nranks), abs(len(other.links) - len(topology.links))

        nearest = min(others, key=distance)
        difference = match(topology, nearest, fabric=False).difference
        return f"{what}; nearest is {nearest.name}: {difference}; run store build for this machine"

    # -- writing ------------------------------------------------------------------------------------------------

    def open(self, topology: Topology) -> Machine:
        """The machine to build for: found, or begun with `topology`'s numbering."""
        with self.locked(fingerprint(topology)) as folder:
            if not (folder / "manifest.json").exists():
                text = json.dumps(topology.to_json(), indent=1)
                write_text(folder / "topology.json", text)
                digest = hashlib.sha256(text.encode()).hexdigest()
                self._write(folder, Manifest(folder.name, topology.name, digest))
        return self.find(topology)

    def file(self, machine: Machine, replaced: set[Key], entries: list[tuple[Entry, bytes]]) -> None:
        """Put programs into the store, and their entries in the place of those with the keys `replaced`."""
        import teccl_msccl

        with self.locked(machine.folder.name) as folder:
            for entry, data in entries:
                if not (folder / entry.file).exists() or (folder / entry.file).read_bytes() != data:
                    write_bytes(folder / entry.file, data)
            manifest = self.manifest(folder).with_entries(replaced, [entry for entry, _ in entries])
            self._write(folder, replace(manifest, versions={"teccl_msccl": teccl_msccl.__version__}))

    def _write(self, folder: Path, manifest: Manifest) -> None:
        write_text(folder / "manifest.json", json.dumps(manifest.to_json(), indent=1))

    @contextmanager
    def locked(self, name: str, lock: str = "lock") -> Iterator[Path]:
        """The folder called `name`, held against other writers (the system lets go of it when a holder dies)."""
        folder = self.root / name
        try:
            (folder / "candidates").mkdir(parents=True, exist_ok=True)
            stream = open(folder / lock, "a", encoding="ascii")  # noqa: SIM115 (held below)
        except OSError as error:
            raise InputError(f"{folder}: cannot write the store: {error.strerror}; choose another --store") from None
        with stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield folder

    # -- doubting -----------------------------------------------------------------------------------------------

    def problems(self, folder: Path) -> list[str]:
        """What is wrong with a machine's folder: hashes, files, and programs that the checker does not pass."""
        from ..program.check import check

        found: list[str] = []
        try:
            manifest = self.manifest(folder)
            topology = self.topology(folder, manifest)
        except InputError as error:
            return [str(error)]
        if manifest.fingerprint != folder.name:
            found.append(f"{folder}: holds the manifest of {manifest.fingerprint[:12]}; build it anew")
        machine = Machine(folder, manifest, topology, tuple(range(topology.nranks)))
        for entry in manifest.entries:
            try:
                verdict = check(machine.program(entry), root=entry.root)
            except (InputError, Refused) as error:
                found.append(str(error))
                continue
            if entry.nranks != topology.nranks:
                found.append(f"{folder / entry.file}: is for {entry.nranks} ranks, the machine has {topology.nranks}")
            if not verdict.ok:
                first = next(finding for finding in verdict.findings if finding.level == "error")
                found.append(f"{folder / entry.file}: {first.code}: {first.text}")
        listed = {entry.file for entry in manifest.entries}
        found += [
            f"{path}: is in no manifest; remove it" for path in sorted(folder.glob("*.xml")) if path.name not in listed
        ]
        return found


class Lookup:
    """A machine's programs, read once each: what a running job asks at every call."""

    def __init__(self, machine: Machine, target: str = "executor") -> None:
        self.machine, self.target = machine, target
        self._programs: dict[str, Program] = {}

    @cached_property
    def where(self) -> str:
        return str(self.machine.folder)

    def find(self, collective: str, size_bytes: int, root: int | None = None) -> tuple[Entry, Program] | None:
        """The entry and the program for a call, None where there is none. Microseconds after the first time."""
        entry = self.machine.select(collective, size_bytes, self.target, root)
        if entry is None:
            return None
        program = self._programs.get(entry.file)
        if program is None:
            program = self._programs[entry.file] = self.machine.program(entry)
        return entry, program

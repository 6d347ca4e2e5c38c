"""Matrix: the table that `nvidia-smi topo` prints, read in spite of what pasting does to it.

The table is square: one row and one column per device, GPUs first. A header names the columns, but it may have lost
its tabs or be missing, and rows or cells may be missing; every pair stands twice, so that one of the two will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from ...errors import InputError
from ..detected import Finding
from .facts import LEVELS, MOST_NVLINKS, Pair, pair

MOST_DEVICES = 256
LONGEST_LINE = 10_000

_LEVEL = "PIX|PXB|PHB|NODE|SYS|SOC|NV[0-9]{1,9}|X"
_CELL = re.compile(_LEVEL, re.IGNORECASE)
_GLUED = re.compile(f"(?:{_LEVEL})+", re.IGNORECASE)
_GPU = re.compile(r"GPU[0-9]{1,4}", re.IGNORECASE)
_LABEL = re.compile(r"GPU[0-9]+|NIC[0-9]+|mlx[0-9]+_(?:bond_?)?[0-9]+|.+?(?=GPU[0-9]|NIC[0-9]|mlx[0-9]|$)", re.I)
_AFFINITY = re.compile(r"[0-9]+(?:[-,][0-9]+)*,?|N/A|-", re.IGNORECASE)
_COLLISION = re.compile(r"([A-Z]{1,4})([0-9]+[-,][0-9,-]*)", re.IGNORECASE)
_COLUMNS_AFTER = re.compile(r"(?:CPU|NUMA|GPU NUMA)\s*(?:Affinity|ID).*$", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One line of the table: a device's label, its words in order, and its fields where the line has tabs."""

    label: str
    line: int
    words: tuple[str, ...]
    fields: tuple[str, ...] = ()


@dataclass
class Table:
    """The lines of one table as they were found."""

    header: str = ""
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Matrix:
    """The table made whole: devices in column order, and the cell of each pair that was found in either direction."""

    labels: tuple[str, ...]
    cells: Mapping[Pair, str]
    numa: Mapping[str, str]
    affinity: Mapping[str, str]
    findings: tuple[Finding, ...]


def is_gpu(label: str) -> bool:
    """Whether a label is a GPU's ("GPU3")."""
    return _GPU.fullmatch(label) is not None


def is_header(line: str) -> bool:
    """Whether a line names columns: nothing but labels (each has a digit), a GPU's first."""
    words = _COLUMNS_AFTER.sub("", line).split() if len(line) < LONGEST_LINE else []
    return (
        bool(words) and _GPU.match(words[0]) is not None and all(re.fullmatch(r"\w*[0-9]\w*", word) for word in words)
    )


def as_row(line: str, number: int, header: str) -> Row | None:
    """The line as a row of the table under `header`, None where it is none: a label, then words, some of them cells."""
    words = line.split() if len(line) < LONGEST_LINE else []
    if len(words) < 2 or "=" in words:
        return None
    cells = tuple(cell for word in words[1:] for cell in _unglued(word))
    named = is_gpu(words[0]) or words[0] in header.split()
    if not any(_CELL.fullmatch(cell) for cell in (cells if named else cells[:1])):
        return None
    fields = tuple(part.strip() for part in line.split("\t")) if "\t" in line else ()
    return Row(words[0].upper() if is_gpu(words[0]) else words[0], number, cells, fields)


def read_matrix(table: Table, where: str) -> Matrix:
    """Make a table whole, or say what of it cannot be trusted.

    A pair missing in one direction is taken from the other, with a warning; PCIe levels that disagree are read as
    the farther one, with a warning. A GPU pair that stands nowhere is left unknown, with a warning, where no NVLink
    is about and half of the rows are there. Raises `InputError`, naming row and column, where it stands nowhere
    else, NVLinks disagree, a cell is unknown, or the columns cannot be told. O(devices²).
    """
    rows = _distinct(table.rows, where)
    labels = _columns(table.header, rows, where)
    reading = _Reading(where, labels)
    for row in rows:
        reading.take(row)
    cells, findings = reading.symmetric({row.label for row in rows})
    numa_column = not table.header or "NUMA AFFINITY" in " ".join(table.header.upper().split())
    return Matrix(labels, cells, *_places(rows, len(labels), numa_column), findings)


# -- columns -------------------------------------------------------------------------------------------------


def _columns(header: str, rows: Sequence[Row], where: str) -> tuple[str, ...]:
    """The devices in column order: as the header has them, or as the rows do, whichever the rows' own X confirm."""
    from_rows = tuple(row.label for row in rows)
    problems = []
    for labels in (_header_labels(header), from_rows):
        if not labels:
            continue
        problem = _misfit(labels, rows)
        if not problem:
            if len(labels) > MOST_DEVICES:
                raise InputError(f"{where}: {len(labels)} devices; no host has more than {MOST_DEVICES}")
            return labels
        problems.append(problem)
    raise InputError(f"{where}: {problems[0]}; paste the whole matrix as nvidia-smi prints it")


def _header_labels(header: str) -> tuple[str, ...]:
    words = _COLUMNS_AFTER.sub("", header).split()
    labels = [label for word in words for label in _LABEL.findall(word)]
    return tuple(label.upper() if is_gpu(label) else label for label in labels)


def _misfit(labels: Sequence[str], rows: Sequence[Row]) -> str:
    """What speaks against `labels` being the columns of `rows`, or ""."""
    position = {label: i for i, label in enumerate(labels)}
    if len(position) < len(labels):
        return "the header names a column twice"
    for row in rows:
        cells = _cells(row.words)
        if row.label not in position:
            return f"row {row.label} (line {row.line}): no column of that name"
        if len(cells) > len(labels):
            return f"row {row.label} (line {row.line}): {len(cells)} cells for {len(labels)} named columns"
        own = cells.index("X") if "X" in cells else None
        if own is not None and own != position[row.label]:
            return (
                f"row {row.label} (line {row.line}): its X stands in column {labels[own]}; "
                "the row lost or gained a cell, or the header a name"
            )
        if own is None and len(cells) > position[row.label]:
            return f"row {row.label}, column {row.label} (line {row.line}): {cells[position[row.label]]} instead of X"
    return ""


def _distinct(rows: Iterable[Row], where: str) -> list[Row]:
    """The rows without exact repetitions."""
    by_label: dict[str, Row] = {}
    for row in rows:
        first = by_label.setdefault(row.label, row)
        if first.words != row.words:
            raise InputError(
                f"{where}: row {row.label}: lines {first.line} and {row.line} differ; keep one host a file"
            )
    return list(by_label.values())


# -- cells ---------------------------------------------------------------------------------------------------


class _Reading:
    """The cells of a table as its rows are taken in."""

    def __init__(self, where: str, labels: Sequence[str]) -> None:
        self.where = where
        self.labels = labels
        self.seen: dict[tuple[str, str], str] = {}
        self.blurred: dict[tuple[str, str], tuple[str, ...]] = {}

    def take(self, row: Row) -> None:
        """Read one row's cells, up to where it ends."""
        for column, word in zip(self.labels, row.words, strict=False):
            if _CELL.fullmatch(word):
                self.seen[row.label, column] = self._cell(row, column, word)
                continue
            if _AFFINITY.fullmatch(word):
                return
            self.blurred[row.label, column] = _could_be(word)
            if not self.blurred[row.label, column] and column != row.label:
                raise self._error(row.label, column, f"{word[:40]!r} is no known cell (line {row.line})")
            return

    def symmetric(self, found: set[str]) -> tuple[dict[Pair, str], tuple[Finding, ...]]:
        """One cell per pair, from either direction, and the warnings that this took."""
        cells: dict[Pair, str] = {}
        findings: list[Finding] = []
        filled: dict[str, list[str]] = {}
        unknown: dict[str, list[str]] = {}
        gpus = [label for label in self.labels if is_gpu(label)]
        pcie_only = not any(cell.startswith("NV") for cell in self.seen.values())
        may_lack_pairs = pcie_only and 2 * sum(gpu in found for gpu in gpus) >= len(gpus)
        for one, other in combinations(self.labels, 2):
            there, back = self._seen(one, other), self._seen(other, one)
            if there and back:
                cells[pair(one, other)] = self._agreed(one, other, there, back, findings)
            elif there or back:
                cells[pair(one, other)] = there or back
                lacking = other if there else one
                if is_gpu(lacking) or lacking in found:
                    filled.setdefault(lacking, []).append(one if there else other)
            elif is_gpu(one) and is_gpu(other) and not may_lack_pairs:
                raise self._error(one, other, "missing, and so is its mirror image; paste the whole matrix")
            elif is_gpu(one) or is_gpu(other):
                unknown.setdefault(one if is_gpu(one) else other, []).append(other if is_gpu(one) else one)
        for label, columns in filled.items():
            what = "row missing" if label not in found else f"cells missing under {_list(columns)}"
            findings.append(Finding("warning", label, f"{what}; read from the other rows' column {label}"))
        for gpu, others in unknown.items():
            findings.append(
                Finding(
                    "warning", gpu, f"its distance from {_list(others)} is not in the capture; taken as through the CPU"
                )
            )
        missing = [label for label in self.labels if label not in found and not is_gpu(label)]
        if missing:
            text = f"rows of {_list(missing)} missing; read from the GPUs' rows"
            findings.append(Finding("info", missing[0], text))
        return cells, tuple(findings)

    def _seen(self, row: str, column: str) -> str:
        """The cell, or what a blurred one must be by its mirror image."""
        clear = self.seen.get((row, column))
        if clear:
            return clear
        could_be = self.blurred.get((row, column), ())
        mirror = self.seen.get((column, row))
        if could_be and mirror and mirror not in could_be:
            raise self._error(row, column, f"{' or '.join(could_be)} here, {mirror} in the mirror image")
        return could_be[0] if len(could_be) == 1 else mirror if could_be and mirror else ""

    def _agreed(self, one: str, other: str, there: str, back: str, findings: list[Finding]) -> str:
        if there == back:
            return there
        if there not in LEVELS or back not in LEVELS:
            raise self._error(one, other, f"{there} one way, {back} the other; capture the matrix again")
        farther = max(there, back, key=LEVELS.index)
        text = f"row {one}, column {other}: {there} one way, {back} the other; taken as {farther}"
        findings.append(Finding("warning", one, text))
        return farther

    def _cell(self, row: Row, column: str, word: str) -> str:
        cell = word.upper()
        if cell.startswith("NV"):
            links = int(cell[2:])
            if not 1 <= links <= MOST_NVLINKS or not (is_gpu(row.label) and is_gpu(column)):
                raise self._error(row.label, column, f"{cell} is impossible there (line {row.line})")
            return f"NV{links}"
        return "SYS" if cell == "SOC" else cell

    def _error(self, row: str, column: str, problem: str) -> InputError:
        return InputError(f"{self.where}: row {row}, column {column}: {problem}")


def _could_be(word: str) -> tuple[str, ...]:
    """What a last cell was that the CPU affinity ran into: "PH0-115" was PHB, "NV120-63" NV1 or NV12."""
    collision = _COLLISION.fullmatch(word)
    if collision is None:
        return ()
    letters, digits = collision[1].upper(), re.split("[-,]", collision[2])[0]
    if letters == "NV":
        return tuple(f"NV{digits[:i]}" for i in (1, 2) if i <= len(digits) and 1 <= int(digits[:i]) <= MOST_NVLINKS)
    return tuple("SYS" if level == "SOC" else level for level in (*LEVELS, "SOC") if level.startswith(letters))


def _cells(words: Sequence[str]) -> list[str]:
    """The leading words that are cells."""
    cells: list[str] = []
    for word in words:
        if not _CELL.fullmatch(word):
            break
        cells.append(word.upper())
    return cells


def _unglued(word: str) -> list[str]:
    """A word's cells where cells lost the space between them, else the word itself."""
    return _CELL.findall(word) if _GLUED.fullmatch(word) else [word]


# -- what stands after the cells -----------------------------------------------------------------------------


def _places(rows: Iterable[Row], ncolumns: int, numa_column: bool) -> tuple[dict[str, str], dict[str, str]]:
    """NUMA node and CPU affinity of each GPU, where its row has them."""
    numa: dict[str, str] = {}
    affinity: dict[str, str] = {}
    for row in rows:
        if not is_gpu(row.label):
            continue
        in_columns = len(row.fields) > ncolumns and all(map(_CELL.fullmatch, row.fields[1 : 1 + ncolumns]))
        rest = row.fields[1 + ncolumns :] if in_columns else row.words[len(_cells(row.words)) :]
        cores, node, *_ = [*rest, "", ""]
        if _AFFINITY.fullmatch(cores) and cores.upper() != "N/A":
            affinity[row.label] = cores
        if numa_column and node.isascii() and node.isdigit():
            numa[row.label] = node
    return numa, affinity


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"

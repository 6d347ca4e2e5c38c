"""MSCCL XML: reading files that may be hostile, writing files that every runtime's parser takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lxml import etree

from ..errors import InputError
from ..files import read_bytes, write_text, xml_parser
from .program import Gpu, Program, Step, Threadblock
from .targets import MAX_NODES_PER_RANK, Target, target_named, target_spelling

#: Steps that any file may have; beyond, a file may have as many as its GPUs could hold.
MANY_STEPS = 200_000
#: What runtimes' strtol takes whole, and Python alike.
_NUMBER = re.compile(r"[ \t\r\n]*[+-]?(0[xX][0-9a-fA-F]+|0+|[1-9][0-9]*)")
_COLLECTIVES = {"reducescatter": "reduce_scatter"}


def read(path: str | Path, target: str | None = None) -> Program:
    """Read an MSCCL XML file. Raises `InputError` naming the file, the line and the remedy."""
    return parse(read_bytes(path, "a program"), str(path), target)


def parse(data: bytes, where: str = "program", target: str | None = None) -> Program:
    """The Program that `data` spells, as `target` (by default the one whose spelling it has) takes it. Unknown
    attributes and elements are ignored, as the runtimes do; document order is execution order and must agree with
    the numbering."""
    algo = _tree(data, where)
    taker = target_named(target) if target else target_spelling(algo.get("coll", ""))
    return _program(algo, where, taker)


def write(program: Program, path: str | Path) -> None:
    """Write `program` in its target's spelling, atomically."""
    write_text(path, to_text(program))


def to_text(program: Program) -> str:
    """The file's text: no declaration, no tabs, every attribute written, one element a line."""
    target = target_named(program.target)
    algo = etree.Element(
        "algo",
        {
            "name": program.name,
            "proto": program.protocol,
            "nchannels": str(program.nchannels),
            "nchunksperloop": str(program.nchunks),
            "ngpus": str(program.nranks),
            "coll": target.collectives[program.collective],
            "inplace": str(int(program.inplace)),
            "outofplace": str(int(program.outofplace)),
            "minBytes": str(program.min_bytes),
            "maxBytes": str(program.max_bytes),
        },
    )
    for rank, gpu in enumerate(program.gpus):
        chunks = {"i_chunks": gpu.input_chunks, "o_chunks": gpu.output_chunks, "s_chunks": gpu.scratch_chunks}
        gpu_element = _child(algo, "gpu", {"id": rank, **chunks})
        for tb, threadblock in enumerate(gpu.threadblocks):
            tb_element = _child(
                gpu_element,
                "tb",
                {"id": tb, "send": threadblock.send, "recv": threadblock.recv, "chan": threadblock.chan},
            )
            for position, step in enumerate(threadblock.steps):
                values = step._asdict()
                values["hasdep"] = int(step.hasdep)
                _child(tb_element, "step", {"s": position, **values})
    return etree.tostring(algo, pretty_print=True, encoding="unicode")


def _child(parent: etree._Element, tag: str, attributes: Mapping[str, object]) -> etree._Element:
    return etree.SubElement(parent, tag, {key: str(value) for key, value in attributes.items()})


# -- reading -------------------------------------------------------------------------------------------------


def _tree(data: bytes, where: str) -> etree._Element:
    """Parse without entities, DTDs or the network; as UTF-8, whatever the file says, since runtimes read bytes."""
    if b"\0" in data:
        raise InputError(f"{where}: not XML in UTF-8 (UTF-16, or binary), which no runtime reads; save it as UTF-8")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise InputError(f"{where}: has a DOCTYPE or entities, which no runtime takes; remove them")
    steps, gpus = data.count(b"<step"), data.count(b"<gpu")
    if steps > max(MANY_STEPS, gpus * MAX_NODES_PER_RANK):
        raise InputError(
            f"{where}: {steps} steps for {gpus} gpu elements; no runtime takes more than {MAX_NODES_PER_RANK} nodes a "
            "rank, so make a smaller program"
        )
    try:
        root = etree.fromstring(data, xml_parser("utf-8"))
    except (etree.XMLSyntaxError, ValueError) as error:
        raise InputError(f"{where}: not well-formed XML: {_one_line(error)}; write the file again") from None
    if root.tag != "algo":
        raise InputError(f"{where}: line {root.sourceline}: the first element is <{root.tag}>; it must be <algo>")
    return root


def _program(algo: etree._Element, where: str, target: Target) -> Program:
    ngpus = _integer(algo, "ngpus", where)
    gpus = _numbered(algo.iterchildren("gpu"), "id", where)
    if len(gpus) != ngpus:
        raise InputError(f"{where}: ngpus is {ngpus} but there are {len(gpus)} gpu elements; make them agree")
    collective = _text(algo, "coll", where)
    inplace = bool(_integer(algo, "inplace", where, 0))
    name = algo.get("name", Path(where).stem)
    try:
        return Program(
            name=name,
            collective=_COLLECTIVES.get(collective, collective),
            protocol=_text(algo, "proto", where),
            nchannels=_integer(algo, "nchannels", where),
            nchunks=_integer(algo, "nchunksperloop", where),
            inplace=inplace,
            outofplace=bool(_integer(algo, "outofplace", where, int(not inplace))),
            min_bytes=_integer(algo, "minBytes", where, 0),
            max_bytes=_integer(algo, "maxBytes", where, target.default_max_bytes or 0),
            gpus=tuple(_gpu(element, where) for element in gpus),
            target=target.name,
        )
    except InputError as error:  # it names the program, not the file
        raise InputError(f"{where}: {str(error).removeprefix(f'{where}: ').removeprefix(f'{name}: ')}") from None


def _gpu(element: etree._Element, where: str) -> Gpu:
    return Gpu(
        input_chunks=_integer(element, "i_chunks", where),
        output_chunks=_integer(element, "o_chunks", where),
        scratch_chunks=_integer(element, "s_chunks", where),
        threadblocks=tuple(_threadblock(tb, where) for tb in _numbered(element.iterchildren("tb"), "id", where)),
    )


def _threadblock(element: etree._Element, where: str) -> Threadblock:
    return Threadblock(
        send=_integer(element, "send", where),
        recv=_integer(element, "recv", where),
        chan=_integer(element, "chan", where),
        steps=tuple(_step(step, where) for step in _numbered(element.iterchildren("step"), "s", where)),
    )


def _step(element: etree._Element, where: str) -> Step:
    return Step(
        type=_text(element, "type", where),
        srcbuf=_text(element, "srcbuf", where),
        srcoff=_integer(element, "srcoff", where),
        dstbuf=_text(element, "dstbuf", where),
        dstoff=_integer(element, "dstoff", where),
        cnt=_integer(element, "cnt", where),
        depid=_integer(element, "depid", where),
        deps=_integer(element, "deps", where),
        hasdep=bool(_integer(element, "hasdep", where)),
    )


def _numbered(elements: Iterable[etree._Element], key: str, where: str) -> list[etree._Element]:
    """The elements, whose `key` must count 0, 1, 2… in document order."""
    found = list(elements)
    for position, element in enumerate(found):
        number = _integer(element, key, where)
        if number != position:
            raise InputError(
                f"{where}: line {element.sourceline}: <{element.tag} {key}={number}> stands where {key}={position} "
                "is due; runtimes run steps in document order, so number them so"
            )
    return found


def _text(element: etree._Element, key: str, where: str) -> str:
    value = element.get(key)
    if value is None:
        raise InputError(
            f"{where}: line {element.sourceline}: <{element.tag}> lacks {key}; every attribute is required"
        )
    if len(value) > 255:
        raise InputError(f"{where}: line {element.sourceline}: {key} is over 255 characters, which overflows runtimes")
    return value


def _integer(element: etree._Element, key: str, where: str, default: int | None = None) -> int:
    if default is not None and element.get(key) is None:
        return default
    value = _text(element, key, where)
    if not _NUMBER.fullmatch(value):
        raise InputError(
            f"{where}: line {element.sourceline}: {key}={value!r} is not a whole number; write digits only"
        )
    number = int(value, 0)
    if abs(number) >= 2**63:
        raise InputError(f"{where}: line {element.sourceline}: {key}={value} does not fit in 64 bits")
    return number


def _one_line(error: Exception) -> str:
    return " ".join(getattr(error, "msg", str(error)).split("(<string>")[0].split())

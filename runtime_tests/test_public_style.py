"""Algorithm files in the styles that people publish, written here by hand, executed by mpirun on four ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

COMMAND_LINES = str(Path(__file__).with_name("command_lines.py"))
RANKS = range(4)


def algorithm(collective: str, nchunks: int, gpus: list[str], *, proto: str, channels: int, outofplace: int) -> str:
    head = (
        f'<algo name="{collective}" nchunksperloop="{nchunks}" nchannels="{channels}" proto="{proto}" ngpus="4" '
        f'coll="{collective}" inplace="1" outofplace="{outofplace}" minBytes="0" maxBytes="0">'
    )
    return "\n".join([head, *gpus, "</algo>", ""])


def gpu(rank: int, chunks: tuple[int, int, int], threadblocks: list[str]) -> str:
    i, o, s = chunks
    return (
        f'  <gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">\n' + "\n".join(threadblocks) + "\n  </gpu>"
    )


def tb(number: int, send: int, recv: int, chan: int, steps: list[str]) -> str:
    lines = [step.replace("<step ", f'      <step s="{position}" ', 1) for position, step in enumerate(steps)]
    head = f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">'
    return "\n".join([head, *lines, "    </tb>"])


def step(kind: str, src: str, dst: str, cnt: int = 1, after: tuple[int, int] = (-1, -1), awaited: int = 0) -> str:
    return (
        f'<step type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" cnt="{cnt}" '
        f'depid="{after[0]}" deps="{after[1]}" hasdep="{awaited}"/>'
    )


def recursive_doubling_in_place() -> str:
    """Allgather that touches the output alone, doubling what it sends: i_chunks is 0."""
    gpus = []
    for r in RANKS:
        near, far, pair = r ^ 1, r ^ 2, r & 2
        gpus.append(
            gpu(
                r,
                (0, 4, 0),
                [
                    tb(0, near, -1, 0, [step("s", f"o{r}", f"o{r}")]),
                    tb(1, -1, near, 0, [step("r", f"o{near}", f"o{near}", awaited=1)]),
                    tb(2, far, -1, 0, [step("s", f"o{pair}", f"o{pair}", 2, after=(1, 0))]),
                    tb(3, -1, far, 0, [step("r", f"o{pair ^ 2}", f"o{pair ^ 2}", 2)]),
                ],
            )
        )
    return algorithm("allgather", 4, gpus, proto="Simple", channels=1, outofplace=0)


def all_pairs_through_scratch() -> str:
    """Allreduce in place: everyone's shares land in scratch, nops gather the waits, `re` steps add them up."""
    gpus = []
    for r in RANKS:
        peers = [p for p in RANKS if p != r]
        blocks = []
        for slot, p in enumerate(peers):
            slot_there = [q for q in RANKS if q != p].index(r)
            steps = [
                step("s", f"i{p}", f"s{slot_there}"),
                step("r", f"i{r}", f"s{slot}", awaited=1),
                step("s", f"i{r}", f"i{r}", after=(3, 4)),
                step("r", f"i{p}", f"i{p}"),
            ]
            blocks.append(tb(slot, p, p, 0, steps))
        adding = [
            step("nop", "i-1", "o-1", 0, after=(0, 1)),
            step("nop", "i-1", "o-1", 0, after=(1, 1)),
            step("re", "s0", f"i{r}", after=(2, 1)),
            step("re", "s1", f"i{r}"),
            step("re", "s2", f"i{r}", awaited=1),
        ]
        gpus.append(gpu(r, (4, 4, 3), [*blocks, tb(3, -1, -1, 0, adding)]))
    return algorithm("allreduce", 4, gpus, proto="LL", channels=1, outofplace=0)


def two_fused_rings() -> str:
    """Allreduce on two rings of opposite directions, fused steps, with what parsers skip: comments, attributes and
    elements of their own, and line ends of another system."""
    gpus = []
    for r in RANKS:
        blocks = []
        for channel, way in ((0, 1), (1, -1)):
            chunk = [4 * channel + (r - way * hop) % 4 for hop in range(8)]
            steps = [
                step("s", f"i{chunk[0]}", f"i{chunk[0]}"),
                *(step("rrs", f"i{chunk[hop]}", f"o{chunk[hop]}") for hop in (1, 2)),
                step("rrcs", f"i{chunk[3]}", f"o{chunk[3]}"),
                *(step("rcs", f"o{chunk[hop]}", f"o{chunk[hop]}") for hop in (4, 5)),
                step("r", f"o{chunk[6]}", f"o{chunk[6]}"),
            ]
            blocks.append(tb(channel, (r + way) % 4, (r - way) % 4, channel, steps))
        gpus.append(gpu(r, (8, 8, 0), blocks))
    text = algorithm("allreduce", 8, gpus, proto="LL128", channels=2, outofplace=1)
    text = text.replace('ngpus="4"', 'ngpus="4" nchunks="8" redop="sum" author="someone"')
    text = text.replace("  <gpu", "  <!-- the next rank -->\n  <gpu").replace("    <tb", '    <copy i="0"/>\n    <tb')
    return text.replace("\n", "\r\n")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("published")
    written = []
    for make in (recursive_doubling_in_place, all_pairs_through_scratch, two_fused_rings):
        written.append(folder / f"{make.__name__}.xml")
        written[-1].write_bytes(make().encode())
    return written


def test_published_styles(mpirun, files) -> None:
    options = ["--size", "0,1,100003,5000000", "--iters", "1", "--warmup", "0", "--json", "--dtype", "int32,half"]
    told = mpirun.start((4, [COMMAND_LINES, json.dumps([["run", str(file), *options] for file in files])]))
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert [len(answer["rows"]) for answer in answers] == [8, 8, 16]
    assert {row["wrong"] for answer in answers for row in answer["rows"]} == {0}


def test_a_published_file_that_is_wrong(mpirun, files, tmp_path) -> None:
    """A `re` that takes another rank's share twice is caught on real data."""
    text = files[1].read_text().replace('type="re" srcbuf="s" srcoff="1"', 'type="re" srcbuf="s" srcoff="0"', 1)
    (tmp_path / "wrong.xml").write_text(text)
    lines = [["run", str(tmp_path / "wrong.xml"), "--size", "64", "--iters", "1", "--json"]]
    told = mpirun.start((4, [COMMAND_LINES, json.dumps(lines)]))
    assert told.returncode == 1
    assert json.loads(told.stdout)["first_wrong"] is not None

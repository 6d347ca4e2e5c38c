"""The NCCL tuner plugin, called as NCCL calls it: through every version of its struct, with good files and bad ones."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from teccl_msccl.cli import main
from teccl_msccl.errors import Refused
from teccl_msccl.runtime.doctor import libraries
from teccl_msccl.store import tuner_file
from teccl_msccl.store.launch import environment
from teccl_msccl.store.store import Store
from teccl_msccl.topology.model import Topology

LIBRARY = libraries()["nccl_tuner"]
needs_library = pytest.mark.skipif(LIBRARY is None, reason="this build has no tuner plugin; see .ci/dev-build")

ALLREDUCE, ALLGATHER, SEND = 4, 2, 6
TREE, RING, COLLNET, NVLS, PAT = 0, 1, 3, 4, 6
LL, LL128, SIMPLE = 0, 1, 2
IGNORE = -1.0

C = ctypes
LOGGER = C.CFUNCTYPE(None, C.c_int, C.c_ulong, C.c_char_p, C.c_int, C.c_char_p, C.c_char_p)
INIT = C.CFUNCTYPE(C.c_int, C.c_size_t, C.c_size_t, LOGGER, C.POINTER(C.c_void_p))
INIT_5 = C.CFUNCTYPE(C.c_int, C.POINTER(C.c_void_p), C.c_uint64, C.c_size_t, C.c_size_t, LOGGER, C.c_void_p, C.c_void_p)
TABLE = C.c_float * 3 * 7
INT_P = C.POINTER(C.c_int)
INFO = {
    2: C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_size_t, C.c_int, C.c_int, C.c_int, INT_P, INT_P, INT_P),
    3: C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_size_t, C.c_int, C.c_void_p, C.c_int, C.c_int, INT_P),
    4: C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_size_t, C.c_int, C.c_void_p, C.c_int, C.c_int, C.c_int, INT_P),
}
INFO[5] = INFO[6] = INFO[4]
FINISH = C.CFUNCTYPE(C.c_int, C.c_void_p)
CHUNK = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_size_t, C.c_int, C.c_int, C.c_int, C.POINTER(C.c_size_t))

COSTS = """
# sizes of no order on purpose
machine box ranks=8 nodes=1
cost allreduce 3000 ring ll 30 channels=8 chunk=4000
cost allreduce 1000 ring ll 10 channels=2
cost allreduce 1000 ring simple 20 channels=16 chunk=100000
cost allreduce 3000 ring simple 22 channels=16 chunk=100000
cost allreduce 1000 nvls simple 5 channels=4
machine boxes ranks=16 nodes=2
cost allreduce 1000 tree ll 1
"""


class Nccl:
    """What NCCL does of the plugin: a communicator under one version of the struct."""

    def __init__(self, version: int, ranks: int = 8, nodes: int = 1) -> None:
        self.version = version
        fields = [("name", C.c_char_p), ("init", INIT_5 if version >= 5 else INIT), ("info", INFO[version])]
        fields += [("finish", FINISH)] + ([("chunk", CHUNK)] if version == 6 else [])
        struct = type("Tuner", (C.Structure,), {"_fields_": fields})
        self.tuner = struct.in_dll(C.CDLL(LIBRARY), f"ncclTunerPlugin_v{version}")
        self.lines: list[str] = []
        self._logger = LOGGER(lambda level, flags, file, line, form, text: self.lines.append(text.decode()))
        self.context = C.c_void_p()
        if version >= 5:
            arguments = C.byref(self.context), 7, ranks, nodes, self._logger, None, None
        else:
            arguments = ranks, nodes, self._logger, C.byref(self.context)
        assert self.tuner.init(*arguments) == 0

    def __enter__(self) -> Nccl:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.tuner.finish(self.context) == 0

    def table(self, nbytes: int, collective: int = ALLREDUCE, ignored=(NVLS, COLLNET)) -> tuple[list[list[float]], int]:
        """NCCL's table (100 µs everywhere, but where it cannot go) after the plugin, and the channels."""
        table = TABLE(*((C.c_float * 3)(*([IGNORE if a in ignored else 100.0] * 3)) for a in range(7)))
        channels = C.c_int(0)
        registered = () if self.version == 3 else (0,)
        assert self.tuner.info(
            self.context, collective, nbytes, 1, C.cast(table, C.c_void_p), 7, 3, *registered, C.byref(channels)
        ) == 0  # fmt: skip
        return [list(row) for row in table], channels.value

    def named(self, nbytes: int, nvls: int = 0) -> tuple[int, int, int]:
        """Version 2's algorithm, protocol, channels (−1, −1, 0: NCCL's own)."""
        out = C.c_int(-1), C.c_int(-1), C.c_int(0)
        assert self.tuner.info(self.context, ALLREDUCE, nbytes, 0, nvls, 1, *(C.byref(each) for each in out)) == 0
        return out[0].value, out[1].value, out[2].value

    def chunk(self, nbytes: int, algorithm: int, protocol: int, otherwise: int = 77) -> int:
        chunk = C.c_size_t(otherwise)
        assert self.tuner.chunk(self.context, ALLREDUCE, nbytes, algorithm, protocol, 4, C.byref(chunk)) == 0
        return chunk.value


UNTOUCHED = [[IGNORE if a in (NVLS, COLLNET) else 100.0] * 3 for a in range(7)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    def write(costs: str | None = None, overrides: str | None = None) -> None:
        for name, text in (("TECCL_TUNER_COSTS", costs), ("TECCL_TUNER_FILE", overrides)):
            monkeypatch.delenv(name, raising=False)
            if text is not None:
                (tmp_path / name).write_bytes(text.encode("latin-1"))
                monkeypatch.setenv(name, str(tmp_path / name))

    write()
    return write


@needs_library
@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_times_fill_the_table_between_the_samples(files, version) -> None:
    files(COSTS)
    with Nccl(version) as nccl:
        table, channels = nccl.table(1500)
        assert table[RING] == [15.0, 100.0, 20.5] and channels == 2  # LL is the cheapest, 1000 the nearer sample
        assert [row for a, row in enumerate(table) if a != RING] == [r for a, r in enumerate(UNTOUCHED) if a != RING]
        table, channels = nccl.table(2500)
        assert table[RING] == [25.0, 100.0, 21.5] and channels == 16
        assert nccl.table(1)[0][RING] == [10.0, 100.0, 20.0]  # below the samples: the latency
        assert nccl.table(5000)[0][RING] == [50.0, 100.0, 24.0]  # beyond them: the last slope
        assert nccl.table(2000, ALLGATHER) == (UNTOUCHED, 0)
        assert nccl.table(2000, SEND) == (UNTOUCHED, 0)
        # An entry that NCCL cannot use stays so; where it can, NVLS is filled and is the cheapest.
        table, channels = nccl.table(1000, ignored=(COLLNET,))
        assert table[NVLS] == [100.0, 100.0, 5.0] and channels == 4
        assert len(nccl.lines) == 1 and "times of box" in nccl.lines[0]


@needs_library
def test_channels_stay_nccls_where_its_own_entry_is_cheaper(files) -> None:
    files(COSTS.replace(" 30 ", " 300 ").replace(" 22 ", " 300 "))
    with Nccl(6) as nccl:
        table, channels = nccl.table(3000)
        assert table[RING] == [300.0, 100.0, 300.0] and channels == 0


@needs_library
def test_version_2_names_the_cheapest(files) -> None:
    files(COSTS)
    with Nccl(2) as nccl:
        assert nccl.named(1000) == (RING, LL, 2)
        assert nccl.named(2900) == (RING, SIMPLE, 16)
        assert nccl.named(1000, nvls=1) == (NVLS, SIMPLE, 4)
    with Nccl(2, ranks=16, nodes=2) as nccl:
        assert nccl.named(1000) == (TREE, LL, 0)
    with Nccl(2, ranks=4) as nccl:
        assert nccl.named(1000) == (-1, -1, 0)


@needs_library
def test_version_6_gives_whole_grains_of_a_chunk(files) -> None:
    files(COSTS, "use allreduce 9000- ring ll128 chunk=5000\nuse allreduce 9000- tree ll chunk=3\n")
    with Nccl(6) as nccl:
        assert nccl.chunk(3000, RING, LL) == 4000  # 250 × 16
        assert nccl.chunk(3000, RING, SIMPLE) == 99840  # 195 × 512
        assert nccl.chunk(1000, RING, LL) == 77  # none given
        assert nccl.chunk(3000, TREE, LL) == 77
        assert nccl.chunk(9000, TREE, LL) == 16  # one grain at least
        assert nccl.chunk(9000, RING, LL) == 4000
        assert nccl.chunk(3000, 99, LL) == nccl.chunk(3000, RING, -1) == 77


@needs_library
@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_overrides_decide_and_the_last_that_serves_does(files, version) -> None:
    files(COSTS, "use allreduce - ring simple\nuse allreduce 100-2000 tree ll channels=3\nuse allreduce - nvls ll\n")
    with Nccl(version) as nccl:
        table, channels = nccl.table(2000, ignored=())
        assert table[NVLS][LL] == 0 and table[RING] == [100.0] * 3 and channels == 0
    files(COSTS, "use allreduce - ring simple\nuse allreduce 100-2000 tree ll channels=3 # small ones\n")
    with Nccl(version) as nccl:
        table, channels = nccl.table(2000)
        assert table[TREE] == [0.0, 100.0, 100.0] and channels == 3
        table, channels = nccl.table(2001)
        assert table[RING] == [100.0, 100.0, 0.0] and channels == 0
        assert nccl.table(2000, ignored=(TREE,))[0][RING] == [20.0, 100.0, 21.0]  # cannot be: the times decide
    files(None, "use allreduce - ring simple channels=5\n")  # alone, for any communicator
    with Nccl(version, ranks=3) as nccl:
        assert nccl.table(8)[1] == 5


@needs_library
@pytest.mark.parametrize("version", [3, 4, 5, 6])
@pytest.mark.parametrize(("ranks", "nodes", "costs"), [(4, 1, COSTS), (8, 2, COSTS), (8, 1, None), (8, 1, "")])
def test_what_is_not_this_machine_leaves_nccl_alone_with_one_line(files, version, ranks, nodes, costs) -> None:
    files(costs)
    with Nccl(version, ranks, nodes) as nccl:
        assert nccl.table(2000) == (UNTOUCHED, 0)
        assert len(nccl.lines) == 1 and nccl.lines[0].endswith("NCCL decides")


@needs_library
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("machine box ranks=8\n", ":1: machine needs ranks= and nodes=, in that order"),
        ("machine box ranks=8 nodes=0\n", ":1: '0'; use 1.."),
        ("machine box ranks=8 nodes=1 x\n", ":1: 'x' after the end of the line"),
        ("\ncost allreduse 1 ring ll 1\n", ":2: collective 'allreduse'; use broadcast, reduce,"),
        ("cost allreduce 1k ring ll 1\n", ":1: '1k'; use 1.."),
        ("cost allreduce -1 ring ll 1\n", ":1: '-1'"),
        ("cost allreduce 99999999999999999999999 ring ll 1\n", ":1: '99999999999999999999999'"),
        ("cost allreduce 1 wheel ll 1\n", ":1: algorithm 'wheel'; use tree, ring,"),
        ("cost allreduce 1 ring LL 1\n", ":1: protocol 'LL'; use ll, ll128, simple"),
        ("cost allreduce 1 ring ll 0\n", ":1: '0'; use a time in µs"),
        ("cost allreduce 1 ring ll nan\n", ":1: 'nan'"),
        ("cost allreduce 1 ring ll 1e999\n", ":1: '1e999'"),
        ("cost allreduce 1 ring ll\n", ":1: no time in µs"),
        ("cost allreduce 1 ring ll 1 channels=0\n", ":1: '0'; use 1..128"),
        ("cost allreduce 1 ring ll 1\ncost allreduce 1 ring ll 2\n", ":2: the same size has a time already"),
        ("use allreduce 5 ring ll\n", ":1: '5'; use FROM-TO"),
        ("use allreduce 5-4 ring ll\n", ":1: '4'; use 5.."),
        ("\x7fELF\x02\x01\x01\x00\xff\xfe\n", ":1: '"),
    ],
)
def test_a_malformed_file_is_one_line_that_says_where(files, text, said) -> None:
    """Whichever machine the bad line is for, and whatever good lines there are."""
    files(COSTS, text)
    with Nccl(6) as nccl:
        assert nccl.table(2000) == (UNTOUCHED, 0)
        (line,) = nccl.lines
        assert said in line and "TECCL_TUNER_FILE" in line and line.endswith("NCCL decides")


@needs_library
def test_a_file_that_is_not_there_is_one_line(files, monkeypatch) -> None:
    monkeypatch.setenv("TECCL_TUNER_COSTS", "/nonexistent/costs")
    with Nccl(4) as nccl:
        assert nccl.table(2000) == (UNTOUCHED, 0)
        assert nccl.lines == ["/nonexistent/costs: cannot be read; check the path; NCCL decides"]


# -- the file --------------------------------------------------------------------------------------------------------


def test_simulated_times_are_those_of_the_links() -> None:
    """A ring moves (n − 1)/n of an allgather over every link, twice that for an allreduce: no cost is below."""
    topology = Topology.load("ring-3")
    large = 2**23
    found = {
        (c.collective, c.algorithm, c.protocol, c.size_bytes): c for c in tuner_file.costs(topology, (1024, large))
    }
    assert {key[0] for key in found} == {"broadcast", "reduce", "allgather", "reduce_scatter", "allreduce"}
    assert {key[:2] for key in found if key[1] == "tree"} == {("allreduce", "tree")}
    assert not any(key[1] == "nvls" for key in found)  # no NVSwitch there
    bandwidth = topology.links[0].bandwidth_GBps * 2 * 1e3  # both ways round
    for collective, rounds in (("allgather", 1), ("reduce_scatter", 1), ("allreduce", 2)):
        least = rounds * large * 2 / 3 / bandwidth
        assert least < found[collective, "ring", "Simple", large].time_us < 1.5 * least
        assert found[collective, "ring", "LL", 1024].time_us < found[collective, "ring", "Simple", 1024].time_us
    assert all(cost.channels >= 1 and cost.chunk_bytes >= 1 for cost in found.values())
    assert ("allreduce", "ring", "LL", large) not in found  # the plugin draws LL's line on


def test_nvls_carries_the_buffer_once_for_each_half() -> None:
    topology = Topology.load("dgx-h100")
    gpu = topology.gpus[0]
    port = sum(link.bandwidth_GBps for link in topology.links if link.src == gpu and link.kind == "nvlink")
    times = {(c.collective, c.size_bytes): c.time_us for c in tuner_file._nvls(topology, (2**29, 2**30))}
    for collective, load in (("allgather", 1), ("reduce_scatter", 1), ("allreduce", 1 + 1 / 8)):
        assert times[collective, 2**30] - times[collective, 2**29] == pytest.approx(load * 2**29 / (port * 1e3))
    assert list(tuner_file._nvls(Topology.load("dgx-h100", hosts=2), (1024,))) == []
    assert list(tuner_file._nvls(Topology.load("dgx1"), (1024,))) == []


@needs_library
def test_a_stores_file_serves_its_machine(tmp_path, monkeypatch, capsys) -> None:
    """The command line's variables, given to the plugin: the table has the file's times."""
    monkeypatch.setattr(tuner_file.tuner_text, "__defaults__", ((1024, 2**20),))
    Store(tmp_path).open(Topology.load("ring-3"))

    def told(*words: object) -> dict:
        with pytest.raises(SystemExit) as stop:
            main([*map(str, words), "--store", str(tmp_path), "--json"])
        assert not stop.value.code
        return json.loads(capsys.readouterr().out)

    with pytest.raises(Refused, match=r"nothing for nccl; run store build .* or store export --tuner"):
        environment(Store(tmp_path).find(Topology.load("ring-3")), "nccl", tmp_path)
    exported = told("store", "export", "ring-3", "--tuner", "-o", tmp_path / "costs.txt")
    variables = told("store", "env", "--runtime", "nccl", "--topology", "ring-3")
    assert variables["NCCL_TUNER_PLUGIN"] == LIBRARY
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = (tmp_path / "costs.txt").read_text()
    assert text == Path(variables["TECCL_TUNER_COSTS"]).read_text() and exported["costs"] == text.count("\ncost ")
    words = [line.split() for line in text.splitlines() if line.startswith("cost allreduce 1048576 ")]
    with Nccl(6, ranks=3) as nccl:
        table, channels = nccl.table(2**20)
        for _, _, _, algorithm, protocol, time_us, *_ in words:
            place = {"tree": TREE, "ring": RING}[algorithm], {"ll": LL, "ll128": LL128, "simple": SIMPLE}[protocol]
            assert table[place[0]][place[1]] == pytest.approx(float(time_us))
        best = min(words, key=lambda each: float(each[5]))
        assert f"channels={channels}" in best


# -- the ABI ---------------------------------------------------------------------------------------------------------

ABI = r"""
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include "nccl/tuner_abi.hpp"
#include "plugin/nccl_tuner.h"

// Function types up to names: enums are ints, pointers to structs are pointers.
template <class T> struct plain { using type = T; };
template <class T> using plain_t = typename plain<T>::type;
template <class T> using argument = std::conditional_t<
    std::is_enum<T>::value, int,
    std::conditional_t<std::is_pointer<T>::value && std::is_class<std::remove_pointer_t<T>>::value, void*, T>>;
template <class R, class... A> struct plain<R (*)(A...)> { using type = argument<R> (*)(plain_t<argument<A>>...); };
template <class R, class... A> struct plain<R (*)(A..., ...)> { using type = argument<R> (*)(argument<A>..., ...); };

#define SAME(ours, our_field, theirs, their_field)                                                      \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #theirs "::" #their_field); \
  static_assert(std::is_same<plain_t<decltype(ours::our_field)>, plain_t<decltype(theirs::their_field)>>::value, \
                #theirs "::" #their_field)
#define TUNER(version, last)                                              \
  static_assert(sizeof(TunerV##version) == sizeof(ncclTuner_v##version##_t), "v" #version); \
  SAME(TunerV##version, name, ncclTuner_v##version##_t, name);            \
  SAME(TunerV##version, init, ncclTuner_v##version##_t, init);            \
  SAME(TunerV##version, collective_info, ncclTuner_v##version##_t, getCollInfo); \
  SAME(TunerV##version, finish, ncclTuner_v##version##_t, last)

using namespace teccl::nccl;
TUNER(2, destroy);
TUNER(3, destroy);
TUNER(4, destroy);
TUNER(5, finalize);
TUNER(6, finalize);
SAME(TunerV6, chunk_size, ncclTuner_v6_t, getChunkSize);
static_assert(sizeof(ConstantsV5) == sizeof(ncclTunerConstants_v5_t), "");
SAME(ConstantsV5, ll_max, ncclTunerConstants_v5_t, llMaxBws);
SAME(ConstantsV5, nvls_tree_max, ncclTunerConstants_v5_t, perChMaxNVLSTreeBws);
static_assert(sizeof(NvlDomainInfoV5) == sizeof(ncclNvlDomainInfo_v5_t), "");
static_assert(kBroadcast == ncclFuncBroadcast && kReduce == ncclFuncReduce && kAllGather == ncclFuncAllGather &&
              kReduceScatter == ncclFuncReduceScatter && kAllReduce == ncclFuncAllReduce, "");
static_assert(kSuccess == ncclSuccess && kLogWarn == NCCL_LOG_WARN && kLogInfo == NCCL_LOG_INFO &&
              kLogTuning == NCCL_TUNING, "");
static_assert(kTree == NCCL_ALGO_TREE && kRing == NCCL_ALGO_RING && kCollnetDirect == NCCL_ALGO_COLLNET_DIRECT &&
              kCollnetChain == NCCL_ALGO_COLLNET_CHAIN && kNvls == NCCL_ALGO_NVLS && kNvlsTree == NCCL_ALGO_NVLS_TREE &&
              kPat == NCCL_ALGO_PAT && kAlgorithms == NCCL_NUM_ALGORITHMS, "");
static_assert(kLL == NCCL_PROTO_LL && kLL128 == NCCL_PROTO_LL128 && kSimple == NCCL_PROTO_SIMPLE &&
              kProtocols == NCCL_NUM_PROTOCOLS && kIgnore == NCCL_ALGO_PROTO_IGNORE, "");
"""


def test_the_abi_is_nccls(tmp_path) -> None:
    """Against the headers of an NCCL source tree, 2.30 or later: its wheels have none of the tuner's."""
    source = os.environ.get("NCCL_SOURCE")
    if source is None:
        pytest.skip("set NCCL_SOURCE to a checkout of NCCL (2.30 or later) to compare the tuner's ABI with it")
    headers = [Path(source) / "build/include", *(Path(each) / "nvidia/nccl/include" for each in sys.path)]
    public = next((folder for folder in headers if (folder / "nccl.h").exists()), None)
    if (compiler := shutil.which("g++") or shutil.which("clang++")) is None or public is None:
        pytest.skip("needs a C++ compiler, and nccl.h of a built checkout or of pip's nvidia-nccl")
    private = Path(source) / "src/include"
    folders = [Path(__file__).parents[1] / "csrc", private, private / "plugin", public, *_cuda_headers()]
    unit = tmp_path / "abi.cpp"
    unit.write_text(ABI)
    command = [compiler, "-std=c++17", "-fsyntax-only", *(f"-I{folder}" for folder in folders), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _cuda_headers() -> list[Path]:
    """Where nccl.h finds cuda_runtime.h: a toolkit, or pip's."""
    homes = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    wheels = [found for each in sys.path for found in Path(each or ".").glob("nvidia/*/include")]
    return [folder for folder in (*homes, *wheels) if (folder / "cuda_runtime.h").exists()]

"""What csrc/nccl/abi.h declares of NCCL, against the nccl.h of pip's nvidia-nccl wheel (or of $NCCL_HOME/include)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OURS = Path(__file__).parents[1] / "csrc" / "nccl" / "abi.h"
#: What nccl.h includes, as far as it needs it.
CUDA = {
    "cuda_runtime.h": "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n"
    "#define CUDART_VERSION 11000\n#define __CUDA_BF16_TYPES_EXIST__\n",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
}
#: Ours is lists of functions.
DECLARED = """#ifdef NCCL_OVERRIDDEN
#define DECLARED(result, name, parameters) extern "C" result name parameters;
NCCL_OVERRIDDEN(DECLARED)
NCCL_CALLED(DECLARED)
#endif
"""


def nccl_header() -> Path | None:
    homes = [Path(os.environ["NCCL_HOME"]) / "include"] if "NCCL_HOME" in os.environ else []
    wheels = [Path(each or ".") / "nvidia" / "nccl" / "include" for each in sys.path]
    return next((folder / "nccl.h" for folder in (*homes, *wheels) if (folder / "nccl.h").exists()), None)


def facts(header: Path, functions: set[str], constants: set[str], folder: Path) -> str:
    """Types of functions, values of constants and the layout of structs, as a compiler sees them in a header."""
    for name, text in CUDA.items():
        (folder / name).write_text(text)
    lines = [f"std::puts(typeid(decltype(&{name})).name());" for name in sorted(functions)]
    lines += [f'std::printf("{name} %lld\\n", (long long)({name}));' for name in sorted(constants)]
    lines += [
        f'std::printf("{member} %zu\\n", offsetof(ncclConfig_t, {member}));' for member in ("size", "magic", "blocking")
    ]
    lines += [
        f'std::printf("{name} %zu\\n", sizeof({name}));' for name in ("ncclUniqueId", "ncclRedOp_t", "ncclDataType_t")
    ]
    source = folder / "facts.cpp"
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include <typeinfo>\n#include "{header}"\n{DECLARED}'
        f"int main() {{\n{chr(10).join(lines)}\n}}\n"
    )
    command = ["c++", "-std=c++17", "-w", f"-I{folder}", str(source), "-o", str(folder / "facts")]
    subprocess.run(command, check=True)
    printed = subprocess.run([folder / "facts"], check=True, capture_output=True, text=True).stdout
    return re.sub(r"\d+nccl(Config|SimInfo)\w*", "N", printed)  # structs carry their version in their name


def test_declarations_agree_with_nccls_header(tmp_path) -> None:
    theirs = nccl_header()
    if theirs is None or shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler, and nccl.h: pip install nvidia-nccl-cu12, or set NCCL_HOME")
    text = re.sub(r"/\*.*?\*/", "", theirs.read_text(), flags=re.S)
    declared = re.findall(r"F\(ncclResult_t, (\w+)", OURS.read_text())
    there = {name for name in declared if re.search(rf"\b{name}\(", text)}
    younger = {"ncclAlltoAll", "ncclGather", "ncclScatter", "ncclCommShrink", "ncclCommGrow", "ncclCommRevoke"}
    younger |= {"ncclCommInitRankScalable", "ncclGroupSimulateEnd"}  # than NCCL 2.20
    assert set(declared) - there <= younger
    constants = set(re.findall(r"\b(nccl\w+) = ", OURS.read_text())) | {"NCCL_API_MAGIC", "NCCL_CONFIG_UNDEF_INT"}
    constants |= {"NCCL_SPLIT_NOCOLOR", "NCCL_UNIQUE_ID_BYTES"}
    constants = {name for name in constants if re.search(rf"\b{name}\b", text)}
    assert len(constants) > 25
    assert facts(OURS, there, constants, tmp_path) == facts(theirs, there, constants, tmp_path)

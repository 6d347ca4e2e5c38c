"""Live: the topology of the machine that this runs on, from its drivers and the kernel."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...errors import InputError
from ..detected import Detected, Finding
from . import amd, nvidia_smi, nvml, sysfs
from .assembly import assemble
from .facts import Reading
from .pci_tree import levels

NVIDIA_SMI_SECONDS = 30


def detect(root: Path = sysfs.SYS) -> Detected:
    """This machine's GPUs, NVLinks or xGMI links, PCI tree and RDMA NICs, with what was assumed and found broken.

    GPUs come from NVML, else from `nvidia-smi topo -m`, else from the amdgpu driver; PCIe and NICs from `root`
    (/sys). Raises `InputError` where there is no GPU, naming what was tried.
    """
    reading = _with_pci(*_gpus(root), root)
    name = platform.node().split(".")[0] or "local"
    detected = assemble(reading.host, name, f"detected on {name} by {reading.source}")
    return Detected(detected.topology, (*reading.findings, *detected.findings))


def _gpus(root: Path) -> tuple[Reading, Mapping[str, str]]:
    try:
        return nvml.read()
    except nvml.NoDriver as reason:
        nvml_says = str(reason)
    text, smi_says = _nvidia_smi()
    if text:
        reading = nvidia_smi.read(text, "nvidia-smi")
        note = Finding("info", "", f"{nvml_says}: `nvidia-smi topo -m` read instead")
        return Reading(reading.host, (note, *reading.findings), "`nvidia-smi topo -m`"), {}
    found = amd.read(root)
    if found:
        return found
    raise InputError(
        f"local: no GPU here: {nvml_says}; {smi_says}; no amdgpu device in {root / 'class/kfd'}; "
        "name a preset (`topo list`), or give a saved `nvidia-smi topo -m`"
    )


def _nvidia_smi() -> tuple[str, str]:
    """The output of `nvidia-smi topo -m` and `nvidia-smi -L`, or "" and why there is none."""
    if shutil.which("nvidia-smi") is None:
        return "", "no nvidia-smi"
    texts = []
    for arguments in (["topo", "-m"], ["-L"]):
        try:
            result = subprocess.run(
                ["nvidia-smi", *arguments], capture_output=True, timeout=NVIDIA_SMI_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "", f"nvidia-smi {arguments[0]} says nothing for {NVIDIA_SMI_SECONDS} s"
        except OSError as error:
            return "", f"nvidia-smi does not start ({error.strerror})"
        text = result.stdout.decode(errors="replace")
        if arguments[0] == "topo" and (result.returncode or "GPU0" not in text):
            said = " ".join((text + result.stderr.decode(errors="replace")).split())[:120]
            return "", f"nvidia-smi topo -m shows no GPU ({said})"
        texts.append(text)
    return "\n".join(texts), ""


def _with_pci(reading: Reading, address: Mapping[str, str], root: Path) -> Reading:
    """The reading with this machine's NICs and, where the kernel knows every device's place, its PCI tree."""
    if not address:
        return reading
    at: dict[str, list[str]] = defaultdict(list)
    for gpu, where in address.items():
        at[where].append(gpu)
    nics = [nic for nic in sysfs.rdma_nics(root) if nic.address and nic.active]
    down = [nic for nic in sysfs.rdma_nics(root) if not nic.active]
    for nic in nics:
        at[nic.address].append(nic.name)
    findings = [Finding("warning", nic.name, "its port is not active: left out") for nic in down]
    tree = sysfs.pci_tree(at, root)
    if not tree:
        if nics:
            text = f"/sys does not show where the devices sit: {len(nics)} NICs left out"
            findings.append(Finding("warning", nics[0].name, text))
        return replace(reading, findings=(*reading.findings, *findings))
    host = reading.host
    host = replace(
        host,
        nics=tuple(nic.name for nic in nics),
        nic_GBps={nic.name: nic.GBps for nic in nics if nic.GBps is not None},
        levels={**levels(tree), **host.levels},
        pci=tree,
    )
    return Reading(host, (*reading.findings, *findings), f"{reading.source} and /sys")

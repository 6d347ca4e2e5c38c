"""nvml: what NVIDIA's driver says of this machine's GPUs, through nvidia-ml-py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from ctypes import byref
from dataclasses import dataclass, field
from itertools import combinations
from types import ModuleType
from typing import Any

from ...errors import InputError
from ..detected import Finding
from .facts import MOST_NVLINKS, HostFacts, Pair, Reading, pair
from .pci_tree import generation_speed, lanes_GBps
from .peer_access import peer_access
from .sysfs import pci_address

_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
#: The binding gives this one as the tuple (0,).
_P2P_READ = 0
_LINK_STATE_FIELD = 165
_FABRIC_COMPLETED = 3


class NoDriver(Exception):
    """NVML is not there or does not start; the text says which."""


@dataclass
class _Gpu:
    """What was read of one GPU."""

    handle: Any
    label: str
    address: str
    name: str = ""
    sm: int = 0
    to_gpu: Counter[str] = field(default_factory=Counter)  # PCI address → links
    to_switch: int = 0
    inactive: int = 0
    pcie_GBps: float | None = None
    numa: str = ""
    domain: str = ""


def read() -> tuple[Reading, Mapping[str, str]]:
    """What NVML says of this machine, and the PCI address of each GPU by its label.

    Raises `NoDriver` where there is no NVML or no GPU, and `InputError`, naming the call, where one fails that
    nothing can be said without. Any other failure is a finding. O(GPUs² + NVLinks) calls.
    """
    try:
        import pynvml
    except ImportError:
        raise NoDriver("nvidia-ml-py is not installed (pip install nvidia-ml-py)") from None
    driver = _Driver(pynvml)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriver(f"NVML does not start ({error})") from None
    try:
        gpus = [driver.gpu(index) for index in range(driver.count())]
        if not gpus:
            raise NoDriver("NVML finds no GPU")
        return driver.reading(gpus), {gpu.label: gpu.address for gpu in gpus}
    finally:
        pynvml.nvmlShutdown()


class _Driver:
    """NVML's calls, with what their failures mean."""

    def __init__(self, pynvml: ModuleType) -> None:
        self.nvml = pynvml
        self.findings: list[Finding] = []
        self.failed: dict[str, list[str]] = defaultdict(list)

    def count(self) -> int:
        return int(self._must("nvmlDeviceGetCount", ""))

    def gpu(self, index: int) -> _Gpu:
        label = f"GPU{index}"
        handle = self._must("nvmlDeviceGetHandleByIndex", label, index)
        bus_id = self._must("nvmlDeviceGetPciInfo", label, handle).busId
        gpu = _Gpu(handle, label, pci_address(bus_id.decode() if isinstance(bus_id, bytes) else bus_id))
        gpu.name = str(self._may("nvmlDeviceGetName", label, handle) or "")
        major, minor = self._may("nvmlDeviceGetCudaComputeCapability", label, handle) or (0, 0)
        gpu.sm = 10 * major + minor
        gpu.pcie_GBps = self._pcie_GBps(gpu)
        node = self._may("nvmlDeviceGetNumaNodeId", label, handle)
        gpu.numa = str(node) if isinstance(node, int) and node >= 0 else ""
        mode = self._may("nvmlDeviceGetMigMode", label, handle)
        if mode and mode[0] == 1:
            text = "MIG is enabled: its instances cannot use NVLink or peer-to-peer"
            self.findings.append(Finding("warning", label, text))
        self._read_links(gpu)
        gpu.domain = self._fabric_domain(gpu)
        return gpu

    def reading(self, gpus: list[_Gpu]) -> Reading:
        """The facts that all GPUs make together."""
        nvlinks = self._nvlinks(gpus)
        host = HostFacts(
            gpus=tuple(gpu.label for gpu in gpus),
            nics=(),
            nvlinks=nvlinks,
            levels=self._ancestors(gpus),
            numa={gpu.label: gpu.numa for gpu in gpus if gpu.numa},
            models={gpu.label: gpu.name for gpu in gpus if gpu.name},
            generation={gpu.label: gpu.sm for gpu in gpus if gpu.sm},
            switched={gpu.label: gpu.to_switch for gpu in gpus if gpu.to_switch},
            domain={gpu.label: gpu.domain for gpu in gpus if gpu.domain},
            pcie_GBps={gpu.label: gpu.pcie_GBps for gpu in gpus if gpu.pcie_GBps is not None},
        )
        for gpu in gpus:
            if gpu.inactive and (gpu.to_gpu or gpu.to_switch):
                self.findings.append(Finding("warning", gpu.label, f"{gpu.inactive} NVLinks inactive"))
        self._report_mixture(gpus)
        findings = (*self.findings, *peer_access(host, self._p2p(gpus)), *self._failures(len(gpus)))
        return Reading(host, findings, "NVML")

    # -- NVLinks -----------------------------------------------------------------------------------------

    def _read_links(self, gpu: _Gpu) -> None:
        for link in range(MOST_NVLINKS):
            state = self._link_state(gpu, link)
            if state is None:
                return
            if not state:
                gpu.inactive += 1
                continue
            kind = self._may("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.label, gpu.handle, link)
            if kind == self.nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                gpu.to_switch += 1
                continue
            remote = self._may("nvmlDeviceGetNvLinkRemotePciInfo", gpu.label, gpu.handle, link)
            if remote is None:
                gpu.inactive += 1
                continue
            bus_id = remote.busId.decode() if isinstance(remote.busId, bytes) else remote.busId
            if pci_address(bus_id).startswith("fffffff"):  # a virtual machine hides its NVSwitches so
                gpu.to_switch += 1
            else:
                gpu.to_gpu[pci_address(bus_id)] += 1

    def _link_state(self, gpu: _Gpu, link: int) -> bool | None:
        """Whether a link is active; None where the GPU has no such link."""
        try:
            if gpu.sm < 90:
                return bool(self.nvml.nvmlDeviceGetNvLinkState(gpu.handle, link))
            value = self.nvml.nvmlDeviceGetFieldValues(gpu.handle, [(_LINK_STATE_FIELD, link)])[0]
        except self.nvml.NVMLError as error:
            if error.value not in (self.nvml.NVML_ERROR_INVALID_ARGUMENT, self.nvml.NVML_ERROR_NOT_SUPPORTED):
                call = "nvmlDeviceGetNvLinkState" if gpu.sm < 90 else "nvmlDeviceGetFieldValues"
                self.failed[f"{call}: {error}"].append(gpu.label)
            return None
        return bool(value.value.uiVal) if value.nvmlReturn == self.nvml.NVML_SUCCESS else None

    def _nvlinks(self, gpus: list[_Gpu]) -> dict[Pair, int]:
        at = {gpu.address: gpu for gpu in gpus}
        links: dict[Pair, int] = {}
        for gpu in gpus:
            for address, count in gpu.to_gpu.items():
                other = at.get(address)
                if other is None:
                    text = f"{count} NVLinks to {address}, which is no GPU that this process sees"
                    self.findings.append(Finding("warning", gpu.label, text))
                    continue
                back = other.to_gpu[gpu.address]
                if back != count:
                    text = f"{count} NVLinks to {other.label}, which has {back} back: {min(count, back)} taken"
                    self.findings.append(Finding("fault", gpu.label, text))
                if min(count, back):
                    links[pair(gpu.label, other.label)] = min(count, back)
        return links

    def _fabric_domain(self, gpu: _Gpu) -> str:
        """The NVLink domain (cluster and clique) of a GPU whose NVSwitches join several hosts, else ""."""
        if not hasattr(self.nvml, "c_nvmlGpuFabricInfoV_t"):  # bindings of 2023 and before
            return ""
        info = self.nvml.c_nvmlGpuFabricInfoV_t()
        if self._may("nvmlDeviceGetGpuFabricInfoV", gpu.label, gpu.handle, byref(info)) is None:
            return ""
        if info.state != _FABRIC_COMPLETED or info.status != self.nvml.NVML_SUCCESS:
            if gpu.to_switch and info.state in (1, 2):
                text = "its NVLink fabric is not initialised: start the fabric manager"
                self.findings.append(Finding("fault", gpu.label, text))
            return ""
        uuid = bytes(info.clusterUuid).hex()
        if not uuid.strip("0"):
            return ""  # the NVSwitches of this host alone
        return f"{uuid}/{info.cliqueId}"

    # -- PCIe and peers ----------------------------------------------------------------------------------

    def _pcie_GBps(self, gpu: _Gpu) -> float | None:
        """At the best generation (an idle GPU lowers its own) and the width that the slot gives."""
        generation = self._may("nvmlDeviceGetMaxPcieLinkGeneration", gpu.label, gpu.handle)
        width = self._may("nvmlDeviceGetCurrPcieLinkWidth", gpu.label, gpu.handle)
        most = self._may("nvmlDeviceGetMaxPcieLinkWidth", gpu.label, gpu.handle)
        if generation is None:
            return None
        if width and most and width < most:
            text = f"PCIe ×{width} where the GPU can ×{most}: check the slot"
            self.findings.append(Finding("warning", gpu.label, text))
        return lanes_GBps(generation_speed(generation), width or most or 0)

    def _ancestors(self, gpus: list[_Gpu]) -> dict[Pair, str]:
        levels = {}
        for one, other in combinations(gpus, 2):
            ancestor = self._may("nvmlDeviceGetTopologyCommonAncestor", one.label, one.handle, other.handle)
            if ancestor in _LEVELS:
                levels[pair(one.label, other.label)] = _LEVELS[ancestor]
        return levels

    def _p2p(self, gpus: list[_Gpu]) -> dict[Pair, str]:
        status = {}
        for one, other in combinations(gpus, 2):
            said = self._may("nvmlDeviceGetP2PStatus", one.label, one.handle, other.handle, _P2P_READ)
            if said is not None:
                status[pair(one.label, other.label)] = _P2P.get(said, "U")
        return status

    def _report_mixture(self, gpus: list[_Gpu]) -> None:
        names = Counter(gpu.name for gpu in gpus if gpu.name)
        if len(names) > 1:
            shown = ", ".join(f"{count} {name}" for name, count in names.most_common())
            self.findings.append(Finding("warning", "", f"different GPUs: {shown}; the first one's figures are used"))

    # -- calls -------------------------------------------------------------------------------------------

    def _must(self, call: str, label: str, *arguments: Any) -> Any:
        try:
            return self._call(call)(*arguments)
        except self.nvml.NVMLError as error:
            where = f"{label}: " if label else ""
            raise InputError(
                f"local: {where}{call} failed: {error}; see whether `nvidia-smi` works, or give a saved `topo -m`"
            ) from None

    def _may(self, call: str, label: str, *arguments: Any) -> Any:
        """The call's answer, None where it has none; failures other than "not supported" are remembered."""
        try:
            return self._call(call)(*arguments)
        except self.nvml.NVMLError as error:
            usual = (
                self.nvml.NVML_ERROR_NOT_SUPPORTED,
                self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                self.nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            )
            if error.value not in usual:
                self.failed[f"{call}: {error}"].append(label)
            return None

    def _call(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.nvml, name)
        return function

    def _failures(self, ngpus: int) -> list[Finding]:
        findings = []
        for what, labels in self.failed.items():
            distinct = list(dict.fromkeys(labels))
            shown = "" if len(distinct) == ngpus else f" ({', '.join(distinct[:4])})" if len(distinct) > 1 else ""
            findings.append(Finding("warning", distinct[0], f"{what}{shown}: left out"))
        return findings

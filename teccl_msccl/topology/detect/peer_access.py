"""Peer access: what NVML and `nvidia-smi topo -p2p` say of reading and writing a peer's memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..detected import Finding
from .facts import HostFacts, Pair

#: What each status means, as nvidia-smi spells them; OK besides.
NO_ACCESS = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by regkey",
    "U": "unknown",
}


def peer_access(host: HostFacts, status: Mapping[Pair, str]) -> tuple[Finding, ...]:
    """What there is to say of peer access: of the pairs that only PCIe joins, whichever it is, of others a refusal."""
    by_status: dict[str, list[str]] = defaultdict(list)
    for ends, said in status.items():
        joined = ends in host.nvlinks or ends <= set(host.switched)
        if ends <= set(host.gpus) and not (joined and said == "OK"):
            by_status[said].append("–".join(sorted(ends, key=host.gpus.index)))
    findings = []
    for said, pairs in by_status.items():
        shown = ", ".join(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        device = pairs[0].split("–")[0]
        if said == "OK":
            findings.append(Finding("info", device, f"peer-to-peer over PCIe works: {shown}"))
        else:
            text = f"no peer-to-peer ({said}, {NO_ACCESS[said]}): {shown}; copies go through host memory"
            findings.append(Finding("warning", device, text))
    return tuple(findings)

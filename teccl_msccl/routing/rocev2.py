"""RoCEv2: how a queue pair's UDP source port comes about, and what flow label asks for a port.

Linux derives the port from the flow label that a queue pair is given when it becomes ready to send (ib_core's
`rdma_flow_label_to_udp_sport`), or from the queue pair numbers. mlx5 can also modify the port of one that is ready.
"""

from __future__ import annotations

#: Ports that the arithmetic can give, and the port that all of RoCEv2 goes to.
FIRST_PORT, LAST_PORT = 0xC000, 0xFFFF
ROCE_PORT = 4791
MOST_QPN = 0xFFFFFF


def udp_sport(flow_label: int) -> int:
    """The UDP source port of a 20-bit flow label other than 0: its low 14 bits, with the high 6 folded in."""
    if not 0 < flow_label <= 0xFFFFF:
        raise ValueError(f"flow label {flow_label:#x} is not in 1..0xFFFFF")
    return ((flow_label & 0x3FFF) ^ ((flow_label & 0xFC000) >> 14)) | FIRST_PORT


def derived_flow_label(local_qpn: int, remote_qpn: int) -> int:
    """The flow label of a queue pair that was given none, from the two queue pair numbers."""
    value = local_qpn * remote_qpn
    value ^= value >> 20
    value ^= value >> 40
    return value & 0xFFFFF


def derived_udp_sport(local_qpn: int, remote_qpn: int) -> int:
    """The UDP source port of a queue pair that was given no flow label."""
    label = derived_flow_label(local_qpn, remote_qpn)
    return ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | FIRST_PORT


def flow_label(sport: int) -> int:
    """A flow label that asks for a UDP source port. Label 0 would mean "derive one", so 0xC000 needs a high bit."""
    if not FIRST_PORT <= sport <= LAST_PORT:
        raise ValueError(f"port {sport} is not in {FIRST_PORT}..{LAST_PORT}")
    return 0x4001 if sport == FIRST_PORT else sport & 0x3FFF

"""Default α–β figures, as NCCL's tuning model has them; calibration overrides them.

α is what one hop from GPU to GPU costs in protocol LL, whatever the hop crosses. The links of a path share it: an
NVSwitch's two links have half of NVLink's each, a GPU's own PCIe link has half of PCIe's and the links further up
(to CPUs, between sockets, to NICs) none, and a NIC's network link has half of the network's.
"""

from __future__ import annotations

NVLINK_ALPHA_US = 0.6
PCIE_ALPHA_US = 1.0
NETWORK_ALPHA_US = 2.7

NVSWITCH_LINK_ALPHA_US = NVLINK_ALPHA_US / 2
GPU_PCIE_LINK_ALPHA_US = PCIE_ALPHA_US / 2
NETWORK_LINK_ALPHA_US = NETWORK_ALPHA_US / 2
UPSTREAM_LINK_ALPHA_US = 0.0

"""Detection: what a machine, or a saved output of its tools, says of its own topology.

Each reader (here `nvidia_smi`) gathers `HostFacts`; `assembly` makes a topology of them, whoever gathered them.
"""

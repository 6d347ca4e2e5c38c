"""teccl-msccl: hardware → Topology → Schedule → Program → a file that GPUs execute, with a proof at every arrow."""

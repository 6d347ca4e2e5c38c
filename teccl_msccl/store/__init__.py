"""The store: programs generated once for a machine, proved, and found again by every job on such a machine."""

"""Who started this process, as the launchers' environments say."""

from __future__ import annotations

import pytest

from teccl_msccl.runtime.launch import Launch, launched

VARIABLES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_NTASKS")


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3"}, Launch("openmpi", 8, 3)),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, Launch("mpich", 4, 1)),
        ({"SLURM_NTASKS": "16", "PMIX_RANK": "5"}, Launch("pmix", 16, 5)),
        ({"PMIX_RANK": "0"}, Launch("pmix", 2, 0)),
        ({"SLURM_NTASKS": "16"}, None),  # a shell in an allocation
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
        ({"PMI_SIZE": "4", "PMI_RANK": "x"}, Launch("mpich", 4, 0)),
    ],
)
def test_launchers_are_known_by_their_environment(monkeypatch, environment, launch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert launched() == launch

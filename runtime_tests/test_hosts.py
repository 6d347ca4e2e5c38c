"""Programs executed across hosts: two network namespaces stand for two hosts, and TCP is all that joins their ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hand_made
import pytest

from teccl_msccl.program import xml

COMMAND_LINES = str(Path(__file__).with_name("command_lines.py"))
RANKS_PER_HOST = 4


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)


@dataclass
class Cluster:
    """A switch, where mpirun is called, and two hosts: each a namespace, joined by a bridge in the switch's."""

    name: str
    network: str
    spaces: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> dict[str, str]:
        """Namespace of every host by its address."""
        return {f"{self.network}.{number + 1}": f"{self.name}-{number}" for number in (1, 2)}

    def build(self) -> str:
        """Make the namespaces; what went wrong, or nothing."""
        switch = f"{self.name}-0"
        plan: list[tuple[str, ...]] = []
        for space in (switch, *self.hosts.values()):
            plan += [("netns", "add", space), ("-n", space, "link", "set", "lo", "up")]
        plan += [
            ("-n", switch, "link", "add", "bridge0", "type", "bridge"),
            ("-n", switch, "addr", "add", f"{self.network}.1/24", "dev", "bridge0"),
            ("-n", switch, "link", "set", "bridge0", "up"),
        ]
        for number, (address, host) in enumerate(self.hosts.items()):
            port = f"port{number}"
            plan += [
                ("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host),
                ("-n", switch, "link", "set", port, "master", "bridge0"),
                ("-n", switch, "link", "set", port, "up"),
                ("-n", host, "addr", "add", f"{address}/24", "dev", "eth0"),
                ("-n", host, "link", "set", "eth0", "up"),
            ]
        for words in plan:
            done = ip(*words)
            if done.returncode:
                return f"ip {' '.join(words)}: {done.stderr.strip()}"
            if words[:2] == ("netns", "add"):
                self.spaces.append(words[2])
        return ""

    def remove(self) -> None:
        for space in self.spaces:
            for process in ip("netns", "pids", space).stdout.split():
                subprocess.run(["kill", "-9", process], check=False)
            ip("netns", "del", space)

    def agent(self, directory: Path) -> Path:
        """What mpirun calls in ssh's place: AGENT ADDRESS COMMAND…"""
        cases = "".join(f"  {address}) space={space} ;;\n" for address, space in self.hosts.items())
        path = directory / "agent.sh"
        path.write_text(
            f'#!/bin/sh\ncase "$1" in\n{cases}esac\nshift\n'
            'exec ip netns exec "$space" unshare --uts sh -c "hostname $space; $*"\n'
        )
        path.chmod(0o755)
        return path

    def sent_bytes(self, address: str) -> int:
        """What the host has sent into the network."""
        statistics = json.loads(ip("-n", self.hosts[address], "-s", "-j", "link", "show", "eth0").stdout)
        return int(statistics[0]["stats64"]["tx"]["bytes"])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: apt-get install iproute2 util-linux")
    made = Cluster(f"teccl{os.getpid()}", f"10.{os.getpid() // 250 % 250}.{os.getpid() % 250}")
    try:
        if problem := made.build():
            pytest.skip(f"network namespaces are not permitted: {problem}")
        yield made
    finally:
        made.remove()


def test_eight_ranks_on_two_hosts(open_mpi, cluster, tmp_path) -> None:
    nranks = 2 * RANKS_PER_HOST
    lines = []
    for name, program in {
        "allreduce": hand_made.direct("allreduce", nranks),
        "ring": hand_made.ring("allgather", nranks),
    }.items():
        xml.write(program, tmp_path / f"{name}.xml")
        lines.append(["run", str(tmp_path / f"{name}.xml"), "--json", "--size", "1,1000003", "--iters", "1"])
    before = [cluster.sent_bytes(address) for address in cluster.hosts]
    told = open_mpi.start(
        (nranks, [COMMAND_LINES, json.dumps(lines)]),
        inside=("ip", "netns", "exec", f"{cluster.name}-0"),
        options=(
            *("--prtemca", "plm_ssh_agent", str(cluster.agent(tmp_path))),
            *("--prtemca", "prte_if_include", f"{cluster.network}.0/24"),
            *("--host", ",".join(f"{address}:{RANKS_PER_HOST}" for address in cluster.hosts)),
            *("--map-by", f"ppr:{RANKS_PER_HOST}:node"),
            *("--mca", "pml", "ob1", "--mca", "btl", "tcp,sm,self", "--mca", "btl_tcp_if_include", "eth0"),
        ),
    )
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert [row["wrong"] for answer in answers for row in answer["rows"]] == [0] * (2 * 2 * 2)
    # Every run of the ring alone moves 7/8 of 1 MB from host to host, either way.
    for address, earlier in zip(cluster.hosts, before, strict=True):
        assert cluster.sent_bytes(address) - earlier > 1_000_000

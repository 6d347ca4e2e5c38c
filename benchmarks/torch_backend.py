"""Targets and results of the PyTorch backend on CPUs: `python benchmarks/torch_backend.py`.

Four processes; custom and gloo take turns inside one job, and the ratio is the median over the rounds' ratios, of the
slowest rank's times.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
NRANKS = 4
ROUNDS = 9
SIZES_MB = (16, 64)


def as_rank() -> None:
    import torch
    import torch.distributed as dist

    import teccl_msccl.torch

    sys.path.insert(0, str(HERE.parent / "examples"))
    from train_transformer import Transformer, train

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("teccl")
    gloo = dist.new_group(backend="gloo")

    def compared(action: Callable[[dist.ProcessGroup | None], object]) -> float:
        ratios = []
        for _ in range(ROUNDS + 1):
            seconds = []
            for group in (None, gloo):
                dist.barrier(gloo)
                begin = time.perf_counter()
                action(group)
                took = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(took, dist.ReduceOp.MAX, group=gloo)
                seconds.append(float(took))
            ratios.append(seconds[0] / seconds[1])
        return statistics.median(ratios[1:])

    results: list[tuple[str, float, float]] = []
    teccl_msccl.torch.reset()
    for megabytes in SIZES_MB:
        whole, part = torch.zeros(megabytes * 10**6 // 4), torch.zeros(megabytes * 10**6 // 4 // NRANKS)
        reduced = compared(lambda group, whole=whole: dist.all_reduce(whole, group=group))
        results.append((f"allreduce of {megabytes} MB", 1.05, reduced))
        gathered = compared(lambda group, whole=whole, part=part: dist.all_gather_into_tensor(whole, part, group=group))
        results.append((f"allgather of {megabytes} MB", 1.05, gathered))
    models = {}
    for group in (None, gloo):
        torch.manual_seed(1)
        models[group] = torch.nn.parallel.DistributedDataParallel(Transformer(), process_group=group, bucket_cap_mb=25)
    device = torch.device("cpu")
    results.append(
        (
            "DDP step of the example transformer",
            1.3,
            compared(lambda g: train(models[g], 1, 2, device, dist.get_rank())),
        )
    )
    stats = teccl_msccl.torch.stats()
    if dist.get_rank() == 0:
        for what, target, ratio in results:
            print(f"{what:40} ≤ {target:g} × gloo's       {'ok' if ratio <= target else 'MISSED':7} {ratio:.2f}")
        whole_custom = stats["custom"] > 0 and stats["delegated"] == 0
        print(f"{'custom, delegated':40} > 0, 0              {'ok' if whole_custom else 'MISSED':7} "
              f"{stats['custom']}, {stats['delegated']}")  # fmt: skip
    dist.destroy_process_group()


def main() -> int:
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch is not installed: pip install 'teccl-msccl[torch]'")
        return 1
    with socket.socket() as probe, tempfile.TemporaryDirectory() as store:
        probe.bind(("127.0.0.1", 0))
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        probe.close()
        environment |= {"WORLD_SIZE": str(NRANKS), "TECCL_STORE": store, "GLOO_SOCKET_IFNAME": "lo"}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path[1:]])}
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank"], env=environment | {"RANK": str(rank)},
                             stdout=subprocess.PIPE, text=True)
            for rank in range(NRANKS)
        ]  # fmt: skip
        said = [rank.communicate(timeout=900)[0] for rank in ranks]
    print(f"{os.cpu_count()} cores\n{said[0]}", end="")
    return int(any(rank.returncode for rank in ranks) or "MISSED" in said[0])


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        as_rank()
    else:
        sys.exit(main())

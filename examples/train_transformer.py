"""A small transformer trained with DDP, with custom collectives or without:

    torchrun --nproc-per-node 4 examples/train_transformer.py                  # gloo on CPUs, NCCL on GPUs
    torchrun --nproc-per-node 4 examples/train_transformer.py --backend teccl  # the same script, custom collectives

The model learns to continue sequences in which every token is the sum of the two before it. Rank 0 prints the losses,
the time of a step, and what ran custom.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 97


class Transformer(nn.Module):
    """A causal transformer over a small vocabulary, with 10.7 M parameters by default."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 6, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        hidden = self.tokens(text) + self.places(torch.arange(length, device=text.device))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def sequences(batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    text = torch.randint(VOCABULARY, (batch, length), generator=generator)
    for at in range(2, length):
        text[:, at] = (text[:, at - 1] + text[:, at - 2]) % VOCABULARY
    return text


def train(model: nn.Module, steps: int, batch: int, device: torch.device, seed: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(seed)
    losses, seconds = [], []
    for _ in range(steps):
        text = sequences(batch, 33, generator).to(device)
        begin = time.perf_counter()
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def main() -> None:
    on_gpus = torch.cuda.is_available()
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--backend", default="nccl" if on_gpus else "gloo")
    words.add_argument("--steps", type=int, default=10)
    words.add_argument("--batch", type=int, default=4)
    chosen = words.parse_args()
    if chosen.backend == "teccl":
        import teccl_msccl.torch  # where the package is installed, torch finds the backend without this line
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    dist.init_process_group(chosen.backend)
    torch.manual_seed(1)
    model = DistributedDataParallel(Transformer().to(device), bucket_cap_mb=25)
    losses, seconds = train(model, chosen.steps, chosen.batch, device, seed=rank)
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{parameters / 1e6:.1f} M parameters, {dist.get_world_size()} ranks over {chosen.backend}")
        print("losses " + " ".join(f"{loss:.4f}" for loss in losses))
        print(f"{statistics.median(seconds[1:] or seconds) * 1e3:.0f} ms a step")
        if chosen.backend == "teccl":
            print(teccl_msccl.torch.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

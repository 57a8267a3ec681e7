"""Target tokens a second of Hugging Face Marian under torch.compile; `train_gpu.py` runs this.

    pip install transformers
    python benchmarks/marian_compiled.py PREPARED SLOTS [SLOTS ...]

What a user can make of it in an afternoon: pairs padded to one of four lengths, batches of about as
many slots, so that four shapes are compiled and replayed as CUDA graphs (`reduce-overhead`), in
bfloat16 autocast with fused Adam. Batches lie ready in pinned memory. Only real target tokens
count; compiling is timed and not counted. A finer choice of lengths pads less and compiles longer.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import PRESETS
from dragoman.corpus.store import PairTokens, PreparedCorpus, SideTokens
from peers import LONGEST, Batch, Logits, make_marian, smoothed_loss

LENGTHS = (24, 40, 64, LONGEST)  # Nearly three quarters of the target slots are then real tokens.
BATCHES = 100
TURNS_TO_RECORD = 3  # A shape is compiled, then recorded, then replayed.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Loss = Callable[[Tensor, Tensor], Tensor]  # Of source and target [sentences, tokens].


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("slots", type=int, nargs="+")
    arguments = parser.parse_args()
    corpus = PreparedCorpus(arguments.prepared)
    padding = corpus.subwords()[1].size
    for slots in arguments.slots:
        ready = list(islice(static_batches(corpus.train, slots, padding), BATCHES))
        torch.manual_seed(1)
        model, logits = make_marian(PRESETS["base"], padding)
        print(json.dumps({"slots": slots} | measure(model, logits, ready, padding)), flush=True)
        del model, logits
        torch.compiler.reset()
        torch.cuda.empty_cache()


def static_batches(pairs: PairTokens, slots: int, padding: int) -> Iterator[Batch]:
    """Pairs in random order, each in the shortest shape that holds it; a batch when one is full."""
    waiting: dict[int, list[int]] = {length: [] for length in LENGTHS}
    longer = np.maximum(np.diff(pairs.source.offsets), np.diff(pairs.target.offsets))
    for pair in np.random.default_rng(1).permutation(len(pairs)):
        length = next(one for one in LENGTHS if longer[pair] <= one)
        chosen = waiting[length]
        chosen.append(int(pair))
        if len(chosen) == slots // length:
            sides = (pairs.source, pairs.target)
            source, target = (padded(side, chosen, length, padding) for side in sides)
            yield source, target, int((target != padding).sum())
            waiting[length] = []


def padded(side: SideTokens, pairs: list[int], length: int, padding: int) -> Tensor:
    lines: NDArray[np.int64] = np.full((len(pairs), length), padding, np.int64)
    for row, pair in zip(lines, pairs, strict=True):
        line = side.line(pair)
        row[: len(line)] = line
    tensor = torch.from_numpy(lines)
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


def measure(
    model: nn.Module, logits: Logits, ready: list[Batch], padding: int
) -> dict[str, object]:
    """Compile every shape, then time all batches."""
    model.to(DEVICE).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    @torch.compile(mode="reduce-overhead", dynamic=False)
    def loss(source: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return smoothed_loss(logits, source, target, padding)

    def train(batches: list[Batch]) -> float:
        synchronize()
        start = time.perf_counter()
        for source, target, _ in batches:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            found = loss(*(one.to(DEVICE, non_blocking=True) for one in (source, target)))
            found.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # Users want to see the norm.
            optimizer.step()
            optimizer.zero_grad()
        synchronize()
        return time.perf_counter() - start

    one_of_each = list({batch[0].shape: batch for batch in ready}.values())
    compiling = train([batch for batch in one_of_each for _ in range(TURNS_TO_RECORD)])
    rate = sum(tokens for _, _, tokens in ready) / train(ready)
    memory = 0
    if DEVICE == "cuda":
        free, total = torch.cuda.mem_get_info()
        memory = total - free
    slots = sum(target.numel() for _, target, _ in ready)
    return {
        "peer": f"Hugging Face Marian, {len(one_of_each)} compiled shapes",
        "cudnn_attention": True,
        "fresh_tokens_per_second": rate,
        "tokens_per_second": rate,
        "compiling_seconds": compiling,
        "share_of_real_tokens": sum(tokens for _, _, tokens in ready) / slots,
        "memory_bytes": memory,
    }


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()

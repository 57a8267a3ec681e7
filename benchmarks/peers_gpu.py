"""Target tokens a second of the peers on one GPU; `train_gpu.py` runs this beside our trainer.

    pip install transformers
    python benchmarks/peers_gpu.py PREPARED SLOTS [SLOTS ...]

A peer is a Transformer base in bfloat16 autocast with fused Adam and label smoothing, in a
plain loop. It gets what its users give it: sentences of like length, padded, in batches of about as
many real target tokens as our step has slots. They lie ready in pinned memory: what it takes to
make them is not counted. Copying them, and everything else, is. All batches are trained on twice:
the first time nearly every shape is new to the libraries, as in the first epochs of a run; the
second time none is. Both once as PyTorch chooses the attention and once without cuDNN's, which
plans anew for every shape that it has not seen.
"""

import argparse
import json
import math
import time
from itertools import islice, product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import PRESETS, ModelShape
from dragoman.corpus.store import PreparedCorpus
from dragoman.model.transformer import count_parameters, sinusoids
from peers import DROPOUT, LONGEST, Batch, Batches, Logits, make_marian, smoothed_loss

BATCHES = 60
WARM_UP_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("slots", type=int, nargs="+")
    arguments = parser.parse_args()
    corpus = PreparedCorpus(arguments.prepared)
    words = corpus.subwords()[1].size
    makers = {"Hugging Face Marian": make_marian, "nn.Transformer": make_transformer}
    for slots in arguments.slots:
        ready = list(
            islice(Batches(corpus.train, slots, words, seed=1).loader(), WARM_UP_STEPS + BATCHES)
        )
        for (peer, make), cudnn in product(makers.items(), (True, False)):
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
            torch.manual_seed(1)
            model, logits = make(PRESETS["base"], words)
            model.cuda()
            fresh, seen = measure(model, logits, ready, words)
            free, total = torch.cuda.mem_get_info()
            found = {"peer": peer, "slots": slots, "cudnn_attention": cudnn}
            found |= {"fresh_tokens_per_second": fresh, "tokens_per_second": seen}
            found |= {"parameters": count_parameters(model), "memory_bytes": total - free}
            print(json.dumps(found), flush=True)
            del model, logits
            torch.cuda.empty_cache()


def measure(model: nn.Module, logits: Logits, ready: list[Batch], padding: int) -> list[float]:
    """Real target tokens a second on the wall's clock: shapes new, then the same shapes again."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    for batch in ready[:WARM_UP_STEPS]:
        train_step(model, logits, optimizer, batch, padding)
    rates = []
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for batch in ready[WARM_UP_STEPS:]:
            train_step(model, logits, optimizer, batch, padding)
        torch.cuda.synchronize()
        tokens = sum(count for _, _, count in ready[WARM_UP_STEPS:])
        rates.append(tokens / (time.perf_counter() - start))
    return rates


def train_step(
    model: nn.Module, logits: Logits, optimizer: torch.optim.Adam, batch: Batch, padding: int
) -> None:
    """One step as people write it."""
    inputs, target = (one.to("cuda", non_blocking=True) for one in batch[:2])
    with torch.autocast("cuda", torch.bfloat16):
        loss = smoothed_loss(logits, inputs, target, padding)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # Users want to see the norm.
    optimizer.step()
    optimizer.zero_grad()


class TorchTransformer(nn.Module):
    """PyTorch's own Transformer with tied embeddings."""

    def __init__(self, shape: ModelShape, words: int) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words + 1, shape.d_model)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.layers = nn.Transformer(
            shape.d_model,
            shape.heads,
            shape.encoder_layers,
            shape.decoder_layers,
            shape.feed_forward,
            DROPOUT,
            batch_first=True,
            norm_first=True,
        )
        self.dropout = nn.Dropout(DROPOUT)
        table = sinusoids(torch.arange(2 * LONGEST), shape.d_model)
        self.register_buffer("table", table)

    def forward(self, source: Tensor, begun: Tensor) -> Tensor:
        """Logits [sentences, tokens, words]."""
        slots = torch.arange(begun.shape[1], device=begun.device)
        hidden = self.layers(
            self._embed(source),
            self._embed(begun),
            tgt_mask=slots[None, :] > slots[:, None],
            src_key_padding_mask=source == self.words,
            memory_key_padding_mask=source == self.words,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        dropped: Tensor = self.dropout(x + self.get_buffer("table")[: tokens.shape[1]])
        return dropped


def make_transformer(shape: ModelShape, words: int) -> tuple[nn.Module, Logits]:
    model = TorchTransformer(shape, words)
    return model, model


if __name__ == "__main__":
    main()

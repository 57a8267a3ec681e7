"""What the peers' benchmarks share: batches as their users make them, Marian, and Eole's files."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dragoman.config import ModelShape
from dragoman.corpus.store import PairTokens, PreparedCorpus

LONGEST = 128
DROPOUT = 0.1
LOADERS = 8  # Processes that make batches.
Batch = tuple[Tensor, Tensor, int]  # Source and target [sentences, tokens]; target tokens.
Logits = Callable[[Tensor, Tensor], Tensor]  # Of source and target inputs [sentences, tokens].


def smoothed_loss(logits: Logits, source: Tensor, target: Tensor, padding: int) -> Tensor:
    """The usual loss: teacher forced, label-smoothed, padding left out."""
    begun = torch.cat((torch.ones_like(target[:, :1]), target[:, :-1]), dim=1)
    return F.cross_entropy(
        logits(source, begun).flatten(0, 1),
        target.flatten(),
        ignore_index=padding,
        label_smoothing=0.1,
    )


class Batches(Dataset[Batch]):
    """Batches of like lengths, in random order, of about the same number of target tokens."""

    def __init__(self, pairs: PairTokens, tokens_per_step: int, padding: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        lengths = np.diff(pairs.target.offsets)
        pool = generator.permutation(len(pairs))
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        borders = np.flatnonzero(np.diff(np.cumsum(lengths[pool]) // tokens_per_step)) + 1
        parts = np.split(pool, borders)[:-1]
        self._parts = [parts[place] for place in generator.permutation(len(parts))]
        self._pairs, self._lengths, self._padding = pairs, lengths, padding

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, place: int) -> Batch:
        part = self._parts[place]
        source, target = (
            nn.utils.rnn.pad_sequence(
                [torch.from_numpy(side.line(pair).astype(np.int64)) for pair in part],
                batch_first=True,
                padding_value=self._padding,
            )
            for side in (self._pairs.source, self._pairs.target)
        )
        return source, target, int(self._lengths[part].sum())

    def loader(self) -> DataLoader[Batch]:
        """Make them in other processes, ahead of time, in pinned memory."""
        return DataLoader(self, batch_size=None, num_workers=LOADERS, pin_memory=True)


def named_by_hugging_face(shape: ModelShape) -> dict[str, Any]:
    """A model's shape and what all of ours have, as Hugging Face's configs call them."""
    return {
        "d_model": shape.d_model,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "encoder_attention_heads": shape.heads,
        "decoder_attention_heads": shape.heads,
        "encoder_ffn_dim": shape.feed_forward,
        "decoder_ffn_dim": shape.feed_forward,
        "activation_function": "relu",
        "scale_embedding": True,
    }


def make_marian(
    shape: ModelShape, words: int, inner_dropout: float = DROPOUT
) -> tuple[nn.Module, Logits]:
    """Marian of that shape; `inner_dropout` is that of attention and of ReLU."""
    from transformers import MarianConfig, MarianMTModel

    model = MarianMTModel(
        MarianConfig(
            vocab_size=words + 1,
            **named_by_hugging_face(shape),
            dropout=DROPOUT,
            attention_dropout=inner_dropout,
            activation_dropout=inner_dropout,
            pad_token_id=words,
            eos_token_id=2,
            decoder_start_token_id=1,
            max_position_embeddings=2 * LONGEST,
        )
    )

    def logits(source: Tensor, begun: Tensor) -> Tensor:
        found: Tensor = model(
            input_ids=source, attention_mask=source != words, decoder_input_ids=begun
        ).logits
        return found

    return model, logits


def write_for_eole(corpus: PreparedCorpus, folder: Path, pairs: int) -> None:
    """The first pairs as lines of subwords, and a vocabulary of them."""
    folder.mkdir(parents=True)
    words = words_of(corpus.subwords()[1].size)
    for name, side in (("source", corpus.train.source), ("target", corpus.train.target)):
        with open(folder / f"{name}.txt", "w") as file:
            for pair in range(pairs):
                file.write(" ".join(words[token] for token in side.line(pair)[:-1]) + "\n")
    (folder / "vocabulary.txt").write_text("".join(f"{word}\t1\n" for word in words))


def words_of(size: int) -> list[str]:
    """How Eole's text spells each of so many subwords."""
    return [f"w{token}" for token in range(size)]


def eole_rate(log: Iterable[str], skipped: int) -> float:
    """Target tokens a second, by the lines of its log after the first ones."""
    # A line has the target tokens of a batch and how many a second that was since the last line.
    found = re.findall(r"bsz: +\d+/ *(\d+)/.*?(\d+)/ *(\d+) tok/s", "\n".join(log))
    counted = [(int(tokens), int(rate)) for tokens, _, rate in found[skipped:]]
    return sum(tokens for tokens, _ in counted) / sum(tokens / rate for tokens, rate in counted)

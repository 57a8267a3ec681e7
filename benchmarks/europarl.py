"""BLEU on newstest2013 against minutes of training on one GPU: our recipes and Hugging Face Marian.

    dragoman train configs/europarl-fast.toml --run fast
    python benchmarks/europarl.py peer PREPARED MINUTES > marian.jsonl
    python benchmarks/europarl.py draw PICTURE.svg "the fast recipe=fast" "Marian=marian.jsonl" ...

`peer` trains a Marian of the same size on the same prepared corpus in a plain loop: bfloat16
autocast, fused Adam, the peak of the reference recipe's learning rate after a shorter warm-up,
batches of like lengths of about 32,768 target tokens made by other processes, and attention that
takes new shapes as they come. Every two minutes it translates newstest2013 greedily.
Minutes count training alone, as for our runs, whose metrics `draw` reads; `draw` also prints them.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from torch import nn

from dragoman.config import PRESETS
from dragoman.corpus.store import PreparedCorpus
from dragoman.corpus.subwords import Subwords
from dragoman.inference.evaluate import score_text
from peers import Batch, Batches, make_marian
from peers_gpu import train_step
from run_lines import lines_of

SET = "newstest2013"
TOKENS_PER_STEP = 32_768
PEAK, WARM_UP_STEPS = 1e-3, 800
SECONDS_BETWEEN_EVALUATIONS = 120.0
STEPS_BETWEEN_LOOKS = 20  # At the clock.
SENTENCES_AT_ONCE = 512
LONGEST_LINE = 250  # Marian has no more positions.
Curve = list[tuple[float, float]]  # Minutes of training, BLEU.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    peer = ways.add_parser("peer")
    peer.add_argument("prepared", type=Path)
    peer.add_argument("minutes", type=float)
    drawing = ways.add_parser("draw")
    drawing.add_argument("picture", type=Path)
    drawing.add_argument("curves", nargs="+", metavar="NAME=PATH")
    arguments = parser.parse_args()
    if arguments.way == "peer":
        train_peer(PreparedCorpus(arguments.prepared), 60 * arguments.minutes)
    else:
        named = dict(one.split("=", 1) for one in arguments.curves)
        draw(arguments.picture, {name: read_curve(Path(path)) for name, path in named.items()})


def train_peer(corpus: PreparedCorpus, seconds: float) -> None:
    """Train Marian for so long, with a linear decay over the second half of the time."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # It plans anew for every new shape: 2.4 x slower.
    source, target = corpus.subwords()
    torch.manual_seed(1)
    model, logits = make_marian(PRESETS["base"], target.size)
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=PEAK, betas=(0.9, 0.98), fused=True)
    batches = endless(corpus, target.size)
    trained, evaluated, step = 0.0, 0.0, 0
    model.train()
    while trained < seconds:
        start = time.perf_counter()
        for _ in range(STEPS_BETWEEN_LOOKS):
            step += 1
            left = min(1.0, 2 * (1 - trained / seconds))
            optimizer.param_groups[0]["lr"] = PEAK * min(step / WARM_UP_STEPS, left)
            train_step(model, logits, optimizer, next(batches), target.size)
        torch.cuda.synchronize()
        trained += time.perf_counter() - start
        if trained - evaluated >= SECONDS_BETWEEN_EVALUATIONS or trained >= seconds:
            evaluated = trained
            bleu = greedy_bleu(model, corpus, source, target)
            print(json.dumps({"minutes": trained / 60, "step": step, "bleu": bleu}), flush=True)


def endless(corpus: PreparedCorpus, padding: int) -> Iterator[Batch]:
    for epoch in count(1):
        yield from Batches(corpus.train, TOKENS_PER_STEP, padding, seed=epoch).loader()


@torch.inference_mode()
def greedy_bleu(
    model: nn.Module, corpus: PreparedCorpus, source: Subwords, target: Subwords
) -> float:
    """BLEU of the set, as the library's own generate translates it."""
    pairs = next(one for one in corpus.evaluation_sets("validation") if one.name == SET)
    encoded = [line[:LONGEST_LINE] for line in source.encode(list(pairs.source))]
    order = sorted(range(len(encoded)), key=lambda place: -len(encoded[place]))
    found = [""] * len(encoded)
    model.eval()
    for first in range(0, len(order), SENTENCES_AT_ONCE):
        part = order[first : first + SENTENCES_AT_ONCE]
        lines = [torch.tensor(encoded[place]) for place in part]
        ids = nn.utils.rnn.pad_sequence(lines, True, target.size).to(_device(model))
        with torch.autocast("cuda", torch.bfloat16):
            made = model.generate(  # type: ignore[operator]
                ids,
                attention_mask=ids != target.size,
                num_beams=1,
                do_sample=False,
                max_new_tokens=min(2 * ids.shape[1] + 16, LONGEST_LINE),
                eos_token_id=target.end,
                forced_eos_token_id=None,
                bad_words_ids=[[target.size]],
            )
        for place, tokens in zip(part, made[:, 1:].tolist(), strict=True):
            ended = tokens.index(target.end) if target.end in tokens else len(tokens)
            found[place] = target.decode([tokens[:ended]])[0]
    model.train()
    return score_text(found, list(pairs.target), "13a").bleu


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def read_curve(path: Path) -> Curve:
    """Minutes of training and BLEU, from a run folder or from the peer's lines."""
    if path.is_file():
        lines = map(json.loads, path.read_text().splitlines())
        return [(line["minutes"], line["bleu"]) for line in lines]
    trained, curve = 0.0, []
    for line in lines_of(path, "train", "eval"):
        if line["kind"] == "train":
            trained += line["seconds"]
        elif line["set"] == SET:
            curve.append((trained / 60, line["bleu"]))
    return curve


def draw(picture: Path, curves: dict[str, Curve], where: str = "one GPU") -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=name)
        for minutes, bleu in curve:
            print(f"| {name} | {minutes:.1f} | {bleu:.2f} |")
    axes.set(xlabel=f"minutes of training on {where}", ylabel=f"BLEU, {SET}, greedy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture)


if __name__ == "__main__":
    main()

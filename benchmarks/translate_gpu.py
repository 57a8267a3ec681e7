"""Seconds and target tokens a second on a GPU: our decoder and Hugging Face generate, same weights.

    pip install transformers
    python benchmarks/translate_gpu.py RUN LINES [--peer-lines 4000]

The run's first test set (failing that, validation set) is translated twice in a process of its own
for each beam: the first time kernels are loaded and the step is recorded. Then the file LINES in
bulk. Hugging Face translates its first lines with the same weights in a Pegasus, in bfloat16, in
batches of like length, with the faster of the given numbers of source tokens in a batch.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.config import TranslationSettings
from dragoman.corpus.store import EvaluationSet, PreparedCorpus
from dragoman.inference.evaluate import score_text
from dragoman.inference.load import TrainedModel, load_trained
from dragoman.model.precision import arithmetic
from dragoman.runs.folder import find_run
from pegasus import compare_logits, make_pegasus
from translate import generate

BEAMS = 1, 4
PEER_BATCHES = 16_384, 65_536
GPU = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("lines", type=Path)
    parser.add_argument("--peer-lines", type=int, default=4_000)
    parser.add_argument("--beam", type=int, help="measure the set with this beam, and no more")
    arguments = parser.parse_args()
    trained = load_trained(find_run(arguments.run), "latest", 1, GPU)
    if arguments.beam:
        print(json.dumps(measure_set(trained, arguments.beam)))
        return
    print("| set | beam | first | warm | BLEU |\n|---|---|---|---|---|")
    for beam in BEAMS:
        command = [
            sys.executable,
            __file__,
            arguments.run,
            str(arguments.lines),
            "--beam",
            str(beam),
        ]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(
            f"| {found['set']} | {beam} | {found['first']:.2f} s | {found['warm']:.2f} s "
            f"| {found['bleu']:.2f} |",
            flush=True,
        )
    lines = arguments.lines.read_text().splitlines()
    print("\n| decoder | beam | lines | seconds | target tokens/s |\n|---|---|---|---|---|")
    for beam in BEAMS:
        settings = replace(trained.config.translation, beam=beam)
        ours_in_bulk(trained, lines[:500], settings)
        report("dragoman", beam, trained, *ours_in_bulk(trained, lines, settings))
    compare_logits(
        trained.translator.model.cpu(),
        make_pegasus(trained.translator.model, trained.translator.text),
    )
    peer = make_pegasus(trained.translator.model, trained.translator.text).to(GPU, torch.bfloat16)
    for beam in BEAMS:
        settings = replace(trained.config.translation, beam=beam, patience=1)
        some = lines[: arguments.peer_lines]
        text, first = trained.translator.text, PEER_BATCHES[0]
        generate(peer, text, replace(settings, batch_tokens=first), some[:64])
        for batch_tokens in PEER_BATCHES:
            start = time.perf_counter()
            found = generate(peer, text, replace(settings, batch_tokens=batch_tokens), some)
            seconds = time.perf_counter() - start
            report(f"Hugging Face generate, {batch_tokens:,}", beam, trained, found, seconds)


def measure_set(trained: TrainedModel, beam: int) -> dict[str, Any]:
    one = test_set(trained)
    settings = replace(trained.config.translation, beam=beam)
    found, first = ours_in_bulk(trained, one.source, settings)
    _, warm = ours_in_bulk(trained, one.source, settings)
    bleu = score_text(found, one.target, trained.config.evaluation.bleu_tokenize).bleu
    return {"set": one.name, "first": first, "warm": warm, "bleu": bleu}


def test_set(trained: TrainedModel) -> EvaluationSet:
    corpus = PreparedCorpus(Path(trained.config.corpus.folder))
    return (corpus.evaluation_sets("test") or corpus.evaluation_sets("validation"))[0]


def ours_in_bulk(
    trained: TrainedModel, lines: Sequence[str], settings: TranslationSettings
) -> tuple[list[str], float]:
    start = time.perf_counter()
    with arithmetic("bfloat16", GPU):
        found = trained.translator.translate(lines, settings)
    return [best[0].text for best in found], time.perf_counter() - start


def report(
    name: str, beam: int, trained: TrainedModel, found: Sequence[str], seconds: float
) -> None:
    tokens = sum(map(len, trained.translator.text.target.encode(list(found))))
    print(
        f"| {name} | {beam} | {len(found):,} | {seconds:.2f} | {tokens / seconds:,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()

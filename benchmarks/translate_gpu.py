"""Seconds and target tokens a second on a GPU: our decoder and others', the same weights.

    pip install transformers ctranslate2
    python benchmarks/translate_gpu.py RUN LINES [--peer-lines 4000] [--ctranslate2-lines 20000]

The run's first test set (failing that, validation set) is translated twice in a process of its own
for each beam: the first time kernels are loaded and the step is recorded. Then the file LINES in
bulk. Hugging Face translates its first lines with the same weights in a Pegasus, in bfloat16, and
CTranslate2 more of them in float16; its wheels want CUDA 12's cuBLAS. Both get batches of like
length, in several sizes: source tokens of a batch, padding included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.config import TranslationSettings
from dragoman.corpus.store import EvaluationSet, PreparedCorpus
from dragoman.inference.evaluate import score_text
from dragoman.inference.export_folder import SUBWORDS
from dragoman.inference.load import TrainedModel, load_trained
from dragoman.inference.sampling import Sampling
from dragoman.model.precision import arithmetic
from dragoman.runs.folder import RunFolder, find_run
from pegasus import compare_logits, make_pegasus
from translate import generate

BEAMS = 1, 4
PEER_BATCHES = 16_384, 65_536
CTRANSLATE2_BATCHES = 16_384, 65_536
GPU = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("lines", type=Path)
    parser.add_argument("--peer-lines", type=int, default=4_000, help="0 leaves it out")
    parser.add_argument("--ctranslate2-lines", type=int, default=20_000, help="0 leaves it out")
    parser.add_argument("--beam", type=int, help="measure the set with this beam, and no more")
    arguments = parser.parse_args()
    trained = load_trained(find_run(arguments.run), "latest", 1, GPU)
    if arguments.beam:
        print(json.dumps(measure_set(trained, arguments.beam)))
        return
    measure_sets(arguments.run, arguments.lines)
    lines = arguments.lines.read_text().splitlines()
    print("\n| decoder | beam | lines | seconds | target tokens/s |\n|---|---|---|---|---|")
    measure_ours(trained, lines)
    if arguments.peer_lines:
        measure_hugging_face(trained, lines[: arguments.peer_lines])
    if arguments.ctranslate2_lines:
        measure_ctranslate2(find_run(arguments.run), trained, lines[: arguments.ctranslate2_lines])


def measure_sets(run: str, lines: Path) -> None:
    """Print the seconds of the set with each beam, each in a process of its own."""
    print("| set | beam | first | warm | BLEU |\n|---|---|---|---|---|")
    for beam in BEAMS:
        command = [sys.executable, __file__, run, str(lines), "--beam", str(beam)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(
            f"| {found['set']} | {beam} | {found['first']:.2f} s | {found['warm']:.2f} s "
            f"| {found['bleu']:.2f} |",
            flush=True,
        )


def measure_ours(trained: TrainedModel, lines: Sequence[str]) -> None:
    for beam in BEAMS:
        # The others end a sentence with as many hypotheses as the beam is wide.
        for patience in sorted({1, trained.config.translation.patience if beam > 1 else 1}):
            settings = replace(trained.config.translation, beam=beam, patience=patience)
            ours_in_bulk(trained, lines[:500], settings)
            found = ours_in_bulk(trained, lines, settings)
            report(f"dragoman, patience {patience}", beam, trained, *found)
    # Any word may be drawn, or one of the ten likeliest.
    for top_k in (0, 10):
        drawing = Sampling(top_k, temperature=1.0, seed=1)
        ours_in_bulk(trained, lines[:500], trained.config.translation, drawing)
        found = ours_in_bulk(trained, lines, trained.config.translation, drawing)
        report(f"dragoman, sampling, top-k {top_k}", 1, trained, *found)


def measure_ctranslate2(run: RunFolder, trained: TrainedModel, lines: Sequence[str]) -> None:
    from dragoman.inference.ctranslate2_model import load_translator, read_pieces, write_model

    text = trained.translator.text
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for origin, copy in zip(run.subwords, SUBWORDS, strict=True):
            (folder / copy).write_bytes(origin.read_bytes())
        source, target = (read_pieces(path) for path in run.subwords)
        model = trained.translator.model
        write_model(model, source, target, text.max_tokens, "float16", folder)
        translator = load_translator(folder, text)
    for beam in BEAMS:
        settings = replace(trained.config.translation, beam=beam, patience=1)
        translator.translate(lines[:500], settings)
        for batch_tokens in CTRANSLATE2_BATCHES:
            start = time.perf_counter()
            found = translator.translate(lines, replace(settings, batch_tokens=batch_tokens))
            seconds = time.perf_counter() - start
            best = [ranked[0].text for ranked in found]
            device = translator.engine.device
            report(f"CTranslate2, {device}, {batch_tokens:,}", beam, trained, best, seconds)


def measure_hugging_face(trained: TrainedModel, lines: Sequence[str]) -> None:
    model, text = trained.translator.model.cpu(), trained.translator.text
    compare_logits(model, make_pegasus(model, text))
    peer = make_pegasus(model, text).to(GPU, torch.bfloat16)
    for beam in BEAMS:
        settings = replace(trained.config.translation, beam=beam, patience=1)
        generate(peer, text, replace(settings, batch_tokens=PEER_BATCHES[0]), lines[:64])
        for batch_tokens in PEER_BATCHES:
            start = time.perf_counter()
            found = generate(peer, text, replace(settings, batch_tokens=batch_tokens), lines)
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
    trained: TrainedModel,
    lines: Sequence[str],
    settings: TranslationSettings,
    drawing: Sampling | None = None,
) -> tuple[list[str], float]:
    translator = trained.translator
    start = time.perf_counter()
    with arithmetic("bfloat16", GPU):
        found = (
            translator.sample(lines, settings, 1, drawing)
            if drawing
            else translator.translate(lines, settings)
        )
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

"""How fast the shapes of teacher and student are on a CPU in CTranslate2's int8, trained or not.

    python benchmarks/student_speed.py SUBWORDS.model TEST.en TEST.de [--sentences 128] [--rounds 3]

The weights are random: how long a translation gets is set, as it would mean nothing. Sentences of
like reference length make a batch, and all their translations get the mean length of these
references. The shapes take turns, to share the noise. For BLEU see student.py.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece
import torch

from dragoman.config import ModelSettings
from dragoman.inference.ctranslate2_model import VERSION, read_pieces, write_model
from dragoman.model.transformer import Transformer, count_parameters
from student import read_test

MAX_TOKENS, SENTENCES_AT_ONCE = 128, 16
PRESETS, BEAMS = ("base", "student"), (1, 4)


@dataclass(frozen=True)
class Batch:
    source: list[list[str]]
    length: int  # Of every translation.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subwords", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sides = read_test(arguments.source, arguments.reference, arguments.sentences)
    batches = make_batches(arguments.subwords, *sides)
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: make_engine(name, arguments.subwords, Path(folder)) for name in PRESETS}
        for engine in engines.values():
            translate(engine, batches[:1], 1)  # The first time is slower.
        for _ in range(arguments.rounds):
            for beam in BEAMS:
                for name, engine in engines.items():
                    seconds = translate(engine, batches, beam)
                    rates.setdefault((name, beam), []).append(len(sides[0]) / seconds)
    print(f"{len(sides[0])} sentences, {torch.get_num_threads()} threads, ctranslate2 {VERSION}")
    print(
        "| shape, int8 | beam | sentences/s, each round | median | ratio |\n|---|---|---|---|---|"
    )
    slowest = statistics.median(rates["base", BEAMS[-1]])
    for (name, beam), each in rates.items():
        shown, median = ", ".join(f"{rate:.1f}" for rate in each), statistics.median(each)
        print(f"| {name} | {beam} | {shown} | {median:.1f} | {median / slowest:.2f} |")


def make_batches(subwords: Path, source: list[str], target: list[str]) -> list[Batch]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(subwords))
    pieces = [
        (len(processor.encode(reference)[: MAX_TOKENS - 1]), processor.encode(line, out_type=str))
        for line, reference in zip(source, target, strict=True)
    ]
    pieces.sort(key=lambda one: one[0])
    groups = [
        pieces[first : first + SENTENCES_AT_ONCE]
        for first in range(0, len(pieces), SENTENCES_AT_ONCE)
    ]
    return [
        Batch(
            [line[: MAX_TOKENS - 1] for _, line in group],
            round(statistics.mean(length for length, _ in group)),
        )
        for group in groups
    ]


def make_engine(preset: str, subwords: Path, folder: Path) -> Any:
    pieces = read_pieces(subwords)
    size = len(pieces.names)
    settings = ModelSettings(preset=preset)  # type: ignore[arg-type]
    model = Transformer(settings, size, size, joint=True)
    exported = folder / preset
    exported.mkdir()
    write_model(model, pieces, pieces, MAX_TOKENS, "int8", exported)
    megabytes = (exported / "model.bin").stat().st_size / 1e6
    print(f"{preset}: {count_parameters(model):,} parameters, {megabytes:.1f} MB")
    return ctranslate2.Translator(str(exported), intra_threads=torch.get_num_threads())


def translate(engine: Any, batches: list[Batch], beam: int) -> float:
    """Seconds for all of them."""
    start = time.perf_counter()
    for batch in batches:
        engine.translate_batch(
            batch.source,
            beam_size=beam,
            min_decoding_length=batch.length,
            max_decoding_length=batch.length,
        )
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

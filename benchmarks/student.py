"""A student beside its teacher on a CPU: sentences a second and BLEU, both in CTranslate2's int8.

    python benchmarks/student.py TEACHER STUDENT TEST.en TEST.de [--sentences 500] [--rounds 3]

Both runs are exported in int8 and translate the same sentences, spread evenly over the test set, on
all cores of one process, in the same batches, greedily and with a beam of four. They take turns, to
share the noise. BLEU is that of these sentences.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from dragoman.config import TranslationSettings
from dragoman.corpus.text import TextFiles, read_pairs
from dragoman.inference.ctranslate2_model import VERSION, load_translator, read_pieces, write_model
from dragoman.inference.evaluate import score_text
from dragoman.inference.export_folder import SUBWORDS
from dragoman.inference.load import load_trained
from dragoman.model.transformer import count_parameters
from dragoman.runs.folder import find_run
from translate import Decoder, best_of, measure

BEAMS = (1, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher")
    parser.add_argument("student")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    source, target = read_test(arguments.source, arguments.reference, arguments.sentences)
    with tempfile.TemporaryDirectory() as folder:
        decoders: dict[str, Decoder] = {}
        for name in ("teacher", "student"):
            decoders |= make_decoders(name, getattr(arguments, name), Path(folder) / name)
        translations, rates = measure(decoders, source, arguments.rounds)
    print(f"{len(source)} sentences, {torch.get_num_threads()} threads, ctranslate2 {VERSION}")
    print("| model, int8 | beam | sentences/s, each round | median | ratio | BLEU |")
    print("|---|---|---|---|---|---|")
    slowest = statistics.median(rates[f"teacher | {BEAMS[-1]}"])
    for name, found in translations.items():
        median = statistics.median(rates[name])
        each = ", ".join(f"{rate:.1f}" for rate in rates[name])
        bleu = score_text(found, target, "13a").bleu
        print(f"| {name} | {each} | {median:.1f} | {median / slowest:.2f} | {bleu:.2f} |")


def read_test(source: Path, reference: Path, count: int) -> tuple[list[str], list[str]]:
    sides: tuple[list[str], list[str]] = ([], [])
    for chunk in read_pairs(TextFiles(source, reference), 10_000):
        for side, lines in zip(sides, chunk, strict=True):
            side += lines
    places = spread(len(sides[0]), count)
    return [sides[0][place] for place in places], [sides[1][place] for place in places]


def spread(lines: int, count: int) -> Sequence[int]:
    count = min(count, lines)
    return [place * lines // count for place in range(count)]


def make_decoders(name: str, run_name: str, folder: Path) -> dict[str, Decoder]:
    run = find_run(run_name)
    trained = load_trained(run, "best", 1, torch.device("cpu"))
    model, text = trained.translator.model, trained.translator.text
    folder.mkdir()
    for origin, file in zip(run.subwords, SUBWORDS, strict=True):
        (folder / file).write_bytes(origin.read_bytes())
    pieces = [read_pieces(path) for path in run.subwords]
    write_model(model, pieces[0], pieces[1], text.max_tokens, "int8", folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"{name}: {count_parameters(model):,} parameters, {size:.1f} MB")
    translate = load_translator(folder, text).translate
    return {
        f"{name} | {beam}": partial(best_of, translate, TranslationSettings(beam=beam, patience=1))
        for beam in BEAMS
    }


if __name__ == "__main__":
    main()

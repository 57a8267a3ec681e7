"""Sentences a second on the CPU: our decoder, CTranslate2 and Hugging Face, the same weights.

    pip install -e '.[export]' transformers
    python benchmarks/translate.py RUN [--sentences 200] [--rounds 3]

All translate the run's first test set (failing that, validation set) with the run's beam and
length penalty, and patience 1, on all cores of one process, in the same batches. The weights go
into a Hugging Face Pegasus, which is pre-norm with a table of positions as our model is; its biases
in attention, which ours has not, are zero. Its logits are compared with ours before anything is
timed. The decoders take turns, to share the noise.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.config import TranslationSettings
from dragoman.corpus.store import EvaluationSet, PreparedCorpus
from dragoman.inference.ctranslate2_model import VERSION, load_translator, read_pieces, write_model
from dragoman.inference.evaluate import score_text
from dragoman.inference.export_folder import SUBWORDS
from dragoman.inference.hypotheses import Hypothesis
from dragoman.inference.load import TrainedModel, load_trained
from dragoman.inference.translate import TextSides, Translator, longest_output, translate_text
from dragoman.runs.folder import RunFolder, find_run
from pegasus import compare_logits, make_pegasus

WARM_UP_SENTENCES = 20

Decoder = Callable[[Sequence[str]], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    run = find_run(arguments.run)
    trained = load_trained(run, "best", 1, torch.device("cpu"))
    one = test_set(trained)
    count = min(arguments.sentences, len(one.source))
    places = [place * len(one.source) // count for place in range(count)]
    source, target = ([side[place] for place in places] for side in (one.source, one.target))
    with tempfile.TemporaryDirectory() as folder:
        # Hugging Face ends a sentence with as many hypotheses as the beam is wide.
        settings = replace(trained.config.translation, patience=1)
        decoders = make_decoders(run, trained.translator, settings, Path(folder))
        translations, rates = measure(decoders, source, arguments.rounds)
    import transformers

    threads = torch.get_num_threads()
    print(f"{count} sentences of {one.name}, beam {settings.beam}, {threads} threads")
    print(
        f"torch {torch.__version__}, ctranslate2 {VERSION}, transformers {transformers.__version__}"
    )
    print("| decoder | sentences/s, each round | median | ratio | BLEU | same as ours |")
    print("|---|---|---|---|---|---|")
    tokenize, ours = trained.config.evaluation.bleu_tokenize, translations["dragoman"]
    base = statistics.median(rates["Hugging Face generate"])
    for name, found in translations.items():
        each = ", ".join(f"{rate:.1f}" for rate in rates[name])
        median = statistics.median(rates[name])
        same = sum(map(str.__eq__, found, ours)) / count
        bleu = score_text(found, target, tokenize).bleu
        print(f"| {name} | {each} | {median:.1f} | {median / base:.2f} | {bleu:.2f} | {same:.1%} |")


def test_set(trained: TrainedModel) -> EvaluationSet:
    corpus = PreparedCorpus(Path(trained.config.corpus.folder))
    return (corpus.evaluation_sets("test") or corpus.evaluation_sets("validation"))[0]


def make_decoders(
    run: RunFolder, ours: Translator, settings: TranslationSettings, folder: Path
) -> dict[str, Decoder]:
    text = ours.text
    decoders: dict[str, Decoder] = {"dragoman": partial(best_of, ours.translate, settings)}
    for quantization in ("float32", "int8"):
        exported = folder / quantization
        exported.mkdir()
        for origin, name in zip(run.subwords, SUBWORDS, strict=True):
            (exported / name).write_bytes(origin.read_bytes())
        pieces = [read_pieces(path) for path in run.subwords]
        write_model(ours.model, pieces[0], pieces[1], text.max_tokens, quantization, exported)
        translate = load_translator(exported, text).translate
        decoders[f"CTranslate2 {quantization}"] = partial(best_of, translate, settings)
    peer = make_pegasus(ours.model, text)
    compare_logits(ours.model, peer)
    decoders["Hugging Face generate"] = partial(generate, peer, text, settings)
    return decoders


def best_of(
    translate: Callable[..., Any], settings: TranslationSettings, lines: Sequence[str]
) -> list[str]:
    return [ranked[0].text for ranked in translate(lines, settings)]


def measure(
    decoders: dict[str, Decoder], source: Sequence[str], rounds: int
) -> tuple[dict[str, list[str]], dict[str, list[float]]]:
    translations: dict[str, list[str]] = {}
    rates: dict[str, list[float]] = {name: [] for name in decoders}
    for decode in decoders.values():
        decode(source[:WARM_UP_SENTENCES])
    for _ in range(rounds):
        for name, decode in decoders.items():
            start = time.perf_counter()
            translations[name] = decode(source)
            rates[name].append(len(source) / (time.perf_counter() - start))
    return translations, rates


def generate(
    peer: Any, text: TextSides, settings: TranslationSettings, lines: Sequence[str]
) -> list[str]:
    search = partial(generate_batch, peer, text, settings)
    ranked = translate_text(lines, text, search, settings.batch_tokens, 1, lambda _: None)
    return [best[0].text for best in ranked]


@torch.inference_mode()
def generate_batch(
    peer: Any, text: TextSides, settings: TranslationSettings, sentences: Sequence[Sequence[int]]
) -> list[list[Hypothesis]]:
    padding = peer.config.pad_token_id
    source = nn.utils.rnn.pad_sequence(
        [torch.tensor(sentence) for sentence in sentences], batch_first=True, padding_value=padding
    ).to(peer.device)
    found = peer.generate(
        input_ids=source,
        attention_mask=source != padding,
        num_beams=settings.beam,
        length_penalty=settings.length_penalty,
        early_stopping=True,
        do_sample=False,
        max_new_tokens=longest_output(source.shape[1]) - 1,
    )
    marks = (padding, text.target.begin, text.target.end)
    return [
        [Hypothesis(tuple(token for token in row if token not in marks), 0.0)]
        for row in found.tolist()
    ]


if __name__ == "__main__":
    main()

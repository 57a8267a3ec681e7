"""The model card of an exported model: what it is, how good it is, how to use it."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from dragoman.config import Config, Library, ParallelText, VocabularySettings
from dragoman.corpus.clean import FILTERS
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.text import PLAIN_PUNCTUATION
from dragoman.inference.export_folder import ExportInfo
from dragoman.inference.load import TrainedModel, run_manifest
from dragoman.inference.parity import Parity
from dragoman.model.transformer import Transformer, count_parameters
from dragoman.records import Evaluation
from dragoman.runs.checkpoint_index import checkpoint_name
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics_reader import read_metrics
from dragoman.wording import in_markdown

LIBRARIES: dict[Library, str] = {
    "ctranslate2": "CTranslate2",
    "transformers": "Transformers",
    "argos": "Argos Translate",
}


@dataclass(frozen=True)
class Verdict:
    """One answer of the run's report."""

    question: str
    headline: str
    answer: str


def write_card(
    path: Path,
    run: RunFolder,
    trained: TrainedModel,
    info: ExportInfo,
    parity: Parity | None,
    verdicts: Sequence[Verdict],
) -> None:
    """Write the card as Markdown, with the header that model hubs read."""
    manifest = run_manifest(run)
    sections = [
        header(info),
        _scores(run, trained.config, info, parity),
        _use(info),
        _parity(info, parity),
        _model(trained.translator.model, trained.config, info),
        _data(trained.config, manifest),
        _verdicts(verdicts),
        "## Licence\n\nNot stated. It depends on the text the model was trained on: state it "
        "here before you share the\nmodel.",
    ]
    path.write_text("\n\n".join(sections) + "\n", "utf-8")


def header(info: ExportInfo) -> str:
    """What model hubs read, and the title."""
    source, target = in_markdown(info.source_language), in_markdown(info.target_language)
    return f"""\
---
language:
- {yaml_text(info.source_language)}
- {yaml_text(info.target_language)}
library_name: {info.library}
pipeline_tag: translation
---

# {in_markdown(info.run)}: {source} to {target}

A Transformer that translates from {source} to {target}, trained with Dragoman
{info.versions["dragoman"]} and exported for {LIBRARIES[info.library]} in {info.quantization}."""


def _scores(run: RunFolder, config: Config, info: ExportInfo, parity: Parity | None) -> str:
    rows, signatures = [], set()
    for one in _evaluations(run, info.checkpoints):
        rows.append(
            f"| {in_markdown(one.set)} | {one.bleu_pairs:,} "
            f"| while training, beam {config.evaluation.beam} "
            f"| {one.bleu:.2f} |  | {one.chrf:.2f} |  |"
        )
        signatures = {one.signature, one.chrf_signature}
    if parity:
        text = parity.exported
        assert text.bleu_interval
        assert text.chrf_interval
        rows.append(
            f"| {in_markdown(parity.set)} | {parity.pairs:,} | this export, beam {parity.beam} "
            f"| {text.bleu:.2f} | {_interval(text.bleu_interval)} "
            f"| {text.chrf:.2f} | {_interval(text.chrf_interval)} |"
        )
        # The same as while training, and how the intervals were found.
        signatures = {text.signature, text.chrf_signature}
    if not rows:
        return "## Scores\n\nNot evaluated."
    head = ["| set | pairs | decoder | BLEU | 95% | chrF | 95% |", "|---|---|---|---|---|---|---|"]
    named = "\n".join(f"- {code(signature)}" for signature in sorted(signatures))
    return "\n".join(["## Scores", "", *head, *rows, "", "sacreBLEU signatures:", "", named])


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def _evaluations(run: RunFolder, checkpoints: Sequence[str]) -> list[Evaluation]:
    """The evaluation of each set at the step of the one checkpoint; none for a mean of several."""
    if len(checkpoints) > 1:
        return []
    by_set: dict[str, Evaluation] = {}
    for logged in read_metrics(run.metrics, [("step",)]).events:
        event = logged.event
        if not isinstance(event, Evaluation) or not math.isfinite(event.bleu + event.chrf):
            continue
        if checkpoint_name(logged.step) == checkpoints[0]:
            by_set[event.set] = event  # A step that was repeated counts the last time.
    return list(by_set.values())


def _use(info: ExportInfo) -> str:
    match info.library:
        case "ctranslate2":
            return _use_ctranslate2(info)
        case "transformers":
            return _use_transformers(info)
        case "argos":
            return _use_argos(info)
        case _:
            assert_never(info.library)


def _use_ctranslate2(info: ExportInfo) -> str:
    table = f"\nplain_punctuation = {PLAIN_PUNCTUATION}\n" if info.normalize_punctuation else ""
    replaced = "line.translate(plain_punctuation)" if info.normalize_punctuation else "line"
    return f"""\
## Use it

    pip install ctranslate2 sentencepiece

```python
import unicodedata

import ctranslate2
import sentencepiece

folder = "."  # where this file is
source = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/source.model")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/target.model")
translator = ctranslate2.Translator(folder)
{table}

def translate(line):
    line = unicodedata.normalize("NFC", {replaced}).strip()
    pieces = source.encode(line, out_type=str)
    result = translator.translate_batch(
        [pieces],
        beam_size={info.translation.beam},
        patience={info.translation.patience},
        length_penalty={info.translation.length_penalty},
        min_decoding_length=0,
        max_decoding_length=2 * len(pieces) + 18,
    )
    return target.decode(result[0].hypotheses[0])
```

Lines of more than {info.max_tokens} subwords are longer than any in training. Dragoman splits
them: `dragoman translate FOLDER --engine ctranslate2 < in > out`."""


def _use_argos(info: ExportInfo) -> str:
    source, target = json.dumps(info.source_language), json.dumps(info.target_language)
    return f"""\
## Use

```python
import argostranslate.package
import argostranslate.translate

argostranslate.package.install_from_path(
    "translate-{info.source_language}_{info.target_language}-1_0.argosmodel"
)
print(argostranslate.translate.translate("...", {source}, {target}))
```

Argos Translate downloads a sentence splitter the first time it translates from a language."""


def _use_transformers(info: ExportInfo) -> str:
    return f"""\
## Use

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = "."  # where this file is
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)


def translate(line):
    result = model.generate(**tokenizer(line, return_tensors="pt"))
    return tokenizer.decode(result[0], skip_special_tokens=True)
```

Lines of more than {info.max_tokens} subwords are longer than any in training: split them."""


def _parity(info: ExportInfo, parity: Parity | None) -> str:
    if parity is None:
        return "## Parity\n\nNot checked against Dragoman's own decoder (`--no-check`)."
    return f"""\
## Parity

The same {parity.pairs:,} pairs of {in_markdown(parity.set)}, translated by Dragoman's own decoder \
in float32 and by this export in {info.quantization}, beam {parity.beam}, length penalty \
{parity.length_penalty:g}:

| same best translation | largest score difference | BLEU, Dragoman | BLEU, this export |
|---|---|---|---|
| {parity.share:.1%} | {parity.largest_score_difference:.2g} | {parity.own.bleu:.2f} \
| {parity.exported.bleu:.2f} |"""


def _model(model: Transformer, config: Config, info: ExportInfo) -> str:
    shape = model.shape
    embeddings = "tied" if model.source_embedding is model.target_embedding else "one per language"
    weights = ", ".join(info.checkpoints)
    is_mean = len(info.checkpoints) > 1 and " of " not in weights  # A blend says so itself.
    rows = {
        "parameters": f"{count_parameters(model):,}",
        "layers": f"{shape.encoder_layers} encoder, {shape.decoder_layers} decoder, pre-norm",
        "d_model, heads, feed-forward": f"{shape.d_model}, {shape.heads}, {shape.feed_forward}",
        "embeddings": embeddings,
        "vocabulary": f"{_vocabulary(model)} subwords{_origin(config.vocabulary)}",
        "weights": f"mean of {weights}" if is_mean else weights,
        "label smoothing": f"{config.training.label_smoothing:g}",
        "target tokens per step": f"up to {config.batches.tokens_per_step:,}",
        "seed": f"{config.training.seed}",
    }
    return f"## Model\n\n{_table(rows)}"


def _origin(vocabulary: VocabularySettings) -> str:
    given = vocabulary.model or vocabulary.source_model
    return ", trained separately" if given else f" ({vocabulary.kind}, byte fallback)"


def _vocabulary(model: Transformer) -> str:
    source, target = (
        embedding.num_embeddings for embedding in (model.source_embedding, model.target_embedding)
    )
    joint = model.source_embedding is model.target_embedding
    return f"{target:,} joint" if joint else f"{source:,} source and {target:,} target"


def _data(config: Config, manifest: Manifest) -> str:
    removed = [
        f"{count:,} {FILTERS[name].words}" for name, count in manifest.filters.items() if count
    ]
    rows = {
        "training text": ", ".join(_name(text) for text in config.corpus.train),
        "pairs read": f"{manifest.pairs.raw:,}",
        "pairs dropped": ", ".join(removed) or "none",
        "pairs trained on": f"{manifest.pairs.prepared:,}",
    }
    for side, language in manifest.languages.items():
        size = manifest.bytes[side].cleaned / 1e6
        rows[f"{side} ({in_markdown(language)})"] = (
            f"{size:,.1f} MB, {manifest.tokens[side]:,} subwords"
        )
    for kind, named in manifest.sets.items():
        for name, counts in named.items():
            rows[f"{kind} set {in_markdown(name)}"] = f"{counts.pairs:,} pairs"
    rows["checksum"] = f"`{manifest.identity[:16]}`"
    return f"## Data\n\n{_table(rows)}"


def _name(text: ParallelText) -> str:
    """File names alone: the folders on somebody's disk are nobody's business."""
    sides = (text.source, text.target, text.tsv)
    names = " and ".join(code(Path(side).name) for side in sides if side)
    return re.sub(r"(?<!\\)\|", r"\\|", names)  # In a table, even code ends at a bar.


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    lines = [
        f"- **{in_markdown(one.question)}** {in_markdown(one.headline)}. {in_markdown(one.answer)}"
        for one in verdicts
    ]
    return "## What the training report says\n\n" + "\n".join(lines)


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {row} |" for name, row in rows.items())])


def yaml_text(text: str) -> str:
    """Text as YAML reads it back: quoted, for a plain `no` is Norwegian to nobody but people."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff]", lambda odd: f"\\u{ord(odd[0]):04x}", quoted)


def code(text: str) -> str:
    """Text in the type of code, which may itself hold marks of code."""
    line = " ".join(text.split())
    if "`" not in line:
        return f"`{line}`"
    return f"<code>{in_markdown(line)}</code>"

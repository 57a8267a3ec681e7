"""`dragoman export`: a trained model for other programs, checked before it is released."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import assert_never

import sentencepiece
import torch

from dragoman import __version__
from dragoman.config import Library, Quantization
from dragoman.config_file import load_saved_config
from dragoman.console import say
from dragoman.errors import SystemFault, UserError, require_package
from dragoman.inference.argos_package import pack
from dragoman.inference.blend import blend_with_parent
from dragoman.inference.export_folder import (
    CARD,
    SUBWORDS,
    ExportInfo,
    new_export,
    refuse_foreign,
    write_info,
)
from dragoman.inference.load import TrainedModel, load_exported, load_trained
from dragoman.inference.model_card import Verdict, write_card
from dragoman.inference.parity import Parity, Translate, choose_check_set, compare
from dragoman.inference.tags import tags_of, with_tag
from dragoman.runs.folder import RunFolder

LEAST_IDENTICAL = 0.99  # Of the best translations, in float32.
LONGEST_SHOWN = 200  # Characters of a sentence that differs.


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and how."""

    library: Library
    quantization: Quantization
    checkpoint: str
    average: int
    output: Path | None
    check_pairs: int | None  # None: no check.
    blend: float | None = None  # Share of the run, the rest being of the one it started from.


def export_run(run: RunFolder, request: ExportRequest, verdicts: Sequence[Verdict]) -> Path:
    """Write the exported model, its check and its card, all together or not at all."""
    _refuse_senseless(run, request)
    output = (request.output or run.export.with_name(request.library)).resolve()
    refuse_foreign(output)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_trained(run, request.checkpoint, request.average, device)
    if request.blend is not None:
        trained = blend_with_parent(trained, run, request.blend)
    say(f"{run.name}: {', '.join(trained.checkpoints)}")
    chosen = choose_check_set(trained, request.check_pairs) if request.check_pairs else None
    info = _describe(run, trained, request)
    with new_export(output) as folder:
        _write_model(run, trained, info, folder)
        parity = None
        if chosen:
            exported = _exported_translate(trained, info.library, folder, chosen.tag)
            parity = compare(trained, exported, chosen)
            if info.quantization == "float32":
                _refuse_disparity(parity, request.library)
        write_card(folder / CARD, run, trained, info, parity, verdicts)
        if info.library == "argos":
            pack(folder, info)
        write_info(folder, info, asdict(parity) if parity else None)
    _tell(output, info, parity)
    return output


def _refuse_senseless(run: RunFolder, request: ExportRequest) -> None:
    tags = tags_of(load_saved_config(run.config).corpus)
    if "" not in tags and request.library != "ctranslate2":
        raise UserError(
            f"--to {request.library}: the model translates only text with a tag "
            f"({', '.join(tags)}), which only ctranslate2 exports support"
        )
    match request.library:
        case "ctranslate2":
            require_package("ctranslate2", "export")
        case "argos":
            require_package("ctranslate2", "export")
            if not load_saved_config(run.config).vocabulary.joint:
                raise UserError(
                    "--to argos: Argos packages need a joint vocabulary, but this model has two"
                )
        case "transformers":
            require_package("transformers", "transformers")
            if request.quantization != "float32":
                raise UserError(
                    f"--quantization {request.quantization}: not available with --to "
                    "transformers, which converts when it loads a model"
                )
        case _:
            assert_never(request.library)
    if request.check_pairs is not None and request.check_pairs < 1:
        raise UserError(f"--check-pairs {request.check_pairs}: must be at least 1")


def _write_model(run: RunFolder, trained: TrainedModel, info: ExportInfo, folder: Path) -> None:
    for origin, name in zip(run.subwords, SUBWORDS, strict=True):
        (folder / name).write_bytes(origin.read_bytes())
    if info.library == "transformers":
        from dragoman.inference import transformers_model

        transformers_model.write_model(trained, folder)
        return
    from dragoman.inference.ctranslate2_model import read_pieces, write_model

    source, target = (read_pieces(folder / name) for name in SUBWORDS)
    model = trained.translator.model
    write_model(model, source, target, info.max_tokens, info.quantization, folder)
    # Argos Translate runs it with CTranslate2, too: that is how it is checked.
    write_info(folder, replace(info, library="ctranslate2"), None)


def _exported_translate(
    trained: TrainedModel, library: Library, folder: Path, tag: str
) -> Translate:
    """How the exported model translates, loaded as its users load it."""
    if library == "transformers":
        from dragoman.inference.transformers_model import load_translator

        return load_translator(folder, trained.translator.device).translate
    return with_tag(load_exported(folder).translator, tag).translate


def _refuse_disparity(parity: Parity, library: Library) -> None:
    if parity.share >= LEAST_IDENTICAL:
        return
    source, own, exported = (
        shorten(text, LONGEST_SHOWN, placeholder=" …") for text in parity.differing[0]
    )
    advice = "use"
    if library == "transformers":
        advice = (
            "a model that repeats itself until it is cut off differs like this, because "
            "Transformers has one limit for all sentences: train it longer, or use"
        )
    raise SystemFault(
        f"the exported model gives the same best translation for only {parity.share:.1%} of "
        f"{parity.pairs:,} pairs, but {LEAST_IDENTICAL:.0%} are required: nothing was "
        f"written\nfor example: {source}\n  Dragoman: {own}\n  exported: {exported}\n"
        f"{advice} --no-check to export it anyway"
    )


def _describe(run: RunFolder, trained: TrainedModel, request: ExportRequest) -> ExportInfo:
    config = trained.config
    engine = "ctranslate2" if request.library == "argos" else request.library
    return ExportInfo(
        run.path.resolve().name,
        tuple(trained.checkpoints),
        request.quantization,
        config.corpus.source_language,
        config.corpus.target_language,
        config.cleaning.normalize_punctuation,
        config.cleaning.max_tokens,
        config.translation,
        {
            "dragoman": __version__,
            engine: version(engine),
            "sentencepiece": sentencepiece.__version__,
            "torch": str(torch.__version__),
        },
        tags_of(config.corpus),
        request.library,
    )


def _tell(output: Path, info: ExportInfo, parity: Parity | None) -> None:
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"{output}: {info.quantization}, {size / 1e6:,.1f} MB")
    if parity is None:
        print("  not checked against Dragoman's decoder (--no-check)")
        return
    print(
        f"  checked on {parity.pairs:,} pairs of {parity.set}, beam {parity.beam}, "
        f"length penalty {parity.length_penalty:g}"
    )
    print(f"  same best translation     {parity.identical:,} ({parity.share:.1%})")
    print(f"  largest score difference  {parity.largest_score_difference:.2g}")
    print(
        f"  BLEU                      {parity.own.bleu:.2f} Dragoman, {parity.exported.bleu:.2f} "
        f"exported   {parity.exported.signature}"
    )

"""`dragoman export`: a trained model for other programs, checked before it is handed over."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import sentencepiece
import torch

from dragoman import __version__
from dragoman.config import Quantization
from dragoman.console import say
from dragoman.errors import SystemFault, UserError
from dragoman.inference.blend import blend_with_parent
from dragoman.inference.export_folder import (
    CARD,
    SUBWORDS,
    ExportInfo,
    new_export,
    refuse_foreign,
    require_ctranslate2,
    write_info,
)
from dragoman.inference.load import TrainedModel, load_exported, load_trained
from dragoman.inference.model_card import Verdict, write_card
from dragoman.inference.parity import Parity, choose_check_set, compare
from dragoman.inference.tags import tags_of, with_tag
from dragoman.runs.folder import RunFolder

LEAST_IDENTICAL = 0.99  # Of the best translations, in float32.


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and how."""

    quantization: Quantization
    checkpoint: str
    average: int
    output: Path | None
    check_pairs: int | None  # None: no check.
    blend: float | None = None  # Share of the run, the rest being of the one it started from.


def export_run(run: RunFolder, request: ExportRequest, verdicts: Sequence[Verdict]) -> Path:
    """Write the exported model, its check and its card, all together or not at all."""
    require_ctranslate2()
    if request.check_pairs is not None and request.check_pairs < 1:
        raise UserError(f"--check-pairs {request.check_pairs}: must be at least 1")
    output = (request.output or run.export).resolve()
    refuse_foreign(output)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_trained(run, request.checkpoint, request.average, device)
    if request.blend is not None:
        trained = blend_with_parent(trained, run, request.blend)
    say(f"{run.name}: {', '.join(trained.checkpoints)}")
    chosen = choose_check_set(trained, request.check_pairs) if request.check_pairs else None
    info = _describe(run, trained, request.quantization)
    with new_export(output) as folder:
        _write_model(run, trained, info, folder)
        parity = None
        if chosen:
            exported = with_tag(load_exported(folder).translator, chosen.tag)
            parity = compare(trained, exported.translate, chosen)
            if info.quantization == "float32":
                _refuse_disparity(parity)
        write_card(folder / CARD, run, trained, info, parity, verdicts)
        write_info(folder, info, asdict(parity) if parity else None)
    _tell(output, info, parity)
    return output


def _write_model(run: RunFolder, trained: TrainedModel, info: ExportInfo, folder: Path) -> None:
    from dragoman.inference.ctranslate2_model import read_pieces, write_model

    for origin, name in zip(run.subwords, SUBWORDS, strict=True):
        (folder / name).write_bytes(origin.read_bytes())
    source, target = (read_pieces(folder / name) for name in SUBWORDS)
    model = trained.translator.model
    write_model(model, source, target, info.max_tokens, info.quantization, folder)
    write_info(folder, info, None)


def _refuse_disparity(parity: Parity) -> None:
    if parity.share >= LEAST_IDENTICAL:
        return
    source, own, exported = parity.differing[0]
    raise SystemFault(
        f"the exported model gives the same best translation for {parity.share:.1%} of "
        f"{parity.pairs:,} pairs, {LEAST_IDENTICAL:.0%} are needed: nothing was written\n"
        f"for example: {source}\n  here: {own}\n  exported: {exported}\n"
        "--no-check exports it as it is"
    )


def _describe(run: RunFolder, trained: TrainedModel, quantization: Quantization) -> ExportInfo:
    from dragoman.inference.ctranslate2_model import VERSION

    config = trained.config
    return ExportInfo(
        run.path.resolve().name,
        tuple(trained.checkpoints),
        quantization,
        config.corpus.source_language,
        config.corpus.target_language,
        config.cleaning.normalize_punctuation,
        config.cleaning.max_tokens,
        config.translation,
        {
            "dragoman": __version__,
            "ctranslate2": VERSION,
            "sentencepiece": sentencepiece.__version__,
            "torch": str(torch.__version__),
        },
        tags_of(config.corpus),
    )


def _tell(output: Path, info: ExportInfo, parity: Parity | None) -> None:
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"{output}: {info.quantization}, {size / 1e6:,.1f} MB")
    if parity is None:
        print("  not checked against this decoder (--no-check)")
        return
    print(
        f"  checked on {parity.pairs:,} pairs of {parity.set}, beam {parity.beam}, "
        f"length penalty {parity.length_penalty:g}"
    )
    print(f"  same best translation     {parity.identical:,} ({parity.share:.1%})")
    print(f"  largest score difference  {parity.largest_score_difference:.2g}")
    print(
        f"  BLEU                      {parity.own.bleu:.2f} here, {parity.exported.bleu:.2f} "
        f"exported   {parity.exported.signature}"
    )

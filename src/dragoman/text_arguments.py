"""What can be asked of the verbs that make text, translate and augment, and what it means."""

import argparse
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import SET_NAME, TAG, ParallelText
from dragoman.errors import UserError
from dragoman.model_arguments import read_choice
from dragoman.worker_arguments import filled

if TYPE_CHECKING:
    from dragoman.inference.augment import AugmentRequest
    from dragoman.inference.parts import PartsRequest
    from dragoman.inference.sampling import Sampling
    from dragoman.inference.text_parts import TextRequest

PART_LINES = 10_000
N_BEST = 8  # Of those that a reference chooses from.


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Options of drawing."""
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="sample from the K most likely words (default: all)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="below 1: closer to the best; above 1: more varied (default: 1)",
    )
    parser.add_argument("--seed", type=int, help="random seed of the sampling (default: 1)")


def add_parts(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    """Options of a large text."""
    instead = "" if is_required else " instead of standard input; needs --output"
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        required=is_required,
        help=f"translate a file, plain, .gz, .xz or .zst{instead}",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        required=is_required,
        help="folder for its translations, in parts: the same command fills in missing parts, and "
        "several processes can share the work",
    )
    parser.add_argument(
        "--part-lines", type=int, metavar="N", help=f"lines of each part (default: {PART_LINES})"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Which decoder."""
    parser.add_argument(
        "--engine",
        choices=["dragoman", "ctranslate2"],
        default="dragoman",
        help="Dragoman's own decoder (default), or a CTranslate2 export (RUN may be its folder)",
    )


def add_augment(parser: argparse.ArgumentParser) -> None:
    """Options of augment alone."""
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help="distill: of the best N translations of each line take the one most like this file's",
    )
    parser.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help=f"distill: candidates for each line (default: {N_BEST})",
    )
    parser.add_argument(
        "--by",
        choices=["chrf", "bleu"],
        help="distill: likeness of sentences by chrF (the default) or BLEU",
    )
    parser.add_argument(
        "--max-length-ratio",
        type=float,
        default=2.0,
        metavar="R",
        help="drop pairs where one side has more than R times the words of the other (default: 2)",
    )
    parser.add_argument(
        "--min-score", type=float, metavar="S", help="drop pairs below this score (default: none)"
    )
    parser.add_argument(
        "--mark",
        metavar="TAG",
        help="the config's tag before every source sentence of the pairs, or '' for none "
        "(default: <bt> for back-translate, none for distill)",
    )
    parser.add_argument(
        "--name",
        type=filled,
        help="of the text in the config (default: back-translated or distilled)",
    )
    parser.add_argument("--weight", type=float, default=1.0, help="in the config (default: 1)")
    parser.add_argument(
        "--processes", type=int, help="number of filtering processes (default: all cores)"
    )


def refuse_ignored(arguments: argparse.Namespace) -> None:
    """Options of one way to translate say nothing to the other."""
    if arguments.engine == "ctranslate2":
        of_export = {"checkpoint": "checkpoint", "average": "average", "precision": "quantization"}
        of_export |= {"blend": "blend"}
        for name, option in of_export.items():
            if getattr(arguments, name) is not None:
                raise UserError(
                    f"--{name}: the weights of an export are chosen at export time: "
                    f"dragoman export {arguments.run} --to ctranslate2 --{option} ..."
                )
    if arguments.sample and arguments.engine == "ctranslate2":
        raise UserError("--sample: not available with --engine ctranslate2")
    ignored = ("beam", "patience") if arguments.sample else ("top_k", "temperature", "seed")
    for name in ignored:
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            how = "beam search: remove --sample" if arguments.sample else "sampling: add --sample"
            raise UserError(f"{option} only works with {how}")


def read_parts(arguments: argparse.Namespace) -> "PartsRequest | None":
    """The file and the folder, if they were given."""
    if (arguments.input is None) != (arguments.output is None):
        raise UserError("--input and --output must be given together")
    if arguments.input is None:
        for name in ("part_lines", "workers", "hosts"):
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} needs --input and --output")
        return None
    if arguments.part_lines is not None and arguments.part_lines < 1:
        raise UserError(f"--part-lines {arguments.part_lines}: must be at least 1")

    from dragoman.inference.parts import PartsRequest

    return PartsRequest(arguments.input, arguments.output, arguments.part_lines or PART_LINES)


def read_sampling(arguments: argparse.Namespace) -> "Sampling":
    """How to draw."""
    from dragoman.inference.sampling import Sampling

    sampling = Sampling(
        arguments.top_k or 0,
        1.0 if arguments.temperature is None else arguments.temperature,
        1 if arguments.seed is None else arguments.seed,
    )
    if arguments.top_k is not None and arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: must be at least 1")
    if not 0.01 <= sampling.temperature <= 100:
        raise UserError(
            f"--temperature {sampling.temperature:g}: must be at least 0.01 and at most 100"
        )
    if not 0 <= sampling.seed < 1 << 63:
        raise UserError(f"--seed {sampling.seed}: must be at least 0 and below 2^63")
    return sampling


def read_augment(arguments: argparse.Namespace) -> "TextRequest":
    """What augment translates, and how."""
    _refuse_options_of_the_other_way(arguments)
    arguments.sample = arguments.way == "back-translate" and arguments.beam is None
    if arguments.sample and arguments.engine == "ctranslate2":
        raise UserError("--engine ctranslate2 does not support sampling; use --beam instead")
    refuse_ignored(arguments)
    parts = read_parts(arguments)
    assert parts  # Both are required.

    from dragoman.inference.augment import PARTS
    from dragoman.inference.decoder import LineOutput
    from dragoman.inference.text_parts import TextRequest

    choice = read_choice(arguments)
    if arguments.sample and choice.length_penalty is None:
        # The score is the mean of each word's, whatever the length: one limit fits all.
        choice = replace(choice, length_penalty=1.0)
    n_best = (arguments.n_best or N_BEST) if arguments.reference else 1
    return TextRequest(
        choice,
        LineOutput(n_best, with_scores=True),
        arguments.engine,
        read_sampling(arguments) if arguments.sample else None,
        replace(parts, folder=parts.folder / PARTS),
    )


def _refuse_options_of_the_other_way(arguments: argparse.Namespace) -> None:
    is_drawn = arguments.way == "back-translate" and arguments.beam is None
    of_distill, of_drawing = ("reference", "n_best", "by"), ("top_k", "temperature", "seed")
    refused = {} if is_drawn else dict.fromkeys(of_drawing, "back-translate without --beam")
    if arguments.way == "back-translate":
        refused |= dict.fromkeys(of_distill, "distill")
    elif not arguments.reference:
        refused |= dict.fromkeys(("n_best", "by"), "--reference")
    for name, of in refused.items():
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} only works with {of}")
    if arguments.n_best is not None and arguments.n_best < 2:
        raise UserError(f"--n-best {arguments.n_best}: must be at least 2, to choose from")


def read_pairs(arguments: argparse.Namespace, text: "TextRequest") -> "AugmentRequest":
    """What augment makes of the translations."""
    mark = arguments.mark
    if mark is None:
        mark = "<bt>" if arguments.way == "back-translate" else ""
    name = (
        arguments.name
        or {"back-translate": "back-translated", "distill": "distilled"}[arguments.way]
    )
    if mark and not re.fullmatch(TAG, mark):
        raise UserError(f"--mark {mark}: must be in angle brackets without blanks, as in <bt>")
    if not re.fullmatch(SET_NAME, name):
        raise UserError(f"--name {name}: may hold letters, digits, '-', '_' and '.' only")
    if not 0 <= arguments.weight < math.inf:
        raise UserError(f"--weight {arguments.weight:g}: must be at least 0")
    if not 1 <= arguments.max_length_ratio < math.inf:
        raise UserError(f"--max-length-ratio {arguments.max_length_ratio:g}: must be at least 1")
    if arguments.min_score is not None and not math.isfinite(arguments.min_score):
        raise UserError(f"--min-score {arguments.min_score}: must be a finite number")

    from dragoman.inference.augment import (
        PAIRS,
        AugmentRequest,
        find_languages,
        refuse_in_vain,
        refuse_unequal,
    )
    from dragoman.inference.pair_filters import PairLimits

    refuse_in_vain(arguments.input, arguments.output)
    if arguments.reference:
        refuse_unequal(arguments.input, arguments.reference)
    languages = find_languages(text.choice, text.engine)
    place = str((arguments.output / PAIRS).absolute())
    return AugmentRequest(
        arguments.way,
        text.parts,
        arguments.output,
        text.output.n_best,
        arguments.reference,
        arguments.by or "chrf",
        PairLimits(arguments.max_length_ratio, arguments.min_score, languages),
        ParallelText(tsv=place, tag=mark, name=name, weight=arguments.weight),
        arguments.processes or len(os.sched_getaffinity(0)),
    )

"""Text for the next model: back-translation and distillation, filtered, as files for a config."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import zstandard
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.config import ParallelText
from dragoman.config_file import dump_text, load_saved_config
from dragoman.console import Progress, say
from dragoman.corpus.languages import knows
from dragoman.corpus.passes import ordered_map, worker_pool
from dragoman.corpus.text import read_lines
from dragoman.documents import LINE, encode, item
from dragoman.errors import UserError
from dragoman.files import describe_file, exclusive, write_whole, writing_whole
from dragoman.inference.decoder import TrainedChoice
from dragoman.inference.export_folder import find_export, read_info
from dragoman.inference.pair_filters import PAIR_FILTERS, PairFilter, PairLimits
from dragoman.inference.parts import PartsRequest, part_path, refuse_no_file
from dragoman.records import SavedFile
from dragoman.runs.folder import find_run

Way = Literal["back-translate", "distill"]
ChosenBy = Literal["chrf", "bleu"]

PARTS, PAIRS, SUMMARY, MIX = "parts", "pairs.tsv.zst", "augment.json", "mix.toml"


@dataclass(frozen=True)
class AugmentRequest:
    """What to make pairs of, once the parts are there, and what a config shall say of them."""

    way: Way
    text: PartsRequest  # The parts lie below the folder of the pairs.
    folder: Path
    n_best: int
    reference: Path | None  # Of these translations the one most like it is taken.
    by: ChosenBy
    limits: PairLimits
    mix: ParallelText
    processes: int


@dataclass(frozen=True)
class Augmented:
    """What augment.json says."""

    way: Way = item("how the pairs were made")
    lines: int = item("of the text")
    pairs: int = item("that were kept")
    removed: Mapping[str, int] = item("by filter", keys=LINE)
    limits: PairLimits = item("that the filters kept to")
    scores: Mapping[str, float] = item("below which so many per cent lie", keys=LINE)
    likeness: tuple[float, ...] = item("to the references: of the first, and of those taken")
    file: SavedFile = item("the pairs")


@dataclass(frozen=True)
class _Part:
    """Lines of the text, where their translations lie, and their references, if any."""

    lines: list[bytes]
    references: list[bytes]
    translations: Path


@dataclass(frozen=True)
class _Pairs:
    """What became of a part: source, tab, target, packed, and counts."""

    packed: bytes
    lines: int
    pairs: int
    removed: Counter[str]
    scores: Counter[float]  # To one decimal.
    likeness: tuple[float, float]  # Sums over lines.


def find_languages(choice: TrainedChoice, engine: str) -> tuple[str, ...]:
    """The languages of a model's two sides; none if they cannot be told from each other."""
    if choice.tag:
        say(f"--tag {choice.tag} may stand for any languages: they are not checked")
        return ()
    if engine == "ctranslate2":
        info = read_info(find_export(choice.run))
        languages = info.source_language, info.target_language
    else:
        corpus = load_saved_config(find_run(choice.run).config).corpus
        languages = corpus.source_language, corpus.target_language
    if all(map(knows, languages)) and languages[0] != languages[1]:
        return languages
    say(f"{' and '.join(languages)} cannot be told from each other: languages are not checked")
    return ()


def refuse_in_vain(text: Path, folder: Path) -> None:
    """Refuse a text without lines and a folder of other files, before anything is made."""
    refuse_no_file("--input", text)
    if next(read_lines(text, 1), None) is None:
        raise UserError(f"--input {text} is empty")
    is_ours = (folder / PARTS).is_dir() or (folder / SUMMARY).is_file()
    if folder.is_dir() and any(folder.iterdir()) and not is_ours:
        raise UserError(
            f"{folder} contains files that augment did not make: choose another --output"
        )


def refuse_unequal(text: Path, reference: Path) -> None:
    """Refuse references of other lines, before hours are spent."""
    counts = []
    for option, path in (("--input", text), ("--reference", reference)):
        refuse_no_file(option, path)
        counts.append(sum(len(lines) for _, lines in read_lines(path, 10_000)))
    if counts[0] != counts[1]:
        raise UserError(
            f"{reference} has {counts[1]:,} lines but {text} has {counts[0]:,}: references must "
            "match line by line"
        )


def write_pairs(request: AugmentRequest, parts: int) -> Augmented:
    """Filter the translations in so many parts; write pairs, and what a config says of them."""
    folder = request.folder
    lines = pairs = 0
    removed: Counter[str] = Counter(dict.fromkeys(PAIR_FILTERS, 0))
    scores: Counter[float] = Counter()
    likeness = [0.0, 0.0]
    with (
        exclusive(folder, "writing pairs"),
        worker_pool(request.processes) as pool,
        Progress("filtering", parts, "parts") as progress,
        writing_whole(folder / PAIRS) as file,
    ):
        for made in ordered_map(
            pool, partial(_pairs_of, request=request), _parts(request), request.processes
        ):
            file.write(made.packed)
            lines, pairs = lines + made.lines, pairs + made.pairs
            removed.update(made.removed)
            scores.update(made.scores)
            likeness = [total + one for total, one in zip(likeness, made.likeness, strict=True)]
            progress.advance(1)
        if not pairs:
            counts = ", ".join(f"{count:,} {name}" for name, count in removed.items() if count)
            raise UserError(
                f"{request.text.input}: no pair of {lines:,} passed the filters ({counts}); look "
                f"at what the model said, in {request.text.folder}"
            )
    done = Augmented(
        request.way,
        lines,
        pairs,
        dict(removed),
        request.limits,
        _quantiles(scores),
        tuple(total / lines for total in likeness) if request.reference else (),
        describe_file(folder / PAIRS),
    )
    write_whole(folder / SUMMARY, (json.dumps(encode(done), indent=2) + "\n").encode())
    write_whole(folder / MIX, _mix(request, done).encode())
    return done


def _parts(request: AugmentRequest) -> Iterator[_Part]:
    references: Iterator[bytes] = iter(())
    if request.reference:
        chunks = read_lines(request.reference, request.text.lines)
        references = chain.from_iterable(lines for _, lines in chunks)
    for number, (_, lines) in enumerate(read_lines(request.text.input, request.text.lines)):
        theirs = list(islice(references, len(lines)))
        yield _Part(lines, theirs, part_path(request.text.folder, number))


def _pairs_of(part: _Part, request: AugmentRequest) -> _Pairs:
    """Choose and filter the translations of a part; runs in a worker process."""
    ranked = _read_translations(part, request.n_best)
    judge = PairFilter(request.limits)
    metric = BLEU(effective_order=True) if request.by == "bleu" else CHRF()
    removed, scores = Counter[str](), Counter[float]()
    kept: list[str] = []
    likeness = [0.0, 0.0]
    for place, (raw, translations) in enumerate(zip(part.lines, ranked, strict=True)):
        try:
            line = raw.decode().strip()
        except UnicodeDecodeError:
            removed["invalid_utf8"] += 1
            continue
        score, best = translations[0]
        if part.references:
            reference = part.references[place].decode("utf-8", "replace").strip()
            like = [metric.sentence_score(one, [reference]).score for _, one in translations]
            score, best = translations[like.index(max(like))]
            likeness = [likeness[0] + like[0], likeness[1] + max(like)]
        if math.isfinite(score):
            scores[round(score, 1)] += 1
        if reason := judge.reason(line, best, score):
            removed[reason] += 1
            continue
        sides = (best, line) if request.way == "back-translate" else (line, best)
        kept.append("\t".join(side.replace("\t", " ") for side in sides))
    packed = zstandard.compress("".join(f"{pair}\n" for pair in kept).encode())
    return _Pairs(packed, len(part.lines), len(kept), removed, scores, (likeness[0], likeness[1]))


def _read_translations(part: _Part, n_best: int) -> list[list[tuple[float, str]]]:
    """The translations of each line with their scores, as `translate` wrote them."""
    content = part.translations.read_bytes()
    try:
        rows = content.decode().split("\n")[:-1]
        scored = [(float(score), text.strip()) for score, text in (r.split("\t", 1) for r in rows)]
    except ValueError:
        scored = []
    if len(scored) != n_best * len(part.lines):
        raise UserError(
            f"{part.translations} is damaged: delete it, and give the same command again"
        )
    return [scored[first : first + n_best] for first in range(0, len(scored), n_best)]


def _quantiles(scores: Counter[float]) -> dict[str, float]:
    total, seen, found = scores.total(), 0, dict[str, float]()
    for score in sorted(scores):
        seen += scores[score]
        for per_cent in (1, 5, 25, 50):
            if seen >= total * per_cent / 100:
                found.setdefault(str(per_cent), score)
    return found


def _mix(request: AugmentRequest, done: Augmented) -> str:
    """What a config says of the pairs: a list with one text."""
    return (
        f"# {done.pairs:,} pairs for corpus.train of a config: copy the line into its list.\n"
        f"corpus.train = [\n    {dump_text(request.mix)},\n]\n"
    )


def told(done: Augmented, folder: Path) -> Sequence[str]:
    """What came of it, in lines for people."""
    lines = [f"{folder}: {done.lines:,} lines, {done.pairs:,} pairs kept"]
    lines += [
        f"  {count:,} dropped: {PAIR_FILTERS[name]}"
        for name, count in done.removed.items()
        if count
    ]
    below = ", ".join(f"{per_cent}% below {score:g}" for per_cent, score in done.scores.items())
    lines.append(f"  scores: {below}; --min-score S drops pairs that score below S")
    if done.likeness:
        lines.append(
            f"  likeness to the references {done.likeness[0]:.2f}, of those taken "
            f"{done.likeness[1]:.2f}"
        )
    return [*lines, f"{folder / MIX}:", *(folder / MIX).read_text().splitlines()[2:3]]

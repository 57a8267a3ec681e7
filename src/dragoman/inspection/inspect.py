"""One pass over all training text, on all cores, in bounded memory."""

from functools import partial
from itertools import tee

from dragoman.config import Config
from dragoman.console import Progress, say
from dragoman.corpus.inputs import Inputs, set_sentences
from dragoman.corpus.languages import knows
from dragoman.corpus.manifest import SIDES
from dragoman.corpus.passes import LINES_PER_CHUNK, ordered_map, worker_pool
from dragoman.corpus.text import read_chunks
from dragoman.inspection.chunk import Watched, inspect_chunk
from dragoman.inspection.findings import Inspection, LanguagesChecked
from dragoman.inspection.tally import Tally

SAMPLED_PAIRS = 20_000  # Whose languages are looked at: enough for a rate of 1% to within 0.15%.


def inspect_text(config: Config, inputs: Inputs, processes: int) -> Inspection:
    """Look at all training text of a config."""
    languages = config.corpus.source_language, config.corpus.target_language
    checked, unchecked = _languages_checked(languages, inputs)
    if unchecked:
        say(unchecked)
    keys = tuple(frozenset(side) for side in set_sentences(inputs))
    share = min(1.0, SAMPLED_PAIRS / max(1, _estimate_pairs(inputs)))
    named = None if checked == "nowhere" else languages
    watched = Watched(named, share, (keys[0], keys[1]), config.cleaning)
    tally = Tally()
    packed_bytes = sum(path.stat().st_size for files in inputs.train for path in files.paths)
    # Workers are some chunks ahead; the lines of these are kept for examples.
    chunks, same = tee(
        chunk for files in inputs.train for chunk in read_chunks(files, LINES_PER_CHUNK)
    )
    with (
        worker_pool(processes) as pool,
        Progress("inspecting", packed_bytes, "bytes") as progress,
    ):
        look = partial(inspect_chunk, watched=watched)
        for found, chunk in zip(ordered_map(pool, look, chunks, processes), same, strict=True):
            tally.add(chunk, found)
            progress.advance(chunk.packed_bytes)
    return tally.inspection(inputs, languages, checked, unchecked)


def _languages_checked(languages: tuple[str, str], inputs: Inputs) -> tuple[LanguagesChecked, str]:
    """Where languages can be checked, and why not everywhere."""
    for side, language in zip(SIDES, languages, strict=True):
        if not knows(language):
            return "nowhere", (
                f"corpus.{side}_language = {language!r} is not the code of a language that can be "
                "identified, such as en: wrong languages are not checked"
            )
    if languages[0] == languages[1]:
        return "nowhere", (
            f"corpus.source_language = {languages[0]!r} and target_language = {languages[1]!r} "
            "cannot be told apart: wrong languages are not checked"
        )
    if not inputs.train_tags:
        return "everywhere", ""
    is_any_known = any(files.languages_are_known for files in inputs.train)
    return "untagged" if is_any_known else "nowhere", (
        f"texts with a tag ({', '.join(inputs.train_tags)}) are not checked for wrong languages "
        "and swapped sides: a tag does not say which languages they are in"
    )


def _estimate_pairs(inputs: Inputs) -> float:
    """How many pairs there are, by the sizes of files and the first lines of each."""
    total = 0.0
    for files in inputs.train:
        first = next(read_chunks(files, LINES_PER_CHUNK), None)
        if first is None:
            continue
        packed = sum(path.stat().st_size for path in files.paths)
        # Packed text is read in blocks, so that small files are read at once.
        total += len(first.source) * max(1.0, packed / max(1, first.packed_bytes))
    return total

"""The whole of `dragoman prepare`: raw text -> prepared corpus."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from dragoman.config import Config
from dragoman.console import say
from dragoman.corpus.build import build
from dragoman.corpus.inputs import Inputs, OldRun, find_inputs, fingerprint_of
from dragoman.corpus.manifest import (
    MANIFEST,
    Manifest,
    PreparedFrom,
    find_damage,
    read_manifest,
    write_manifest,
)
from dragoman.corpus.passes import LINES_PER_CHUNK
from dragoman.corpus.text import read_pairs
from dragoman.errors import UserError
from dragoman.files import LOCK, exclusive, flush_folder, naming, write_whole

BUILDING = ".building"
DROPPED = "dropped.json"  # Samples of what each filter took.
INSPECTED = ("inspect.html", "inspect.json")
OURS = {LOCK, BUILDING, DROPPED, *INSPECTED}
DATA_FOLDER = re.compile(r"corpus-[0-9a-f]{12}(-repaired)?")  # Nobody else's folders.


def prepare(config: Config, processes: int | None = None, old: OldRun | None = None) -> Manifest:
    """Build the prepared corpus unless it is already there; return its manifest."""
    assert (old is None) == (not config.vocabulary.from_run), "from_run is looked up before"
    inputs = find_inputs(config, old)
    folder = Path(config.corpus.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"corpus.folder: {folder} is a file, not a folder") from None
    fingerprint = fingerprint_of(config, inputs)
    manifest = _up_to_date(folder, fingerprint)
    settings = PreparedFrom(config.corpus, config.cleaning, config.vocabulary)
    if manifest and manifest.settings == settings:
        say(f"{folder} is up to date: same text, same settings, nothing to do")
        return manifest
    _refuse_other_things(folder)
    with exclusive(folder, "preparing it"), naming(folder):
        if manifest:
            # Files may have other names, with the same text.
            manifest = replace(manifest, settings=settings)
            write_manifest(folder, manifest)
            say(f"{folder} is up to date: same text, nothing to do")
            return manifest
        _check_sets(inputs)
        _remove_leftovers(folder)
        building = folder / BUILDING
        building.mkdir()
        try:
            cores = processes or len(os.sched_getaffinity(0))
            built = build(config, inputs, building, cores, fingerprint)
            manifest = _publish(folder, building, built.manifest)
            write_whole(folder / DROPPED, built.dropped)
            return manifest
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _up_to_date(folder: Path, fingerprint: str) -> Manifest | None:
    try:
        manifest = read_manifest(folder)
    except UserError:
        return None
    whole = find_damage(folder, manifest, contents=True) is None
    return manifest if whole and manifest.fingerprint == fingerprint else None


def _refuse_other_things(folder: Path) -> None:
    """Refuse a folder that holds something else than a prepared corpus or what a kill left of one.

    Once a corpus is there, what others put beside it is left alone.
    """
    names = {path.name for path in folder.iterdir()}
    if not any(DATA_FOLDER.fullmatch(name) for name in names) and names - OURS:
        raise UserError(
            f"corpus.folder: {folder} is not empty and is not a prepared corpus; choose another "
            "folder"
        )


def _check_sets(inputs: Inputs) -> None:
    """Find mistakes in the small texts before the large one is worked on."""
    for kind, named in inputs.sets.items():
        for name, texts in named.items():
            chunks = (chunk for text in texts for chunk in read_pairs(text, LINES_PER_CHUNK))
            if not sum(len(source) for source, _ in chunks):
                raise UserError(
                    f"corpus.{kind}.{name}: {texts[0].source} is empty: nothing to evaluate on"
                )


def _remove_leftovers(folder: Path) -> None:
    """Delete what an earlier or killed preparation left behind, but never the corpus in force."""
    try:
        in_force = read_manifest(folder).data
    except UserError:
        in_force = None
    shutil.rmtree(folder / BUILDING, ignore_errors=True)
    for path in folder.iterdir():
        if DATA_FOLDER.fullmatch(path.name) and path.name != in_force:
            shutil.rmtree(path)
    for name in (MANIFEST, DROPPED, *INSPECTED):
        for path in folder.glob(f".{name}.*"):
            path.unlink()


def _publish(folder: Path, building: Path, manifest: Manifest) -> Manifest:
    """Put the new corpus in place; until the manifest's one move, the old one is in force."""
    data = folder / manifest.data
    if data.exists():  # The corpus in force has the same fingerprint but is damaged.
        data = data.with_name(f"{data.name}-repaired")
        shutil.rmtree(data, ignore_errors=True)
    flush_folder(building)
    building.rename(data)
    flush_folder(folder)  # Before the manifest that names it.
    manifest = replace(manifest, data=data.name)
    write_manifest(folder, manifest)
    _remove_leftovers(folder)
    return manifest

"""A package for Argos Translate: a zip archive around CTranslate2's files."""

import json
import zipfile
from pathlib import Path

from dragoman.files import LOCK
from dragoman.inference.export_folder import CARD, INFO, SUBWORDS, ExportInfo
from dragoman.languages import language_name

PACKAGE_VERSION, ARGOS_VERSION = "1.0", "1.9"  # The first Argos Translate that reads it so.
_EPOCH = (1980, 1, 1, 0, 0, 0)  # The same model gives the same bytes.


def pack(folder: Path, info: ExportInfo) -> None:
    """Replace CTranslate2's files in a folder by one archive of them; the card is in both."""
    stem = f"translate-{info.source_language}_{info.target_language}-1_0"
    metadata = {
        "package_version": PACKAGE_VERSION,
        "argos_version": ARGOS_VERSION,
        "from_code": info.source_language,
        "from_name": language_name(info.source_language),
        "to_code": info.target_language,
        "to_name": language_name(info.target_language),
    }
    loose = [path for path in sorted(folder.iterdir()) if path.name not in (INFO, LOCK)]
    with zipfile.ZipFile(folder / f"{stem}.argosmodel", "w") as archive:
        text = json.dumps(metadata, indent=2, ensure_ascii=False)
        archive.writestr(zipfile.ZipInfo(f"{stem}/metadata.json", _EPOCH), text)
        for path in loose:
            with archive.open(zipfile.ZipInfo(f"{stem}/{_place(path.name)}", _EPOCH), "w") as file:
                file.write(path.read_bytes())
    for path in loose:
        if path.name != CARD:
            path.unlink()


def _place(name: str) -> str:
    """Where a file of ours lies in the archive; both languages share a vocabulary."""
    if name == CARD:
        return name
    return {SUBWORDS[0]: "sentencepiece.model", SUBWORDS[1]: "target.model"}.get(
        name, f"model/{name}"
    )

"""Packages for Argos Translate, opened by the real library where it is installed.

It is no dependency of the tests: with spacy, stanza and onnxruntime it is larger than all others
but torch, and its model that finds sentences comes over the network. The tests give it their own.
"""

import json
import shutil
import zipfile
from pathlib import Path

import ctranslate2
import pytest
import torch

from dragoman.cli import main
from dragoman.config import TranslationSettings
from dragoman.inference.export_folder import read_info
from dragoman.inference.load import load_trained
from dragoman.runs.folder import RunFolder
from support import number_pairs, refusal

NAME = "translate-en_de-1_0"
LINES = number_pairs(70_000, 20)[0]


@pytest.fixture(scope="module")
def package(spelling_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("argos") / "exported"
    main(["export", str(spelling_run), "--to", "argos", "--output", str(folder)])
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "dragoman.json"),
        f"{NAME}.argosmodel",
    ]
    return folder / f"{NAME}.argosmodel"


class OneSentence:
    """Finds sentences where there is one."""

    def split_sentences(self, text: str) -> list[str]:
        return [text]


@pytest.mark.slow
def test_the_real_library_opens_it(
    spelling_run: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    argos = pytest.importorskip("argostranslate.translate", reason="argostranslate is missing")
    argos.package.install_from_path(package)
    [installed] = argos.package.get_installed_packages()
    assert (installed.from_name, installed.to_name) == ("English", "German")
    assert "# run: en to de" in installed.get_readme()
    engine = ctranslate2.Translator(str(installed.package_path / "model"))
    found = [
        argos.apply_packaged_translation(installed, line, engine, OneSentence(), 1)[0].value
        for line in LINES
    ]
    trained = load_trained(RunFolder(spelling_run), "best", 1, torch.device("cpu"))
    # Its own way to search.
    settings = TranslationSettings(beam=argos.settings.beam_size, patience=1, length_penalty=0.2)
    ours = trained.translator.translate(LINES, settings)
    assert found == [best[0].text for best in ours]


def test_the_archive_is_whole_and_the_same_every_time(
    spelling_run: Path, package: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(package) as archive:
        assert archive.testzip() is None
        names = {name.removeprefix(f"{NAME}/") for name in archive.namelist()}
        metadata = json.loads(archive.read(f"{NAME}/metadata.json"))
    assert names >= {"metadata.json", "sentencepiece.model", "model/model.bin", "README.md"}
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")
    again = tmp_path / "again"
    main(["export", str(spelling_run), "--to", "argos", "--output", str(again)])
    assert (again / package.name).read_bytes() == package.read_bytes()


def test_wrong_requests_are_one_line(
    spelling_run: Path, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="is an export for argos"):
        read_info(package.parent)
    apart = Path(shutil.copytree(spelling_run, tmp_path / "apart"))
    config = (apart / "config.toml").read_text()
    (apart / "config.toml").write_text(config.replace("joint = true", "joint = false"))
    code, errors = refusal(capsys, "export", apart, "--to", "argos", "--no-check")
    assert (code, "--to argos: Argos packages need a joint vocabulary" in errors) == (2, True)

"""Packages for Argos Translate, opened by the real library where it is installed.

It is no dependency of the tests: it asks for spacy, stanza and onnxruntime, none of which opening a
package needs. `pip install --no-deps argostranslate` is enough.
"""

import json
import shutil
import zipfile
from pathlib import Path

import ctranslate2
import pytest
import torch

from dragoman.cli import main
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


def translate(folder: Path, pieces: list[list[str]]) -> list[list[str]]:
    """As Argos Translate calls it, but with the run's own length penalty."""
    engine = ctranslate2.Translator(str(folder / "model"))
    found = engine.translate_batch(pieces, beam_size=4, length_penalty=0.6)
    return [one.hypotheses[0] for one in found]


def ours(spelling_run: Path) -> list[str]:
    trained = load_trained(RunFolder(spelling_run), "best", 1, torch.device("cpu"))
    ranked = trained.translator.translate(LINES, trained.config.translation)
    return [best[0].text for best in ranked]


def test_the_real_library_opens_it(
    spelling_run: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    argos = pytest.importorskip("argostranslate.package", reason="argostranslate is not installed")
    argos.install_from_path(package)
    [installed] = argos.get_installed_packages()
    assert (installed.from_name, installed.to_name) == ("English", "German")
    assert "# run: en to de" in installed.get_readme()
    found = translate(
        Path(installed.package_path), [installed.tokenizer.encode(line) for line in LINES]
    )
    assert [installed.tokenizer.decode(pieces) for pieces in found] == ours(spelling_run)


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
    assert (code, "--to argos: its packages have one vocabulary" in errors) == (2, True)

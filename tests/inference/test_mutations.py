"""A damaged export, vocabulary, config or weights: refused in one line, or no difference."""

import json
import random
import resource
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.config_file import ConfigError, load_config
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import SystemFault, UserError
from dragoman.files import describe_file
from dragoman.inference.export import ExportRequest, export_run
from dragoman.inference.load import load_exported, load_trained
from dragoman.model.transformer import Transformer
from dragoman.records import Scores
from dragoman.runs.checkpoint import Checkpoint, write_checkpoint
from dragoman.runs.folder import RunFolder
from dragoman.training.opening import open_run
from mutations import STRANGE, mutate
from support import SMALL, refusal

CPU = torch.device("cpu")
LINES = ["one two three", "seven", "", "nine nine four unheard-of 😀"]
SEED = 15


@pytest.fixture(scope="module")
def run(prepared_once: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has not learnt anything, but has all that translating needs."""
    folder = Path(shutil.copytree(prepared_once, tmp_path_factory.mktemp("mutations") / "small"))
    config = load_config(folder / "config.toml", SMALL)
    corpus = PreparedCorpus(folder / "prepared")
    run = RunFolder(folder / "run")
    torch.manual_seed(1)
    (size,) = corpus.manifest.vocabulary.sizes
    model = Transformer(config.model, size, size, joint=True)
    open_run(run, config, corpus, 1, 1)
    run.metrics.touch()
    weights = {name: one.detach() for name, one in model.named_parameters()}
    write_checkpoint(
        run.checkpoints, Checkpoint(1, weights, weights, {}, {}, Scores(2.0, 2.0, 1.0))
    )
    return run


@pytest.fixture(scope="module")
def exported(run: RunFolder) -> Path:
    return export_run(run, ExportRequest("ctranslate2", "float32", "best", 1, None, None), [])


def translate_export(folder: Path) -> list[str]:
    exported = load_exported(folder)
    ranked = exported.translator.translate(LINES, replace(exported.info.translation, beam=2))
    return [best[0].text for best in ranked]


def translate_run(folder: Path) -> list[str]:
    trained = load_trained(RunFolder(folder), "best", 1, CPU)
    ranked = trained.translator.translate(LINES, replace(trained.config.translation, beam=2))
    return [best[0].text for best in ranked]


def outcome(translate: Callable[[Path], list[str]], folder: Path, what: str) -> list[str] | None:
    """What was translated; None if it was refused in one line."""
    try:
        return translate(folder)
    except ConfigError:
        return None  # With a line for each problem.
    except (UserError, SystemFault) as error:
        lines = str(error).splitlines()
    except BaseException as error:
        raise AssertionError(f"{what}: {error!r}") from error
    assert len(lines) == 1, what
    return None


def test_a_damaged_export_is_refused_or_translates_the_same(exported: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    before = translate_export(exported)
    names = [path.name for path in sorted(exported.iterdir())]
    refused = 0
    for number in range(100):
        folder = shutil.copytree(exported, tmp_path / "export")
        name = "dragoman.json" if chance.random() < 0.5 else chance.choice(names)
        what = mutate(folder / name, chance)
        after = outcome(translate_export, folder, f"mutation {number}, {what}")
        assert after is None or after == before or name == "dragoman.json", (number, name)
        refused += after is None
        shutil.rmtree(folder)
    assert refused > 50


def test_a_flipped_bit_anywhere_in_an_export_is_named(exported: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    folder = Path(shutil.copytree(exported, tmp_path / "export"))
    before = translate_export(folder)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        changed = bytearray(content)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(7)
        path.write_bytes(changed)
        if path.name == "README.md":
            assert translate_export(folder) == before, "people write their licence there"
        elif path.name != "dragoman.json":
            with pytest.raises(UserError, match=f"the checksum of {path.name} does not match"):
                load_exported(folder)
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["source.model", "target.model"])
def test_a_flipped_bit_in_a_vocabulary_of_a_run_is_named(
    run: RunFolder, tmp_path: Path, name: str
) -> None:
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"run is damaged: the checksum of {name} does not match"):
        translate_run(folder)


def test_damaged_files_of_a_run_are_refused_or_translate_the_same(
    run: RunFolder, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    before = translate_run(run.path)
    weights = "checkpoints/step-00000001/weights.safetensors"
    for number in range(40):
        folder = Path(shutil.copytree(run.path, tmp_path / "run"))
        name = chance.choice(["source.model", "target.model", weights, "config.toml"])
        what = mutate(folder / name, chance)
        after = outcome(translate_run, folder, f"mutation {number}, {what}")
        assert after is None or after == before or name == "config.toml", (number, name)
        shutil.rmtree(folder)


def toml(value: object) -> str:
    return str(value) if isinstance(value, float) else json.dumps(value)


def test_a_config_edited_by_hand_is_refused_or_used(run: RunFolder, tmp_path: Path) -> None:
    """Every setting that a run's config has, with values that do not belong there."""
    chance = random.Random(SEED)
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    path = folder / "config.toml"
    lines = path.read_text().splitlines()
    for place, line in enumerate(lines):
        if " = " not in line:
            continue
        for value in (3, *chance.sample(STRANGE, 2)):
            changed = f"{line.split(' = ')[0]} = {toml(value)}"
            path.write_text("\n".join([*lines[:place], changed, *lines[place + 1 :]]))
            outcome(translate_run, folder, changed)


def test_weights_of_another_model_are_named(run: RunFolder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    path = folder / "checkpoints/step-00000001/weights.safetensors"
    weights = load_file(path)
    name = "decoder_norm.weight"
    save_file({**weights, name: weights[name][:1].clone()}, path)
    index = folder / "checkpoints/checkpoints.json"
    document = json.loads(index.read_text())
    document["checkpoints"][0]["files"][path.name] = asdict(describe_file(path))
    index.write_text(json.dumps(document))
    with pytest.raises(UserError, match=rf"{name} is float32 \[1\], but float32 \[16\] in the mod"):
        translate_run(folder)


def test_a_copy_of_a_manifest_that_is_damaged_is_named(run: RunFolder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    path = folder / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["corpus"]["manifest"]["vocabulary"]["files"] = ["../../secret"]
    path.write_text(json.dumps(provenance))
    with pytest.raises(
        UserError, match=r"provenance\.json is damaged: corpus\.manifest\.vocabulary\.files\[0\] is"
    ):
        translate_run(folder)


@pytest.mark.parametrize("size", [2_000, 20_000])
def test_an_export_that_cannot_be_written_is_named_as_such(
    run: RunFolder, tmp_path: Path, size: int
) -> None:
    """Whichever file did not fit: a vocabulary, which is copied, or the weights."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    request = ExportRequest("ctranslate2", "float32", "best", 1, tmp_path / "output", None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            export_run(run, request, [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "output")
    assert not list(tmp_path.iterdir())


def test_a_set_with_a_path_for_a_name_is_not_evaluated(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its translations would be written wherever its name leads."""
    small = Path(shutil.copytree(run.path.parent, tmp_path / "small"))
    manifest = small / "prepared" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["sets"]["test"] = {"../../../evil": document["sets"]["test"]["test"]}
    manifest.write_text(json.dumps(document))
    config = small / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(run.path.parent), str(small)))
    output = tmp_path / "a" / "b" / "c"
    code, errors = refusal(capsys, "evaluate", small / "run", "--output", output)
    assert code == 2
    assert 'sets.test has the key "../../../evil"; run `dragoman prepare` again' in errors
    assert not output.exists()
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]

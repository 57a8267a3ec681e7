"""A run that starts from another one: its weights, its vocabulary, what it gains and forgets."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dragoman.cli import main
from dragoman.config import Config
from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.errors import UserError
from dragoman.inference.blend import blend_with_parent
from dragoman.inference.load import load_trained
from dragoman.inference.paired import bleu_gain
from dragoman.inference.parent import find_old_run, find_parent
from dragoman.model.transformer import Transformer
from dragoman.report.comparison.comparison_page import compare_runs
from dragoman.report.page.report_page import write_report
from dragoman.runs.folder import RunFolder
from dragoman.training.start import train
from support import (
    SMALL,
    assert_same_end,
    metrics,
    number_pairs,
    refusal,
    run_dragoman,
    write_lines,
)

pytestmark = pytest.mark.slow

PARENT = """\
[corpus]
folder = "prepared/general"
train = [{ source = "general.en", target = "general.de" }]
validation.dev = { source = "general-dev.en", target = "general-dev.de" }
[vocabulary]
size = 320
"""
CHILD = """\
[corpus]
folder = "prepared/special"
train = [{ source = "special.en", target = "special.de" }]
validation.special = { source = "special-dev.en", target = "special-dev.de" }
[vocabulary]
from_run = "runs/general"
[training]
start_from = "runs/general"
"""
FAST = [*SMALL, "schedule.scale=1.0", "evaluation.every_steps=12", "checkpoints.every_steps=12"]


def configured(folder: Path, name: str, text: str, *overrides: str) -> Config:
    (folder / f"{name}.toml").write_text(text)
    return load_config(folder / f"{name}.toml", [*FAST, *overrides])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parent that has learnt numbers, and a child that learns to say them twice."""
    folder = tmp_path_factory.mktemp("adapted")
    for name, first, count, times in (
        ("general", 10_000, 600, 1),
        ("general-dev", 20_000, 20, 1),
        ("special", 30_000, 300, 2),
        ("special-dev", 40_000, 20, 2),
    ):
        source, target = number_pairs(first, count)
        write_lines(folder / f"{name}.en", source)
        write_lines(folder / f"{name}.de", [" ".join([line] * times) for line in target])
    parent = configured(folder, "parent", PARENT, "training.steps=60")
    prepare(parent, processes=1)
    train(parent, str(folder / "runs/general"))
    child = configured(folder, "child", CHILD, "training.steps=36")
    prepare(child, processes=1, old=find_old_run(child))
    train(child, str(folder / "runs/child"))
    return folder


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:08}" / "weights.safetensors")


def test_the_first_weights_are_those_of_the_parent(folder: Path) -> None:
    child = configured(folder, "short", CHILD, "training.steps=1", "training.seed=7")
    train(child, str(folder / "runs/short"))
    best = json.loads((folder / "runs/general/checkpoints/checkpoints.json").read_text())
    step = int(best["best_bleu"].removeprefix("step-"))
    theirs, ours = weights(folder / "runs/general", step), weights(folder / "runs/short", 0)
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    moments = load_file(folder / "runs/short/checkpoints/step-00000000/optimizer.safetensors")
    assert not any(one.any() for one in moments.values())


def test_old_sets_are_kept_and_gains_measured_from_the_start(folder: Path) -> None:
    lines = metrics(folder / "runs/child", "eval")
    assert [(line["step"], line["set"]) for line in lines] == [
        (step, name) for step in (0, 12, 24, 36) for name in ("special", "old.dev")
    ]
    parent = metrics(folder / "runs/general", "eval")
    best = max(parent, key=lambda line: line["bleu"])
    first = {line["set"]: line for line in lines if line["step"] == 0}
    assert first["old.dev"]["bleu"] == pytest.approx(best["bleu"])
    assert first["old.dev"]["loss"] == pytest.approx(best["loss"])
    for line in lines:
        assert line.get("is_old", False) == (line["set"] == "old.dev")
        assert "repeated" not in line
        if line["step"]:
            gain = line["bleu"] - first[line["set"]]["bleu"]
            assert line["gain"] == pytest.approx(gain, abs=0.01)
            low, high = line["gain_interval"]
            assert low <= line["gain"] <= high


def test_a_report_and_a_comparison_tell_what_was_gained_and_forgotten(
    folder: Path, tmp_path: Path
) -> None:
    write_report(folder / "runs/child", output=tmp_path / "report")
    answers = json.loads((tmp_path / "report/report.json").read_text())
    found = {answer["id"]: answer for answer in answers}
    lines = metrics(folder / "runs/child", "eval")
    new = [line for line in lines if line["set"] == "special" and line["step"]]
    best = max(new, key=lambda line: line["bleu"])
    assert found["gained"]["evidence"]["best"]["gain"] == best["gain"]
    (old,) = (line for line in lines if line["set"] == "old.dev" and line["step"] == best["step"])
    assert found["forgotten"]["evidence"]["at_best"][0]["gain"] == old["gain"]
    assert (
        f"{old['gain_interval'][0]:+.2f} to {old['gain_interval'][1]:+.2f}"
        in (found["forgotten"]["answer"])
    )
    low = best["gain_interval"][0]
    as_good = [line["step"] for line in new if line["gain"] >= low > 0]
    assert found["gained"]["evidence"]["could_have_stopped_at"] == (as_good or [None])[0]
    compare_runs(folder / "runs/general", folder / "runs/child", tmp_path / "compare")
    page = (tmp_path / "compare/compare.md").read_text()
    assert "child started from the weights of general (step-" in page
    assert found["forgotten"]["answer"][:40] in page
    write_report(folder / "runs/general", output=tmp_path / "parent")
    assert "gained" not in (tmp_path / "parent/report.json").read_text()


def test_an_adapted_run_goes_on_bit_for_bit_without_its_parent(
    folder: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    text = CHILD.replace('"runs/general"', f'"{copied}/runs/general"')
    train(configured(copied, "child", text, "training.steps=14"), str(copied / "runs/again"))
    shutil.move(copied / "runs/general", copied / "gone")
    train(configured(copied, "child", text, "training.steps=36"), str(copied / "runs/again"))
    assert_same_end(folder / "runs/child", copied / "runs/again")
    gains = [
        [
            (line["step"], line.get("gain"), line.get("gain_interval"))
            for line in metrics(run, "eval")
        ]
        for run in (folder / "runs/child", copied / "runs/again")
    ]
    assert gains[1][-2:] == gains[0][-2:], "also after a resume they are compared with the start"


def test_two_workers_start_from_the_same_weights_as_one(folder: Path) -> None:
    still = [f"model.{name}=0" for name in ("dropout", "attention_dropout", "relu_dropout")]
    losses = []
    for workers in ("1", "2"):
        run = folder / f"runs/workers-{workers}"
        words = ["--workers", workers, *FAST, *still, "training.steps=6"]
        trained = run_dragoman("train", folder / "child.toml", "--run", run, *words, cwd=folder)
        assert trained.returncode == 0, trained.stderr
        lines = [*metrics(run, "eval"), *metrics(run, "train")]
        losses.append([(line["step"], line["loss"]) for line in lines])
    assert losses[0][0][0] == losses[1][0][0] == 0
    assert [loss for _, loss in losses[1]] == pytest.approx(
        [loss for _, loss in losses[0]], rel=1e-4
    )


def test_a_run_that_only_got_worse_is_not_recommended(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "worse"
    shutil.copytree(folder / "runs/child", run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "eval" and line["step"]:
            line |= {"gain": -3.0 - line["step"], "gain_interval": [-50.0, -1.0]}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(run, output=tmp_path / "report")
    answers = json.loads((tmp_path / "report/report.json").read_text())
    (gained,) = (answer for answer in answers if answer["id"] == "gained")
    assert gained["verdict"] == "worse"
    assert gained["answer"].endswith("general itself translates this text better.")
    assert gained["next_step"].startswith("Use general itself, ")
    (forgotten,) = (answer for answer in answers if answer["id"] == "forgotten")
    # The best checkpoint is that of step 0 then, which there is nothing to blend with.
    assert "--blend 0.5 --checkpoint latest" in forgotten["next_step"]


def test_frozen_embeddings_stay_as_they_were(folder: Path) -> None:
    frozen = configured(folder, "frozen", CHILD, "training.freeze_embeddings=true")
    train(frozen, str(folder / "runs/frozen"))
    first, last = (weights(folder / "runs/frozen", step) for step in (0, 24))
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert changed == {name for name in first if "embedding" not in name}


def test_a_blend_lies_between_parent_and_child(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(folder / "runs/child"), "--checkpoint", "latest", "--beam", "1"]
    printed = {}
    for share in ("0", "0.5", "1"):
        main([*words, "--blend", share])
        printed[share] = capsys.readouterr().out
    main(words)
    assert capsys.readouterr().out == printed["1"]
    lines = metrics(folder / "runs/child", "eval")
    start, end = (
        {line["set"]: line["loss"] for line in lines if line["step"] == step} for step in (0, 36)
    )
    for name in ("special", "old.dev"):
        assert f"{name}: 20 pairs" in printed["0"]
        assert f"loss  {start[name]:.4f} " in printed["0"]
        assert f"loss  {end[name]:.4f} " in printed["1"]
    assert printed["0.5"] not in (printed["0"], printed["1"])
    code, errors = refusal(capsys, "evaluate", folder / "runs/general", "--blend", "0.5")
    assert code == 2
    assert "did not start from another run" in errors
    run = RunFolder(folder / "runs/child")
    trained = replace(
        load_trained(run, "latest", 1, torch.device("cpu")), checkpoints=["step-00000000"]
    )
    with pytest.raises(UserError, match="is that of step 0, the weights it started from"):
        blend_with_parent(trained, run, 0.5)


def test_a_blend_can_be_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ctranslate2")
    run = str(folder / "runs/child")
    output = str(folder / "blended")
    main(["export", run, "--to", "ctranslate2", "--blend", "0.5", "--output", output])
    info = json.loads((folder / "blended/dragoman.json").read_text())
    assert info["checkpoints"][0].startswith("0.5 of step-")
    assert info["checkpoints"][1].startswith("0.5 of general step-")
    assert info["parity"]["identical"] == 20
    weights = next(
        line
        for line in (folder / "blended/README.md").read_text().splitlines()
        if line.startswith("| weights")
    )
    assert "| 0.5 of step-" in weights, "and no mean of these"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.start_from=runs/none", "is neither a run, nor a checkpoint of one"),
        ("training.start_from_average=50", "training.start_from: start_from_average = 50: "),
        ("model.d_model=32", "those weights need model.d_model = 16 (not 32)"),
        ("model.encoder_layers=2", "those weights need model.encoder_layers = 1 (not 2)"),
        ("model.heads=4", "those weights need model.heads = 2 (not 4)"),
        ('training.start_from=""', "training.start_from_average has no effect"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str], override: str, problem: str
) -> None:
    more = ["training.start_from_average=2"] if override.endswith('""') else []
    run, config = folder / "runs/refused", folder / "child.toml"
    code, errors = refusal(capsys, "train", config, "--run", run, *FAST, override, *more)
    assert code == 2
    assert problem in errors
    assert not (run / "config.toml").exists()


def test_another_vocabulary_is_refused_with_what_mends_it(folder: Path) -> None:
    text = CHILD.replace('from_run = "runs/general"', "size = 300")
    other = configured(folder, "other", text.replace("prepared/special", "prepared/other"))
    prepare(other, processes=1)
    with pytest.raises(UserError, match=r"set vocabulary.from_run = .* and run `dragoman prepare`"):
        train(other, str(folder / "runs/other"))
    assert not (folder / "runs/other/config.toml").exists()


def test_a_tag_that_the_old_vocabulary_lacks_is_refused_with_what_can_be_done(folder: Path) -> None:
    text = CHILD.replace('target = "special.de" }', 'target = "special.de", tag = "<bt>" }')
    tagged = configured(folder, "tagged", text.replace("prepared/special", "prepared/tagged"))
    old = find_old_run(tagged)
    with pytest.raises(UserError, match=r"lacks the control symbol <bt>.*remove the tag"):
        prepare(tagged, processes=1, old=old)


@pytest.mark.parametrize(
    ("vocabulary", "problem"),
    [
        ('from_run = "runs/none"', "vocabulary.from_run: no run at"),
        (
            'from_run = "runs/general"\njoint = false',
            "has one vocabulary for both languages; change",
        ),
    ],
)
def test_a_run_that_cannot_give_its_vocabulary_is_named(
    folder: Path, vocabulary: str, problem: str
) -> None:
    text = CHILD.replace('from_run = "runs/general"', vocabulary)
    with pytest.raises(UserError, match=problem):
        find_old_run(configured(folder, "named", text))


def test_a_checkpoint_or_an_average_can_be_started_from(folder: Path) -> None:
    run = folder / "runs/general"
    one = configured(folder, "one", CHILD, f"training.start_from={run}/checkpoints/step-00000060")
    assert find_parent(one).described().checkpoints == ("step-00000060",)
    three = configured(folder, "three", CHILD, "training.start_from_average=3")
    assert find_parent(three).described().checkpoints == (
        "step-00000036",
        "step-00000048",
        "step-00000060",
    )


@pytest.mark.parametrize("joint", [True, False])
def test_an_export_for_transformers_can_be_started_from(
    folder: Path, capsys: pytest.CaptureFixture[str], joint: bool
) -> None:
    run, name = folder / "runs/general", "general"
    if not joint:
        run, name = folder / "runs/sides", "sides"
        text = PARENT.replace("prepared/general", "prepared/sides")
        sides = configured(folder, "sides", text + "joint = false\n", "training.steps=4")
        prepare(sides, processes=1)
        train(sides, str(run))
    exported = folder / f"exported-{name}"
    main(["export", str(run), "--to", "transformers", "--output", str(exported), "--no-check"])
    models = {
        True: f'model = "{exported}/source.model"',
        False: f'source_model = "{exported}/source.model"\n'
        f'target_model = "{exported}/target.model"\njoint = false',
    }
    text = CHILD.replace('start_from = "runs/general"', f'start_from = "{exported}"')
    text = text.replace("prepared/special", f"prepared/of-{name}")
    child = configured(
        folder, f"of-{name}", text.replace('from_run = "runs/general"', models[joint])
    )
    best = json.loads((run / "checkpoints/checkpoints.json").read_text())["best_bleu"]
    before = load_file(run / "checkpoints" / best / "weights.safetensors")
    size = before["target_embedding.weight"].shape[0]
    model = Transformer(child.model, size, size, joint)
    find_parent(child).load(model)
    for key, value in model.named_parameters():
        torch.testing.assert_close(value.data, before[key], rtol=1e-6, atol=1e-9)
    prepare(child, processes=1)
    train(child, str(folder / f"runs/of-{name}"))
    told = json.loads((folder / f"runs/of-{name}/provenance.json").read_text())["parent"]
    assert told == {"run": name, "folder": str(exported), "checkpoints": [best]}
    assert metrics(folder / f"runs/of-{name}", "eval")[0]["step"] == 0
    for override, problem in (
        ("training.start_from_average=2", "start_from names an export"),
        ("model.encoder_layers=2", "those weights need model.encoder_layers = 1 (not 2)"),
        ("model.heads=4", "those weights need model.heads = 2 (not 4)"),
    ):
        config, refused = folder / f"of-{name}.toml", folder / "runs/refused"
        code, errors = refusal(capsys, "train", config, "--run", refused, *FAST, override)
        assert (code, problem in errors) == (2, True), errors
    of_export = folder / f"runs/of-{name}"
    code, errors = refusal(capsys, "evaluate", of_export, "--blend", "0.5")
    assert (code, "started from an export" in errors) == (2, True), errors


def test_an_export_with_other_subwords_is_refused(folder: Path) -> None:
    exported = folder / "exported-other"
    run = str(folder / "runs/general")
    main(["export", run, "--to", "transformers", "--no-check", "--output", str(exported)])
    text = CHILD.replace('start_from = "runs/general"', f'start_from = "{exported}"')
    text = text.replace('from_run = "runs/general"', "size = 290")
    other = configured(folder, "unlike", text.replace("prepared/special", "prepared/unlike"))
    prepare(other, processes=1)
    with pytest.raises(UserError, match=r'set vocabulary.model = ".*source.model" and run'):
        train(other, str(folder / "runs/unlike"))
    (exported / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"is damaged: model.safetensors has 0 bytes"):
        find_parent(other)


def test_a_gain_is_sure_where_every_sentence_is_better() -> None:
    references = [f"the number {number} is said once" for number in range(40)]
    worse = [line.replace("said", "sad") for line in references]
    gain = bleu_gain(worse, references, references, "13a")
    assert 0 < gain.low <= gain.bleu <= gain.high
    same = bleu_gain(references, references, references, "13a")
    assert (same.bleu, same.low, same.high) == (0, 0, 0)

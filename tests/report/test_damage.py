"""Damaged evidence still gives a report, and the report says what is missing."""

import hashlib
import html
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from dragoman.config import CleaningSettings
from dragoman.report.page.report_page import write_report
from dragoman.runs.folder import find_evidence
from report.run_folders import START, RunFolder, pair_run, write_checkpoints


def _healthy(path: Path) -> RunFolder:
    run = pair_run(path, steps=80)
    run.lines.pop()
    for step in range(81, 121):
        run.train(step)
        if step % 4 == 0:
            run.evaluate(step, loss=2.0, bleu=20.0)
    run.line("stop", 120, reason="steps", detail="")
    run.watch(4_000_000)
    assert run.provenance
    # As most have it: nothing that differs from the defaults.
    run.provenance["corpus"]["manifest"]["settings"] = {"cleaning": asdict(CleaningSettings())}
    return run


def _cut_metrics(run: RunFolder) -> None:
    path = run.write() / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-25])


def _cut_monitor(run: RunFolder) -> None:
    path = run.write() / "monitor" / "beta.jsonl"
    path.write_bytes(path.read_bytes()[:-25])


def _lose_monitor(run: RunFolder) -> None:
    (run.write() / "monitor" / "beta.jsonl").unlink()


def _set_clock(run: RunFolder) -> None:
    for line in run.lines[60:]:
        line["time"] -= 3_000
    run.write()


def _lose_numbers(run: RunFolder) -> None:
    for line in run.lines:
        if line["kind"] == "train" and 30 <= line["step"] < 33:
            line |= {"loss": None, "nll": None, "gradient_norm": None, "skipped": True}
        if line["kind"] == "eval" and line["step"] == 100:
            line["loss"] = None
    run.write()


def _resume_twice(run: RunFolder) -> None:
    run.lines.pop()
    for step in (110, 100):
        run.begin("resume", step)
        for again in range(step + 1, 121):
            run.train(again, repeated=True)
    run.write()


def _scramble(run: RunFolder) -> None:
    path = run.write() / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[20] = b"\xff\xfe not json"
    lines[40] = lines[40][:30]
    lines[41] = b"[1, 2]"
    path.write_bytes(b"\n".join(lines))


def _lose_identity(run: RunFolder) -> None:
    path = run.write()
    (path / "provenance.json").write_text("{broken")
    (path / "config.toml").write_text("also = = broken")


def _mistype_identity(run: RunFolder) -> None:
    assert run.provenance
    run.provenance["model"]["parameters"] = "many"
    run.provenance["corpus"]["manifest"]["pairs"]["raw"] = -1
    run.provenance["corpus"]["manifest"]["tokens"] = {"source": "many"}
    run.write()


def _mistype_settings(run: RunFolder) -> None:
    assert run.settings
    run.settings = run.settings.replace("row_tokens = 128", "row_tokens = 0")
    run.settings += f"[optimizer]\nclip_norm = 1{400 * '0'}\nunknown = 3\n"
    run.write()


def _lose_samples(run: RunFolder) -> None:
    assert run.settings
    run.settings += "[evaluation]\nsamples = 5\n"
    run.write()


def _change_vocabulary(run: RunFolder) -> None:
    assert run.provenance
    manifest = run.provenance["corpus"]["manifest"]
    manifest["vocabulary"]["files"] = ["subwords.model"]
    content = (run.write() / "source.model").read_bytes()
    saved = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"] = {"subwords.model": saved}
    (run.write() / "target.model").write_bytes(content[::-1])


def _damage_checkpoint(run: RunFolder) -> None:
    path = run.write()
    write_checkpoints(path, (80, 120))
    (path / "checkpoints" / "step-00000120" / "weights.safetensors").write_bytes(b"short")
    (path / "checkpoints" / "step-00000080" / "state.json").unlink()


def _lose_checkpoints(run: RunFolder) -> None:
    path = run.write()
    write_checkpoints(path, (80, 120))
    for folder in (path / "checkpoints").glob("step-*"):
        shutil.rmtree(folder)


def _leave_checkpoints_behind(run: RunFolder) -> None:
    run.checkpoint(120)
    run.write()


def _lose_calibration(run: RunFolder) -> None:
    run.lines = [line for line in run.lines if line["kind"] not in ("calibration", "link")]
    run.write()


def _lose_all_but_one_step(run: RunFolder) -> None:
    run.lines = [line for line in run.lines if line["kind"] == "train"][:1]
    run.write()


def _lose_history(run: RunFolder) -> None:
    path = run.write()
    write_checkpoints(path, (80, 120))
    (path / "metrics.jsonl").unlink()


def _lose(*names: str) -> Callable[[RunFolder], None]:
    def lose(run: RunFolder) -> None:
        path = run.write()
        for name in names:
            (path / name).unlink()

    return lose


CASES: dict[str, tuple[Callable[[RunFolder], None], list[str]]] = {
    "cut metrics": (_cut_metrics, ["metrics.jsonl: the last line is incomplete"]),
    "cut monitor": (_cut_monitor, ["monitor/beta.jsonl: the last line is incomplete"]),
    "no monitor": (_lose_monitor, ["monitor/beta.jsonl is missing"]),
    "clock": (_set_clock, ["the clock went back by"]),
    "NaN": (
        _lose_numbers,
        [
            "NaN or infinite at 3 of 120 steps, first at step 30",
            "3 steps skipped",
            "1 of 10 evaluations of valid",
        ],
    ),
    "two resumes": (_resume_twice, ["resumed twice (from steps 110, 100)"]),
    "scrambled": (_scramble, ["metrics.jsonl: skipped 3 damaged lines (21, 41, 42)"]),
    "no identity": (
        _lose_identity,
        ["provenance.json cannot be read", "config.toml cannot be read"],
    ),
    "no settings": (_lose("config.toml"), ["config.toml is missing: the settings are unknown"]),
    "no provenance": (_lose("provenance.json"), ["provenance.json is missing"]),
    "nothing but history": (
        _lose("config.toml", "provenance.json"),
        ["config.toml is missing", "provenance.json is missing"],
    ),
    "odd identity": (
        _mistype_identity,
        [
            'provenance.json: model.parameters is "many", not a whole number',
            "provenance.json: corpus.manifest.pairs.raw has an unexpected value",
            "provenance.json: corpus.manifest.tokens has an unexpected value",
        ],
    ),
    "odd settings": (
        _mistype_settings,
        [
            "config.toml: batches.row_tokens must be at least 8, not 0; this report leaves it out",
            "config.toml: optimizer.clip_norm must be a finite number, not inf",
        ],
    ),
    "no vocabularies": (
        _lose("source.model", "target.model"),
        ["source.model is missing", "target.model is missing"],
    ),
    "another vocabulary": (_change_vocabulary, ["the checksum of target.model does not match"]),
    "no log": (_lose("train.log"), ["train.log is missing: what the run printed is unknown"]),
    "no samples": (_lose_samples, ["samples.jsonl is missing"]),
    "no history": (_lose_history, ["metrics.jsonl is missing: there is no history of the run"]),
    "checkpoints": (
        _damage_checkpoint,
        ["weights.safetensors has 5 bytes", "step-00000080/state.json is in the index but not"],
    ),
    "no checkpoints": (
        _lose_checkpoints,
        ["step-00000080/weights.safetensors and 5 more files are in the index but not on disk"],
    ),
    "copied without checkpoints": (
        _leave_checkpoints_behind,
        ["checkpoints/ is empty or missing: the log mentions 1 checkpoint"],
    ),
    "no calibration": (
        _lose_calibration,
        ["metrics.jsonl has no calibration line", "metrics.jsonl has no link line"],
    ),
    "one line": (_lose_all_but_one_step, ["There is no evaluation"]),
}


# Where numbers or their order are damaged, which pictures show.
DRAWN = ("clock", "NaN", "two resumes", "scrambled", "no history", "no calibration", "one line")


@pytest.mark.parametrize("case", CASES)
def test_the_report_says_so(tmp_path: Path, case: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("wide_only" if case in DRAWN else "no_pictures")
    damage, expected = CASES[case]
    damage(_healthy(tmp_path))
    page = write_report(find_evidence(str(tmp_path)).path, now=START + 500)
    missing = json.loads((page.parent / "details.json").read_text())["missing"]
    for text in expected:
        assert any(text in notice for notice in missing), missing
        assert text in html.unescape(page.read_text())
    assert len(json.loads((page.parent / "report.json").read_text())) == 11


@pytest.mark.usefixtures("no_pictures")
def test_a_lost_history_is_not_called_a_run_that_has_not_started(tmp_path: Path) -> None:
    _lose_history(_healthy(tmp_path))
    page = write_report(tmp_path, now=START + 500)
    assert "history is missing" in page.read_text()
    answers = {one["id"]: one for one in json.loads((page.parent / "report.json").read_text())}
    for name in ("fully_trained", "overfitting"):
        assert "lost" in answers[name]["answer"]
        assert "Evaluate more often" not in answers[name]["next_step"]


@pytest.mark.usefixtures("no_pictures")
def test_the_healthy_run_misses_nothing(tmp_path: Path) -> None:
    run = _healthy(tmp_path).write()
    write_checkpoints(run, (80, 120))
    page = write_report(run, now=START + 500)
    assert json.loads((page.parent / "details.json").read_text())["missing"] == []
    for file in (page, page.with_suffix(".md")):
        # Nobody looked into the checkpoints.
        assert "their contents were not verified" in file.read_text()
        assert "intact" not in file.read_text()

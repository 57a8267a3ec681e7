"""The commands of docs/your-own-text.md, on a small model and text of the demo."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from dragoman.config_file import dump_config, load_config
from dragoman.corpus.demo import generate
from dragoman.corpus.prepare import prepare
from dragoman.training.start import train
from end_to_end.test_documented_commands import PROJECT, blocks, commands, make_program
from forked import Template
from support import SMALL, write_lines

PAGE = PROJECT / "docs/your-own-text.md"
FAST = [*SMALL, "cleaning.max_tokens=128", "batches.row_tokens=128", "batches.rows_per_device=4"]
PARENT = """\
[corpus]
folder = "prepared/general"
train = [{ source = "general.en", target = "general.de" }]
validation.dev = { source = "mine-dev.en", target = "mine-dev.de" }
[vocabulary]
size = 500
"""


def shown_config() -> str:
    (toml,) = [lines for language, _, lines in blocks(PAGE) if language == "toml"]
    return "\n".join(toml)


@pytest.mark.slow
def test_commands_of_the_page_run_one_after_the_other(tmp_path: Path, template: Template) -> None:
    demo = generate(train_pairs=1_200, held_out_pairs=40)
    texts = {
        "general": demo.train[:800],
        "mine": demo.train[800:],
        "mine-dev": demo.validation[:20],
    }
    for name, pairs in texts.items():
        write_lines(tmp_path / f"{name}.en", [pair.source for pair in pairs])
        write_lines(tmp_path / f"{name}.de", [pair.target for pair in pairs])
    (tmp_path / "general.toml").write_text(PARENT)
    parent = load_config(tmp_path / "general.toml", FAST)
    prepare(parent, processes=1)
    train(parent, str(tmp_path / "runs/general"))
    (tmp_path / "shown.toml").write_text(shown_config())
    scaled = [one for one in FAST if not one.startswith("schedule.")]
    short = ["schedule.warmup_steps=4", "schedule.decay_steps=8", "translation.beam=1"]
    shrunk = load_config(tmp_path / "shown.toml", [*scaled, *short])
    (tmp_path / "mine.toml").write_text(dump_config(shrunk, with_defaults=False))
    make_program(tmp_path, template)
    for command in commands(PAGE):
        result = subprocess.run(
            ["bash", "-c", command.text],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    report = json.loads((tmp_path / "runs/mine/report/report.json").read_text())
    assert {"gained", "forgotten"} <= {answer["id"] for answer in report}
    assert json.loads((tmp_path / "prepared/mine/inspect.json").read_text()) == []

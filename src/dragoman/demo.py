"""The whole workflow on a small built-in corpus: prepare, train, translate, explain."""

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config_file import load_config
from dragoman.console import say
from dragoman.errors import UserError
from dragoman.files import flush_folder, write_whole

if TYPE_CHECKING:
    from dragoman.inference.commands import Evaluated
    from dragoman.training.stopping import Stop

WORKERS = 2
SENTENCES_SHOWN = 10
ANSWERS_SHOWN = 5


def run_demo(folder: Path) -> "Stop":
    """Create the corpus, train a small model on it, and show what it learned if it finished."""
    from dragoman.cluster.hosts import Host
    from dragoman.corpus.prepare import prepare
    from dragoman.corpus.summary import summarize
    from dragoman.inference.commands import evaluate_run
    from dragoman.inference.decoder import TrainedChoice
    from dragoman.inspection.command import inspect_prepared
    from dragoman.report.page.report_page import write_report
    from dragoman.training.start import train_on
    from dragoman.training.stopping import Stop

    config_path = write_text_and_config(folder)
    dragoman, run = _installed("dragoman"), folder / "run"
    say(
        f"""\
This demo trains a small English-German translation model on two workers of this
machine and explains the run. It takes a few minutes and writes only to {folder}/.

1. Prepare the corpus ({folder}/text)
"""
    )
    config = load_config(config_path)
    print(summarize(prepare(config)), flush=True)
    inspect_prepared(config)
    say(
        f"""
2. Train a small Transformer (settings: {config_path})
   To watch it in a browser, run this in another terminal:
   {dragoman} watch {run} --wait
"""
    )
    stop = train_on([Host("", WORKERS)], config, str(run))
    if stop is Stop.SIGNAL:
        return stop
    say("\n3. Translate the test set, which the model has never seen\n")
    _show_translations(evaluate_run(TrainedChoice(str(run)), None, None))
    say("\n4. Explain the run\n")
    page = write_report(run)
    _show_answers(run)
    say(
        f"""
The full report: {page}

What to try next:
  echo 'Ben has been learning Danish for two years.' | {dragoman} translate {run}
  {_installed("tensorboard")} --logdir {run}/tensorboard
  {dragoman} train {config_path} --workers 2 --run {folder}/wider model.d_model=256
  {dragoman} compare {run} {folder}/wider
  {dragoman} settings    # all settings"""
    )
    return stop


def write_text_and_config(folder: Path) -> Path:
    """Put the text and the config there unless they are; a kill leaves no half of the text."""
    from dragoman.corpus.demo import write_demo

    config_path, text, aside = folder / "demo.toml", folder / "text", folder / ".text"
    if not config_path.exists():
        if text.exists():
            raise UserError(f"{text} already exists: choose another --folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(config_path, files("dragoman.corpus").joinpath("demo.toml").read_bytes())
    if not text.exists():
        shutil.rmtree(aside, ignore_errors=True)
        write_demo(aside)
        aside.rename(text)
        flush_folder(folder)
    return config_path


def _installed(program: str) -> str:
    """How to call a program that came with this one; it may be where the shell does not look."""
    if shutil.which(program):
        return program
    return os.path.relpath(Path(sys.executable).with_name(program))


def _show_translations(evaluated: Sequence["Evaluated"]) -> None:
    for one in evaluated:
        count = len(one.source)
        for index in range(0, count, max(1, count // SENTENCES_SHOWN))[:SENTENCES_SHOWN]:
            print(f"\n  {one.source[index]}\n  {one.translations[index]}")


def _show_answers(run: Path) -> None:
    """The questions that people ask first, each with its answer in a few words."""
    from dragoman.report.answers import answers_now

    for answer in answers_now(run)[:ANSWERS_SHOWN]:
        note = f" ({answer.note})" if answer.note else ""
        print(f"  {answer.question} {answer.headline}{note}", flush=True)

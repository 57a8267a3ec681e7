"""The run's history: metrics.jsonl, samples.jsonl and TensorBoard."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from dragoman.runs.folder import RunFolder

SECONDS_BETWEEN_FLUSHES = 1.0

# TensorBoard's names for what metrics.jsonl says, so that old dashboards find their curves.
TRAIN_SCALARS = {
    "loss": "train_loss",
    "nll": "train_nll",
    "learning_rate": "learning_rate",
    "gradient_norm": "global_gradient_norm",
    "seconds": "seconds_per_step",
    "epoch": "epoch",
    "loss_scale": "loss_scale",
}
EVAL_SCALARS = {
    "loss": "eval_loss",
    "nll": "eval_nll",
    "bleu": "eval_BLEU",
    "chrf": "eval_chrF",
    "train_sample_loss": "train_sample_loss",
}


class MetricsLog:
    """Appends events to the run folder; worker 0 owns it."""

    def __init__(self, run: RunFolder, step: int) -> None:
        # Imported here: no other part of a run needs TensorBoard.
        from torch.utils.tensorboard.writer import SummaryWriter

        self.highest_step = highest_step(run.metrics)
        self._metrics = _open_for_lines(run.metrics)
        self._samples = _open_for_lines(run.samples)
        # Steps that will be repeated vanish from TensorBoard's curves.
        self._board = SummaryWriter(run.tensorboard, purge_step=step + 1)
        self._first_set: str | None = None
        self._last_flush = 0.0

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one event."""
        line = {"kind": kind, "time": time.time(), "step": step, **values}
        if kind in ("train", "eval") and step <= self.highest_step:
            line["repeated"] = True
        self._metrics.write(_json_line(line))
        if kind == "train":
            self._scalars(TRAIN_SCALARS, values, step)
            rate = values["target_tokens"] / values["seconds"] if values["seconds"] else 0.0
            self._board.add_scalar("tokens_per_second", rate, step)
        elif kind == "eval":
            self._first_set = self._first_set or values["set"]
            suffix = "" if values["set"] == self._first_set else f"/{values['set']}"
            self._scalars(EVAL_SCALARS, values, step, suffix)
        if kind != "train" or time.monotonic() - self._last_flush > SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def write_sample(self, step: int, source: str, reference: str, translation: str) -> None:
        """Append one sample translation."""
        self._samples.write(
            _json_line(
                {
                    "step": step,
                    "time": time.time(),
                    "source": source,
                    "reference": reference,
                    "translation": translation,
                }
            )
        )

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._last_flush = time.monotonic()
        self._metrics.flush()
        self._samples.flush()
        self._board.flush()

    def close(self) -> None:
        """Finish all files."""
        self.flush()
        self._metrics.close()
        self._samples.close()
        self._board.close()

    def _scalars(
        self, names: Mapping[str, str], values: Mapping[str, Any], step: int, suffix: str = ""
    ) -> None:
        for key, name in names.items():
            value = values.get(key)
            if value is not None:
                self._board.add_scalar(name + suffix, value, step)


def highest_step(path: Path) -> int:
    """The last training step an earlier life of the run wrote down."""
    if not path.exists():
        return 0
    highest = 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if '"kind": "train"' in line:
                try:
                    highest = max(highest, json.loads(line)["step"])
                except ValueError:  # Cut short by a kill.
                    continue
    return highest


def _open_for_lines(path: Path) -> TextIO:
    """Open for appending, on a fresh line even if the last one was cut short."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
    return open(path, "a", encoding="utf-8")


def _json_line(values: Mapping[str, Any]) -> str:
    # JSON has no NaN; a reader should not need a special parser.
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }
    return json.dumps(plain, ensure_ascii=False) + "\n"

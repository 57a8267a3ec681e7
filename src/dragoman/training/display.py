"""What a run shows: a live display on a terminal, plain lines elsewhere, and train.log."""

import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dragoman.console import SECONDS_BETWEEN_LINES, printable, say, unfailing
from dragoman.records import Evaluation, TrainStep
from dragoman.training.evaluator import Evaluated, Sample

LONGEST_SAMPLE = 100  # Characters of a sample translation in plain output.


@dataclass
class Status:
    """The numbers on the screen."""

    step: int = 0
    steps: int | None = None
    ends_at: float = math.inf  # On the monotonic clock, if the run ends by its hours.
    epoch: float = 0.0
    loss: float = float("nan")
    learning_rate: float = 0.0
    tokens_per_second: float = 0.0
    seconds_per_step: float = 0.0
    evaluations: list[tuple[int, Evaluation]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def seconds_left(self) -> float | None:
        """Time to the last step at the present pace, evaluations left out, or to the last hour."""
        of_steps = (self.steps - self.step) * self.seconds_per_step if self.steps else math.inf
        left = min(of_steps, self.ends_at - time.monotonic())
        return max(0.0, left) if math.isfinite(left) else None


class Display:
    """Shows a run's progress on worker 0; other machines only log it."""

    def __init__(self, title: str, log: Path | None, steps: int | None, *, is_shown: bool) -> None:
        self._title = title
        self._status = Status(steps=steps)
        self._log: TextIO | None = open(log, "a", encoding="utf-8") if log else None
        self._last_line = 0.0
        self._sample_shown = ""
        self._is_shown = is_shown
        self._live = _live() if is_shown and sys.stderr.isatty() else None

    def start(self, seconds_left: float = math.inf) -> None:
        """Take over the terminal, if there is one; the run has so long by its settings."""
        self._status.ends_at = time.monotonic() + seconds_left
        if self._live:
            with unfailing():
                self._live.start()

    def say(self, message: str, *, log_only: bool = False) -> None:
        """Tell one line, on the screen too unless the live display has it already."""
        if not self._log:
            return
        message = printable(message)
        with suppress(OSError):  # A full disk must not end a run; the screen still tells.
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
            self._log.flush()
        if self._is_shown and not self._live:
            say(message)
        elif self._live and not log_only:
            with unfailing():
                self._live.console.print(message, highlight=False, markup=False)

    def step(self, step: int, line: TrainStep) -> None:
        """Show a training step."""
        status = self._status
        status.step, status.epoch = step, line.epoch
        status.loss, status.learning_rate = line.loss, line.learning_rate
        # A smoothed pace: single steps jump about.
        weight = 0.1 if status.seconds_per_step else 1.0
        status.seconds_per_step += weight * (line.seconds - status.seconds_per_step)
        rate = line.target_tokens / line.seconds
        status.tokens_per_second += weight * (rate - status.tokens_per_second)
        if self._live:
            self._show(self._live)
        elif time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = status.seconds_left()
            self.say(
                f"step {step:,}  epoch {status.epoch:.2f}  loss {status.loss:.4f}  "
                f"lr {status.learning_rate:.2e}  {status.tokens_per_second:,.0f} tokens/s"
                + (f"  {_duration(left)} left" if left is not None else "")
            )

    def evaluation(self, step: int, one: Evaluated) -> None:
        """Show an evaluation and its sample translations."""
        scores = one.scores
        self._status.evaluations.append((step, scores))
        self._status.samples = list(one.samples) or self._status.samples
        self.say(
            f"step {step:,}  {scores.set}: loss {scores.loss:.4f}  nll {scores.nll:.4f}  "
            f"train sample {scores.train_sample_loss:.4f}  BLEU {scores.bleu:.2f}  "
            f"chrF {scores.chrf:.2f}  ({scores.seconds:.1f} s)",
            log_only=True,
        )
        if self._live:
            self._show(self._live)
        else:
            # One sentence, as often as its translation changes.
            for sample in one.samples[:1]:
                text = sample.translation
                shown = text if len(text) <= LONGEST_SAMPLE else f"{text[:LONGEST_SAMPLE]} …"
                if shown != self._sample_shown:
                    self._sample_shown = shown
                    self.say(f"    {sample.source}  ->  {shown}")

    def stop(self) -> None:
        """Give the terminal back."""
        if self._live:
            with unfailing():
                self._live.stop()
        if self._log:
            with suppress(OSError):
                self._log.close()
            self._log = None

    def _show(self, live: Any) -> None:
        panel = _panel(self._title, self._status)
        with unfailing():
            live.update(panel)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _live() -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), refresh_per_second=8)


def _panel(title: str, status: Status) -> Any:
    from rich import box
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    left = status.seconds_left()
    of_steps = f" of {status.steps:,}" if status.steps else ""
    numbers = [
        f"[b]step[/b] {status.step:,}{of_steps}",
        f"[b]epoch[/b] {status.epoch:.2f}",
        f"[b]train loss[/b] {status.loss:.3f}",
        f"[b]learning rate[/b] {status.learning_rate:.2e}",
        f"[b]tokens/s[/b] {status.tokens_per_second:,.0f}",
        f"[b]left[/b] {_duration(left)}" if left is not None else "",
    ]
    parts: list[Any] = [Columns(numbers, padding=(0, 3))]  # On as many lines as they need.
    if status.steps:
        parts.append(ProgressBar(total=status.steps, completed=status.step))
    if status.evaluations:
        table = Table(box=box.SIMPLE, padding=(0, 2))
        for name in ("step", "set", "loss", "train sample", "BLEU", "chrF"):
            table.add_column(name, justify="left" if name == "set" else "right")
        for step, one in status.evaluations[-6:]:
            table.add_row(
                f"{step:,}",
                one.set,
                f"{one.loss:.3f}",
                f"{one.train_sample_loss:.3f}",
                f"{one.bleu:.1f}",
                f"{one.chrf:.1f}",
            )
        parts.append(table)
    for sample in status.samples:
        for text, style in ((sample.source, "dim"), (f"  {sample.translation}", "green")):
            shown = Text(printable(text), style=style, overflow="ellipsis", no_wrap=True)
            parts.append(shown)
    panel = Panel(Group(*parts), title=title, title_align="left", border_style="cyan")
    # On a line of its own what is typed, as ^C, does not wrap and push the panel up.
    return Group(panel, "")

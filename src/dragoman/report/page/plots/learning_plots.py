"""Pictures of what the run learned."""

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from dragoman.prediction.learning_curve import Forecast
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import Floats, envelope
from dragoman.report.findings.analysis import Findings
from dragoman.report.page.plots.canvas import (
    Panel,
    Picture,
    Shape,
    band,
    beyond,
    colour,
    dashed,
    log_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _mark_restarts(axes: "Axes", evidence: Evidence) -> None:
    """Dashed lines where the run resumed from a checkpoint."""
    label = "resumed from a checkpoint"
    for attempt in evidence.history.attempts:
        if attempt.step:
            axes.axvline(attempt.step, **dashed("red", label=label))
            label = "_"


def _highest_later(step: Floats, losses: Floats) -> float:
    """Of all evaluations but the first ones, which tower above all others."""
    known = np.isfinite(losses)
    later = known & (step >= 0.1 * step[-1])
    return float(losses[later if later.any() else known].max(initial=-np.inf))


def loss_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Training and evaluation loss over steps."""
    train, sets = evidence.history.train, evidence.history.evaluations
    losses = np.concatenate((train.loss, *(series.loss for series in sets)))
    losses = losses[np.isfinite(losses)]
    if not len(losses):
        return None
    # The first steps tower above all others; the few evaluations must not be taken for such.
    low, high, highest = (float(np.percentile(losses, share)) for share in (0, 99, 100))
    high = max((high, *(_highest_later(series.step, series.loss) for series in sets)))
    edge = 0.06 * (high - low) or 1.0
    is_dropping = any(
        evidence.setting("model", f"{kind}dropout") for kind in ("", "attention_", "relu_")
    )
    dropout = "on" if is_dropping else "off"

    def draw(axes: "Axes", shape: Shape) -> None:
        curve = envelope(train.step, train.loss, shape.stretches)
        band(axes, curve, "blue", f"training, dropout {dropout}")
        for series, tint in zip(sets, cycle(("orange", "green", "purple")), strict=False):
            label = f"evaluation ({series.name})"
            axes.plot(series.step, series.loss, color=colour(tint), label=label)
        axes.set_ylim(low - edge, high + edge)
        _mark_restarts(axes, evidence)

    return Picture(
        key="loss",
        title="Training and evaluation loss over steps",
        caption="Label-smoothed loss per token. The band is the range of single steps around "
        f"their mean; the training loss is measured with dropout {dropout}"
        + (", so it may be above the evaluation loss." if is_dropping else ".")
        + beyond(highest, high + edge, "nats per token"),
        panels=(Panel(draw),),
        y_label="loss, nats per token",
        legend="best",
    )


def bleu_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """BLEU over steps with its noise and where it would lead."""
    series, found = evidence.evaluations, findings.learning[0].outlook.bleu
    if series is None or not np.isfinite(series.bleu).any():
        return None
    known = np.isfinite(series.bleu)
    step, bleu = series.step[known], series.bleu[known]

    def draw(axes: "Axes", shape: Shape) -> None:
        size = 3 if len(step) < 80 else 0
        label = f"BLEU ({series.name})"
        axes.plot(step, bleu, "o-", color=colour("green"), markersize=size, label=label)
        if found is not None:
            _draw_forecast(axes, found)
        _mark_restarts(axes, evidence)

    words = (
        " The line from the middle of the run on is the fitted curve; dashed, the forecast for "
        "50% more steps. The band holds the curve 9 times out of 10."
        if found
        else ""
    )
    return Picture(
        key="bleu",
        title="BLEU over steps",
        caption="sacreBLEU of the detokenised output on the first validation set." + words,
        panels=(Panel(draw),),
        y_label="BLEU",
        legend="lower right",
    )


def _draw_forecast(axes: "Axes", found: Forecast) -> None:
    """The curve behind the noise, and where 50% more steps would lead."""
    tint = colour("purple")
    # Where a curve began decides little of where it leads, and is not fitted closely.
    shown = found.path_steps >= found.last_step / 2
    steps = found.path_steps[shown]
    low, middle, high = np.quantile(-found.path[:, shown], (0.05, 0.5, 0.95), axis=0)
    past, ahead = steps <= found.last_step, steps >= found.last_step
    axes.plot(steps[past], middle[past], color=tint, lw=1.2)
    axes.plot(steps[ahead], middle[ahead], **dashed("purple", label="forecast"))
    axes.fill_between(steps, low, high, color=tint, alpha=0.15, lw=0, label="9 times out of 10")


def gap_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Evaluation loss against the training sample's, both in evaluation mode."""
    series, found = evidence.evaluations, findings.overfitting
    if series is None or not np.isfinite(series.train_sample_loss).any():
        return None
    seen, unseen = series.train_sample_loss, series.loss
    both = np.concatenate((seen, unseen))
    low, highest = float(np.nanmin(both)), float(np.nanmax(both))
    high = max(_highest_later(series.step, losses) for losses in (seen, unseen))
    edge = 0.08 * (high - low)

    def draw(axes: "Axes", shape: Shape) -> None:
        axes.fill_between(series.step, seen, unseen, color=colour("slate"), alpha=0.2, lw=0)
        axes.plot(series.step, unseen, color=colour("orange"), label=f"unseen ({series.name})")
        axes.plot(series.step, seen, color=colour("blue"), label="training sample")
        if np.isfinite(found.best_loss):
            point = ([found.best_step], [found.best_loss])
            axes.plot(*point, "o", color=colour("ink"), ms=7, fillstyle="none", label="lowest")
        axes.set_ylim(low - edge, high + edge)

    return Picture(
        key="gap",
        title="Loss on unseen text and on a sample of the training text",
        caption="Both measured in the same mode, without dropout. Overfitting shows when the "
        "upper curve turns up while the lower one keeps falling; a gap alone is not "
        "overfitting." + beyond(highest, high + edge, "nats per token"),
        panels=(Panel(draw),),
        y_label="loss, nats per token",
        legend="above",  # A turn shows in the last evaluations: nothing may lie over them.
    )


def learning_rate_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """The logged learning rate on top of its schedule."""
    train, schedule = evidence.history.train, findings.schedule
    if not np.isfinite(train.learning_rate).any():
        return None

    def draw(axes: "Axes", shape: Shape) -> None:
        curve = envelope(train.step, train.learning_rate, shape.stretches)
        axes.plot(curve.x, curve.mean, color=colour("blue"), lw=2.6, label="logged")
        if schedule is not None:
            # Between whole steps it would be drawn as stairs beside the logged one.
            steps = np.unique(np.linspace(1, float(train.step[-1]), 200).round())
            axes.plot(steps, schedule.at(steps), **dashed("ink", label="schedule"))
        if schedule is not None and schedule.peak_step <= train.step[-1]:
            axes.axvline(schedule.peak_step, color=colour("muted"), lw=0.8)
            axes.annotate(
                "end of warm-up",
                (schedule.peak_step, 0),
                xytext=(5, 5),
                textcoords="offset points",
                color=colour("muted"),
            )
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{1e3 * value:g}")

    return Picture(
        key="learning_rate",
        title="Learning rate over steps",
        caption="The logged learning rate, and the one the settings define. Where the two "
        "coincide, the run followed its schedule.",
        panels=(Panel(draw),),
        y_label="learning rate x 1,000",
        legend="best",
        height=240,
    )


def gradient_norm_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """The global gradient norm before clipping."""
    train = evidence.history.train
    norms = np.where(train.gradient_norm > 0, train.gradient_norm, np.nan)
    if not np.isfinite(norms).any():
        return None
    clip = evidence.setting("optimizer", "clip_norm") or 0.0
    # Farther away, its line would leave no room for the norms.
    is_near = float(np.nanmin(norms)) / 1e3 <= clip <= float(np.nanmax(norms)) * 1e3

    def draw(axes: "Axes", shape: Shape) -> None:
        band(axes, envelope(train.step, norms, shape.stretches), "purple", "mean and range")
        if is_near:
            axes.axhline(clip, **dashed("muted", label="clipped above"))
        log_ticks(axes, lambda value: f"{value:g}")
        _mark_restarts(axes, evidence)

    return Picture(
        key="gradient_norm",
        title="Gradient norm over steps",
        caption="The global norm before clipping; the band is the range of single steps. A "
        "spike far above the rest may precede a divergence; a slow rise late in training is "
        "normal.",
        panels=(Panel(draw),),
        y_label="gradient norm",
        height=240,
    )

"""Pictures of what the run learned."""

from typing import TYPE_CHECKING

import numpy as np

from dragoman.report.canvas import Picture, Shape, colour, legend, log_ticks, place_axes, thousands
from dragoman.report.downsample import envelope
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.intervals import Trend
from dragoman.report.learning import FURTHER_STEPS, LAST_THIRD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 300


def _mark_restarts(axes: "Axes", evidence: Evidence) -> None:
    """Dashed lines where the run went on from a checkpoint."""
    label = "went on from a checkpoint"
    for life in evidence.history.lives:
        if life.kind != "start":
            axes.axvline(life.step, color=colour("red"), lw=1.0, ls=(0, (3, 3)), label=label)
            label = "_"


def loss_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Training and evaluation loss over steps."""
    train, series = evidence.history.train, evidence.evaluations
    if not np.isfinite(train.loss).any() and series is None:
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        curve = envelope(train.step, train.loss, shape.stretches)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour("blue"), alpha=0.22, lw=0)
        axes.plot(curve.x, curve.mean, color=colour("blue"), label="training, dropout on")
        highest = float(np.percentile(curve.high, 99)) if len(curve) else 1.0
        if series is not None and np.isfinite(series.loss).any():
            axes.plot(
                series.step,
                series.loss,
                color=colour("orange"),
                label=f"evaluation ({series.name})",
            )
            highest = max(highest, float(np.nanmax(series.loss[len(series) // 20 :])))
            lowest = min(float(np.nanmin(series.loss)), float(curve.low.min(initial=np.inf)))
            axes.set_ylim(lowest - 0.06 * (highest - lowest), highest)
        _mark_restarts(axes, evidence)
        axes.set_ylabel("loss, nats per token")
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "upper right")

    return Picture(
        key="loss",
        title="Training and evaluation loss over steps",
        caption="The label-smoothed loss per token. The band is the range of single steps around "
        "their mean; training is measured with dropout on, so it may lie above evaluation.",
        height=_HEIGHT,
        draw=draw,
    )


def bleu_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """BLEU over steps with its noise and the trend of the last third."""
    series, gain = evidence.evaluations, findings.convergence.bleu
    if series is None or not np.isfinite(series.bleu).any():
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        known = np.isfinite(series.bleu)
        step, bleu = series.step[known], series.bleu[known]
        axes.plot(
            step,
            bleu,
            color=colour("green"),
            marker="o",
            markersize=3 if len(step) < 80 else 0,
            label=f"BLEU ({series.name})",
        )
        if gain is not None:
            _draw_trend(axes, gain.trend, float(step[-1]))
        _mark_restarts(axes, evidence)
        axes.set_ylabel("BLEU")
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "lower right")

    return Picture(
        key="bleu",
        title="BLEU over steps",
        caption="sacreBLEU of the detokenised output on the first validation set."
        + (
            " The band over the last third holds 95% of evaluations around the trend; the dashed "
            "line goes 50% further, with the 95% interval of its slope."
            if gain
            else ""
        ),
        height=_HEIGHT,
        draw=draw,
    )


def _draw_trend(axes: "Axes", trend: Trend, last: float) -> None:
    """The line through the last third with its noise, and where it would lead."""
    late = np.linspace(LAST_THIRD * last, last, 40)
    line = trend.level + trend.slope * np.log(late / last)
    noise = 1.96 * trend.noise
    axes.plot(late, line, color=colour("purple"), lw=1.2)
    axes.fill_between(
        late,
        line - noise,
        line + noise,
        color=colour("purple"),
        alpha=0.18,
        lw=0,
        label="95% of evaluations",
    )
    further = np.linspace(last, FURTHER_STEPS * last, 40)
    ahead = np.log(further / last)
    line = trend.level + trend.slope * ahead
    axes.plot(further, line, color=colour("purple"), lw=1.2, ls=(0, (4, 3)), label="if it went on")
    low, high = trend.level + trend.low * ahead, trend.level + trend.high * ahead
    axes.fill_between(further, low, high, color=colour("purple"), alpha=0.10, lw=0)


def gap_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Evaluation loss against the training sample's, both in evaluation mode."""
    series = evidence.evaluations
    if series is None or not np.isfinite(series.train_sample_loss).any():
        return None
    found = findings.overfitting

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        seen, unseen = series.train_sample_loss, series.loss
        axes.fill_between(series.step, seen, unseen, color=colour("slate"), alpha=0.2, lw=0)
        axes.plot(series.step, unseen, color=colour("orange"), label=f"unseen ({series.name})")
        axes.plot(series.step, seen, color=colour("blue"), label="training sample")
        if np.isfinite(found.best_loss):
            axes.plot(
                [found.best_step],
                [found.best_loss],
                marker="o",
                markersize=7,
                markerfacecolor="none",
                markeredgecolor=colour("ink"),
                linestyle="none",
                label="lowest",
            )
        both = np.concatenate((seen, unseen))
        low = float(np.nanmin(both))
        high = float(np.nanmax(both[np.tile(series.step, 2) > 0.1 * series.step[-1]]))
        axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
        axes.set_ylabel("loss, nats per token")
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "upper right")

    return Picture(
        key="gap",
        title="Loss on unseen text and on a sample of the training text",
        caption="Both measured in the same mode, without dropout. Overfitting shows as the upper "
        "curve turning up while the lower one goes on falling; a gap alone does not.",
        height=_HEIGHT,
        draw=draw,
    )


def learning_rate_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """The logged learning rate on top of its law."""
    train, law = evidence.history.train, findings.law
    if not np.isfinite(train.learning_rate).any():
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        curve = envelope(train.step, train.learning_rate, shape.stretches)
        axes.plot(curve.x, curve.mean, color=colour("blue"), lw=2.6, label="logged")
        if law is not None:
            steps = np.linspace(1, float(train.step[-1]), 200)
            axes.plot(
                steps, law.at(steps), color=colour("ink"), lw=1.0, ls=(0, (4, 3)), label="the law"
            )
            if law.peak_step <= train.step[-1]:
                axes.axvline(law.peak_step, color=colour("muted"), lw=0.8)
                axes.annotate(
                    "end of warm-up",
                    (law.peak_step, 0),
                    xytext=(5, 5),
                    textcoords="offset points",
                    color=colour("muted"),
                )
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{1e3 * value:g}")
        axes.set_ylabel("learning rate x 1,000")
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "best")

    return Picture(
        key="learning_rate",
        title="Learning rate over steps",
        caption="What was logged, and what the settings ask for. Where both lie on each other, "
        "the run did what it was told.",
        height=240,
        draw=draw,
    )


def gradient_norm_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """The global gradient norm before clipping."""
    train = evidence.history.train
    norms = np.where(train.gradient_norm > 0, train.gradient_norm, np.nan)
    if not np.isfinite(norms).any():
        return None
    clip = evidence.setting("optimizer", "clip_norm")

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        curve = envelope(train.step, norms, shape.stretches)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour("purple"), alpha=0.22, lw=0)
        axes.plot(curve.x, curve.mean, color=colour("purple"), label="mean and range")
        if clip:
            axes.axhline(clip, color=colour("muted"), lw=1, ls=(0, (4, 3)), label="clipped above")
        log_ticks(axes, lambda value: f"{value:g}")
        _mark_restarts(axes, evidence)
        axes.set_ylabel("gradient norm")
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "upper right")

    return Picture(
        key="gradient_norm",
        title="Gradient norm over steps",
        caption="The global norm before clipping. Single steps far above the band are where a "
        "run may break; a slow rise late in training is usual.",
        height=240,
        draw=draw,
    )

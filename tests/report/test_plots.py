import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dragoman.report.answers.network_bottleneck import network_bottleneck
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.page.plots.canvas import SHAPES, WIDE, Panel, Picture, Shape, render_svg
from dragoman.report.page.plots.learning_plots import (
    gap_picture,
    gradient_norm_picture,
    learning_rate_picture,
    loss_picture,
)
from dragoman.report.page.plots.machine_plots import network_picture, step_time_picture
from dragoman.report.page.plots.prediction_plots import workers_picture
from report.run_folders import START, RunFolder, calm_run, pair_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def test_caption_and_answer_name_the_same_share(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.5)
    for line in run.lines:
        if line["kind"] == "train":
            line["slowest"] = {"worker": 1, "seconds": line["seconds_compute"] + 0.2}
    evidence = load_evidence(run.write(), START)
    findings = analyse(evidence)
    picture = step_time_picture(evidence, findings)
    assert picture is not None
    # Of 50% exposed communication 20% are waiting for worker 1.
    assert "could remove at most 30% of the step time" in picture.caption
    assert "(30%) waiting for the network" in network_bottleneck(evidence, findings).answer


def test_sent_is_seen_behind_received(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    run.watch(4_000_000)
    evidence = load_evidence(run.write(), START)
    picture = network_picture(evidence, analyse(evidence))
    assert picture is not None
    figure, axes = plt.subplots()
    picture.panels[0].draw(axes, WIDE)
    widths = {line.get_label(): line.get_linewidth() for line in axes.lines}
    plt.close(figure)
    assert widths["sent"] > 2 * widths["received"]


@pytest.mark.parametrize(
    ("clip", "is_drawn"), [("1.0", True), ("0", False), ("1e300", False), ("1e-300", False)]
)
def test_a_clip_far_from_every_norm_is_not_drawn(tmp_path: Path, clip: str, is_drawn: bool) -> None:
    run = calm_run(tmp_path)
    run.settings = f"[optimizer]\nclip_norm = {clip}\n"
    evidence = load_evidence(run.write(), START)
    picture = gradient_norm_picture(evidence, analyse(evidence))
    assert picture is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ("clipped above" in render_svg(picture, WIDE)) == is_drawn


@pytest.mark.parametrize(
    ("run", "link"), [(pair_run, {"this run's, 64.0 Mb/s"}), (calm_run, set())]
)
def test_workers_are_drawn_over_the_runs_own_link_too(
    tmp_path: Path, run: Callable[[Path], RunFolder], link: set[str]
) -> None:
    evidence = load_evidence(run(tmp_path).write(), START)
    picture = workers_picture(evidence, analyse(evidence))
    assert picture is not None
    figure, axes = plt.subplots()
    picture.panels[0].draw(axes, WIDE)
    rates = {str(line.get_label()): np.asarray(line.get_ydata(), float) for line in axes.lines}
    plt.close(figure)
    assert set(rates) == {"1 Gb/s", "10 Gb/s", "100 Gb/s", "perfect scaling"} | link
    for drawn in link:
        # Two machines over it were slower than one worker.
        assert rates[drawn][1] < rates[drawn][0]


def overfitting_run(path: Path, steps: int, last_loss: float = 6.0) -> RunFolder:
    """The training loss stays at 1, the eval loss rises from 2; evaluations are few."""
    run = RunFolder(path)
    run.begin()
    for step in range(1, steps + 1):
        run.train(step, loss=1.0)
        if step % (steps // 10) == 0:
            loss = 2 + (last_loss - 2) * step / steps
            run.evaluate(step, loss, 20.0, train_sample_loss=0.9)
    return run


def test_a_run_that_followed_its_schedule_is_drawn_on_it(tmp_path: Path) -> None:
    evidence = load_evidence(calm_run(tmp_path).write(), START)
    picture = learning_rate_picture(evidence, analyse(evidence))
    assert picture is not None
    figure, axes = plt.subplots()
    picture.panels[0].draw(axes, WIDE)
    logged, schedule = (line.get_xydata() for line in axes.lines[:2])
    plt.close(figure)
    assert np.allclose(logged, schedule)


def test_few_evaluations_stay_in_the_picture_of_many_steps(tmp_path: Path) -> None:
    evidence = load_evidence(overfitting_run(tmp_path, steps=2000).write(), START)
    picture = loss_picture(evidence, analyse(evidence))
    assert picture is not None
    figure, axes = plt.subplots()
    picture.panels[0].draw(axes, WIDE)
    top = axes.get_ylim()[1]
    plt.close(figure)
    assert top > 6.0
    assert "cut off" not in picture.caption


def test_what_is_cut_off_is_told_with_its_unit(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    next(line for line in run.lines if line["kind"] == "train")["seconds"] = 90.0
    evidence = load_evidence(run.write(), START)
    picture = step_time_picture(evidence, analyse(evidence))
    assert picture is not None
    assert picture.caption.endswith(" Values up to 90 seconds per step are cut off at the top.")


def test_the_gap_is_drawn_even_if_only_its_beginning_is_known(tmp_path: Path) -> None:
    run = overfitting_run(tmp_path, steps=200)
    for line in run.lines:
        if line["kind"] == "eval" and line["step"] > 20:
            line["loss"] = line["train_sample_loss"] = float("nan")
        elif line["kind"] == "eval":
            line["step"] -= 18
    evidence = load_evidence(run.write(), START)
    picture = gap_picture(evidence, analyse(evidence))
    assert picture is not None
    assert render_svg(picture, WIDE).startswith("<svg")


def test_the_legend_does_not_hide_the_last_evaluations(tmp_path: Path) -> None:
    evidence = load_evidence(overfitting_run(tmp_path, steps=200).write(), START)
    picture = gap_picture(evidence, analyse(evidence))
    assert picture is not None
    assert picture.legend == "above"


@pytest.mark.parametrize("last", [40_000, 400_000, 4_000_000])
def test_the_label_of_the_last_step_is_whole(last: int) -> None:
    def draw(axes: "Axes", shape: Shape) -> None:
        axes.plot([1, 0.96 * last], [0, 1])

    for shape in SHAPES:
        svg = render_svg(Picture("key", "title", "", (Panel(draw),)), shape)
        label = re.search(rf'text-anchor: middle[^>]* x="([\d.]+)"[^>]*>{last:,}<', svg)
        assert label is not None
        # In the page's fonts a digit is at most 0.64 of the font's size wide, a comma half of that.
        half = 0.32 * shape.font * (len(str(last)) + f"{last:,}".count(",") / 2)
        assert float(label[1]) + half <= shape.width

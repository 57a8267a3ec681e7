from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dragoman.report.answers.network import network_bottleneck
from dragoman.report.evidence import load_evidence
from dragoman.report.findings import analyse
from dragoman.report.plots.canvas import WIDE
from dragoman.report.plots.machines import network_picture, step_time_picture
from dragoman.report.plots.whatif import workers_picture
from report.run_folders import START, RunFolder, calm_run, pair_run


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
    assert "could remove at most 30% of the time" in picture.caption
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

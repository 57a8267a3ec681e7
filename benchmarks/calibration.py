"""Whether the report's probabilities are calibrated: the tables and the plot of docs/results.md.

    python benchmarks/calibration.py PICTURE.svg [--runs 1200] [--turns 4000] [--seed 7]

Judges made-up runs of known truth (made_up_runs.py) with the function that the report uses, some of
them by way of a whole run folder, and the curves of the runs under docs/results, cut short. Few
of them are near a turn, so that of --turns more the loss is judged. Those whose evaluations look
like a turn are shown apart too: chosen by what the report sees, its probabilities must hold there.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dragoman.config import ScheduleSettings
from dragoman.prediction.evaluation_noise import seen_rise
from dragoman.prediction.learning_curve import Forecast
from dragoman.prediction.outlook import forecast_of
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.evidence import load_evidence
from dragoman.report.evidence.step_series import Evaluations, TrainSteps
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.convergence import Learning, judge_learning
from dragoman.schedule import Floats
from dragoman.thresholds import LIKELY, OVERFITTING_RISE, UNLIKELY
from made_up_runs import MadeUpRun, Settings, make_run
from report.run_folders import START, RunFolder

ROOT = Path(__file__).parents[1]
NO_STEPS = TrainSteps(*np.zeros((len(fields(TrainSteps)), 0)))
BINS = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
# How far the last three evaluations lie above what came before, where a turn is doubtful.
DOUBTFUL_RISE = (0.5 * OVERFITTING_RISE.value, 2 * OVERFITTING_RISE.value)
NORMAL_95 = 1.96
Pairs = Sequence[tuple[float, bool]]  # What was predicted, and whether it was so.


@dataclass(frozen=True)
class Judged:
    """A run's truth, and what was said about it."""

    evaluations: int
    kind: str
    worth: float
    gain_probability: float
    has_risen: bool
    rise_probability: float
    is_doubtful_turn: bool

    @property
    def is_plain(self) -> bool:
        return not 0.25 <= self.worth <= 2

    @property
    def is_unclear(self) -> bool:
        return UNLIKELY.value <= self.gain_probability <= LIKELY.value

    @property
    def is_wrong(self) -> bool:
        return not self.is_unclear and (self.gain_probability > 0.5) != (self.worth >= 1)


def judge(run: MadeUpRun) -> Learning:
    """Judge as the report does, without a folder."""
    nothing = np.full_like(run.steps, np.nan)
    series = Evaluations(
        "valid", "", run.steps, run.steps, nothing, run.loss, run.sample_loss, run.bleu
    )
    return judge_learning((series,), NO_STEPS, run.schedule)[0]


def judge_seed(seed: tuple[int, int], settings: Settings) -> Judged:
    run = make_run(np.random.default_rng(seed), settings)
    found = judge(run)
    return Judged(
        len(run.steps),
        run.kind,
        run.worth,
        found.convergence.probability,
        run.rise >= OVERFITTING_RISE.value,
        found.overfitting.probability,
        looks_doubtful(run),
    )


def looks_doubtful(run: MadeUpRun) -> bool:
    """Whether the evaluations are those of a run near a turn."""
    return DOUBTFUL_RISE[0] <= seen_rise(run.loss) <= DOUBTFUL_RISE[1]


def foretell_loss(seed: tuple[int, int], settings: Settings) -> tuple[MadeUpRun, Forecast]:
    """A run, and what its loss alone foretells."""
    run = make_run(np.random.default_rng(seed), settings)
    found = forecast_of(run.steps, run.loss, "loss", run.schedule)
    assert found is not None
    return run, found


def judge_turn(seed: tuple[int, int], settings: Settings) -> tuple[float, bool, bool]:
    """How likely the loss has turned, as the report has it, whether it has, and is doubtful."""
    run, found = foretell_loss(seed, settings)
    said = found.rise_probability(OVERFITTING_RISE.value)
    return said, run.rise >= OVERFITTING_RISE.value, looks_doubtful(run)


def write_folder(path: Path, run: MadeUpRun) -> Path:
    """The run as a folder, as `dragoman train` leaves it."""
    folder = RunFolder(path)
    schedule, settings = run.schedule, '[model]\npreset = "base"\n[schedule]\n'
    if schedule is None:
        settings += 'kind = "constant"\npeak = 1e-3\nwarmup_steps = 1\n[training]\n'
    else:
        chosen = schedule.settings
        settings += f'kind = "{chosen.kind}"\npeak = 1e-3\nwarmup_steps = {chosen.warmup_steps}\n'
        settings += (
            f"decay_steps = {chosen.decay_steps}\n[training]\nsteps = {schedule.total_steps}\n"
        )
    folder.settings = settings
    folder.begin()
    half = len(run.steps) // 2
    for place, step in enumerate(run.steps.astype(int).tolist()):
        if place == half:  # What was evaluated beyond the checkpoint is made anew.
            folder.evaluate(step, 99.0, 0.0)
            folder.begin("resume", int(run.steps[half - 1]))
        folder.train(step, learning_rate=1e-3)
        values = (run.loss[place], run.bleu[place], run.sample_loss[place])
        loss, bleu, sample = (float(value) for value in values)
        folder.evaluate(step, loss, bleu, train_sample_loss=sample)
    return folder.write()


def check_folders(count: int, seed: int, settings: Settings) -> None:
    """The same probability by way of a run folder that was resumed."""
    for number in range(count):
        run = make_run(np.random.default_rng((seed, number)), settings)
        with tempfile.TemporaryDirectory() as place:
            found = analyse(load_evidence(write_folder(Path(place), run), START)).convergence
        assert found.probability == judge(run).convergence.probability, number


def print_figures(judged: Sequence[Judged]) -> None:
    for title, group in (
        ("all", judged),
        ("6 to 9 evaluations", [one for one in judged if one.evaluations < 10]),
        ("10 or more evaluations", [one for one in judged if one.evaluations >= 10]),
    ):
        plain = [one for one in group if one.is_plain]
        brier = np.mean([(one.gain_probability - (one.worth >= 1)) ** 2 for one in group])
        print(
            f"| {title} | {len(group):,} | {brier:.3f} | {_share(group, 'is_unclear')} | "
            f"{_share(group, 'is_wrong')} | {len(plain):,} | {_share(plain, 'is_unclear')} | "
            f"{_share(plain, 'is_wrong')} |"
        )


def _share(group: Sequence[Judged], what: str) -> str:
    return f"{100 * np.mean([getattr(one, what) for one in group]):.1f}%"


def print_reliability(title: str, pairs: Pairs) -> None:
    print(f"\n| {title}: predicted | observed | 95% interval | runs |\n|---|---|---|---|")
    for one in reliability(pairs):
        low, high = one.interval
        print(
            f"| {100 * one.said:.1f}% | {100 * one.happened:.1f}% | "
            f"{100 * low:.1f} to {100 * high:.1f}% | {one.runs:,} |"
        )
    print(f"off by {100 * miscalibration(pairs):.1f} points on average")


@dataclass(frozen=True)
class Bin:
    """Runs of which about the same was predicted: what, on average, and how often it was so."""

    said: float
    happened: float
    runs: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, of the frequency that was observed."""
        spread = NORMAL_95**2 / self.runs
        middle = (self.happened + spread / 2) / (1 + spread)
        variance = self.happened * (1 - self.happened) / self.runs + spread / (4 * self.runs)
        half = NORMAL_95 * float(np.sqrt(variance)) / (1 + spread)
        return max(middle - half, 0.0), min(middle + half, 1.0)


def reliability(pairs: Pairs) -> list[Bin]:
    """What was said and what happened, on average, by how likely it was said to be."""
    said, happened = np.array(pairs, dtype=float).T
    places = np.clip(np.searchsorted(BINS, said, "right") - 1, 0, len(BINS) - 2)
    return [
        Bin(float(said[which].mean()), float(happened[which].mean()), int(which.sum()))
        for place in range(len(BINS) - 1)
        if (which := places == place).any()
    ]


def miscalibration(pairs: Pairs) -> float:
    return sum(abs(one.said - one.happened) * one.runs for one in reliability(pairs)) / len(pairs)


def draw(series: dict[str, Pairs], path: Path) -> None:
    mpl.rcParams |= {"svg.hashsalt": "dragoman", "font.size": 11}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#8795a5", lw=1, ls="--")
    for (label, pairs), colour in zip(series.items(), ("#2b6cb0", "#c96a12"), strict=True):
        bins = reliability(pairs)
        said, happened = np.array([(one.said, one.happened) for one in bins]).T
        error = np.abs(np.array([one.interval for one in bins]).T - happened)
        axes.errorbar(said, happened, error, fmt="o-", color=colour, label=label, capsize=3)
    for edge in (UNLIKELY.value, LIKELY.value):
        axes.axvline(edge, color="#e3e8ee", zorder=0)
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed frequency")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, metadata={"Date": None})


@dataclass(frozen=True)
class RealCurve:
    """Evaluations of a run, read from the pictures of its report."""

    name: str
    steps: Floats
    loss: Floats
    bleu: Floats


def read_real(folder: Path) -> RealCurve:
    steps, bleu = read_line(folder / "bleu.svg", "green")
    loss_steps, loss = read_line(folder / "gap.svg", "orange")
    assert len(steps) == len(loss_steps), folder
    return RealCurve(folder.name, np.round(steps, -2), loss, bleu)


def read_line(picture: Path, tint: str) -> tuple[Floats, Floats]:
    """The longest line of a colour, in the units of the axes."""
    text = picture.read_text()
    lines = re.findall(rf'<path d="([^"]+)"[^>]*stroke: var\(--{tint}\)', text)
    points = max((re.findall(r"([-\d.]+) ([-\d.]+)", line) for line in lines), key=len)
    x, y = np.array(points, dtype=float).T
    labels = re.findall(
        r'<text style="[^"]*anchor: (\w+)[^"]*" x="([\d.]+)" y="([\d.]+)">([\d.,]+)<', text
    )
    across = [(float(at), _number(label)) for anchor, at, _, label in labels if anchor == "middle"]
    upward = [(float(at), _number(label)) for anchor, _, at, label in labels if anchor == "end"]
    return _scaled(x, across, 0.0), _scaled(y, upward, 4.6)


def _number(label: str) -> float:
    return float(label.replace(",", ""))


def _scaled(values: Floats, ticks: Sequence[tuple[float, float]], below: float) -> Floats:
    """By the labels of the axis; those beside it stand a little below their value."""
    at, meant = np.array(ticks).T
    slope, offset = np.polyfit(at - below, meant, 1)
    scaled: Floats = slope * values + offset
    return scaled


def judge_real(curve: RealCurve, schedule: RunSchedule | None) -> None:
    """Cut a real curve short, look ahead, and say what then came."""
    counts = {max(6, round(share * len(curve.steps))) for share in (1 / 3, 1 / 2, 2 / 3)}
    for count in sorted(counts):
        last = curve.steps[count - 1]
        ahead = np.flatnonzero(curve.steps <= 1.5 * last + 1)[-1]
        if ahead == count - 1:
            continue
        nothing = np.full(count, np.nan)
        part = (one[:count] for one in (curve.steps, curve.loss, curve.bleu))
        steps, loss, bleu = part
        series = Evaluations("", "", steps, steps, nothing, loss, nothing, bleu)
        found = judge_learning((series,), NO_STEPS, schedule)[0].convergence
        gain = curve.loss[count - 1] - curve.loss[ahead], curve.bleu[ahead] - curve.bleu[count - 1]
        print(
            f"| {curve.name} | {count} of {len(curve.steps)} | {100 * found.probability:.0f}% | "
            f"{gain[0]:+.3f} nats, {gain[1]:+.2f} BLEU by step {curve.steps[ahead]:,.0f} | "
            f"{'yes' if gain[0] >= 0.02 or gain[1] >= 0.5 else 'no'} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--runs", type=int, default=1200)
    parser.add_argument("--turns", type=int, default=4000, help="more runs, for the loss alone")
    parser.add_argument("--seed", type=int, default=7, help="another than the one tuned on")
    parser.add_argument("--folders", type=int, default=40)
    parser.add_argument("--processes", type=int, help="as many as there are processors")
    arguments = parser.parse_args()
    settings = Settings()
    check_folders(arguments.folders, arguments.seed, settings)
    print(f"{arguments.folders} run folders say the same as their curves")
    seeds = [(arguments.seed, number) for number in range(arguments.runs + arguments.turns)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        whole, turns = seeds[: arguments.runs], seeds[arguments.runs :]
        judged = list(pool.map(partial(judge_seed, settings=settings), whole, chunksize=25))
        more = list(pool.map(partial(judge_turn, settings=settings), turns, chunksize=100))
    print_figures(judged)
    gains = [(one.gain_probability, one.worth >= 1) for one in judged]
    more += [(one.rise_probability, one.has_risen, one.is_doubtful_turn) for one in judged]
    rises = [(said, is_so) for said, is_so, _ in more]
    doubtful = [(said, is_so) for said, is_so, is_doubtful in more if is_doubtful]
    print_reliability("50% more steps bring a gain", gains)
    print_reliability("the loss has turned", rises)
    print_reliability(f"the same, {len(doubtful):,} doubtful turns", doubtful)
    series: dict[str, Pairs] = {
        "50% more steps bring a gain": gains,
        "the loss has turned": rises,
    }
    draw(series, arguments.picture)
    print("\n| run | evaluations | predicted | what happened | a gain |\n|---|---|---|---|---|")
    for folder in sorted(path.parent for path in (ROOT / "docs/results").glob("*/report.json")):
        judge_real(read_real(folder), _schedule_of(folder))


def _schedule_of(folder: Path) -> RunSchedule:
    """The schedule as the report of the run words it; all of them were of this kind."""
    answers = {one["id"]: one for one in json.loads((folder / "report.json").read_text())}
    law = answers["learning_rate"]["evidence"]["law"]
    found = re.search(r"over the last ([\d,]+) of ([\d,]+) steps", law["formula"])
    assert found, law
    decay, total = (round(_number(one)) for one in found.groups())
    settings = ScheduleSettings(
        "warmup_stable_decay",
        peak=law["peak"],
        warmup_steps=law["warmup_steps"],
        decay_steps=decay,
    )
    return RunSchedule(settings, 512, total)


if __name__ == "__main__":
    main()

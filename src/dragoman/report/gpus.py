"""How busy the GPUs were, when they were not, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.report.bottleneck import steady_steps
from dragoman.report.events import sample_causes
from dragoman.report.evidence import Evidence
from dragoman.report.intervals import Floats
from dragoman.report.machines import Machine
from dragoman.report.thresholds import GPU_DIP, GPU_FULL, GPU_PARTIAL


@dataclass(frozen=True)
class GpuUse:
    """The distribution of one GPU's utilisation over the run, in per cent."""

    host: str
    index: int
    name: str
    mean: float
    median: float
    low: float  # 5th percentile.
    high: float  # 95th percentile.
    share_full: float  # Of samples at GPU_FULL or more.


@dataclass(frozen=True)
class Dips:
    """Stretches in which a GPU was less than half busy, by what the run was doing."""

    cause: str
    count: int
    seconds: float
    mean_utilization: float  # Of all samples with that cause.


@dataclass(frozen=True)
class GpuJudgement:
    """All GPUs of the run together."""

    verdict: Literal["full", "partial", "low", "none"]
    gpus: tuple[GpuUse, ...]
    unused: int  # GPUs of the machines that no worker used.
    mean: float
    dips: tuple[Dips, ...]
    arithmetic_share: float | None  # Of the measured peak of the devices.
    cpu_percent: float | None


def judge_gpus(evidence: Evidence) -> GpuJudgement:
    """Look at every sample between the first and the last step."""
    train = evidence.history.train
    uses: list[GpuUse] = []
    dips: dict[str, list[Dips]] = {}
    unused = 0
    cpu: list[float] = []
    for machine in evidence.machines:
        during = _while_running(evidence, machine)
        if not during.any() or not len(train):
            continue
        cpu.append(float(np.nanmean(machine.cpu_percent[during])))
        used = _used_gpus(evidence, machine, during)
        unused += len(machine.gpus) - len(used)
        causes = sample_causes(evidence, machine.time[during])
        for place in used:
            samples = machine.gpus[place].utilization[during].astype(np.float64)
            known = np.isfinite(samples)
            uses.append(_describe(machine, place, samples[known]))
            for dip in _find_dips(machine.time[during][known], samples[known], causes, known):
                dips.setdefault(dip.cause, []).append(dip)
    mean = float(np.mean([use.mean for use in uses])) if uses else float("nan")
    return GpuJudgement(
        verdict=_verdict(mean),
        gpus=tuple(uses),
        unused=unused,
        mean=mean,
        dips=tuple(_merge(cause, parts, len(uses)) for cause, parts in dips.items()),
        arithmetic_share=_arithmetic_share(evidence),
        cpu_percent=float(np.mean(cpu)) if cpu else None,
    )


def _verdict(mean: float) -> Literal["full", "partial", "low", "none"]:
    if not np.isfinite(mean):
        return "none"
    if mean >= GPU_FULL.value:
        return "full"
    return "partial" if mean >= GPU_PARTIAL.value else "low"


def _while_running(evidence: Evidence, machine: Machine) -> NDArray[np.bool_]:
    train = evidence.history.train
    if not len(train):
        return np.zeros(len(machine), dtype=bool)
    begin = train.time[0] - np.nan_to_num(train.seconds[0])
    during: NDArray[np.bool_] = (machine.time >= begin) & (
        machine.time <= evidence.history.last_time
    )
    return during


def _used_gpus(evidence: Evidence, machine: Machine, during: NDArray[np.bool_]) -> list[int]:
    """As many GPUs as the machine has workers: the busiest."""
    if evidence.life and evidence.life.device != "cuda":
        return []
    hosts = evidence.life.hosts if evidence.life else ()
    workers = hosts.count(machine.host) if len(hosts) >= evidence.workers else 0
    means = [float(np.nanmean(gpu.utilization[during])) for gpu in machine.gpus]
    order = sorted(range(len(means)), key=lambda place: -means[place])
    return sorted(order[: workers or len(order)])


def _describe(machine: Machine, place: int, samples: Floats) -> GpuUse:
    low, median, high = np.percentile(samples, [5, 50, 95]) if len(samples) else [np.nan] * 3
    gpu = machine.gpus[place]
    return GpuUse(
        host=machine.host,
        index=gpu.index,
        name=gpu.name,
        mean=float(samples.mean()) if len(samples) else float("nan"),
        median=float(median),
        low=float(low),
        high=float(high),
        share_full=float((samples >= GPU_FULL.value).mean()) if len(samples) else float("nan"),
    )


def _find_dips(
    time: Floats,
    samples: Floats,
    causes: dict[str, NDArray[np.bool_]],
    known: NDArray[np.bool_],
) -> list[Dips]:
    is_low = samples < GPU_DIP.value
    seconds = np.diff(time, append=time[-1:] + 1).clip(0, 5) if len(time) else time
    found = []
    for cause, mask in causes.items():
        of_cause = mask[known]
        if of_cause.any():
            low = is_low & of_cause
            count = int((low & ~np.concatenate(([False], low[:-1]))).sum())
            found.append(
                Dips(cause, count, float(seconds[low].sum()), float(samples[of_cause].mean()))
            )
    return found


def _merge(cause: str, parts: Sequence[Dips], gpus: int) -> Dips:
    """The mean over GPUs: in lockstep they dip together."""
    return Dips(
        cause,
        round(sum(part.count for part in parts) / gpus),
        sum(part.seconds for part in parts) / gpus,
        float(np.mean([part.mean_utilization for part in parts])),
    )


def _arithmetic_share(evidence: Evidence) -> float | None:
    """Floating-point operations made, as part of what the devices could have made."""
    calibration = evidence.history.calibration
    steady = steady_steps(evidence.history.train)
    if calibration is None or not calibration.arithmetic_per_token or not calibration.peak_flops:
        return None
    seconds = float(np.nansum(steady.seconds))
    tokens = float(np.nansum(steady.target_tokens))
    if not seconds or not tokens:
        return None
    peak = calibration.peak_flops * evidence.workers
    share = calibration.arithmetic_per_token * tokens / seconds / peak
    # Nothing runs faster than the peak: such a calibration was disturbed.
    return share if share <= 1.0 else None

"""How busy the GPUs were, when they were idle, and why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.monitor_logs import Gpu, Machine
from dragoman.report.evidence.series import NAN, Bools, Floats, mean_of_known
from dragoman.report.findings.step_times import steady_steps
from dragoman.report.findings.timeline import SLACK, sample_causes
from dragoman.thresholds import GPU_DIP, GPU_FULL, GPU_PARTIAL


@dataclass(frozen=True)
class GpuUse:
    """The distribution of one GPU's utilisation over the run, in per cent."""

    host: str
    index: int
    name: str
    mean: float
    median: float
    percentile_5: float
    percentile_95: float
    share_full: float  # Of samples at GPU_FULL or more.


@dataclass(frozen=True)
class Dips:
    """Stretches in which a GPU was less than half busy, by what the run was doing."""

    cause: str
    count: int
    seconds: float
    idle_seconds: float  # Of all samples with that cause: the part in which nothing ran.
    mean_utilization: float  # Of the samples while that lasted, NaN if there is none.


@dataclass(frozen=True)
class GpuJudgement:
    """All GPUs of the run together."""

    verdict: Literal["full", "partial", "low", "none"]
    gpus: tuple[GpuUse, ...]
    expected: int  # Those measured, and one for each worker of a machine without a sample.
    unused: int  # GPUs of the machines that no worker used.
    mean: float
    dips: tuple[Dips, ...]
    arithmetic_share: float | None  # Of the measured peak of the devices.
    cpu_percent: float | None


def judge_gpus(evidence: Evidence) -> GpuJudgement:
    """Look at every sample from the first step to the last line."""
    uses: list[GpuUse] = []
    dips: dict[str, list[Dips]] = {}
    unused = 0
    cpu: list[float] = []
    for machine in evidence.machines:
        during = _while_running(evidence, machine)
        if not during.any():
            continue
        time = machine.time[during]
        cpu.append(mean_of_known(machine.cpu_percent[during]))
        inside, near = sample_causes(evidence, time), sample_causes(evidence, time, SLACK)
        used = _used_gpus(evidence, machine, during)
        unused += len(machine.gpus) - len(used)
        for gpu in used:
            samples = gpu.utilization[during].astype(np.float64)
            uses.append(_describe(machine.host, gpu, samples[np.isfinite(samples)]))
            for dip in _find_dips(time, samples, inside, near):
                dips.setdefault(dip.cause, []).append(dip)
    mean = float(np.mean([use.mean for use in uses])) if uses else NAN
    return GpuJudgement(
        verdict=_verdict(mean),
        gpus=tuple(uses),
        expected=len(uses) + _workers_elsewhere(evidence, {use.host for use in uses}),
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


def _while_running(evidence: Evidence, machine: Machine) -> Bools:
    train = evidence.history.train
    begin = train.begins[0] if len(train) else np.inf
    during: Bools = (machine.time >= begin) & (machine.time <= evidence.history.last_time)
    return during


def _used_gpus(evidence: Evidence, machine: Machine, during: Bools) -> list[Gpu]:
    """As many GPUs as the machine has workers: the busiest."""
    if evidence.attempt and evidence.attempt.began.device != "cuda":
        return []
    known = [gpu for gpu in machine.gpus if np.isfinite(gpu.utilization[during]).any()]
    hosts = evidence.attempt.began.hosts if evidence.attempt else ()
    workers = hosts.count(machine.host) if len(hosts) >= evidence.workers else 0
    busiest = sorted(known, key=lambda gpu: -mean_of_known(gpu.utilization[during]))
    return sorted(busiest[: workers or len(busiest)], key=lambda gpu: gpu.index)


def _describe(host: str, gpu: Gpu, samples: Floats) -> GpuUse:
    low, median, high = map(float, np.percentile(samples, [5, 50, 95]))
    share_full = float((samples >= GPU_FULL.value).mean())
    mean = float(samples.mean())
    return GpuUse(host, gpu.index, gpu.name, mean, median, low, high, share_full)


def _workers_elsewhere(evidence: Evidence, hosts: Collection[str]) -> int:
    """Workers on GPUs of other machines than these."""
    if evidence.attempt is None or evidence.attempt.began.device != "cuda":
        return 0
    return sum(host not in hosts for host in evidence.attempt.began.hosts)


def _find_dips(
    time: Floats, samples: Floats, inside: dict[str, Bools], near: dict[str, Bools]
) -> list[Dips]:
    """Idle time by cause; a low sample near an event belongs to it, a high one to training."""
    known = np.isfinite(samples)
    time, samples = time[known], samples[known]
    seconds = np.diff(time, append=time[-1:] + 1).clip(0, 5)
    low = samples < GPU_DIP.value
    found = []
    for cause, mask in inside.items():
        strictly = mask[known]
        of_cause = np.where(low & inside["training"][known], near[cause][known], strictly)
        if of_cause.any():
            dips = of_cause & low
            count = int((dips & ~np.concatenate(([False], dips[:-1]))).sum())
            idle = float((seconds * (100 - samples) / 100)[of_cause].sum())
            mean = mean_of_known(samples[strictly])
            found.append(Dips(cause, count, float(seconds[dips].sum()), idle, mean))
    return found


def _merge(cause: str, parts: Sequence[Dips], gpus: int) -> Dips:
    """The mean over GPUs: in lockstep they dip together."""
    return Dips(
        cause,
        round(sum(part.count for part in parts) / gpus),
        sum(part.seconds for part in parts) / gpus,
        sum(part.idle_seconds for part in parts) / gpus,
        mean_of_known(np.array([part.mean_utilization for part in parts])),
    )


def _arithmetic_share(evidence: Evidence) -> float | None:
    """Floating-point operations made, as part of what the devices could have made."""
    calibration = evidence.history.calibration
    steady = steady_steps(evidence.history.latest_steps)
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

"""Plausible long runs of the reference model: for looking at the page, and for its speed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from report.run_folders import MACHINE, START, RunFolder, busy_gpu, write_checkpoints

PARAMETERS = 60_880_896
MANIFEST = {
    "pairs": {"raw": 4_548_885, "prepared": 4_386_174},
    "filters": {
        "invalid_utf8": 0,
        "empty_side": 7_214,
        "control_characters": 318,
        "too_many_words": 41_902,
        "length_ratio": 2_655,
        "identical_sides": 0,
        "duplicate": 92_387,
        "too_many_tokens": 18_235,
    },
    "bytes": {
        "source": {"raw": 594_236_113, "cleaned": 566_120_401, "prepared": 297_336_800},
        "target": {"raw": 672_391_220, "cleaned": 640_287_336, "prepared": 311_004_922},
    },
    "tokens": {"source": 126_334_801, "target": 131_668_210},
    "languages": {"source": "en", "target": "de"},
    "vocabulary": {"sizes": [32_768]},
}
SETTINGS = """\
[model]
preset = "base"

[batches]
tokens_per_step = 32768
row_tokens = 128

[schedule]
kind = "transformer"
scale = 2.0
warmup_steps = 8000

[training]
steps = 50000
"""
SENTENCES = [
    ("The session is resumed.", "Die Sitzung wird wieder aufgenommen."),
    ("That was on 3 May at half past nine.", "Das war am 3. Mai um halb zehn."),
    ("A <script>alert('x')</script> & more in one line.", "Ein <b>Skript</b> & mehr."),
]


@dataclass
class LongRun:
    """A run that learned: evaluations, checkpoints, a restart, and what its machines did."""

    folder: RunFolder
    machines: Sequence[str]
    steps: int
    seconds: float
    exposed: float
    every: int
    generator: np.random.Generator
    training: list[tuple[float, float]] = field(default_factory=list)
    evaluating: list[tuple[float, float]] = field(default_factory=list)

    @property
    def on_gpus(self) -> bool:
        return self.folder.device == "cuda"

    def begin(self, kind: str, step: int, **values: Any) -> None:
        several = len(self.machines) > 1
        self.folder.begin(kind, step, precision="float16", rows_per_device=128, **values)
        self.folder.clock += 21
        if several:
            for pair in zip(self.machines, [*self.machines[1:], self.machines[0]], strict=True):
                self.folder.link(step, hosts=pair, goodput_bytes_per_second=117.6e6)
        self.folder.clock += 12
        self.folder.calibrate(
            step,
            seconds_compute=0.93 * (self.seconds - self.exposed),
            seconds_all_reduce=1.045 if several else None,
            bytes_per_step=2 * PARAMETERS if several else 0,
            compression="fp16" if several else "none",
            arithmetic_per_token=3.9e8 if self.on_gpus else 4e5,
            peak_flops=8.4e13 if self.on_gpus else 9.6e10,
        )

    def go(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.train(step)
            if step % self.every == 0:
                self.evaluate(step)
            if step % (2 * self.every) == 0:
                self.folder.checkpoint(step, 1.3 if self.on_gpus else 0.06)

    def train(self, step: int) -> None:
        noise = self.generator.standard_normal(4)
        slow = 1.9 if self.generator.random() < 0.002 else 1.0
        took = self.seconds * float(np.exp(0.03 * noise[0])) * slow
        waits = self.exposed * took / self.seconds
        rest = took - waits
        begun = self.folder.clock
        loss = 1.15 + 6.2 * (1 + step / (0.004 * self.steps)) ** -0.33 + 0.05 * noise[1]
        norm = (0.55 + 4 * (step / self.steps * 200 + 1) ** -0.8) * np.exp(0.22 * noise[2])
        several = {
            "slowest": {"worker": len(self.machines) - 1, "seconds": 0.94 * rest},
            "fastest": {"worker": 0, "seconds": 0.93 * rest},
        }
        self.folder.train(
            step,
            took,
            loss=loss + 1.1,
            learning_rate=2.0 * 512**-0.5 * min(step**-0.5, step * 8000**-1.5),
            gradient_norm=float(norm),
            target_tokens=int(31_740 + 90 * noise[3]),
            slots=32_768,
            epoch=step * 1_060 / 4_386_174,
            seconds_data=0.004 * rest,
            seconds_compute=0.93 * rest,
            seconds_exposed_communication=waits,
            seconds_optimizer=0.05 * rest,
            seconds_other=0.016 * rest,
            **(several if len(self.machines) > 1 else {}),
        )
        self.training.append((begun, self.folder.clock))

    def evaluate(self, step: int) -> None:
        progress = step / self.steps
        noise = self.generator.standard_normal(2)
        bleu = max(0.0, 27.4 * (1 - np.exp(-4.2 * progress**0.75)) + 0.22 * noise[0])
        loss = 2.52 + 5.2 * (1 + 90 * progress) ** -0.72 + 0.006 * noise[1]
        begun = self.folder.clock
        self.folder.evaluate(
            step,
            loss,
            float(bleu),
            set="newstest2013",
            train_sample_loss=loss - 0.09 * progress**0.5,
            seconds=41.0 if self.on_gpus else 3.0,
        )
        self.evaluating.append((begun, self.folder.clock))
        for source, reference in SENTENCES:
            words = reference.split()
            kept = " ".join(words[: max(1, len(words) * step // self.steps)])
            sample = {"step": step, "source": source, "reference": reference, "translation": kept}
            self.folder.samples.append(sample)

    def watch(self) -> None:
        """Sample every machine once a second."""
        time = np.arange(START, self.folder.clock, 1.0)
        training, evaluating = _inside(time, self.training), _inside(time, self.evaluating)
        for host in self.machines:
            noise = self.generator.standard_normal((2, len(time)))
            busy = np.where(training, 97, np.where(evaluating, 58, 3))
            busy = np.clip(busy + self.generator.integers(-3, 4, len(time)), 0, 100)
            sending = 2.01 * PARAMETERS / self.seconds if len(self.machines) > 1 else 900.0
            sent = np.cumsum(np.where(training, sending, 2e3) * np.exp(0.04 * noise[0]))
            cpu = np.where(training, 34.0 if self.on_gpus else 96.0, 21.0) + 2 * noise[1]
            for second, now in enumerate(time.tolist()):
                gpus = [busy_gpu(int(busy[second]))] if self.on_gpus else []
                percent = round(float(cpu[second]), 1)
                self.folder.sample(host, now, int(sent[second]), cpu_percent=percent, gpus=gpus)


def _inside(time: Any, spans: Sequence[tuple[float, float]]) -> Any:
    begins, ends = np.array(spans).T
    return np.searchsorted(begins, time, "right") > np.searchsorted(ends, time, "right")


def write_long_run(
    path: Path,
    *,
    hosts: Sequence[str] = ("node-a", "node-b"),
    gpus: int = 1,
    steps: int = 50_000,
    seconds: float = 1.69,
    exposed: float = 0.55,
    every: int = 1_000,
    seed: int = 1,
) -> Path:
    """Write a run of the reference model that lost a worker on the way."""
    workers = [host for host in hosts for _ in range(max(gpus, 1))]
    device = "cuda" if gpus else "cpu"
    folder = RunFolder(path, workers, device, PARAMETERS, settings=SETTINGS)
    run = LongRun(folder, hosts, steps, seconds, exposed, every, np.random.default_rng(seed))
    fault = int(0.62 * steps)
    run.begin("start", 0)
    run.go(1, fault + steps // 90)
    folder.clock += 26
    run.begin("restart", fault, checkpoint=f"step-{fault:08d}", reason="a worker died")
    run.go(fault + 1, steps)
    folder.line("stop", steps, reason="steps", detail="")
    run.watch()
    assert folder.provenance is not None
    folder.provenance |= {"run": path.name, "machines": dict.fromkeys(hosts, MACHINE)}
    folder.provenance["model"]["parameters"] = PARAMETERS
    folder.provenance["corpus"]["manifest"]["vocabulary"] = MANIFEST["vocabulary"]
    if gpus:
        folder.provenance["corpus"]["manifest"] = MANIFEST
    kept = range(max(2 * every, steps - 4 * every), steps + 1, 2 * every)
    write_checkpoints(folder.write(), kept, dict.fromkeys(kept, (2.58, 26.8)), PARAMETERS)
    return path

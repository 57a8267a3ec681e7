"""Run folders written by hand: the test moves the clock, docs/run-folder.md is the agreement."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

START = 1_700_000_000.0
PARAMETERS = 1_000_000

MANIFEST = {
    "pairs": {"raw": 1000, "prepared": 940},
    "filters": {"empty_side": 10, "duplicate": 30, "too_many_words": 20, "control_characters": 0},
    "bytes": {
        "source": {"raw": 50_000, "cleaned": 47_000, "prepared": 30_000},
        "target": {"raw": 60_000, "cleaned": 55_000, "prepared": 33_000},
    },
    "tokens": {"source": 12_000, "target": 13_000},
    "languages": {"source": "en", "target": "de"},
    "vocabulary": {"sizes": [320]},
}
MACHINE = {
    "cpu": "A CPU",
    "cores": 2,
    "memory_bytes": 8_000_000_000,
    "gpus": [],
    "system": "Linux",
}
PROVENANCE = {
    "format": 1,
    "run": "by-hand",
    "created": START,
    "dragoman": "0.1.0",
    "python": "3.11.2",
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "cuda": None,
    "command": ["dragoman", "train", "demo.toml", "--run", "by-hand"],
    "directory": "/work",
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "corpus": {"folder": "/work/prepared", "identity": "feed", "manifest": MANIFEST},
    "model": {"parameters": PARAMETERS, "tensors": 42},
    "machines": {"alpha": MACHINE},
}
SETTINGS = """\
[model]
preset = "tiny"

[batches]
tokens_per_step = 1024
row_tokens = 128

[schedule]
kind = "transformer"
scale = 2.0
warmup_steps = 16

[training]
steps = 60
"""


def law(step: int) -> float:
    """The learning rate that SETTINGS ask for: tiny has d_model 128."""
    return 2.0 / math.sqrt(128) * min(1 / math.sqrt(step), step / 64)


@dataclass
class RunFolder:
    """Collects lines; `write` puts them on disk."""

    path: Path
    hosts: Sequence[str] = ("alpha",)  # Of each worker.
    device: str = "cpu"
    parameters: int = PARAMETERS
    clock: float = START
    lines: list[Any] = field(default_factory=list)
    monitor: dict[str, list[Any]] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)
    settings: str | None = SETTINGS
    # A copy of its own, which a test may change.
    provenance: dict[str, Any] | None = field(
        default_factory=lambda: json.loads(json.dumps(PROVENANCE))
    )

    def line(self, kind: str, step: int, **values: Any) -> None:
        self.lines.append({"kind": kind, "time": self.clock, "step": step, **values})

    def begin(self, kind: str = "start", step: int = 0, **values: Any) -> None:
        start = {
            "workers": len(self.hosts),
            "hosts": list(self.hosts),
            "device": self.device,
            "device_name": "A GPU" if self.device == "cuda" else "cpu",
            "precision": "float32",
            "rows_per_device": 4,
        }
        self.line(kind, step, **start | values)

    def link(self, step: int = 0, **values: Any) -> None:
        measured = {
            "hosts": ["alpha", "beta"],
            "interface": "eth0",
            "address": "10.0.0.1",
            "speed_mbit": 1000,
            "latency_seconds": 0.001,
        }
        self.line("link", step, **measured | values)

    def calibrate(self, step: int = 0, **values: Any) -> None:
        measured = {
            "seconds_all_reduce": None,
            "bytes_per_step": 0,
            "gradient_bytes": 4 * self.parameters,
            "parameters": self.parameters,
            "compression": "none",
            "arithmetic_per_token": 6e6,
            "peak_flops": 1e11,
        }
        self.line("calibration", step, **measured | values)

    def train(self, step: int, seconds: float = 1.0, **values: Any) -> None:
        self.clock += seconds
        measured = {
            "loss": 5.0 / step**0.5 + 1,
            "nll": 5.0 / step**0.5,
            "learning_rate": law(step),
            "gradient_norm": 1.0,
            "target_tokens": 1000,
            "source_tokens": 900,
            "pairs": 40,
            "slots": 1024,
            "epoch": step / 13,
            "seconds": seconds,
            "seconds_data": 0.05 * seconds,
            "seconds_compute": 0.8 * seconds,
            "seconds_exposed_communication": 0.0,
            "seconds_optimizer": 0.1 * seconds,
            "seconds_other": 0.05 * seconds,
        }
        self.line("train", step, **measured | values)

    def evaluate(self, step: int, loss: float | None, bleu: float | None, **values: Any) -> None:
        seconds = float(values.pop("seconds", 2.0))
        self.clock += seconds
        measured = {
            "set": "valid",
            "pairs": 20,
            "loss": loss,
            "nll": loss,
            "train_sample_loss": None if loss is None else loss - 0.1,
            "train_sample_nll": None if loss is None else loss - 0.1,
            "bleu": bleu,
            "chrf": bleu,
            "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
            "seconds": seconds,
        }
        self.line("eval", step, **measured | values)

    def checkpoint(self, step: int, seconds: float = 0.5) -> None:
        self.clock += seconds
        self.line(
            "checkpoint",
            step,
            bytes=sum(checkpoint_sizes(self.parameters).values()),
            seconds_blocking=seconds,
            seconds_background=1.0,
            name=f"step-{step:08d}",
        )

    def sample(self, host: str, time: float, sent: int, **values: Any) -> None:
        counters = {"received_bytes": sent, "sent_bytes": sent, "speed_mbit": 1000}
        measured = {
            "time": time,
            "cpu_percent": 75.0,
            "memory_bytes": 4_000_000_000,
            "memory_total_bytes": 8_000_000_000,
            "gpus": [],
            "interfaces": {
                "lo": {"received_bytes": 1, "sent_bytes": 1, "speed_mbit": None},
                "eth0": counters,
            },
        }
        self.monitor.setdefault(host, []).append(measured | values)

    def watch(self, bytes_per_second: float, utilization: float | None = None) -> None:
        """Sample every host once a second from the start to now."""
        gpus = [] if utilization is None else [busy_gpu(utilization)]
        for host in dict.fromkeys(self.hosts):
            for second in range(int(self.clock - START) + 1):
                self.sample(host, START + second, int(second * bytes_per_second), gpus=gpus)

    def write(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        write_lines(self.path / "metrics.jsonl", self.lines)
        for name in ("source.model", "target.model", "train.log"):
            (self.path / name).write_text("not read")
        if self.monitor:
            (self.path / "monitor").mkdir(exist_ok=True)
        for host, samples in self.monitor.items():
            write_lines(self.path / "monitor" / f"{host}.jsonl", samples)
        if self.samples:
            write_lines(self.path / "samples.jsonl", self.samples)
        if self.settings is not None:
            (self.path / "config.toml").write_text(self.settings)
        if self.provenance is not None:
            (self.path / "provenance.json").write_text(json.dumps(self.provenance))
        return self.path


def busy_gpu(utilization: float, index: int = 0) -> dict[str, Any]:
    return {
        "index": index,
        "name": "A GPU",
        "utilization": utilization,
        "memory_bytes": 1,
        "memory_total_bytes": 2,
        "power_watts": 300.5,
        "sm_clock_mhz": 1980,
    }


def write_lines(path: Path, lines: Sequence[Any]) -> None:
    text = "".join((line if isinstance(line, str) else json.dumps(line) + "\n") for line in lines)
    path.write_text(text, encoding="utf-8")


def checkpoint_sizes(parameters: int) -> dict[str, int]:
    return {
        "weights.safetensors": 4 * parameters + 200,
        "optimizer.safetensors": 8 * parameters + 300,
        "state.json": 100,
    }


def write_checkpoints(
    run: Path,
    steps: Sequence[int],
    scores: Mapping[int, tuple[float, float]] | None = None,
    parameters: int = PARAMETERS,
) -> None:
    """Sparse files of the right sizes, and their index."""
    sizes = checkpoint_sizes(parameters)
    entries = []
    for step in steps:
        name = f"step-{step:08d}"
        (run / "checkpoints" / name).mkdir(parents=True)
        for file, size in sizes.items():
            with open(run / "checkpoints" / name / file, "wb") as handle:
                handle.truncate(size)
        loss, bleu = (scores or {}).get(step, (None, None))
        files = {file: {"bytes": size, "sha256": ""} for file, size in sizes.items()}
        saved = {"name": name, "step": step, "time": START, "bytes": sum(sizes.values())}
        entries.append({**saved, "files": files, "loss": loss, "nll": loss, "bleu": bleu})
    index = {
        "latest": entries[-1]["name"],
        "best_loss": entries[0]["name"],
        "best_bleu": entries[-1]["name"],
        "checkpoints": entries,
    }
    (run / "checkpoints" / "checkpoints.json").write_text(json.dumps(index))


def calm_run(path: Path, steps: int = 60, every: int = 4) -> RunFolder:
    """One machine, one second a step, an evaluation every few steps, everything in order."""
    run = RunFolder(path)
    run.begin()
    run.calibrate(seconds_compute=0.8)
    for step in range(1, steps + 1):
        run.train(step)
        if step % every == 0:
            run.evaluate(step, loss=3 / step + 2.0, bleu=30 - 100 / step)
    run.line("stop", steps, reason="steps", detail="")
    return run


def pair_run(
    path: Path,
    exposed: float = 0.5,
    steps: int = 120,
    seconds: float = 1.0,
    goodput: float = 8_000_000.0,
    all_reduce: float | None = 0.5,
) -> RunFolder:
    """Two machines; each step of one second waits so long for gradients."""
    run = RunFolder(path, hosts=("alpha", "beta"))
    run.begin()
    run.link(goodput_bytes_per_second=goodput)
    compute = 0.8 * (seconds - exposed)
    rest = seconds - exposed - compute
    sent = 4 * run.parameters
    run.calibrate(seconds_compute=compute, seconds_all_reduce=all_reduce, bytes_per_step=sent)
    for step in range(1, steps + 1):
        run.train(
            step,
            seconds,
            seconds_data=0.25 * rest,
            seconds_compute=compute,
            seconds_exposed_communication=exposed,
            seconds_optimizer=0.5 * rest,
            seconds_other=0.25 * rest,
            slowest={"worker": 1, "seconds": compute},
            fastest={"worker": 0, "seconds": compute},
        )
    run.line("stop", steps, reason="steps", detail="")
    return run


def grown_run(path: Path) -> RunFolder:
    """Two workers of two machines make 120 steps of one second, then four 40 of half a second."""
    run = pair_run(path)
    run.lines.pop()
    run.hosts = ("alpha", "alpha", "beta", "beta")
    run.begin("restart", 120, reason="two workers joined")
    run.calibrate(120, seconds_compute=0.4, seconds_all_reduce=0.1, bytes_per_step=4_000_000)
    for step in range(121, 161):
        run.train(step, seconds=0.5)
    return run


def local_run(
    path: Path,
    rounds: int = 60,
    behind: float = 0.0,
    paces: Sequence[float] = (1.0,),
) -> RunFolder:
    """Two machines that meet for 2 s after every 8 steps of one second, and send 4 MB.

    Worker 1 falls behind by so many seconds a step. The seconds of a step may change from round to
    round.
    """
    run = RunFolder(path, hosts=("alpha", "beta"))
    run.settings = f'{SETTINGS}\n[distributed]\nsync = "local"\nlocal_steps = 8\nlocal_delay = 0\n'
    run.begin()
    run.link(goodput_bytes_per_second=2_000_000.0)
    run.calibrate(seconds_compute=0.8, seconds_all_reduce=2.0, bytes_per_step=500_000)
    counted = [(START, 0.0)]
    for step in range(1, 8 * rounds + 1):
        waits = 2 + 8 * behind if step % 8 == 0 else 0.0
        pace = paces[(step - 1) // 8 % len(paces)]
        run.train(
            step,
            pace + waits,
            seconds_data=0.05,
            seconds_compute=0.8,
            seconds_exposed_communication=waits,
            seconds_optimizer=0.1,
            seconds_other=pace - 0.95,
            slowest={"worker": 1, "seconds": 0.8 + behind},
            fastest={"worker": 0, "seconds": 0.8},
        )
        if step % 8 == 0:
            sent = counted[-1][1]
            counted += [(run.clock - 2, sent), (run.clock, sent + 4e6)]
    moments, counter = np.array(counted).T
    for host in run.hosts:
        for second in range(int(run.clock - START) + 1):
            run.sample(host, START + second, int(np.interp(START + second, moments, counter)))
    return run

"""Plausible long runs, made of arrays: for looking at the page, and for its speed."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from report.reference import BASE_PARAMETERS, SENTENCES, WMT_MANIFEST, WMT_SETTINGS
from report.run_folders import MANIFEST, START, write_lines


@dataclass
class LongRun:
    """A run that learned: evaluations, checkpoints, a restart, and what its machines did."""

    path: Path
    hosts: Sequence[str]
    gpus: int
    steps: int
    seconds: float
    exposed: float
    every: int
    generator: np.random.Generator
    clock: float = START
    lines: list[Any] = field(default_factory=list)
    training: list[tuple[float, float]] = field(default_factory=list)
    evaluating: list[tuple[float, float]] = field(default_factory=list)

    @property
    def several(self) -> bool:
        return len(self.hosts) > 1

    def line(self, kind: str, step: int, **values: Any) -> None:
        self.lines.append({"kind": kind, "time": round(self.clock, 3), "step": step, **values})

    def begin(self, kind: str, step: int, **values: Any) -> None:
        workers = [host for host in self.hosts for _ in range(max(self.gpus, 1))]
        self.line(
            kind,
            step,
            workers=len(workers),
            hosts=workers,
            device="cuda" if self.gpus else "cpu",
            device_name="Tesla V100-SXM2-16GB" if self.gpus else "cpu",
            precision="float16" if self.gpus else "float32",
            rows_per_device=128,
            **values,
        )
        self.clock += 21
        for host, other in zip(self.hosts, [*self.hosts[1:], self.hosts[0]], strict=True):
            if self.several:
                self.line(
                    "link",
                    step,
                    hosts=[host, other],
                    interface="eth0",
                    address="10.0.0.1",
                    speed_mbit=1000,
                    goodput_bytes_per_second=117.6e6,
                    latency_seconds=8.2e-5,
                )
        self.clock += 12
        self.line(
            "calibration",
            step,
            seconds_compute=0.93 * (self.seconds - self.exposed),
            seconds_all_reduce=1.045 if self.several else None,
            bytes_per_step=2 * BASE_PARAMETERS if self.several else 0,
            gradient_bytes=4 * BASE_PARAMETERS,
            parameters=BASE_PARAMETERS,
            compression="fp16" if self.several else "none",
            arithmetic_per_token=3.9e8 if self.gpus else 4e5,
            peak_flops=8.4e13 if self.gpus else 9.6e10,
        )

    def train(self, step: int, *, repeated: bool) -> None:
        noise = self.generator.standard_normal(4)
        slow = 1.9 if self.generator.random() < 0.002 else 1.0
        took = self.seconds * float(np.exp(0.03 * noise[0])) * slow
        self.training.append((self.clock, self.clock + took))
        self.clock += took
        waits = self.exposed * took / self.seconds
        rest = took - waits
        loss = 1.15 + 6.2 * (1 + step / (0.004 * self.steps)) ** -0.33 + 0.05 * noise[1]
        norm = (0.55 + 4 * (step / self.steps * 200 + 1) ** -0.8) * np.exp(0.22 * noise[2])
        values: dict[str, Any] = {
            "loss": round(loss + 1.1, 5),
            "nll": round(loss, 5),
            "learning_rate": 2.0 * 512**-0.5 * min(step**-0.5, step * 8000**-1.5),
            "gradient_norm": round(float(norm), 5),
            "target_tokens": int(31_740 + 90 * noise[3]),
            "source_tokens": 30_400,
            "pairs": 1_060,
            "slots": 32_768,
            "epoch": round(step * 1_060 / 4_386_174, 5),
            "seconds": round(took, 5),
            "seconds_data": round(0.004 * rest, 5),
            "seconds_compute": round(0.93 * rest, 5),
            "seconds_exposed_communication": round(waits, 5),
            "seconds_optimizer": round(0.05 * rest, 5),
            "seconds_other": round(0.016 * rest, 5),
        }
        if self.several:
            values["slowest"] = {"worker": len(self.hosts) - 1, "seconds": round(0.94 * rest, 5)}
            values["fastest"] = {"worker": 0, "seconds": round(0.93 * rest, 5)}
        if repeated:
            values["repeated"] = True
        self.line("train", step, **values)

    def evaluate(self, step: int) -> None:
        progress = step / self.steps
        noise = self.generator.standard_normal(2)
        bleu = max(0.0, 27.4 * (1 - np.exp(-4.2 * progress**0.75)) + 0.22 * noise[0])
        loss = 1.42 + 5.2 * (1 + 90 * progress) ** -0.72 + 0.006 * noise[1]
        begun = self.clock
        self.clock += 41.0 if self.gpus else 3.0
        self.evaluating.append((begun, self.clock))
        self.line(
            "eval",
            step,
            set="newstest2013",
            pairs=3_000,
            loss=round(loss + 1.1, 5),
            nll=round(loss, 5),
            train_sample_loss=round(loss + 1.1 - 0.09 * progress**0.5, 5),
            train_sample_nll=round(loss - 0.09 * progress**0.5, 5),
            bleu=round(float(bleu), 2),
            chrf=round(float(bleu) + 26, 2),
            signature="nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
            chrf_signature="nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
            seconds=self.clock - begun - 0.4,
        )

    def save(self, step: int) -> None:
        blocking = 1.3 if self.gpus else 0.06
        self.clock += blocking
        self.line(
            "checkpoint",
            step,
            bytes=12 * BASE_PARAMETERS + 61_000,
            seconds_blocking=blocking,
            seconds_background=6.4,
            name=f"step-{step:08d}",
        )

    def go(self, first: int, last: int, *, seen: int) -> None:
        for step in range(first, last + 1):
            self.train(step, repeated=step <= seen)
            if step % self.every == 0:
                self.evaluate(step)
            if step % (2 * self.every) == 0:
                self.save(step)


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
    path.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    run = LongRun(path, hosts, gpus, steps, seconds, exposed, every, generator)
    fault = int(0.62 * steps)
    seen = fault + steps // 90
    run.begin("start", 0)
    run.go(1, seen, seen=0)
    run.clock += 26
    run.begin("restart", fault, checkpoint=f"step-{fault:08d}", reason="a worker died")
    run.go(fault + 1, steps, seen=seen)
    run.line("stop", steps, reason="steps", detail="")
    write_lines(path / "metrics.jsonl", run.lines)
    _write_machines(run)
    _write_identity(path, hosts, gpus)
    _write_samples(path, steps, every)
    _write_checkpoint_index(path, steps, every)
    return path


def _write_machines(run: LongRun) -> None:
    time = np.arange(START, run.clock, 1.0)
    training, evaluating = _inside(time, run.training), _inside(time, run.evaluating)
    (run.path / "monitor").mkdir()
    for host in run.hosts:
        noise = run.generator.standard_normal((2, len(time)))
        busy = np.where(training, 97, np.where(evaluating, 58, 3))
        busy = busy + run.generator.integers(-3, 4, len(time))
        sending = 2.01 * BASE_PARAMETERS / run.seconds if run.several else 900.0
        sent = np.cumsum(np.where(training, sending, 2e3) * np.exp(0.04 * noise[0]))
        cpu = np.where(training, 34.0 if run.gpus else 96.0, 21.0) + 2 * noise[1]
        samples = [
            _sample(second, now, cpu[second], busy[second] if run.gpus else None, sent[second])
            for second, now in enumerate(time.tolist())
        ]
        write_lines(run.path / "monitor" / f"{host}.jsonl", samples)


def _sample(second: int, now: float, cpu: float, busy: float | None, sent: float) -> dict[str, Any]:
    gpu = {
        "index": 0,
        "name": "Tesla V100-SXM2-16GB",
        "utilization": int(np.clip(busy or 0, 0, 100)),
        "memory_bytes": 13_980_000_256,
        "memory_total_bytes": 16_945_512_448,
        "power_watts": 251.3,
        "sm_clock_mhz": 1455,
    }
    counters = {name: 10_000_000_000 + int(sent) for name in ("received_bytes", "sent_bytes")}
    return {
        "time": round(now + 0.0137, 4),
        "cpu_percent": round(float(cpu), 1),
        "memory_bytes": 31_744_102_400,
        "memory_total_bytes": 125_829_120_000,
        "process_memory_bytes": 6_219_030_528,
        "disk_read_bytes": 91_274_240 + 812 * second,
        "disk_written_bytes": 6_912_401_408 + 40_960 * second,
        "disk_free_bytes": 410_283_114_496,
        "gpus": [] if busy is None else [gpu],
        "interfaces": {"eth0": {**counters, "speed_mbit": 1000}},
    }


def _inside(time: Any, spans: Sequence[tuple[float, float]]) -> Any:
    begins, ends = np.array(spans).T
    return np.searchsorted(begins, time, "right") > np.searchsorted(ends, time, "right")


def _write_identity(path: Path, hosts: Sequence[str], gpus: int) -> None:
    (path / "config.toml").write_text(WMT_SETTINGS)
    machine = {
        "cpu": "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz",
        "cores": 6 if gpus else 2,
        "memory_bytes": 125_829_120_000,
        "gpus": [{"name": "Tesla V100-SXM2-16GB", "memory_bytes": 16_945_512_448}] * gpus,
        "system": "Linux-6.1.0-x86_64-with-glibc2.36",
    }
    provenance = {
        "format": 1,
        "run": path.name,
        "created": START,
        "dragoman": "0.1.0",
        "python": "3.11.2",
        "torch": "2.13.0+cu128" if gpus else "2.13.0+cpu",
        "numpy": "2.4.6",
        "cuda": "12.8" if gpus else None,
        "command": ["dragoman", "train", "configs/wmt16-base.toml", "--run", path.name]
        + (["--hosts", ",".join(f"{host}:{gpus}" for host in hosts)] if len(hosts) > 1 else []),
        "directory": "/home/user/translation",
        "git": {"commit": "f06e5ab2d1c94b0d9f4a0a1e6a8a2c6a1b1f9c11", "dirty": True},
        "corpus": {
            "folder": "/data/wmt16",
            "identity": "246f5b2abb5f15ab1a12c8ed3ecbb4c35b3d79eb40776a7519017e559d438ff9",
            "manifest": WMT_MANIFEST if gpus else MANIFEST,
        },
        "model": {"parameters": BASE_PARAMETERS, "tensors": 187},
        "machines": dict.fromkeys(hosts, machine),
    }
    (path / "provenance.json").write_text(json.dumps(provenance))


def _write_samples(path: Path, steps: int, every: int) -> None:
    samples = []
    for step in range(every, steps + 1, every):
        for source, reference in SENTENCES:
            words = reference.split()
            kept = words[: max(1, len(words) * step // steps)]
            samples.append(
                {
                    "step": step,
                    "time": START,
                    "source": source,
                    "reference": reference,
                    "translation": " ".join(kept),
                }
            )
    write_lines(path / "samples.jsonl", samples)


def _write_checkpoint_index(path: Path, steps: int, every: int) -> None:
    kept = range(max(2 * every, steps - 4 * every), steps + 1, 2 * every)
    entries = []
    for step in kept:
        sizes = {
            "weights.safetensors": 4 * BASE_PARAMETERS + 21_000,
            "optimizer.safetensors": 8 * BASE_PARAMETERS + 39_000,
            "state.json": 1_000,
        }
        folder = path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        for name, size in sizes.items():
            with open(folder / name, "wb") as file:
                os.truncate(file.fileno(), size)
        entries.append(
            {
                "name": folder.name,
                "step": step,
                "time": START,
                "bytes": sum(sizes.values()),
                "files": {name: {"bytes": size, "sha256": ""} for name, size in sizes.items()},
                "loss": 2.58,
                "nll": 1.48,
                "bleu": 26.8,
            }
        )
    index = {
        "latest": entries[-1]["name"],
        "best_loss": entries[-1]["name"],
        "best_bleu": entries[0]["name"],
        "checkpoints": entries,
    }
    (path / "checkpoints" / "checkpoints.json").write_text(json.dumps(index))

"""A week of ten machines, written in seconds: plain text from templates, one file for all."""

import json
import os
from pathlib import Path

import numpy as np

from report.run_folders import START


def write_week(path: Path, *, steps: int = 300_000, hosts: int = 10, days: float = 7.0) -> Path:
    """300,000 steps and a sample a second from every machine."""
    (path / "monitor").mkdir(parents=True)
    names = [f"node-{number}" for number in range(hosts)]
    _write_metrics(path / "metrics.jsonl", names, steps, days * 86_400 / (1.1 * steps))
    first = path / "monitor" / f"{names[0]}.jsonl"
    _write_samples(first, int(days * 86_400))
    for name in names[1:]:
        os.link(first, path / "monitor" / f"{name}.jsonl")
    return path


def _write_metrics(path: Path, hosts: list[str], steps: int, seconds: float) -> None:
    noise = 0.05 * np.random.default_rng(3).standard_normal(steps)
    losses = (2.6 + 5 * np.arange(1, steps + 1) ** -0.3 + noise).tolist()
    begin = {"workers": len(hosts), "hosts": hosts, "device": "cuda", "device_name": "A GPU"}
    clock = START
    with open(path, "w") as file:
        file.write(json.dumps({"kind": "start", "time": clock, "step": 0, **begin}) + "\n")
        for step, loss in enumerate(losses, 1):
            clock += seconds
            file.write(
                f'{{"kind": "train", "time": {clock:.4f}, "step": {step}, "loss": {loss:.5f}, '
                f'"nll": {loss - 1:.5f}, "learning_rate": {0.004 / (step + 8000) ** 0.5!r}, '
                f'"gradient_norm": {0.5 + 1 / step:.5f}, "target_tokens": 31740, '
                f'"source_tokens": 30400, "pairs": 1060, "slots": 32768, '
                f'"epoch": {step / 4137:.5f}, "seconds": {seconds:.5f}, "seconds_data": 0.004, '
                f'"seconds_compute": {0.7 * seconds:.5f}, '
                f'"seconds_exposed_communication": {0.2 * seconds:.5f}, '
                f'"seconds_optimizer": 0.05, "seconds_other": 0.01, '
                f'"slowest": {{"worker": 1, "seconds": {0.7 * seconds:.5f}}}, '
                f'"fastest": {{"worker": 0, "seconds": {0.69 * seconds:.5f}}}}}\n'
            )
            if step % 1_000 == 0:
                clock += 0.1 * 1_000 * seconds
                file.write(
                    f'{{"kind": "eval", "time": {clock:.4f}, "step": {step}, "set": "valid", '
                    f'"loss": {loss:.5f}, "train_sample_loss": {loss - 0.1:.5f}, '
                    f'"bleu": {27 - 9e3 / (step + 500):.3f}, "seconds": {90 * seconds:.3f}}}\n'
                )


def _write_samples(path: Path, seconds: int) -> None:
    busy = np.random.default_rng(4).integers(90, 101, seconds).tolist()
    busy[1234] = 0  # One second of one week; it must not get lost.
    sent = 10**12
    with open(path, "w") as file:
        for second, percent in enumerate(busy):
            sent += 70_000_000 + percent
            file.write(
                f'{{"time": {int(START) + second}.25, "cpu_percent": {percent / 3:.1f}, '
                f'"memory_bytes": 31744102400, "memory_total_bytes": 125829120000, '
                f'"process_memory_bytes": 6219030528, "disk_read_bytes": {91274240 + second}, '
                f'"disk_written_bytes": {6912401408 + 40960 * second}, '
                f'"disk_free_bytes": 410283114496, "gpus": [{{"index": 0, "name": "A GPU", '
                f'"utilization": {percent}, "memory_bytes": 13980000256, '
                f'"memory_total_bytes": 16945512448, "power_watts": 251.3, '
                f'"sm_clock_mhz": 1455}}], "interfaces": {{"lo": {{"received_bytes": 11, '
                f'"sent_bytes": 11, "speed_mbit": null}}, "eth0": {{"received_bytes": {sent}, '
                f'"sent_bytes": {sent}, "speed_mbit": 1000}}}}}}\n'
            )

"""What goes over the links between machines, counted and told."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.config_file import load_config
from dragoman.corpus.demo import write_demo
from dragoman.corpus.prepare import prepare
from dragoman.report.page.report_page import write_report
from machines import Machine, Network, end_of, run_on, training
from support import final_tensors, metrics

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def demo_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo corpus, prepared."""
    folder = tmp_path_factory.mktemp("demo")
    write_demo(folder / "text")
    shutil.copy(Path(__file__).parents[2] / "src/dragoman/corpus/demo.toml", folder)
    prepare(load_config(folder / "demo.toml"), processes=1)
    return folder / "demo.toml"


def test_demo_corpus_over_ssh_with_counted_bytes(net: Network, demo_config: Path) -> None:
    """Two hosts, one command: names, addresses, shared evaluation, and bytes as in theory."""
    first, second = net.machines
    settings = ["training.steps=48", "schedule.decay_steps=6", "schedule.warmup_steps=8"]
    settings += ["evaluation.every_steps=48", "evaluation.bleu_pairs=8"]
    settings += ["evaluation.train_sample_pairs=20"]
    settings += ["distributed.compression=bf16"]
    # Two micro-batches a worker: what is accumulated is sent once.
    settings += ["batches.tokens_per_step=512", "batches.rows_per_device=1"]
    with (
        counted(second) as samples,
        training(net, demo_config, *settings, hosts="hostA:2,hostB:2") as process,
    ):
        output = end_of(net, process)
    assert process.returncode == 0, output
    assert re.search(r"hostA \| .*eth0 \(10\.77\.0\.2\)", output), output
    assert re.search(r"hostB \| .*eth0 \(10\.77\.0\.3\)", output), output
    assert "4 CPU workers on hostA, hostB" in output
    run = run_on(net, first)
    steps = metrics(run, "train")
    assert [line["step"] for line in steps] == list(range(1, 49))
    assert steps[-1]["loss"] < steps[0]["loss"] - 1
    (start,) = metrics(run, "start")
    assert sorted(set(start["hosts"])) == ["hostA", "hostB"]
    senders = {one["hosts"][0]: one["address"] for one in metrics(run, "link")}
    assert senders == {"hostA": "10.77.0.2", "hostB": "10.77.0.3"}
    (evaluation,) = metrics(run, "eval")
    assert evaluation["pairs"] == 500
    # Both machines hold the run: weights, history, scores.
    other = run_on(net, second)
    assert len(metrics(other, "train")) == 48
    for name, tensor in final_tensors(run).items():
        assert tensor.equal(final_tensors(other)[name]), name
    # A ring over two machines: each sends the gradients once, in 16 bits. Two workers on a machine
    # add up before they send: the wire carries no more for them.
    gradient_bytes = 2 * 2_456_832
    assert sent_per_step(samples, steps, 4, 46) == pytest.approx(gradient_bytes, rel=0.05)
    (calibration,) = metrics(run, "calibration")
    assert calibration["bytes_per_step"] == gradient_bytes


def test_local_steps_send_four_bits_and_their_scales(net: Network, demo_config: Path) -> None:
    """A round's differences, once: an eighth of float32, and a scale for every 512 numbers."""
    settings = ["training.steps=40", "schedule.decay_steps=6", "schedule.warmup_steps=8"]
    settings += ["evaluation.every_steps=100", "evaluation.bleu_pairs=8"]
    settings += ["distributed.sync=local", "distributed.compression=int4"]
    settings += ["distributed.local_steps=4", "distributed.local_fragments=2"]
    settings += ["batches.tokens_per_step=512"]
    with (
        counted(net.machines[1]) as samples,
        training(net, demo_config, *settings) as process,
    ):
        output = end_of(net, process)
    assert process.returncode == 0, output
    steps = metrics(run_on(net, net.machines[0]), "train")
    in_a_round = 2_456_832 * (1 / 2 + 4 / 512)
    found = sent_per_step(samples, steps, 8, 36)
    assert found == pytest.approx(in_a_round / 4, rel=0.1)


@contextmanager
def counted(machine: Machine) -> Iterator[list[tuple[float, int]]]:
    """Times, and what the machine's card had sent by then, as its own counter says."""
    samples: list[tuple[float, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            samples.append((time.time(), machine.sent_bytes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        done.set()
        watcher.join()


def sent_per_step(
    samples: list[tuple[float, int]], steps: list[dict[str, Any]], first: int, last: int
) -> float:
    """Bytes between the ends of two steps, a step."""
    times, counts = zip(*samples, strict=True)
    sent = np.interp([steps[first - 1]["time"], steps[last - 1]["time"]], times, counts)
    return float(sent[1] - sent[0]) / (last - first)


def test_report_tells_whether_the_network_was_the_bottleneck(
    measured_net: Network, demo_config: Path
) -> None:
    """The same model over a slow link, with little to compute, and over a fast one, with much.

    benchmarks/whatif.py holds what the slow run says of a fast link against such runs.
    """
    net = measured_net
    settings = ["training.steps=16", "schedule.decay_steps=4", "schedule.warmup_steps=8"]
    settings += ["evaluation.every_steps=16", "evaluation.bleu_pairs=8"]
    settings += ["evaluation.train_sample_pairs=20"]
    network_answers = {}
    for rate, slots in (("100mbit", 512), ("10gbit", 2048)):
        for machine in net.machines:
            machine.limit(rate)
        batches = f"batches.tokens_per_step={slots}"
        with training(net, demo_config, *settings, batches) as process:
            output = end_of(net, process)
        assert process.returncode == 0, output
        run = run_on(net, net.machines[1])
        # Every machine's samples are in every copy of the run folder.
        for host in ("hostA", "hostB"):
            samples = [json.loads(line) for line in open(run / "monitor" / f"{host}.jsonl")]
            assert len(samples) >= 3
            assert samples[-1]["interfaces"]["eth0"]["sent_bytes"] > 12 * 9_827_328
            assert samples[-1]["step"] > 8  # The last look at it may be a second old.
            assert abs(samples[-1]["clock_offset"]) < 1
        assert {tuple(link["hosts"]) for link in metrics(run, "link")} == {
            ("hostA", "hostB"),
            ("hostB", "hostA"),
        }
        write_report(run)
        answers = {one["id"]: one for one in json.loads((run / "report/report.json").read_text())}
        network_answers[rate] = answers["network_bottleneck"]
        for machine in net.machines:
            shutil.rmtree(run_on(net, machine))
    slow, fast = network_answers["100mbit"], network_answers["10gbit"]
    assert slow["verdict"] == "yes", slow
    # Other programs on this machine may make one worker wait for the other.
    assert fast["verdict"] in ("no", "unclear"), fast


def test_check_names_the_slow_link(measured_net: Network, demo_config: Path) -> None:
    """One direction at a tenth of the other."""
    net = measured_net
    for machine, rate in zip(net.machines, ("1gbit", "100mbit"), strict=True):
        machine.limit(rate)
    result = subprocess.run(
        net.dragoman("check", demo_config, "--hosts", "hostA,hostB"),
        env=net.environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 3, result.stderr
    assert "problem: hostB -> hostA (eth0) is slow" in result.stdout
    assert "problem: hostA -> hostB (eth0) is slow" not in result.stdout
    assert "advice: set distributed." in result.stdout

"""`dragoman serve` under load: requests a second and latencies, beside the same model in a loop.

    pip install -e '.[export,serve]'
    dragoman export RUN --to ctranslate2
    python benchmarks/serve.py RUN [--requests 400] [--clients 1 8 64]

Every client keeps one connection and sends one sentence of the run's first test set (failing that,
validation set) after the other; the clients share this process. An answer counts if it is
what the model gives for that sentence: all others are lost. The loop calls CTranslate2 with one
sentence at a time, with no server in between.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from urllib.request import urlopen

import torch

from dragoman.corpus.store import PreparedCorpus
from dragoman.inference.ctranslate2_model import VERSION
from dragoman.inference.export_folder import find_export
from dragoman.inference.load import load_exported, load_trained
from dragoman.runs.folder import find_run

WARM_UP_REQUESTS = 20


@dataclass(frozen=True)
class Load:
    """What came of so many requests."""

    seconds: float
    latencies: list[float]
    lost: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    arguments = parser.parse_args()
    run = find_run(arguments.run)
    export = find_export(arguments.run)
    trained = load_trained(run, "best", 1, torch.device("cpu"))
    corpus = PreparedCorpus(Path(trained.config.corpus.folder))
    source = (corpus.evaluation_sets("test") or corpus.evaluation_sets("validation"))[0].source
    sentences = [source[place % len(source)] for place in range(arguments.requests)]
    exported = load_exported(export).translator
    settings = trained.config.translation
    ours = [best[0].text for best in trained.translator.translate(sentences, settings)]
    theirs = [best[0].text for best in exported.translate(sentences, settings)]
    print(
        f"{len(sentences)} sentences, beam {settings.beam}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, ctranslate2 {VERSION}"
    )
    print("| | clients | requests/s | p50, ms | p99, ms | lost | sentences a batch |")
    print("|---|---|---|---|---|---|---|")
    # In a process of its own, as the server is: threads of torch would be in the way.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        latencies = process.submit(loop, export, sentences).result()
    tell("ctranslate2 in a loop", 1, Load(sum(latencies), latencies, 0), 1.0)
    codes = trained.config.corpus.source_language, trained.config.corpus.target_language
    for name, folder, expected in (
        ("serve, ctranslate2", export, theirs),
        ("serve, dragoman", run.path, ours),
    ):
        for clients in arguments.clients:
            measure(name, folder, clients, list(zip(sentences, expected, strict=True)), codes)


def loop(export: Path, sentences: Sequence[str]) -> list[float]:
    """Seconds of each sentence, translated one by one."""
    exported = load_exported(export)
    for line in sentences[:WARM_UP_REQUESTS]:
        exported.translator.translate([line], exported.info.translation)
    latencies = []
    for line in sentences:
        begun = time.perf_counter()
        exported.translator.translate([line], exported.info.translation)
        latencies.append(time.perf_counter() - begun)
    return latencies


def tell(name: str, clients: int, load: Load, batch: float) -> None:
    percentiles = statistics.quantiles(load.latencies, n=100)
    half, most = (percentiles[percent - 1] * 1e3 for percent in (50, 99))
    rate = len(load.latencies) / load.seconds
    print(
        f"| {name} | {clients} | {rate:.1f} | {half:.0f} | {most:.0f} | {load.lost} "
        f"| {batch:.1f} |",
        flush=True,
    )


def measure(
    name: str,
    folder: Path,
    clients: int,
    pairs: Sequence[tuple[str, str]],
    codes: tuple[str, str],
) -> None:
    """Start a server, load it, and end it."""
    command = [sys.executable, "-m", "dragoman", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout
    try:
        address = server.stdout.readline().strip()
        asyncio.run(ask_all(address, 1, pairs[:WARM_UP_REQUESTS], codes))
        before = batches(address)
        load = asyncio.run(ask_all(address, clients, pairs, codes))
        after = batches(address)
    finally:
        server.terminate()
        server.wait()
    tell(name, clients, load, (after[1] - before[1]) / (after[0] - before[0]))


def batches(address: str) -> tuple[float, float]:
    """How many batches were translated, and how many sentences."""
    with urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    counts = [
        sum(float(line.split()[-1]) for line in lines if line.startswith(name))
        for name in ("dragoman_batch_sentences_count", "dragoman_batch_sentences_sum")
    ]
    return counts[0], counts[1]


async def ask_all(
    address: str, clients: int, pairs: Sequence[tuple[str, str]], codes: tuple[str, str]
) -> Load:
    """Let clients share the sentences; each takes the next one when it has its answer."""
    left = iter(pairs)
    latencies: list[float] = []
    lost = 0
    host, port = address.removeprefix("http://").split(":")

    async def client() -> None:
        nonlocal lost
        reader, writer = await asyncio.open_connection(host, int(port))
        for sentence, expected in left:
            begun = time.perf_counter()
            answer = await ask(reader, writer, sentence, codes)
            latencies.append(time.perf_counter() - begun)
            lost += answer.get("translatedText") != expected
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(time.perf_counter() - begun, latencies, lost)


async def ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    sentence: str,
    codes: tuple[str, str],
) -> dict[str, str]:
    body = json.dumps({"q": sentence, "source": codes[0], "target": codes[1]}).encode()
    head = (
        "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    answer: dict[str, str] = json.loads(await reader.readexactly(length))
    return answer


if __name__ == "__main__":
    main()

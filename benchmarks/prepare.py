"""How fast `dragoman prepare` is, beside sentencepiece alone on the same lines and cores.

    python benchmarks/prepare.py TRAIN.en TRAIN.de [--pairs 4500000]

Prints a Markdown table. sentencepiece alone is timed twice, to show the noise, and only for the
first size; the larger one is there for its memory.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import psutil
import sentencepiece

LINES_AT_ONCE = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 4_500_000])
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    print(f"{arguments.processes} processes, sentencepiece {sentencepiece.__version__}\n")
    print("| pairs | pairs/s | clean s | vocabulary s | the rest s | alone s | ratio | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for pairs in arguments.pairs:
        with tempfile.TemporaryDirectory() as folder:
            measure(arguments, pairs, Path(folder), compare=pairs == arguments.pairs[0])


def measure(arguments: argparse.Namespace, pairs: int, folder: Path, compare: bool) -> None:
    for side, origin in (("en", arguments.source), ("de", arguments.target)):
        grow(origin, folder / f"train.{side}", pairs)
    config = folder / "config.toml"
    config.write_text(
        "[corpus]\nfolder = 'prepared'\ntrain = [{ source = 'train.en', target = 'train.de' }]\n"
    )
    start = time.monotonic()
    command: list[str | Path] = [sys.executable, "-m", "dragoman", "prepare", config]
    peak = run_watched([*command, "--processes", str(arguments.processes)])
    seconds = time.monotonic() - start
    manifest = json.loads((folder / "prepared/manifest.json").read_text())
    model = folder / "prepared" / manifest["data"] / "subwords.model"
    texts = [folder / "train.en", folder / "train.de"]
    rounds = 2 if compare else 0
    alone = [encode_alone(texts, model, arguments.processes) for _ in range(rounds)]
    stages = manifest["seconds"]
    ratio = f"{stages['encoding'] / (sum(alone) / len(alone)):.2f}" if alone else ""
    print(
        f"| {pairs:,} | {pairs / seconds:,.0f} | {stages['cleaning']:.1f} "
        f"| {stages['vocabulary']:.1f} | {stages['encoding']:.1f} "
        f"| {' and '.join(f'{one:.1f}' for one in alone)} | {ratio} | {peak / 1e6:,.0f} |",
        flush=True,
    )


def grow(origin: Path, path: Path, pairs: int) -> None:
    """Write `pairs` lines, repeating the text with a number so that no line is a duplicate."""
    opener = lzma.open if origin.suffix == ".xz" else open
    written, lap = 0, 0
    with open(path, "wb") as grown:
        while written < pairs:
            with opener(origin, "rb") as lines:
                for line in lines:
                    if written == pairs:
                        break
                    grown.write(b"%d %b" % (lap, line) if lap else line)
                    written += 1
            lap += 1


def run_watched(command: list[str | Path]) -> int:
    """Run a command and return the most memory all its processes held together."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0

    def watch() -> None:
        nonlocal peak
        parent = psutil.Process(process.pid)
        while process.poll() is None:
            total = 0
            for one in (parent, *parent.children(recursive=True)):
                try:
                    # Proportional: pages that processes share are counted once.
                    total += one.memory_full_info().pss
                except psutil.Error:
                    continue
            peak = max(peak, total)
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    if process.wait():
        raise SystemExit(f"dragoman {command[3]} failed")
    watcher.join()
    return peak


def encode_alone(texts: list[Path], model: Path, processes: int) -> float:
    """Seconds sentencepiece needs for the same lines, split evenly over the processes."""
    context = get_context("spawn")
    start = time.monotonic()
    workers = [
        context.Process(target=encode_share, args=(texts, model, worker, processes))
        for worker in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.monotonic() - start


def encode_share(texts: list[Path], model: Path, worker: int, workers: int) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for text in texts:
        with open(text, encoding="utf-8", newline="\n") as lines:
            batch = []
            for index, line in enumerate(lines):
                if index // LINES_AT_ONCE % workers == worker:
                    batch.append(line[:-1])
                if len(batch) == LINES_AT_ONCE:
                    processor.encode(batch)
                    batch = []
            processor.encode(batch)


if __name__ == "__main__":
    main()

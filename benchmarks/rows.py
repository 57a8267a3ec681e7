"""How fast pairs are packed into rows on one core, and what opening a large corpus costs.

    python benchmarks/rows.py PREPARED_FOLDER [--pairs 4500000]

The larger corpus repeats the prepared one's tokens. At last the prepared corpus is cut into four of
different sizes, which are mixed with weights, in turn with the rows of the whole.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

from dragoman.corpus.manifest import SIDES, PairCounts, identity_of, write_manifest
from dragoman.corpus.mix import MixedStream, Stage
from dragoman.corpus.rows import Position, RowStream
from dragoman.corpus.store import PairWriter, PreparedCorpus
from dragoman.files import describe_file

STEPS = 400
STEPS_IN_TURN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--pairs", type=int, default=4_500_000)
    arguments = parser.parse_args()
    print("| pairs | opened in s | target tokens/s | real slots | memory growth over the pass MB |")
    print("|---|---|---|---|---|")
    measure(arguments.prepared)
    with tempfile.TemporaryDirectory() as folder:
        grow(PreparedCorpus(arguments.prepared), Path(folder), arguments.pairs)
        measure(Path(folder))
    compare_with_mix(PreparedCorpus(arguments.prepared))


def compare_with_mix(corpus: PreparedCorpus) -> None:
    """Take steps of one corpus and of a mix in turn, so that both see the same machine."""
    pairs = len(corpus.train)
    ends = [0, pairs // 20, pairs // 8, pairs // 3, pairs]
    parts = [corpus.train.view(*border) for border in pairwise(ends)]
    shares = (0.4, 0.3, 0.2, 0.1)
    streams = {
        f"part-{place}": RowStream(part, row_tokens=128, rows_per_step=256, begin=1, seed=place)
        for place, part in enumerate(parts)
    }
    plain = RowStream(corpus.train, row_tokens=128, rows_per_step=256, begin=1, seed=1)
    mixed = MixedStream(streams, [Stage(1, shares)], rows_per_step=256, seed=1)
    walks = [stream.steps(Position()) for stream in (plain, mixed)]
    seconds, tokens, slots = [0.0, 0.0], [0, 0], [0, 0]
    for _ in range(STEPS // STEPS_IN_TURN):
        for place, walk in enumerate(walks):
            start = time.thread_time()
            for step in islice(walk, STEPS_IN_TURN):
                tokens[place] += step.target_tokens
                slots[place] += step.slots
            seconds[place] += time.thread_time() - start
    rates = [count / spent for count, spent in zip(tokens, seconds, strict=True)]
    full = [count / room for count, room in zip(tokens, slots, strict=True)]
    print(
        f"\na mix of {len(parts)}: {rates[1] / rates[0]:.2f} x the rate of one corpus, "
        f"{full[1]:.1%} of slots real ({full[0]:.1%})"
    )


def measure(folder: Path) -> None:
    start = time.perf_counter()
    corpus = PreparedCorpus(folder)
    opened = time.perf_counter() - start
    stream = RowStream(corpus.train, row_tokens=128, rows_per_step=256, begin=1, seed=1)
    steps = stream.steps(Position())
    next(steps)
    before = anonymous_megabytes()
    start = time.thread_time()
    tokens = slots = 0
    for step in islice(steps, STEPS):
        tokens += step.target_tokens
        slots += step.slots
    seconds = time.thread_time() - start
    print(
        f"| {len(corpus.train):,} | {opened:.2f} | {tokens / seconds:,.0f} | {tokens / slots:.1%} "
        f"| {anonymous_megabytes() - before:.0f} |",
        flush=True,
    )


def grow(corpus: PreparedCorpus, folder: Path, pairs: int) -> None:
    """Write a corpus of the same kind with more pairs."""
    shutil.copytree(corpus.folder / corpus.manifest.data, folder / "data")
    with PairWriter(folder / "data", "train") as writer:
        while writer.pairs < pairs:
            count = min(len(corpus.train), pairs - writer.pairs)
            writer.append(corpus.train.lines(0, count))
    files = {path.name: describe_file(path) for path in (folder / "data").iterdir()}
    added = writer.pairs - len(corpus.train)
    manifest = replace(
        corpus.manifest,
        data="data",
        pairs=PairCounts(corpus.manifest.pairs.raw + added, writer.pairs),
        tokens=dict(zip(SIDES, writer.tokens, strict=True)),
        files=files,
        identity=identity_of(files),
    )
    write_manifest(folder, manifest)


def anonymous_megabytes() -> float:
    """Memory of this process that is not a mapped file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1e3
    raise AssertionError("no RssAnon")


if __name__ == "__main__":
    main()

"""How fast `dragoman inspect` is, and how much memory it takes, by the size of the corpus.

    python benchmarks/inspection.py TRAIN.en TRAIN.de [--pairs 250000 1000000 2000000]

Prints a Markdown table. A text that is too short is repeated, with a number before each line.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from prepare import grow, run_watched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[250_000, 1_000_000, 2_000_000])
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    print(f"{arguments.processes} processes\n\n| pairs | seconds | pairs/s | peak MB |")
    print("|---|---|---|---|")
    for pairs in arguments.pairs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for side, origin in (("en", arguments.source), ("de", arguments.target)):
                grow(origin, folder / f"train.{side}", pairs)
            config = folder / "config.toml"
            config.write_text(
                "[corpus]\nfolder = 'prepared'\n"
                "train = [{ source = 'train.en', target = 'train.de' }]\n"
            )
            command: list[str | Path] = [sys.executable, "-m", "dragoman", "inspect", config]
            start = time.monotonic()
            peak = run_watched([*command, "--processes", str(arguments.processes)])
            seconds = time.monotonic() - start
            print(
                f"| {pairs:,} | {seconds:.0f} | {pairs / seconds:,.0f} | {peak / 1e6:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

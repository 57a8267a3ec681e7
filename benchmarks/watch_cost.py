"""What the live page costs for the log of a week, for docs/results.md.

    python benchmarks/watch_cost.py [--seconds 120]

Writes a week of ten machines and 300,000 steps, lets it grow by a step and ten samples a second,
and asks for the state every two seconds, as one open page does.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dragoman.report.live import run_state
from dragoman.report.live.run_state import LARGEST_SHARE, RunState
from dragoman.runs.folder import RunFolder
from report.week import write_week


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as place:
        run = RunFolder(write_week(Path(place) / "week"))
        train = last_line(run.metrics, b'"train"')
        sample = last_line(monitors(run)[0], b"cpu_percent")
        now = [json.loads(sample)["time"] + 1.0]
        state = RunState(run, lambda: now[0])
        spent = time.process_time()
        state.look()
        first = time.process_time() - spent
        run_state.SECONDS_BETWEEN_LOOKS = 0.0
        looking = 0.0
        for _ in range(0, seconds, 2):
            now[0] += 2.0
            grow(run, train, sample, now[0])
            spent = time.process_time()
            json.dumps(state.look())
            looking += (time.process_time() - spent) / seconds
    print(
        f"all answers of a week: {first:.1f} s of CPU, recomputed every "
        f"{first / LARGEST_SHARE:,.0f} s"
    )
    print(f"looking every 2 s: {100 * looking:.2f}% of one core")
    print(f"together: {100 * (looking + LARGEST_SHARE):.2f}%")


def monitors(run: RunFolder) -> list[Path]:
    return sorted(run.monitor.glob("*.jsonl"))


def last_line(path: Path, kind: bytes) -> bytes:
    lines = path.read_bytes()[-1_000_000:].splitlines()
    return next(line for line in reversed(lines) if kind in line)


def grow(run: RunFolder, train: bytes, sample: bytes, now: float) -> None:
    """Two seconds of a run: two steps, and two samples of each machine."""
    # The machines' files are links to one, which grows for all of them.
    for path, line in ((run.metrics, train), (monitors(run)[0], sample)):
        values = json.loads(line) | {"time": now}
        with open(path, "a") as file:
            file.write(2 * (json.dumps(values) + "\n"))


if __name__ == "__main__":
    main()

"""The demo as it is: how long it takes, and whether it learns what the documentation says.

    python benchmarks/demo.py

Fails below 95 BLEU on the test set; the tests run a shorter demo.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOWEST_BLEU = 95.0
SENTENCE = "Ben has been learning Catalan for four years."
TRANSLATION = "Ben lernt seit vier Jahren Katalanisch."


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "demo"
        start = time.monotonic()
        printed = dragoman("demo", "--folder", str(folder))
        seconds = time.monotonic() - start
        said = dragoman("translate", str(folder / "run"), given=SENTENCE)
    (bleu,) = map(float, re.findall(r"BLEU  (\d+\.\d+) ", printed))
    print(f"{seconds:.0f} s, {bleu:.2f} BLEU, {SENTENCE} -> {said.strip()}")
    if bleu < LOWEST_BLEU or said.strip() != TRANSLATION:
        sys.exit(f"the demo should reach {LOWEST_BLEU} BLEU and say: {TRANSLATION}")


def dragoman(*words: str, given: str = "") -> str:
    command = [sys.executable, "-m", "dragoman", *words]
    return subprocess.run(
        command, input=given, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()

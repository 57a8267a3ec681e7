"""Target tokens a second on the CPU: this trainer, Hugging Face Marian and Eole on the same text.

    pip install transformers
    python -m venv eole && eole/bin/pip install eole aiohttp
    python benchmarks/train_cpu.py TEXT.en TEXT.de [--rounds 3] [--eole eole/bin/eole]

All train a Transformer of d_model 256 with 3+3 layers and 8,000 joint subwords in float32 on all
cores of one process, with Adam and label smoothing, on steps of about 4,096 target tokens. Marian
gets sentences grouped by length, as its users do it; Eole, which makes its own batches, gets the
same subwords as text. They take turns, to share the noise.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from dragoman.config import PRESETS
from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.corpus.store import PreparedCorpus
from peers import Batches, eole_rate, make_marian, smoothed_loss, write_for_eole
from run_lines import lines_of

TOKENS_PER_STEP, STEPS, WARM_UP_STEPS = 4_096, 14, 4
SHAPE = replace(PRESETS["small"], encoder_layers=3, decoder_layers=3)
CONFIG = """
[corpus]
folder = "prepared"
train = [{{ source = "{source}", target = "{target}" }}]
[vocabulary]
size = 8_000
[model]
preset = "small"
encoder_layers = 3
decoder_layers = 3
dropout = 0.1
attention_dropout = 0.0
relu_dropout = 0.0
[batches]
tokens_per_step = {tokens}
[training]
steps = {steps}
"""
EOLE_CONFIG = """
report_every: 1
overwrite: true
share_vocab: true
src_vocab: {folder}/vocabulary.txt
tgt_vocab: {folder}/vocabulary.txt
data: {{text: {{path_src: {folder}/source.txt, path_tgt: {folder}/target.txt, transforms: []}}}}
training:
  world_size: 0
  gpu_ranks: []
  batch_type: tokens
  batch_size: {tokens}
  bucket_size: 40000
  num_workers: 0
  train_steps: {steps}
  model_path: {folder}/model
  optim: adam
  adam_beta2: 0.98
  learning_rate: 1.0e-4
  label_smoothing: 0.1
  dropout: [0.1]
  attention_dropout: [0.0]
  compute_dtype: fp32
model:
  architecture: transformer
  hidden_size: 256
  layers: 3
  heads: 4
  transformer_ff: 1024
  share_embeddings: true
  share_decoder_embeddings: true
  embeddings: {{word_vec_size: 256, position_encoding_type: SinusoidalInterleaved}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eole", type=Path, help="its command")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "config.toml"
        texts = {"source": arguments.source.resolve(), "target": arguments.target.resolve()}
        config.write_text(CONFIG.format(**texts, tokens=TOKENS_PER_STEP, steps=STEPS))
        prepare(load_config(config))
        corpus = PreparedCorpus(folder / "prepared")
        rates: dict[str, list[float]] = {"dragoman": [], "Hugging Face Marian": []}
        if arguments.eole:
            write_for_eole(corpus, folder / "eole", len(corpus.train))
            settings = {"folder": folder / "eole", "tokens": TOKENS_PER_STEP, "steps": STEPS}
            (folder / "eole/config.yaml").write_text(EOLE_CONFIG.format(**settings))
            rates["Eole"] = []
        for turn in range(arguments.rounds):
            rates["dragoman"].append(measure_dragoman(config, folder / f"run{turn}"))
            rates["Hugging Face Marian"].append(measure_marian(corpus))
            if arguments.eole:
                rates["Eole"].append(measure_eole(arguments.eole, folder / "eole"))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("| trainer | target tokens/s, each round | median | ratio |")
    print("|---|---|---|---|")
    base = statistics.median(rates["Hugging Face Marian"])
    for label, found in rates.items():
        median = statistics.median(found)
        each = ", ".join(f"{rate:,.0f}" for rate in found)
        print(f"| {label} | {each} | {median:,.0f} | {median / base:.2f} |")


def measure_dragoman(config: Path, run: Path) -> float:
    """The real command, with logging and checkpoints on; warm-up steps left out."""
    command: list[str | Path] = [sys.executable, "-m", "dragoman", "train", config, "--run", run]
    subprocess.run(command, check=True, capture_output=True)
    steps = [one for one in lines_of(run, "train") if one["step"] > WARM_UP_STEPS]
    return float(sum(s["target_tokens"] for s in steps) / sum(s["seconds"] for s in steps))


def measure_marian(corpus: PreparedCorpus) -> float:
    """A plain loop over batches that lie ready."""
    torch.manual_seed(1)
    padding = corpus.subwords()[1].size
    model, logits = make_marian(SHAPE, padding, inner_dropout=0.0)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    tokens, seconds = 0, 0.0
    batches = Batches(corpus.train, TOKENS_PER_STEP, padding, seed=1)
    for step in range(STEPS):
        source, target, count = batches[step]
        start = time.perf_counter()
        loss = smoothed_loss(logits, source, target, padding)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if step >= WARM_UP_STEPS:
            tokens += count
            seconds += time.perf_counter() - start
    return tokens / seconds


def measure_eole(command: Path, folder: Path) -> float:
    """Its own command, from its own log; warm-up steps left out."""
    made = subprocess.run(
        [command, "train", "-c", folder / "config.yaml"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    return eole_rate((made.stdout + made.stderr).splitlines(), WARM_UP_STEPS)


if __name__ == "__main__":
    main()

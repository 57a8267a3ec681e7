"""Target tokens a second of Eole on one GPU; `train_gpu.py` runs this beside our trainer.

    PYTHONPATH=build/eole python benchmarks/eole_gpu.py PREPARED SLOTS [SLOTS ...]

`eole_command.py` says how that folder is made. Eole runs by its own command, which makes its own
batches in four other processes, with the settings of its recipe for WMT17 and the base model. Its
`batch_size` is the padded slots of the longer side. `autocast` is mixed precision as that recipe
has it: with `compute_dtype: bf16` Eole 0.6.4 still asks PyTorch for its default, float16. `bf16`
has weights and moments in bfloat16 (`use_amp: false`), and `compiled`, if asked for, is that with
Eole's `torch_compile`. Eole turns cuDNN's attention off by itself. The rate is that of its log.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from dragoman.corpus.store import PreparedCorpus
from peers import eole_rate, write_for_eole

PAIRS = 400_000  # So many are enough to fill its workers' first buckets.
STEPS_BETWEEN_LINES = 10
LINES_OF_WARM_UP, LINES_OF_NEW_SHAPES, LINES = 1, 4, 13
HERE = Path(__file__).parent
ITS_SCHEDULE = "learning_rate: 2\n  warmup_steps: 4000\n  decay_method: noam"
WAYS = {
    "autocast": "use_amp: true",
    "bf16": "use_amp: false",
    "compiled": "use_amp: false\n  torch_compile: true",
}
CONFIG = """
seed: 1234
overwrite: true
report_every: {every}
share_vocab: true
src_vocab: {folder}/vocabulary.txt
tgt_vocab: {folder}/vocabulary.txt
src_vocab_size: 40000
tgt_vocab_size: 40000
vocab_size_multiple: 8
data: {{text: {{path_src: {folder}/source.txt, path_tgt: {folder}/target.txt, transforms: []}}}}
training:
  {device}
  {way}
  compute_dtype: bf16
  model_path: {folder}/model
  train_steps: {steps}
  save_checkpoint_steps: {save_every}
  bucket_size: 262144
  num_workers: 4
  prefetch_factor: 400
  batch_type: tokens
  batch_size: {slots}
  batch_size_multiple: 8
  normalization: tokens
  dropout: [0.1]
  attention_dropout: [0.1]
  optim: adam
  adam_beta2: 0.998
  {schedule}
  max_grad_norm: 0
  label_smoothing: 0.1
  param_init_method: xavier_uniform
model:
  architecture: transformer
  hidden_size: 512
  layers: 6
  heads: 8
  transformer_ff: 2048
  share_embeddings: true
  share_decoder_embeddings: true
  embeddings: {{word_vec_size: 512, position_encoding_type: SinusoidalInterleaved}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("slots", type=int, nargs="+")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["autocast", "bf16"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "eole"
        corpus = PreparedCorpus(arguments.prepared)
        write_for_eole(corpus, folder, min(PAIRS, len(corpus.train)))
        for slots in arguments.slots:
            for way in arguments.ways:
                print(json.dumps(measure(folder, slots, way)), flush=True)


def measure(folder: Path, slots: int, way: str) -> dict[str, object]:
    """One run of its command; the first steps, with new shapes, are told apart."""
    config = write_config(folder, slots, way, STEPS_BETWEEN_LINES * LINES)
    lines, memory = [], 0
    for line in run(["train", "-c", config]):
        lines.append(line)
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            memory = max(memory, total - free)
    steps = [line for line in lines if "tok/s" in line]
    if len(steps) < LINES:
        sys.exit("".join(lines[-40:]))
    return {
        "peer": f"Eole, {way}",
        "slots": slots,
        "cudnn_attention": False,
        "fresh_tokens_per_second": eole_rate(steps[:LINES_OF_NEW_SHAPES], LINES_OF_WARM_UP),
        "tokens_per_second": eole_rate(steps, LINES_OF_NEW_SHAPES),
        "memory_bytes": memory,
    }


def write_config(
    folder: Path,
    slots: int,
    way: str,
    steps: int,
    save_every: int = 1_000_000,
    schedule: str = ITS_SCHEDULE,
) -> str:
    """What its command reads, beside the text."""
    has_gpu = torch.cuda.is_available()
    config = CONFIG.format(
        folder=folder,
        device="world_size: 1\n  gpu_ranks: [0]" if has_gpu else "world_size: 0\n  gpu_ranks: []",
        way=WAYS[way],
        slots=slots,
        every=STEPS_BETWEEN_LINES,
        steps=steps,
        save_every=save_every,
        schedule=schedule,
    )
    (folder / "config.yaml").write_text(config)
    return str(folder / "config.yaml")


def run(arguments: list[str]) -> Iterator[str]:
    """Its command's lines as they come."""
    command = [sys.executable, str(HERE / "eole_command.py"), *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout
        yield from process.stdout


if __name__ == "__main__":
    main()

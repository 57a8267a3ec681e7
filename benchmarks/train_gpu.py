"""Training on one GPU: this trainer, Marian (plain and compiled), nn.Transformer, Eole; same text.

    pip install transformers
    python benchmarks/train_gpu.py PREPARED [--parts ours peers ...] [--keep FOLDER] [--profile]
        [--peers plain compiled eole]

Ours is the real command, with logging, evidence and checkpoints on. Its rate is that of the wall's
clock between two lines of metrics.jsonl, so that nothing is left out but the first steps and the
evaluation at the end. Only real target tokens count. Memory is what the whole device has in use.
PREPARED needs a validation set: the first one is translated. Runs that FOLDER holds already are not
made again. The part `plain` trains with PyTorch's kernels, for `loss_curves.py`; `compiled` is its
compiler in float16.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position, RowStream
from dragoman.corpus.store import PreparedCorpus
from run_lines import lines_of

WARM_UP_STEPS = 60
CORPUS_KEYS = ("source_language", "target_language", "seed")
HERE = Path(__file__).parent
CONFIG = """
[corpus]
folder = "{folder}"
[model]
preset = "{preset}"
[batches]
tokens_per_step = {slots}
[schedule]
kind = "inverse_square_root"
peak = 1e-3
warmup_steps = 600
[training]
precision = "{precision}"
steps = {steps}
kernels = "{kernels}"
[evaluation]
every_steps = 1_000_000
bleu_pairs = 8
train_sample_pairs = 8
[checkpoints]
keep_latest = 1
keep_best = false
"""


@dataclass(frozen=True)
class Case:
    """One run of our trainer."""

    preset: str
    slots: int
    precision: str
    steps: int  # More than 1,000 where the cost of checkpoints is to be seen.
    kernels: str = "fused"

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.slots}-{self.precision}-{self.kernels}"


COMPILED = [
    Case("base", 8_192, "float16", 360, "compiled"),
    Case("base", 32_768, "float16", 200, "compiled"),
]
PLAIN = Case("base", 8_192, "bfloat16", 1_000, "plain")
CASES = [
    Case("base", 8_192, "bfloat16", 1_060),
    Case("base", 32_768, "bfloat16", 360),
    Case("base", 8_192, "float16", 360),
    Case("base", 32_768, "float16", 200),
    Case("big", 32_768, "bfloat16", 120),
    Case("big", 8_192, "bfloat16", 200),
]


@dataclass(frozen=True)
class Measured:
    """What a run of our trainer came to."""

    tokens_per_second: float
    milliseconds: float
    memory_bytes: int
    fraction_of_peak: float
    peak: float
    data_share: float
    first_step_seconds: float
    checkpoint_seconds: list[float]


PEERS = {"plain": "peers_gpu.py", "compiled": "marian_compiled.py", "eole": "eole_gpu.py"}
PARTS = ("ours", "peers", "translation", "packing", "evidence", "compiled", "plain")
EVIDENCE_TURNS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-2])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--keep", type=Path, help="leave the runs here")
    parser.add_argument("--profile", action="store_true", help="only print where the time goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.profile:
            for case in CASES[:2]:
                profile(arguments.prepared, case, folder)
            return
        for part in arguments.parts:
            print_part(part, arguments.prepared, folder, arguments.peers)


def print_part(part: str, prepared: Path, folder: Path, peers: list[str]) -> None:
    match part:
        case "ours":
            print_ours(prepared, folder)
        case "peers":
            print_peers(prepared, folder, peers)
        case "translation":
            measure(prepared, CASES[0], folder)
            print_translation(folder / CASES[0].name)
        case "packing":
            rate = packing_rate(prepared)
            print(f"\npacking from a cold page cache: {rate:,.0f} target tokens/s on one core")
        case "evidence":
            print_evidence(prepared, folder)
        case "compiled":
            print("\nPyTorch's compiler:")
            for case in COMPILED:
                found = measure(prepared, case, folder)
                print_run(case, found)
                (folder / "warm").mkdir(exist_ok=True)
                print_start_up(found, measure(prepared, case, folder / "warm"))
        case _:
            print("\nPyTorch's own kernels:")
            print_run(PLAIN, measure(prepared, PLAIN, folder))


def configure(prepared: Path, case: Case, folder: Path) -> Path:
    path = folder / f"{case.name}.toml"
    settings = {**vars(case), "folder": prepared.resolve()}
    path.write_text(CONFIG.format(**settings))
    return path


def corpus_settings(prepared: Path) -> list[str]:
    """The settings a prepared corpus was made with, which the trainer compares."""
    made_with = PreparedCorpus(prepared).manifest.to_json()["settings"]
    corpus = made_with["corpus"]

    def text(files: dict[str, str]) -> str:
        named = (f"{key} = {json.dumps(path)}" for key, path in files.items() if path)
        return f"{{{', '.join(named)}}}"

    texts = [f"corpus.train=[{', '.join(map(text, corpus['train']))}]"] + [
        f"corpus.{kind}.{name}={text(files)}"
        for kind in ("validation", "test")
        for name, files in corpus[kind].items()
    ]
    texts += [f"corpus.{key}={json.dumps(corpus[key])}" for key in CORPUS_KEYS]
    return texts + [
        f"{section}.{key}={json.dumps(value)}"
        for section in ("cleaning", "vocabulary")
        for key, value in made_with[section].items()
        if not key.endswith("model")
    ]


def measure(prepared: Path, case: Case, folder: Path) -> Measured:
    """Run the real command; kernels compiled for earlier cases are not compiled again."""
    run, started = folder / case.name, folder / f"{case.name}.started"
    if not started.exists():
        started.write_text(str(time.time()))
        train(["-m", "dragoman"], prepared, case, run)
    steps, (calibration,) = lines_of(run, "train"), lines_of(run, "calibration")
    counted = steps[WARM_UP_STEPS:]
    seconds = counted[-1]["time"] - steps[WARM_UP_STEPS - 1]["time"]
    rate = sum(line["target_tokens"] for line in counted) / seconds
    monitor = [json.loads(line) for path in run.glob("monitor/*") for line in open(path)]
    return Measured(
        tokens_per_second=rate,
        milliseconds=1e3 * statistics.median(line["seconds"] for line in counted),
        memory_bytes=max(line["gpus"][0]["memory_bytes"] for line in monitor),
        fraction_of_peak=rate * calibration["arithmetic_per_token"] / calibration["peak_flops"],
        peak=calibration["peak_flops"],
        data_share=sum(line["seconds_data"] for line in counted) / seconds,
        first_step_seconds=steps[0]["time"] - float(started.read_text()),
        checkpoint_seconds=[
            line["seconds_blocking"]
            for line in lines_of(run, "checkpoint")
            if line["step"] < case.steps
        ],
    )


def train(program: list[str], prepared: Path, case: Case, run: Path) -> None:
    folder = run.parent
    command = [sys.executable, *program, "train", str(configure(prepared, case, folder))]
    command += [*corpus_settings(prepared), "--run", str(run)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton")}
    with open(run.with_suffix(".log"), "w") as log:
        subprocess.run(command, check=True, env=environment, stderr=log)


def print_evidence(prepared: Path, folder: Path) -> None:
    """The same steps with and without evidence, by turns."""
    case = CASES[0]
    programs = {"with": ["-m", "dragoman"], "without": [str(HERE / "without_evidence.py")]}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn, (name, program) in product(range(EVIDENCE_TURNS), programs.items()):
        run = folder / f"{name}-evidence-{turn}"
        train(program, prepared, case, run)
        ends = {line["step"]: line["time"] for line in lines_of(run, "train")}
        seconds[name].append(ends[case.steps] - ends[WARM_UP_STEPS])
    steps = case.steps - WARM_UP_STEPS
    for name, each in seconds.items():
        print(
            f"{steps} steps of {case.slots:,} slots {name} evidence:", *(f"{s:.3f} s" for s in each)
        )
    share = min(seconds["with"]) / min(seconds["without"]) - 1
    print(f"evidence takes {share:.2%} of the time, by the fastest of each", flush=True)


def print_ours(prepared: Path, folder: Path) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| model | target slots | precision | target tokens/s | step ms | of the peak | GiB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    runs = {}
    for case in CASES:
        runs[case] = measure(prepared, case, folder)
        print_run(case, runs[case])
    print_start_up(*list(runs.values())[:2])
    for case, found in runs.items():
        if found.checkpoint_seconds:
            seconds = statistics.mean(found.checkpoint_seconds)
            share = seconds / (found.milliseconds + seconds)  # Of 1,000 steps and one checkpoint.
            print(f"{case.name}: a checkpoint stops training for {seconds:.3f} s, {share:.2%} of")
            print(f"  1,000 steps; waiting for batches took {found.data_share:.2%}")


def print_start_up(cold: Measured, warm: Measured) -> None:
    print(f"\nseconds from the command to the first step: {cold.first_step_seconds:.1f} with a")
    print(f"cold cache of kernels, {warm.first_step_seconds:.1f} with a warm one", flush=True)


def print_run(case: Case, found: Measured) -> None:
    print(
        f"| {case.preset} | {case.slots:,} | {case.precision} "
        f"| {found.tokens_per_second:,.0f} | {found.milliseconds:.2f} "
        f"| {found.fraction_of_peak:.0%} of {found.peak / 1e12:.0f} TFLOP/s "
        f"| {found.memory_bytes / 2**30:.1f} |",
        flush=True,
    )


def print_peers(prepared: Path, folder: Path, peers: list[str]) -> None:
    print("\n| target slots | peer | cuDNN | tokens/s, new shapes | seen | GiB | ours is faster |")
    print("|---|---|---|---|---|---|---|", flush=True)
    runs = [measure(prepared, case, folder) for case in CASES[:2]]
    rates = [run.tokens_per_second for run in runs]
    ours = {case.slots: rate for case, rate in zip(CASES[:2], rates, strict=True)}
    for slots, own in ours.items():
        print(f"| {slots:,} | dragoman, shapes never change | | {own:,.0f} | {own:,.0f} | | |")
    for peer in peers:
        if peer == "eole" and not find_spec("eole"):
            print("Eole is not there: eole_command.py says how to bring it along")
        else:
            print_peer(PEERS[peer], prepared, ours)
    print_start_up(*runs)


def print_peer(program: str, prepared: Path, ours: dict[int, float]) -> None:
    """The lines of a peer's program; one that fails does not keep others from being measured."""
    command = [sys.executable, str(HERE / program), str(prepared), *map(str, ours)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for found in map(json.loads, process.stdout):
            fresh, seen = found["fresh_tokens_per_second"], found["tokens_per_second"]
            own, memory = ours[found["slots"]], found["memory_bytes"] / 2**30
            compiling = found.get("compiling_seconds")
            print(
                f"| {found['slots']:,} | {found['peer']}"
                + (f" in {compiling:.0f} s" if compiling else "")
                + f" | {found['cudnn_attention']} | {fresh:,.0f} | {seen:,.0f} "
                f"| {memory:.1f} | {own / fresh:.1f} x, {own / seen:.1f} x |",
                flush=True,
            )
    if process.returncode:
        print(f"{program} ended with {process.returncode}", flush=True)


def print_translation(run: Path) -> None:
    """Seconds to translate the validation set, as evaluation during training does it."""
    from dragoman.inference.evaluate import score_text
    from dragoman.inference.load import load_trained
    from dragoman.model.precision import arithmetic
    from dragoman.runs.folder import RunFolder

    device = torch.device("cuda")
    trained = load_trained(RunFolder(run), "latest", 1, device)
    one = PreparedCorpus(Path(trained.config.corpus.folder)).evaluation_sets("validation")[0]
    print(
        f"\n| {one.name}, {len(one.source):,} sentences | bfloat16 s | again | float32 s | BLEU |"
    )
    print("|---|---|---|---|---|")
    for label, beam in (("greedy", 1), ("beam 4", 4)):
        settings, seconds = replace(trained.config.translation, beam=beam), []
        # Again, because PyTorch loads its kernels when they are needed for the first time.
        for precision in ("bfloat16", "bfloat16", "float32"):
            start = time.perf_counter()
            with arithmetic(precision, device):
                best = trained.translator.translate(one.source, settings)
            seconds.append(time.perf_counter() - start)
        bleu = score_text([ranked[0].text for ranked in best], one.target, "13a").bleu
        times = " | ".join(f"{value:.1f}" for value in seconds)
        print(f"| {label} | {times} | {bleu:.2f} |", flush=True)


def packing_rate(prepared: Path) -> float:
    corpus = PreparedCorpus(prepared)
    for path in prepared.rglob("train.*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    stream = RowStream(corpus.train, row_tokens=128, rows_per_step=256, begin=1, seed=1)
    start = time.perf_counter()
    tokens = sum(step.target_tokens for step in islice(stream.steps(Position()), 300))
    return tokens / (time.perf_counter() - start)


GROUPS = {
    "attention backward": ("backward_kernel",),
    "attention forward": ("forward_kernel",),
    "loss": ("_cross_entropy",),
    "Adam": ("_adam",),
    "sums for biases and norms": ("_add_column_sums",),
    "embeddings": ("_embed", "_add_gradient"),
    "matrix products": ("gemm", "nvjet", "cutlass", "splitk", "cublas"),
    "norms, residuals, ReLU, dropout": ("_forward", "_backward"),
}


def profile(prepared: Path, case: Case, folder: Path, steps: int = 5) -> None:
    """Print the device's time by kind of kernel, from a few replayed steps."""
    from dragoman.training.parts import make_parts

    config = load_config(configure(prepared, case, folder), corpus_settings(prepared))
    workers = Workers(0, 1, torch.device("cuda", 0))
    parts = make_parts(config, workers)
    parts.step.begin(parts.stream.rows_per_step)
    batches = list(islice(parts.stream.steps(Position()), 2 * steps))
    activity = torch.profiler.ProfilerActivity.CUDA
    times: dict[str, tuple[float, int]] = {}
    for part in (batches[:steps], batches[steps:]):  # The first half warms up.
        with torch.profiler.profile(activities=[activity]) as profiler:
            for number, batch in enumerate(part, start=1):
                parts.step.queue(batch, number, 1e-4, 0.0)
            seconds = [parts.step.result().seconds or 0.0 for _ in part]
    for event in profiler.events():
        name = group_of(event.name)
        before = times.get(name, (0.0, 0))
        times[name] = before[0] + event.device_time, before[1] + 1
    busy: Any = sum(one for one, _ in times.values()) / steps / 1e3
    print(f"\n{case.name}: {1e3 * statistics.median(seconds):.2f} ms per step, {busy:.2f} ms busy")
    print("| kernels | ms | launches |")
    print("|---|---|---|")
    for name, (microseconds, launches) in sorted(times.items(), key=lambda item: -item[1][0]):
        print(f"| {name} | {microseconds / steps / 1e3:.2f} | {launches / steps:.0f} |")


def group_of(kernel: str) -> str:
    for group, parts in GROUPS.items():
        if any(part in kernel for part in parts):
            return group
    return "other"


if __name__ == "__main__":
    main()

"""What a run leaves on disk, one dataclass for each kind of line and file.

Writers, readers and docs/run-folder.md all follow these definitions; nothing else spells the keys.
A number that is not finite is written as null, for JSON has no other. Longer than other files, as
config.py is: one page for all formats of a run folder, without logic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.documents import item

HOST = r"[^/\x00-\x1f]+"  # A machine's name; a file is named after it.


EndReason = Literal["steps", "epochs", "hours", "patience", "gain_unlikely", "signal", "error"]


@dataclass(frozen=True)
class Beginning:
    """An attempt begins: a new run (`step` 0), the same command again, or after a fault."""

    workers: int = item("how many")
    hosts: tuple[str, ...] = item("host of each worker, by rank", pattern=HOST)
    device: str = item('"cpu" or "cuda"')
    device_name: str = item("name that the device reports")
    precision: str = item("arithmetic precision")
    rows_per_device: int = item("rows that a device processes at once")
    checkpoint: str | None = item("name of the one it continues from; null at step 0")
    reason: str | None = item("`resume`, `restart`: why; the root cause of a fault", default=None)
    lost: tuple[str, ...] | None = item("`restart`: machines that left", default=None, pattern=HOST)
    joined: tuple[str, ...] | None = item(
        "`restart`: machines that joined", default=None, pattern=HOST
    )


@dataclass(frozen=True)
class Link:
    """What one machine can send to another, measured between neighbours, both ways."""

    hosts: tuple[str, str] = item("from, to", pattern=HOST)
    interface: str = item("of the sender")
    address: str = item("of the sender")
    speed_mbit: int | None = item("speed that the interface advertises")
    goodput_bytes_per_second: float = item("measured")
    latency_seconds: float = item("one way")


@dataclass(frozen=True)
class Calibration:
    """Computing and synchronizing, each measured alone before the first step of an attempt."""

    seconds_compute: float = item(
        "median of a step's forward and backward passes without synchronisation, worker 0"
    )
    seconds_compute_by_worker: tuple[float, ...] = item("the same, by rank")
    seconds_all_reduce: float | None = item(
        "all-reduce of a gradient-sized buffer alone, in the pieces in which it is sent; null "
        "with one worker, and with powersgd, for which it is only a part of the exchange"
    )
    bytes_per_step: float = item("sent by one machine in theory, 0 with a single machine")
    gradient_bytes: int = item("before compression")
    parameters: int = item("of the model")
    compression: str = item("`distributed.compression`")
    arithmetic_per_token: float = item("floating-point operations per target token")
    peak_flops: float = item("of one device, measured on a matrix product")
    seconds_all_reduce_latency: float | None = item("of a single number", default=None)
    all_reduce_measured_bytes: int | None = item(
        "on slow links part of it is measured and the rest extrapolated", default=None
    )
    balanced_rows: tuple[int, ...] | None = item(
        "rows per step that each worker got for it, by rank; null if all get the same number",
        default=None,
    )


@dataclass(frozen=True)
class WorkerSeconds:
    """How long one worker computed."""

    worker: int = item("its rank")
    seconds: float = item("of forward and backward passes")


@dataclass(frozen=True)
class CorpusStep:
    """What one corpus of a mix contributed to a step."""

    pairs: int = item("of sentences")
    target_tokens: int = item("real ones")
    epoch: float = item("passes over this corpus so far, as a fraction")


@dataclass(frozen=True)
class TrainStep:
    """One step; the phase times are those of the worker that wrote the file."""

    loss: float = item("mean per target token of the global batch, dropout on")
    nll: float = item("the same without label smoothing")
    learning_rate: float = item("of this step")
    gradient_norm: float = item(
        "global norm, before clipping (with local steps: of the worker that wrote the file)"
    )
    target_tokens: int = item("in the global batch, padding not counted")
    source_tokens: int = item("likewise")
    pairs: int = item("of sentences")
    slots: int = item("target slots in the global batch, padding included")
    epoch: float = item("passes over the corpus so far, as a fraction")
    seconds: float = item(
        "wall time, evaluation and checkpoints excluded; the next five add up to it"
    )
    seconds_data: float = item("waiting for a batch")
    seconds_compute: float = item("forward and backward pass")
    seconds_exposed_communication: float = item(
        "waiting for other workers' gradients, not hidden behind the backward pass"
    )
    seconds_optimizer: float = item("update of the weights")
    seconds_other: float = item("the rest")
    slowest: WorkerSeconds | None = item("`worker` and `seconds`; several only", default=None)
    fastest: WorkerSeconds | None = item("likewise", default=None)
    loss_scale: float | None = item("float16 only", default=None)
    skipped: bool = item(
        "true if a gradient was not finite and the weights were left unchanged (with local "
        "steps: on the worker that wrote the file; others may have continued)",
        default=False,
    )
    repeated: bool = item("true if an earlier attempt made this step too", default=False)
    corpora: Mapping[str, CorpusStep] | None = item("of a mix, by corpus", default=None)


@dataclass(frozen=True)
class Evaluation:
    """One validation set, evaluated with dropout off."""

    set: str = item("its name")
    pairs: int = item("in the set")
    bleu_pairs: int = item("how many of them were translated")
    loss: float = item("label-smoothed cross entropy per token")
    nll: float = item("negative log-likelihood per token")
    train_sample_loss: float = item("loss on a fixed sample of the training set")
    train_sample_nll: float = item("nll on that sample")
    bleu: float = item("sacreBLEU of the translations")
    chrf: float = item("chrF of the translations")
    signature: str = item("how BLEU was computed")
    chrf_signature: str = item("how chrF was computed")
    seconds: float = item("duration; that of the training sample is included in the first set")
    repeated: bool = item("true if an earlier attempt made this evaluation too", default=False)
    is_old: bool = item("true for a set of the run that this one started from", default=False)
    gain: float | None = item("BLEU minus that of the weights the run started from", default=None)
    gain_interval: tuple[float, float] | None = item(
        "95%, by paired bootstrap over sentences", default=None
    )


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is whole on disk."""

    name: str = item("of its folder")
    bytes: int = item("of its files")
    seconds_blocking: float = item("during which training was paused")
    seconds_background: float = item("duration, in parallel with training")


@dataclass(frozen=True)
class CheckpointFailed:
    """A checkpoint could not be written; training continues."""

    reason: str = item("error from the operating system")
    host: str | None = item(
        "whose copy it is; null if of the machine that wrote the file", default=None, pattern=HOST
    )


@dataclass(frozen=True)
class MachineChange:
    """A machine left or came."""

    host: str = item("its name", pattern=HOST)
    reason: str = item("why")
    workers: int = item("of all machines, from now on")


@dataclass(frozen=True)
class End:
    """The run, or an attempt at it, ended; a `restart` after it says that it went on."""

    reason: EndReason = item("why")
    detail: str | None = item("the signal or the error")

    @property
    def is_finish(self) -> bool:
        """Whether the run came to an end of its own."""
        return self.reason not in ("error", "signal")


Event = (
    Beginning
    | Link
    | Calibration
    | TrainStep
    | Evaluation
    | CheckpointSaved
    | CheckpointFailed
    | MachineChange
    | End
)
EventKind = Literal[
    "start",
    "resume",
    "restart",
    "link",
    "calibration",
    "train",
    "eval",
    "checkpoint",
    "checkpoint_failed",
    "lost",
    "joined",
    "stop",
]
BEGINNINGS: tuple[EventKind, ...] = ("start", "resume", "restart")

# Every kind of line in metrics.jsonl, and what it holds besides kind, time and step.
EVENTS: Mapping[EventKind, type[Event]] = {
    "start": Beginning,
    "resume": Beginning,
    "restart": Beginning,
    "link": Link,
    "calibration": Calibration,
    "train": TrainStep,
    "eval": Evaluation,
    "checkpoint": CheckpointSaved,
    "checkpoint_failed": CheckpointFailed,
    "lost": MachineChange,
    "joined": MachineChange,
    "stop": End,
}


@dataclass(frozen=True)
class SampleTranslation:
    """A line of samples.jsonl: a fixed sentence, translated at one evaluation."""

    step: int = item("of the evaluation")
    time: float = item("of writing")
    source: str = item("the sentence")
    reference: str = item("its translation in the validation set")
    translation: str = item("the model's translation")


@dataclass(frozen=True)
class GpuSample:
    """One GPU in a line of the monitor; values it does not report (no NVML, MIG, vGPU) are null."""

    index: int = item("index in torch's numbering")
    name: str = item("of the model")
    utilization: float | None = item(
        "percentage of time in which any kernel of any process ran: waiting inside a collective "
        "counts as busy"
    )
    memory_bytes: int | None = item("in use")
    memory_total_bytes: int | None = item("there is")
    power_watts: float | None = item("drawn")
    sm_clock_mhz: int | None = item("of its processors")


@dataclass(frozen=True)
class InterfaceSample:
    """One network interface in a line of the monitor."""

    received_bytes: int = item("a counter that only grows until a reboot")
    sent_bytes: int = item("likewise")
    speed_mbit: int | None = item("speed that the interface advertises")


@dataclass(frozen=True)
class MachineSample:
    """A line of monitor/HOST.jsonl: what the machine did, once a second."""

    time: float = item("of the machine's own clock")
    step: int = item("the last step begun")
    clock_offset: float = item("seconds that this machine's clock is ahead of worker 0's")
    cpu_percent: float = item("of all cores")
    memory_bytes: int = item("in use")
    memory_total_bytes: int = item("there is")
    process_memory_bytes: int = item("in use by the machine's first worker")
    disk_read_bytes: int | None = item("a counter that only grows until a reboot")
    disk_written_bytes: int | None = item("likewise")
    disk_free_bytes: int = item("on the disk of the run folder")
    gpus: tuple[GpuSample, ...] = item("those that the run uses")
    interfaces: Mapping[str, InterfaceSample] = item("by name")


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint."""

    bytes: int = item("its size")
    sha256: str = item("its checksum", pattern=r"[0-9a-f]*")


@dataclass(frozen=True)
class Scores:
    """The evaluation at a checkpoint's step, on the first validation set; null if there is none."""

    loss: float | None = item("label-smoothed cross entropy per token")
    nll: float | None = item("negative log-likelihood per token")
    bleu: float | None = item("sacreBLEU")


NO_SCORES = Scores(None, None, None)


@dataclass(frozen=True)
class CheckpointState:
    """state.json of a checkpoint."""

    step: int = item("the last one made")
    progress: Mapping[str, Any] = item(
        "place in the corpus, best scores, the device and the rows it handles at once"
    )
    optimizer: Mapping[str, float] = item("scalar state other than the moments")
    scores: Scores = item("of this step")
    files: Mapping[str, SavedFile] = item("the tensors' files, by name")


@dataclass(frozen=True)
class CheckpointEntry:
    """One kept checkpoint in the index."""

    name: str = item("of its folder", pattern=r"step-\d{8,19}")
    step: int = item("the last one made")
    time: float = item("of writing")
    bytes: int = item("of all files")
    files: Mapping[str, SavedFile] = item("every file, by name")
    loss: float | None = item("of the evaluation at that step on the first validation set")
    nll: float | None = item("likewise")
    bleu: float | None = item("likewise")
    is_only_best: bool = item(
        "true if it is kept only for its scores and its neighbours are gone", default=False
    )


@dataclass(frozen=True)
class CheckpointIndex:
    """checkpoints.json: every kept checkpoint, by step, and which to choose."""

    latest: str | None = item("name of the last")
    best_loss: str | None = item("name of the one with the lowest loss")
    best_bleu: str | None = item("name of the one with the highest BLEU")
    checkpoints: tuple[CheckpointEntry, ...] = item("all of them, by step")

    def named(self, name: str | None) -> CheckpointEntry | None:
        """The entry of that name, if it is kept."""
        return next((entry for entry in self.checkpoints if entry.name == name), None)


@dataclass(frozen=True)
class GitState:
    """Dragoman's own checkout."""

    commit: str = item("that was checked out", pattern=r"[0-9a-f]+")
    dirty: bool = item("whether there were uncommitted changes")


@dataclass(frozen=True)
class CorpusOrigin:
    """The prepared corpus of a run."""

    folder: str = item("where it was")
    identity: str = item("checksum of its files", pattern=r"[0-9a-f]+")
    manifest: Mapping[str, Any] = item("a full copy of the corpus's manifest")


@dataclass(frozen=True)
class ModelSize:
    """How large the model is."""

    parameters: int = item("numbers in all tensors")
    tensors: int = item("how many")


@dataclass(frozen=True)
class GpuHardware:
    """One GPU of a machine."""

    name: str = item("of the model")
    memory_bytes: int = item("there is")


@dataclass(frozen=True)
class MachineHardware:
    """One machine that took part."""

    cpu: str = item("of the model")
    cores: int = item("that the run may use")
    memory_bytes: int = item("there is")
    gpus: tuple[GpuHardware, ...] = item("all of them")
    system: str = item("its version")


@dataclass(frozen=True)
class ParentRun:
    """The run that another one started from."""

    run: str = item("its name")
    folder: str = item("where it was")
    checkpoints: tuple[str, ...] = item("whose average is the initial weights")


@dataclass(frozen=True)
class Before:
    """before.json: translations by the weights that a run started from."""

    sets: Mapping[str, tuple[str, ...]] = item("a line for each sentence, by set")


@dataclass(frozen=True)
class Versioned:
    """What provenance.json says in every format."""

    format: int = item("version of the run folder's format")


@dataclass(frozen=True)
class Provenance:
    """provenance.json: where a run came from."""

    format: int = item("version of the run folder's format")
    run: str = item("name of the run")
    created: float = item("when it was first started")
    dragoman: str = item("version")
    python: str = item("version")
    torch: str = item("version")
    numpy: str = item("version")
    cuda: str | None = item("version that torch was built for")
    command: tuple[str, ...] = item("its words")
    directory: str = item("working directory")
    git: GitState | None = item("null if Dragoman was not installed from a checkout")
    corpus: CorpusOrigin = item("what it was trained on")
    model: ModelSize = item("how large")
    machines: Mapping[str, MachineHardware] = item("by host; all machines that took part")
    parent: ParentRun | None = item("the run that it started from", default=None)
    identity: str = item("of the run, the same on every machine; older runs have none", default="")

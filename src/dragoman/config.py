"""Every setting on one page: one frozen dataclass per TOML table.

Longer than other files, because it is a reference without logic: whoever looks for a setting finds
its name, its default, its limits and its help here, and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, assert_never, get_args

LARGEST_BEAM, LARGEST_PATIENCE = 1_000, 10  # Nobody wants more, and memory runs out before.
LARGEST_LENGTH_PENALTY = 10  # A long sentence's length to the power of 100 is no number any more.
# Far beyond any model that fits a machine; making one layer after another would never end.
MOST_LAYERS, LARGEST_D_MODEL, LARGEST_FEED_FORWARD = 1_000, 65_536, 1_048_576
LONGEST_WAIT_SECONDS = 31_536_000  # A year; torch counts in nanoseconds, and those have an end.
TAG = r"<[^<>\s,]{1,40}>"  # sentencepiece takes a list of them with commas.
SET_NAME = r"(?![.])[\w.-]*\w[\w.-]*"  # It becomes part of the names of files.
Precision = Literal["float32", "bfloat16", "float16"]
Compression = Literal["none", "bf16", "fp16", "powersgd", "int8", "int4", "int2"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
# Enough for differences of weights, not for gradients; from the most bits to the fewest.
FEW_BITS: tuple[Compression, ...] = ("int8", "int4", "int2")
POWERSGD_LEAST_GAIN = 2  # A matrix whose factors are not less than half of it travels as it is.
Quantization = Literal[
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
]
Library = Literal["ctranslate2", "transformers", "argos"]  # That an export is for.
OptimizerKind = Literal["adam", "muon"]
NotifyEvent = Literal["end", "failure", "verdict"]
TrackerKind = Literal["tensorboard", "wandb", "mlflow", "trackio"]
ScheduleKind = Literal[
    "transformer", "inverse_square_root", "cosine", "constant", "warmup_stable_decay"
]


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    is_path: bool = False,
    is_run: bool = False,
    is_required: bool = False,
    may_change: bool = False,
) -> Any:
    """Declare one setting; `may_change` marks those that a resumed run may alter."""
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "is_path": is_path,
        "is_run": is_run,
        "is_required": is_required,
        "may_change": may_change,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ParallelText:
    """Two files that match line by line, or one file with tab-separated source and target."""

    source: str = setting("", "Source file or glob.", is_path=True)
    target: str = setting(
        "", "Target file or glob; must match as many files as `source`.", is_path=True
    )
    tsv: str = setting(
        "", "One file instead of both: source, tab, target on each line.", is_path=True
    )
    tag: str = setting(
        "",
        "Token put before every source sentence, such as <2de>, for several languages in one "
        "model.",
    )
    name: str = setting("", "Training text only: its name in counts and stages.")
    weight: float = setting(
        1.0,
        "Training text only: its pairs are drawn this many times as often as those of weight 1.",
        minimum=0,
    )


@dataclass(frozen=True)
class CorpusSettings:
    """Which text to read, and where to put the prepared corpus."""

    folder: str = setting(
        "", "Where the prepared corpus is written and read.", is_path=True, is_required=True
    )
    source_language: str = setting("en", "Language code of the source side.")
    target_language: str = setting("de", "Language code of the target side.")
    train: tuple[ParallelText, ...] = setting(
        (),
        "Training text: plain, .gz, .xz or .zst, any number of files or globs.",
        is_required=True,
    )
    validation: Mapping[str, ParallelText] = setting(
        {}, "Named sets evaluated during training; the first one decides which checkpoint is best."
    )
    test: Mapping[str, ParallelText] = setting({}, "Named sets for the final score.")
    temperature: float = setting(
        1.0,
        "Evens out the sizes of several training texts: each counts as its size to the power of "
        "1/temperature. With 1 every pair is drawn equally often, with 5 pairs of small texts "
        "far more often.",
        minimum=1,
        maximum=100,
    )
    seed: int = setting(1, "Seed of the shuffle.", minimum=0)


@dataclass(frozen=True)
class CleaningSettings:
    """Which training pairs are kept; validation and test sets are never filtered."""

    invalid_utf8: Literal["error", "skip"] = setting(
        "error",
        "What to do with a line that is not UTF-8: error stops the preparation, skip drops "
        "and counts it.",
    )
    drop_control_characters: bool = setting(
        True, "Drop pairs with control characters or Unicode noncharacters."
    )
    max_words: int = setting(80, "Drop pairs with more words than this on a side.", minimum=1)
    max_length_ratio: float = setting(
        9.0,
        "Drop pairs where one side has more than this many times as many words as the other.",
        minimum=1,
    )
    drop_duplicates: bool = setting(True, "Keep only the first of identical pairs.")
    drop_identical: bool = setting(
        False, "Drop pairs whose source equals their target, apart from case."
    )
    drop_near_duplicates: bool = setting(
        False,
        "Keep only the first of several pairs that differ only in case, punctuation or spaces.",
    )
    drop_leaked: bool = setting(
        False,
        "Drop pairs that contain a sentence of a validation or test set on either side; with "
        "vocabulary.from_run also those of the old run's validation sets.",
    )
    drop_misaligned: bool = setting(
        False, "Drop misaligned stretches: lines whose lengths fit the neighbouring lines better."
    )
    drop_wrong_language: bool = setting(
        False, "Drop pairs with a side that is clearly in another language; slow."
    )
    drop_swapped_sides: bool = setting(
        False, "Drop pairs whose source and target are swapped; slow."
    )
    drop_mojibake: bool = setting(
        False, "Drop pairs with text that was decoded with the wrong encoding (mojibake)."
    )
    drop_markup: bool = setting(
        False, "Drop pairs with HTML, template markup or website boilerplate."
    )
    drop_differing_numbers: bool = setting(
        False, "Drop pairs whose two sides contain different numbers."
    )
    max_tokens: int = setting(
        128,
        "Drop pairs with more subwords than this on a side, end-of-sentence token included; "
        "pairs are never truncated.",
        minimum=2,
    )
    normalize_punctuation: bool = setting(
        False,
        "Replace curly quotes and unusual dashes and spaces with plain ones, in the corpus "
        "and in later input.",
    )


@dataclass(frozen=True)
class VocabularySettings:
    """Subwords by sentencepiece, with byte fallback: any text survives a round trip."""

    kind: Literal["bpe", "unigram"] = setting("bpe", "Subword algorithm.")
    size: int = setting(
        32_768,
        "Number of subwords, including 256 bytes and 3 special tokens.",
        minimum=270,
        maximum=1_000_000,
    )
    joint: bool = setting(True, "One vocabulary for both languages, with tied embeddings.")
    sample_pairs: int = setting(
        500_000, "Train the vocabulary on at most this many pairs.", minimum=1
    )
    character_coverage: float = setting(
        0.9995, "Share of characters that get their own subword.", minimum=0.9, maximum=1
    )
    model: str = setting("", "An existing joint sentencepiece model.", is_path=True)
    source_model: str = setting("", "An existing source model, if not joint.", is_path=True)
    target_model: str = setting("", "An existing target model, if not joint.", is_path=True)
    from_run: str = setting(
        "",
        "Use the vocabulary of this run, to start from its weights; its validation sets are kept "
        "as well, to measure what is forgotten.",
        is_run=True,
    )


@dataclass(frozen=True)
class ModelSettings:
    """The Transformer: a preset, and overrides."""

    preset: Literal["tiny", "small", "base", "big", "student"] = setting(
        "base",
        "Layers, d_model, heads, feed_forward: tiny 4, 128, 4, 256; small 6, 256, 4, 1024; "
        "base 6, 512, 8, 2048; big 6, 1024, 16, 4096; student, for CPUs, 12 of the encoder and 2 "
        "of the decoder, 384, 6, 1536.",
    )
    encoder_layers: int | None = setting(
        None, "Overrides the preset.", minimum=1, maximum=MOST_LAYERS
    )
    decoder_layers: int | None = setting(
        None, "Overrides the preset.", minimum=1, maximum=MOST_LAYERS
    )
    d_model: int | None = setting(None, "Overrides the preset.", minimum=2, maximum=LARGEST_D_MODEL)
    heads: int | None = setting(None, "Overrides the preset.", minimum=1, maximum=LARGEST_D_MODEL)
    feed_forward: int | None = setting(
        None, "Overrides the preset.", minimum=1, maximum=LARGEST_FEED_FORWARD
    )
    dropout: float = setting(
        0.1, "Dropout on residual branches and embeddings.", minimum=0, maximum=0.9
    )
    attention_dropout: float = setting(0.1, "Dropout on attention weights.", minimum=0, maximum=0.9)
    relu_dropout: float = setting(
        0.1, "Dropout inside the feed-forward layer.", minimum=0, maximum=0.9
    )
    zero_branches: bool = setting(
        False,
        "Start every residual branch at zero: the output projections of attention and "
        "feed-forward layers start as zeros instead of random weights.",
    )


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Transformer."""

    encoder_layers: int
    decoder_layers: int
    d_model: int
    heads: int
    feed_forward: int


PRESETS = {
    "tiny": ModelShape(4, 4, 128, 4, 256),
    "small": ModelShape(6, 6, 256, 4, 1024),
    "base": ModelShape(6, 6, 512, 8, 2048),
    "big": ModelShape(6, 6, 1024, 16, 4096),
    # A decoder runs once for every word, an encoder once for a whole sentence.
    "student": ModelShape(12, 2, 384, 6, 1536),
}


def shape_of(settings: ModelSettings) -> ModelShape:
    """Apply the changes to the preset."""
    preset = PRESETS[settings.preset]
    changes = {
        name: value for name in vars(preset) if (value := getattr(settings, name)) is not None
    }
    return replace(preset, **changes)


@dataclass(frozen=True)
class BatchSettings:
    """The contents of a step; the same for any number of workers."""

    tokens_per_step: int = setting(
        32_768, "Target slots per step, over all workers; a multiple of row_tokens.", minimum=1
    )
    row_tokens: int = setting(
        128, "Source and target slots per row; sentence pairs are packed into rows.", minimum=8
    )
    rows_per_device: int | Literal["auto"] = setting(
        "auto", "Rows a device processes at once; the rest of a step is accumulated.", minimum=1
    )

    @property
    def rows_per_step(self) -> int:
        """Rows of all workers together."""
        return self.tokens_per_step // self.row_tokens


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam or Muon, decoupled weight decay, clipping."""

    kind: OptimizerKind = setting(
        "adam",
        "adam: Adam for all weights. muon: orthogonal updates for the layers' matrices, Adam for "
        "embeddings, norms and biases; each step learns more and takes slightly longer.",
    )
    beta1: float = setting(0.9, "Adam's decay of the mean gradient.", minimum=0, maximum=0.9999)
    beta2: float = setting(
        0.98,
        "Adam's decay of the mean square. With local steps what it lacks of 1 is divided by the "
        "number of workers: 0.995 for four.",
        minimum=0,
        maximum=0.999999,
    )
    epsilon: float = setting(1e-9, "Added to the square root of Adam's mean square.", minimum=0)
    momentum: float = setting(0.95, "Muon's Nesterov momentum.", minimum=0, maximum=0.9999)
    matrix_rate: float = setting(
        1.0, "Learning rate of Muon's matrices, as a multiple of the schedule's.", minimum=0
    )
    weight_decay: float = setting(0.0, "Decoupled, as in AdamW.", minimum=0)
    clip_norm: float = setting(0.0, "Clip the global gradient norm to this; 0 is off.", minimum=0)


def moments_kept(kind: OptimizerKind, parameters: int, shape: ModelShape) -> int:
    """Numbers that an optimizer remembers for a model of so many parameters."""
    match kind:
        case "adam":
            return 2 * parameters
        case "muon":
            # One for each weight of the layers' matrices, two for each of the others.
            attention, feed_forward = shape.d_model**2, shape.d_model * shape.feed_forward
            encoder = shape.encoder_layers * (4 * attention + 2 * feed_forward)
            decoder = shape.decoder_layers * (8 * attention + 2 * feed_forward)
            return 2 * parameters - encoder - decoder
        case _:
            assert_never(kind)


@dataclass(frozen=True)
class ScheduleSettings:
    """The learning rate of each step."""

    kind: ScheduleKind = setting(
        "transformer",
        "transformer: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). The "
        "others rise linearly to `peak` over warmup_steps; inverse_square_root then falls with the "
        "square root of the step, cosine follows a cosine, constant stays, and "
        "warmup_stable_decay falls linearly over the last decay_steps.",
    )
    scale: float = setting(2.0, "Factor of the transformer schedule.", minimum=0)
    peak: float = setting(1e-3, "Highest learning rate of the other schedules.", minimum=0)
    warmup_steps: int = setting(8_000, "Length of the warm-up.", minimum=1)
    decay_steps: int = setting(0, "Length of the decay of warmup_stable_decay.", minimum=0)
    final_fraction: float = setting(
        0.0,
        "Final learning rate of cosine and warmup_stable_decay, as a fraction of the peak.",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class ScheduleTraits:
    """What the checks of a config need to know of a schedule."""

    reads: tuple[str, ...]  # Settings.
    ends_with_run: bool  # The run then cannot be made longer.


_RISE = ("peak", "warmup_steps")
SCHEDULE_TRAITS: Mapping[ScheduleKind, ScheduleTraits] = {
    "transformer": ScheduleTraits(("scale", "warmup_steps"), ends_with_run=False),
    "inverse_square_root": ScheduleTraits(_RISE, ends_with_run=False),
    "cosine": ScheduleTraits((*_RISE, "final_fraction"), ends_with_run=True),
    "constant": ScheduleTraits(_RISE, ends_with_run=False),
    "warmup_stable_decay": ScheduleTraits(
        (*_RISE, "decay_steps", "final_fraction"), ends_with_run=True
    ),
}


@dataclass(frozen=True)
class TrainingSettings:
    """How long to train, at which precision, and from which weights."""

    start_from: str = setting(
        "",
        "Start from the weights of this run (its best checkpoint), of this checkpoint folder or of "
        "this export for transformers; optimizer and schedule start afresh.",
        is_run=True,
    )
    start_from_average: int = setting(
        1, "Start from the average of that run's latest N checkpoints.", minimum=1
    )
    freeze_embeddings: bool = setting(
        False,
        "Do not train the embeddings and the tied output layer; not available with fused kernels.",
    )
    steps: int | None = setting(
        None,
        "Stop after this step. Cannot change on a resumed run with cosine or "
        "warmup_stable_decay, which end at this step.",
        minimum=1,
        may_change=True,
    )
    epochs: float | None = setting(
        None, "Stop after this many passes over the corpus.", minimum=0, may_change=True
    )
    hours: float | None = setting(
        None,
        "Stop after this much wall time, summed over all attempts of the run; time of steps that "
        "a crash lost does not count.",
        minimum=0,
        may_change=True,
    )
    patience: int | None = setting(
        None, "Stop after this many evaluations without a new best.", minimum=1, may_change=True
    )
    patience_metric: Literal["loss", "bleu"] = setting(
        "loss", "What patience watches, on the first validation set.", may_change=True
    )
    stop_when_gain_unlikely: float | None = setting(
        None,
        "Stop once the probability that 50% more steps would gain 0.02 nats or 0.5 BLEU on the "
        "first validation set, as in the report, is at most this; from the tenth evaluation on "
        "and after the warm-up.",
        minimum=0,
        maximum=0.5,
        may_change=True,
    )
    label_smoothing: float = setting(
        0.1, "Share of the target probability spread over all words.", minimum=0, maximum=0.9
    )
    subword_dropout: float = setting(
        0.0,
        "BPE dropout for small corpora: split words afresh in every epoch, skipping this share "
        "of merges; 0.1 is usual. Learning then takes longer and packing rows "
        "several times as long; on Multi30k it did not help.",
        minimum=0,
        maximum=0.5,
    )
    precision: Precision = setting(
        "float32", "Arithmetic precision; weights and optimizer moments are always float32."
    )
    kernels: Literal["auto", "fused", "compiled", "plain"] = setting(
        "auto",
        "fused: Dragoman's own kernels, for 16-bit precision on NVIDIA GPUs from 2020 on; "
        "compiled: PyTorch's compiler, for GPUs from 2017 on; plain: ordinary PyTorch, anywhere; "
        "auto: the first of these that works.",
        may_change=True,
    )
    seed: int = setting(
        1, "Random seed of the initial weights, dropout and the order of pairs.", minimum=0
    )
    max_skipped_steps: int = setting(
        20,
        "Stop after this many steps in a row without a finite gradient.",
        minimum=1,
        may_change=True,
    )


@dataclass(frozen=True)
class EvaluationSettings:
    """What is measured during training."""

    every_steps: int = setting(
        1_000,
        "Steps between evaluations; there is always one at the end.",
        minimum=1,
        may_change=True,
    )
    train_sample_pairs: int = setting(
        1_000, "Training pairs whose loss is also measured in evaluation mode.", minimum=1
    )
    beam: int = setting(
        1, "Beam size for BLEU during training; 1 is greedy.", minimum=1, maximum=LARGEST_BEAM
    )
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "none"] = setting(
        "13a", "sacreBLEU's tokenizer; none for text that is already tokenised."
    )
    bleu_pairs: int = setting(
        0, "Compute BLEU on at most this many pairs of each set; 0 means all.", minimum=0
    )
    samples: int = setting(
        5,
        "Number of sample sentences that every evaluation writes to samples.jsonl and shows on a "
        "terminal; a log has the first one, when it changes.",
        minimum=0,
    )


@dataclass(frozen=True)
class CheckpointSettings:
    """When to save, and what to keep."""

    every_steps: int = setting(
        1_000,
        "Steps between checkpoints; there is always one at the end.",
        minimum=1,
        may_change=True,
    )
    keep_latest: int = setting(
        3, "Keep this many of the latest checkpoints.", minimum=1, may_change=True
    )
    keep_best: bool = setting(
        True, "Also keep the checkpoints with the best loss and the best BLEU.", may_change=True
    )


@dataclass(frozen=True)
class TranslationSettings:
    """How text is decoded by `translate` and `evaluate`."""

    beam: int = setting(
        4,
        "Beam size; 1 is greedy.",
        minimum=1,
        maximum=LARGEST_BEAM,
        may_change=True,
    )
    patience: int = setting(
        2,
        "A sentence is finished once patience x beam hypotheses have ended.",
        minimum=1,
        maximum=LARGEST_PATIENCE,
        may_change=True,
    )
    length_penalty: float = setting(
        0.6,
        "Alpha: scores are divided by length^alpha.",
        minimum=0,
        maximum=LARGEST_LENGTH_PENALTY,
        may_change=True,
    )
    batch_tokens: int = setting(
        4_096,
        "Source tokens decoded at a time; a GPU decodes far more, in proportion to this.",
        minimum=1,
        may_change=True,
    )


@dataclass(frozen=True)
class DistributedSettings:
    """How several workers share one run."""

    sync: Literal["gradients", "local", "auto"] = setting(
        "gradients",
        "gradients: workers synchronize at every step, and the batches are the same for any "
        "number of workers; so are the losses without dropout, up to rounding (each worker draws "
        "its own dropout). local: each worker takes local_steps steps alone on its share of the "
        "batch, then all take an outer step on the mean of their weights: far fewer bytes, for "
        "slow links. Trade-off: the run then depends on the number of workers, and losses fall "
        "slightly differently. auto: measures links and steps when a run begins and chooses "
        "gradients where they cost under 5% of a step, in float32 or bf16, otherwise local "
        "steps, with local_steps, local_fragments, local_delay and compression to suit the link; "
        "`dragoman check` shows the choice. It is written to the run's config.toml, and a "
        "resumed run keeps it.",
    )
    local_steps: int = setting(32, "Steps between two exchanges, if sync is local.", minimum=1)
    local_fragments: int = setting(
        1,
        "Split the parameters into this many parts that are exchanged in turn while the workers "
        "keep training, so that the link is used evenly.",
        minimum=1,
    )
    local_delay: int | None = setting(
        None,
        "Steps an exchange may take before its outer step is applied, if sync is local (default: "
        "until the next exchange starts); 0 waits for it immediately.",
        minimum=0,
    )
    local_rate: float | None = setting(
        None,
        "Learning rate of local steps, as a multiple of the schedule's, if sync is local (default: "
        "the root of the number of workers, at most 2). Adam divides by the size of a gradient, "
        "and that of a worker's share is larger, being noisier: at the schedule's own rate the "
        "mean of the workers would go less far than one worker with the whole batch.",
        minimum=0,
    )
    outer_learning_rate: float = setting(
        1.0,
        "Learning rate of the outer step, if sync is local; 1 without momentum is plain averaging.",
        minimum=0,
    )
    outer_momentum: float = setting(
        0.0,
        "Nesterov momentum of the outer step, if sync is local; raise it for hundreds of local "
        "steps.",
        minimum=0,
        maximum=0.999,
    )
    compression: Compression = setting(
        "none",
        "How gradients or, with local steps, weight differences are sent: none is float32, bf16 "
        "and fp16 half the bytes; powersgd (gradients only) sends low-rank approximations, a "
        "small fraction of the bytes, and does not save its error feedback; int8, int4 and int2 "
        "(local steps only) keep their rounding errors and send them later.",
    )
    powersgd_rank: int = setting(4, "Rank of powersgd's factors.", minimum=1)
    bucket_megabytes: float = setting(
        4.0,
        "Gradients are sent in buckets of this size during the backward pass; with fused kernels "
        "all at once after it.",
        minimum=0.1,
        may_change=True,
    )
    balance: bool = setting(
        False,
        "Give each worker a share of a step's rows in proportion to its speed, measured before "
        "the first step and slowly adjusted while training: for machines of unequal speed. "
        "Batches and their order do not change. On a GPU shares are sixteenths of a step.",
        may_change=True,
    )
    interface: str = setting(
        "",
        "Network interface to use on every machine (default: the one that routes to the others).",
        may_change=True,
    )
    port: int = setting(
        0,
        "Port of the rendezvous on the launching machine; 0 picks a free one.",
        minimum=0,
        maximum=65_535,
        may_change=True,
    )
    min_workers: int | None = setting(
        None,
        "Continue with as few workers as this when machines are lost (default: wait for all).",
        minimum=1,
        may_change=True,
    )
    wait_seconds: float = setting(
        600.0,
        "How long to wait for missing machines before stopping.",
        minimum=1,
        maximum=LONGEST_WAIT_SECONDS,
        may_change=True,
    )
    timeout_seconds: float = setting(
        120.0,
        "A worker without a heartbeat for this long is treated as dead. Workers wait this long "
        "for each other's messages.",
        minimum=5,
        maximum=LONGEST_WAIT_SECONDS,
        may_change=True,
    )
    max_restarts: int = setting(
        100, "Maximum number of restarts after faults.", minimum=0, may_change=True
    )


@dataclass(frozen=True)
class LoggingSettings:
    """Experiment trackers, in addition to the run folder."""

    trackers: tuple[TrackerKind, ...] = setting(
        ("tensorboard",),
        "tensorboard: files in the run folder. wandb (online, or as set by WANDB_MODE), mlflow "
        "(MLFLOW_TRACKING_URI, or a database in the run folder) and trackio each need, in the "
        "checkout, `pip install -e '.[...]'`. A resumed run continues the same tracked run.",
        may_change=True,
    )


@dataclass(frozen=True)
class NotifySettings:
    """Notifications, sent from the machine on which the command was started."""

    command: str = setting(
        "",
        "Shell command; gets DRAGOMAN_EVENT, DRAGOMAN_RUN and DRAGOMAN_MESSAGE in its "
        "environment, and JSON on its standard input.",
        may_change=True,
    )
    webhook: str = setting(
        "",
        "http:// or https:// URL that receives JSON: event, run, message and, for chat services, "
        "text. Kept from trackers and reports, as the command is.",
        may_change=True,
    )
    on: tuple[NotifyEvent, ...] = setting(
        ("end", "failure", "verdict"),
        "end: the run is complete or was stopped. failure: it ended with an error. verdict: an "
        "answer in the report changed.",
        may_change=True,
    )


@dataclass(frozen=True)
class StageSettings:
    """Different weights of the training texts from a given step on; any number of stages."""

    from_step: int = setting(1, "The first step of the stage.", minimum=1)
    weights: Mapping[str, float] = setting(
        {},
        "Weights by name; texts not named keep their weight under `train`; 0 leaves a text out.",
        minimum=0,
    )


@dataclass(frozen=True)
class Config:
    """A whole config file."""

    corpus: CorpusSettings
    cleaning: CleaningSettings
    vocabulary: VocabularySettings
    model: ModelSettings
    batches: BatchSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    training: TrainingSettings
    evaluation: EvaluationSettings
    checkpoints: CheckpointSettings
    translation: TranslationSettings
    distributed: DistributedSettings
    logging: LoggingSettings
    notify: NotifySettings
    stages: tuple[StageSettings, ...] = ()


def corpus_names(corpus: CorpusSettings) -> list[str]:
    """What each training text is called."""
    return [text.name or f"text-{place}" for place, text in enumerate(corpus.train, start=1)]


def is_mix(config: Config) -> bool:
    """Whether training texts are kept apart; otherwise they are shuffled together."""
    corpus = config.corpus
    plain = ParallelText()
    return (
        bool(config.stages)
        or corpus.temperature != 1
        or any((text.name, text.weight) != (plain.name, plain.weight) for text in corpus.train)
        or len({text.tag for text in corpus.train}) > 1
    )


def has_end(training: TrainingSettings) -> bool:
    """Whether a run with these settings stops by itself; only `train` asks for that."""
    limits = (training.steps, training.epochs, training.hours, training.patience)
    is_limited = any(limit is not None for limit in limits)
    return is_limited or training.stop_when_gain_unlikely is not None

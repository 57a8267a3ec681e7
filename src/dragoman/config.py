"""Every setting on one page: one frozen dataclass per TOML table."""

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
Compression = Literal["none", "bf16", "fp16", "powersgd", "int8", "int4"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
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

    source: str = setting("", "Source side; globs are allowed.", is_path=True)
    target: str = setting("", "Target side, as many files as `source`.", is_path=True)
    tsv: str = setting("", "Instead of both: source, tab, target on each line.", is_path=True)
    tag: str = setting(
        "",
        "A token put before every source sentence, as in <2de>, for many languages in one model.",
    )
    name: str = setting("", "Of training text: what counts and stages call it.")
    weight: float = setting(
        1.0,
        "Of training text: its pairs come this many times as often as those of weight 1.",
        minimum=0,
    )


@dataclass(frozen=True)
class CorpusSettings:
    """Which text to read and where the prepared corpus lies."""

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
        {}, "Named sets watched during training; the first one decides what is best."
    )
    test: Mapping[str, ParallelText] = setting({}, "Named sets for the final score.")
    temperature: float = setting(
        1.0,
        "Evens out the sizes of several training texts: each counts as its size to the power of "
        "1/temperature. With 1 every pair comes equally often, with 5 those of small texts far "
        "more often.",
        minimum=1,
        maximum=100,
    )
    seed: int = setting(1, "Seed of the shuffle.", minimum=0)


@dataclass(frozen=True)
class CleaningSettings:
    """Which training pairs are kept; validation and test sets are never filtered."""

    invalid_utf8: Literal["error", "skip"] = setting(
        "error", "A line that is not UTF-8 stops the preparation, or is dropped and counted."
    )
    drop_control_characters: bool = setting(
        True, "Drop pairs with control characters or Unicode noncharacters."
    )
    max_words: int = setting(80, "Drop pairs with more words than this on a side.", minimum=1)
    max_length_ratio: float = setting(
        9.0,
        "Drop pairs where one side has more than this many times the words of the other.",
        minimum=1,
    )
    drop_duplicates: bool = setting(True, "Keep only the first of identical pairs.")
    drop_identical: bool = setting(False, "Drop pairs whose source equals their target.")
    drop_near_duplicates: bool = setting(
        False, "Keep only the first of pairs that differ in case, marks or blanks alone."
    )
    drop_leaked: bool = setting(
        False, "Drop pairs with a sentence of a validation or test set on either side."
    )
    drop_misaligned: bool = setting(
        False, "Drop stretches of lines whose lengths fit those of neighbouring lines better."
    )
    drop_wrong_language: bool = setting(
        False, "Drop pairs with a side that is clearly in another language; takes time."
    )
    drop_swapped_sides: bool = setting(
        False, "Drop pairs whose sides are each in the other's language; takes time."
    )
    drop_mojibake: bool = setting(
        False, "Drop pairs with text that was once decoded with the wrong encoding."
    )
    drop_markup: bool = setting(
        False, "Drop pairs with HTML, templates or what stands on every page of a site."
    )
    drop_differing_numbers: bool = setting(
        False, "Drop pairs where each side has a number that the other lacks."
    )
    max_tokens: int = setting(
        128,
        "Drop pairs with more subwords than this on a side, the end mark included; never cut.",
        minimum=2,
    )
    normalize_punctuation: bool = setting(
        False, "Replace curly quotes, exotic dashes and spaces by plain ones, here and in input."
    )


@dataclass(frozen=True)
class VocabularySettings:
    """Subwords by sentencepiece, with byte fallback: any text survives a round trip."""

    kind: Literal["bpe", "unigram"] = setting("bpe", "How subwords are found.")
    size: int = setting(
        32_768, "Subwords, 256 bytes and 3 marks included.", minimum=270, maximum=1_000_000
    )
    joint: bool = setting(True, "One vocabulary for both languages, with tied embeddings.")
    sample_pairs: int = setting(
        500_000, "The vocabulary is trained on at most this many pairs.", minimum=1
    )
    character_coverage: float = setting(
        0.9995, "Share of characters with a subword of their own.", minimum=0.9, maximum=1
    )
    model: str = setting("", "An existing joint sentencepiece model.", is_path=True)
    source_model: str = setting("", "An existing source model, if not joint.", is_path=True)
    target_model: str = setting("", "An existing target model, if not joint.", is_path=True)
    from_run: str = setting(
        "",
        "Take the vocabulary of this run, to start from its weights; its validation sets are kept "
        "beside those of the corpus, to see what is forgotten.",
        is_run=True,
    )


@dataclass(frozen=True)
class ModelSettings:
    """The Transformer: a preset, and what to change about it."""

    preset: Literal["tiny", "small", "base", "big", "student"] = setting(
        "base",
        "Layers, d_model, heads, feed_forward: tiny 4, 128, 4, 256; small 6, 256, 4, 1024; "
        "base 6, 512, 8, 2048; big 6, 1024, 16, 4096; student, for CPUs, 12 of the encoder and 2 "
        "of the decoder, 384, 6, 1536.",
    )
    encoder_layers: int | None = setting(
        None, "Instead of the preset's.", minimum=1, maximum=MOST_LAYERS
    )
    decoder_layers: int | None = setting(
        None, "Instead of the preset's.", minimum=1, maximum=MOST_LAYERS
    )
    d_model: int | None = setting(
        None, "Instead of the preset's.", minimum=2, maximum=LARGEST_D_MODEL
    )
    heads: int | None = setting(
        None, "Instead of the preset's.", minimum=1, maximum=LARGEST_D_MODEL
    )
    feed_forward: int | None = setting(
        None, "Instead of the preset's.", minimum=1, maximum=LARGEST_FEED_FORWARD
    )
    dropout: float = setting(0.1, "Of residual branches and embeddings.", minimum=0, maximum=0.9)
    attention_dropout: float = setting(0.1, "Of attention weights.", minimum=0, maximum=0.9)
    relu_dropout: float = setting(0.1, "Inside the feed-forward layer.", minimum=0, maximum=0.9)
    zero_branches: bool = setting(
        False,
        "Every residual branch begins at zero: the last projections of attention and feed-forward "
        "layers start with zeros instead of random weights.",
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
    """What a step is made of; the same for any number of workers."""

    tokens_per_step: int = setting(
        32_768, "Target slots of a step, all workers together; a multiple of row_tokens.", minimum=1
    )
    row_tokens: int = setting(
        128, "Source and target slots of a row; pairs are packed into rows.", minimum=8
    )
    rows_per_device: int | Literal["auto"] = setting(
        "auto", "Rows a device handles at once; what is more is accumulated.", minimum=1
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
        "adam: for all weights. muon: orthogonal updates for the matrices of the layers, Adam for "
        "embeddings, norms and biases; learns more from a step, which takes a little longer.",
    )
    beta1: float = setting(0.9, "Adam's decay of the mean gradient.", minimum=0, maximum=0.9999)
    beta2: float = setting(0.98, "Adam's decay of the mean square.", minimum=0, maximum=0.999999)
    epsilon: float = setting(1e-9, "Added to the root of Adam's mean square.", minimum=0)
    momentum: float = setting(
        0.95, "Muon's decay of the mean gradient, by Nesterov.", minimum=0, maximum=0.9999
    )
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
        "transformer: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). The others "
        "rise linearly to `peak` over warmup_steps, then fall as the root of the step, as a "
        "cosine, not at all, or linearly over the last decay_steps.",
    )
    scale: float = setting(2.0, "Factor of the transformer schedule.", minimum=0)
    peak: float = setting(1e-3, "Highest learning rate of the other schedules.", minimum=0)
    warmup_steps: int = setting(8_000, "Steps of the rise.", minimum=1)
    decay_steps: int = setting(0, "Steps of the fall of warmup_stable_decay.", minimum=0)
    final_fraction: float = setting(
        0.0, "Where cosine and warmup_stable_decay end, as part of the peak.", minimum=0, maximum=1
    )


# The settings that each schedule reads.
SCHEDULE_NEEDS: Mapping[ScheduleKind, frozenset[str]] = {
    "transformer": frozenset({"scale", "warmup_steps"}),
    "inverse_square_root": frozenset({"peak", "warmup_steps"}),
    "cosine": frozenset({"peak", "warmup_steps", "final_fraction"}),
    "constant": frozenset({"peak", "warmup_steps"}),
    "warmup_stable_decay": frozenset({"peak", "warmup_steps", "decay_steps", "final_fraction"}),
}
# Those that end with the run, which then cannot be made longer.
SCHEDULES_WITH_END: tuple[ScheduleKind, ...] = ("cosine", "warmup_stable_decay")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how exactly, and from what."""

    start_from: str = setting(
        "",
        "Start with the weights of this run, by its best checkpoint, of the folder of one of its "
        "checkpoints, or of its export for transformers; optimizer and schedule are new.",
        is_run=True,
    )
    start_from_average: int = setting(
        1, "Start with the mean of the latest so many checkpoints of that run.", minimum=1
    )
    freeze_embeddings: bool = setting(
        False, "Leave the embeddings as they are, tied output included; not with fused kernels."
    )
    steps: int | None = setting(
        None,
        "Stop after this step. Fixed for the schedules that end with it, cosine and "
        "warmup_stable_decay.",
        minimum=1,
        may_change=True,
    )
    epochs: float | None = setting(
        None, "Stop after this many passes over the corpus.", minimum=0, may_change=True
    )
    hours: float | None = setting(
        None,
        "Stop after this much wall time, all attempts of the run together.",
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
        "Stop once half as many steps again are no likelier than this to bring 0.02 nats or 0.5 "
        "BLEU on the first validation set, as the report judges it; from the tenth evaluation on.",
        minimum=0,
        maximum=0.5,
        may_change=True,
    )
    label_smoothing: float = setting(
        0.1, "Share of the target spread over all words.", minimum=0, maximum=0.9
    )
    subword_dropout: float = setting(
        0.0,
        "Cut words anew in every epoch, leaving out this share of BPE's merges, for small corpora; "
        "0.1 is usual. Packing rows then takes several times as long.",
        minimum=0,
        maximum=0.5,
    )
    precision: Precision = setting(
        "float32", "Of the arithmetic; weights and moments are always float32."
    )
    kernels: Literal["auto", "fused", "compiled", "plain"] = setting(
        "auto",
        "fused: our own kernels, for 16-bit precision on NVIDIA GPUs from 2020 on; compiled: what "
        "PyTorch's compiler makes for any GPU since 2017; plain: those of PyTorch, anywhere; auto: "
        "the first of these that run.",
        may_change=True,
    )
    seed: int = setting(1, "Of the first weights, of dropout and of the order of pairs.", minimum=0)
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
        1_000, "Evaluate this often, and at the end.", minimum=1, may_change=True
    )
    train_sample_pairs: int = setting(
        1_000, "Training pairs whose loss is measured in evaluation mode too.", minimum=1
    )
    beam: int = setting(
        1, "Beam of the BLEU during training; 1 is greedy.", minimum=1, maximum=LARGEST_BEAM
    )
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "none"] = setting(
        "13a", "sacreBLEU's tokenizer; none for text that is already tokenised."
    )
    bleu_pairs: int = setting(
        0, "Score BLEU on at most this many pairs of each set; 0 is all.", minimum=0
    )
    samples: int = setting(5, "Sentences shown at every evaluation.", minimum=0)


@dataclass(frozen=True)
class CheckpointSettings:
    """When to save, and what to keep."""

    every_steps: int = setting(
        1_000, "Save this often, and at the end.", minimum=1, may_change=True
    )
    keep_latest: int = setting(3, "Keep this many of the latest.", minimum=1, may_change=True)
    keep_best: bool = setting(
        True, "Keep those of the best loss and the best BLEU too.", may_change=True
    )


@dataclass(frozen=True)
class TranslationSettings:
    """How text is decoded by `translate` and `evaluate`."""

    beam: int = setting(
        4,
        "Hypotheses followed at a time; 1 is greedy.",
        minimum=1,
        maximum=LARGEST_BEAM,
        may_change=True,
    )
    patience: int = setting(
        2,
        "A sentence is done once this times beam hypotheses have ended.",
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
    """How several workers make one run."""

    sync: Literal["gradients", "local", "auto"] = setting(
        "gradients",
        "gradients: workers meet at every step, and the batches are the same however many there "
        "are; so are the losses without dropout, up to rounding (each worker has its own dropout). "
        "local: workers make local_steps steps alone, each on its share of the batch, then take an "
        "outer step on the mean of where they got to: a small part of the bytes, for slow links. "
        "Trade-off: the run then depends on the number of workers, and losses fall a "
        "little differently. auto: links and steps are measured when a run begins; gradients where "
        "they cost under a twentieth of a step, in float32 or bf16, else local steps, with "
        "local_steps, local_fragments, local_delay and compression as the link can carry them; "
        "`dragoman check` tells which. The run's config.toml says what was chosen, and a resumed "
        "run keeps it.",
    )
    local_steps: int = setting(32, "Steps between meetings, if sync is local.", minimum=1)
    local_fragments: int = setting(
        1,
        "Cut the parameters into this many parts that meet one after the other, each travelling "
        "while the workers go on, so that the link is used evenly.",
        minimum=1,
    )
    local_delay: int | None = setting(
        None,
        "Steps that an exchange may travel before its outer step is made, if sync is local "
        "(default: until the next one sets out); 0 waits for it at once.",
        minimum=0,
    )
    outer_learning_rate: float = setting(
        0.7,
        "Of the outer step, if sync is local; 1 with no momentum is plain averaging.",
        minimum=0,
    )
    outer_momentum: float = setting(
        0.3,
        "Nesterov momentum of the outer step, if sync is local; more for hundreds of local steps.",
        minimum=0,
        maximum=0.999,
    )
    compression: Compression = setting(
        "none",
        "How gradients or, with local steps, differences of weights travel: float32, 16 bits "
        "(half the bytes); gradients only: low-rank factors (a small part of the bytes, "
        "approximate; its memory of past errors is not saved); local steps only: 8 or 4 bits, "
        "whose rounding errors are kept and sent later.",
    )
    powersgd_rank: int = setting(4, "Rank of powersgd's factors.", minimum=1)
    bucket_megabytes: float = setting(
        4.0,
        "Gradients are sent in buckets of this size while the backward pass goes on; with fused "
        "kernels all at once, after it.",
        minimum=0.1,
        may_change=True,
    )
    balance: bool = setting(
        False,
        "Share the rows of a step out in proportion to what each worker was measured to do before "
        "the first step, and correct that slowly while training: for machines of unequal speed. "
        "The batches and their order stay as they are. With plain kernels.",
        may_change=True,
    )
    interface: str = setting(
        "",
        "Network interface to use on every machine (default: the one on the way to the others).",
        may_change=True,
    )
    port: int = setting(
        0,
        "Port of the rendezvous on the machine that launches; 0 takes a free one.",
        minimum=0,
        maximum=65_535,
        may_change=True,
    )
    min_workers: int | None = setting(
        None,
        "Go on with as few workers as this when machines are lost (default: wait for all).",
        minimum=1,
        may_change=True,
    )
    wait_seconds: float = setting(
        600.0,
        "Wait this long for missing machines, then stop.",
        minimum=1,
        maximum=LONGEST_WAIT_SECONDS,
        may_change=True,
    )
    timeout_seconds: float = setting(
        120.0,
        "A worker whose process stands still for this long is treated as dead. Workers wait as "
        "long for each other's messages.",
        minimum=5,
        maximum=LONGEST_WAIT_SECONDS,
        may_change=True,
    )
    max_restarts: int = setting(
        100, "Restart at most this often after faults.", minimum=0, may_change=True
    )


@dataclass(frozen=True)
class LoggingSettings:
    """Where the run is told of, beside its own folder."""

    trackers: tuple[TrackerKind, ...] = setting(
        ("tensorboard",),
        "tensorboard: files in the run folder. wandb (online, or as WANDB_MODE says), mlflow (at "
        "MLFLOW_TRACKING_URI, or a database in the run folder) and trackio each need `pip install "
        "dragoman[...]`. A resumed run goes on as the same tracked run.",
        may_change=True,
    )


@dataclass(frozen=True)
class NotifySettings:
    """Who is told of the run, and when; by the machine that the command was given on."""

    command: str = setting(
        "",
        "Given to the shell, with DRAGOMAN_EVENT, DRAGOMAN_RUN and DRAGOMAN_MESSAGE, and JSON on "
        "its standard input.",
        may_change=True,
    )
    webhook: str = setting(
        "",
        "An http or https address that gets JSON: event, run, message and, for chats, text.",
        may_change=True,
    )
    on: tuple[NotifyEvent, ...] = setting(
        ("end", "failure", "verdict"),
        "end: the run is complete or was stopped. failure: it ended with an error. verdict: an "
        "answer of the report has changed.",
        may_change=True,
    )


@dataclass(frozen=True)
class StageSettings:
    """From a step on, other weights of the training texts; any number of stages."""

    from_step: int = setting(1, "The first step of the stage.", minimum=1)
    weights: Mapping[str, float] = setting(
        {},
        "Weights by name, instead of those under `train`, which hold for all that are not named; "
        "0 leaves a text out.",
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

"""Which settings contradict each other."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from urllib.parse import urlsplit

from dragoman.config import (
    FEW_BITS,
    SCHEDULE_TRAITS,
    SET_NAME,
    TAG,
    BatchSettings,
    Config,
    CorpusSettings,
    DistributedSettings,
    ModelSettings,
    NotifySettings,
    OptimizerSettings,
    StageSettings,
    TranslationSettings,
    VocabularySettings,
    corpus_names,
    shape_of,
)
from dragoman.documents import LINE
from dragoman.errors import UserError

# In [vocabulary]: what names an existing one, and what no longer matters then.
WHERE_A_VOCABULARY_IS = ("model", "source_model", "target_model", "from_run")
IDLE_WITH_A_VOCABULARY = ("kind", "size", "sample_pairs", "character_coverage")

_MAY_CONTAIN = "may only contain letters, digits, '-', '_' and '.', and not begin with '.'"


def contradictions(config: Config, given: Collection[str]) -> list[str]:
    """Problems that no single setting shows; `given` names the settings not left to default."""
    return [
        *_corpus_contradictions(config.corpus),
        *_mix_contradictions(config.corpus, config.stages),
        *_cleaning_contradictions(config),
        *_vocabulary_contradictions(config.vocabulary, given),
        *model_contradictions(config.model),
        *_batch_contradictions(config),
        *_training_contradictions(config),
        *_optimizer_contradictions(config.optimizer, given),
        *_schedule_contradictions(config, given),
        *_evaluation_contradictions(config, given),
        *_translation_contradictions(config.translation, given),
        *_distributed_contradictions(config.distributed, given),
        *_powersgd_contradictions(config, given),
        *_notify_contradictions(config.notify, given),
    ]


def _corpus_contradictions(corpus: CorpusSettings) -> Iterator[str]:
    if not corpus.folder:
        yield 'corpus.folder is missing: name a folder, for example folder = "prepared/mine"'
    if not corpus.train:
        yield (
            "corpus.train is missing: name at least one text, for example train = "
            '[{ source = "train.en", target = "train.de" }]'
        )
    texts = [(f"corpus.train[{index}]", text) for index, text in enumerate(corpus.train)]
    for kind, named in (("validation", corpus.validation), ("test", corpus.test)):
        texts += [(f"corpus.{kind}.{name}", text) for name, text in named.items()]
        for name in named:
            if not re.fullmatch(SET_NAME, name):
                yield f"corpus.{kind}.{name}: a name {_MAY_CONTAIN}"
    for side in ("source", "target"):
        if not re.fullmatch(LINE, getattr(corpus, f"{side}_language")):
            yield f"corpus.{side}_language: must not contain control characters"
        if not getattr(corpus, f"{side}_language").strip():
            yield f"corpus.{side}_language is empty: give a code, such as en"
    for name, text in texts:
        if bool(text.source) != bool(text.target):
            missing = "target" if text.source else "source"
            yield f"{name}.{missing} is missing: a parallel text has two sides"
        elif bool(text.source) == bool(text.tsv):
            yield f"{name} needs either source and target, or tsv"


def _mix_contradictions(corpus: CorpusSettings, stages: Sequence[StageSettings]) -> Iterator[str]:
    """Problems of weights, names, tags and stages."""
    names = corpus_names(corpus)
    sets = {f"corpus.{kind}": getattr(corpus, kind) for kind in ("validation", "test")}
    for section, named in sets.items():
        for name, text in named.items():
            if text.name or text.weight != 1:
                yield f"{section}.{name}: name and weight are for training text; remove them"
    texts = [*corpus.train, *(text for named in sets.values() for text in named.values())]
    for tag in sorted({text.tag for text in texts} - {""}):
        if not re.fullmatch(TAG, tag):
            yield f"the tag {tag!r} must be in angle brackets without spaces, for example <2de>"
    for place, name in enumerate(names):
        if not re.fullmatch(SET_NAME, name):
            yield f"corpus.train[{place}].name = {name!r} {_MAY_CONTAIN}"
        if name in names[:place]:
            yield f"corpus.train[{place}].name: two texts are named {name}; rename one"
    weights = {name: text.weight for name, text in zip(names, corpus.train, strict=True)}
    if weights and not any(weights.values()):
        yield "corpus.train: every weight is 0; give at least one text a weight"
    has_effect = len(names) > 1
    if not has_effect and (
        corpus.temperature != 1 or stages or any(w != 1 for w in weights.values())
    ):
        yield "weights, corpus.temperature and stages need several texts under corpus.train"
    for place, stage in enumerate(stages):
        if place and stage.from_step <= stages[place - 1].from_step:
            yield (
                f"stages[{place}].from_step = {stage.from_step} must come after the previous stage"
            )
        for name in stage.weights.keys() - weights.keys():
            yield f"stages[{place}].weights.{name}: no such text; known: {', '.join(names)}"
        if not any({**weights, **stage.weights}.values()):
            yield f"stages[{place}].weights: every weight is 0; give at least one text a weight"


def _cleaning_contradictions(config: Config) -> Iterator[str]:
    """Filters that could not take a single pair."""
    texts = config.corpus.train
    for name in ("drop_swapped_sides", "drop_wrong_language"):
        if getattr(config.cleaning, name) and texts and all(text.tag for text in texts):
            yield (
                f"cleaning.{name} has no effect on texts with a tag, which does not say which "
                "languages they are in, and every text has one; remove it"
            )


def _vocabulary_contradictions(
    vocabulary: VocabularySettings, given: Collection[str]
) -> Iterator[str]:
    per_side = [name for name in ("source_model", "target_model") if getattr(vocabulary, name)]
    if vocabulary.joint and per_side:
        yield (
            f"vocabulary.{per_side[0]} needs joint = false; use vocabulary.model for a joint "
            "vocabulary"
        )
    if not vocabulary.joint and vocabulary.model:
        yield "vocabulary.model is for joint = true; give source_model and target_model instead"
    if len(per_side) == 1:
        yield f"vocabulary.{per_side[0]} needs the model of the other side too"
    if vocabulary.from_run and (vocabulary.model or per_side):
        yield "vocabulary.from_run and vocabulary models exclude each other; remove one"
    if vocabulary.model or per_side or vocabulary.from_run:
        for name in IDLE_WITH_A_VOCABULARY:
            if f"vocabulary.{name}" in given:
                yield f"vocabulary.{name} has no effect on an existing vocabulary; remove it"


def model_contradictions(model: ModelSettings) -> Iterator[str]:
    """Problems of the sizes of a model."""
    shape = shape_of(model)
    if shape.d_model % (2 * shape.heads):
        yield f"model.d_model = {shape.d_model} must be a multiple of 2 x heads = {2 * shape.heads}"


def _batch_contradictions(config: Config) -> Iterator[str]:
    batches, cleaning = config.batches, config.cleaning
    if batches.tokens_per_step % batches.row_tokens:
        fitting = max(1, batches.tokens_per_step // batches.row_tokens) * batches.row_tokens
        yield (
            f"batches.tokens_per_step = {batches.tokens_per_step} is not a multiple of "
            f"batches.row_tokens = {batches.row_tokens}; {fitting} is"
        )
    if batches.row_tokens < cleaning.max_tokens:
        yield (
            f"batches.row_tokens = {batches.row_tokens} cannot hold pairs of cleaning.max_tokens "
            f"= {cleaning.max_tokens}; raise the first or lower the second"
        )


def _training_contradictions(config: Config) -> Iterator[str]:
    training = config.training
    for name in ("epochs", "hours"):
        if getattr(training, name) == 0:
            yield f"training.{name} = 0 ends before the first step; give more, or remove it"
    if training.start_from_average > 1 and not training.start_from:
        yield "training.start_from_average has no effect without training.start_from"
    if training.freeze_embeddings and not training.start_from:
        yield "training.freeze_embeddings would freeze random embeddings; set training.start_from"
    if training.freeze_embeddings and config.optimizer.weight_decay:
        yield (
            "training.freeze_embeddings keeps embeddings unchanged, optimizer.weight_decay "
            "shrinks them; remove one"
        )


def _optimizer_contradictions(
    optimizer: OptimizerSettings, given: Collection[str]
) -> Iterator[str]:
    for name in ("momentum", "matrix_rate"):
        if optimizer.kind != "muon" and f"optimizer.{name}" in given:
            yield f'optimizer.{name} needs kind = "muon", but kind is "{optimizer.kind}"'


def _schedule_contradictions(config: Config, given: Collection[str]) -> Iterator[str]:
    schedule, steps = config.schedule, config.training.steps
    traits = SCHEDULE_TRAITS[schedule.kind]
    others = {item.name for item in fields(schedule)} - {"kind", *traits.reads}
    for name in sorted(others):
        if f"schedule.{name}" in given:
            yield f"schedule.{name} has no effect on the {schedule.kind} schedule; remove it"
    if traits.ends_with_run and steps is None:
        yield f"the {schedule.kind} schedule needs training.steps to know its end"
    elif traits.ends_with_run and (steps or 0) <= schedule.warmup_steps + schedule.decay_steps:
        yield (
            f"training.steps = {steps} leaves no room after schedule.warmup_steps = "
            f"{schedule.warmup_steps} and decay_steps = {schedule.decay_steps}"
        )
    if "decay_steps" in traits.reads and not schedule.decay_steps:
        yield "schedule.decay_steps is missing: over how many steps should the learning rate fall?"


def _evaluation_contradictions(config: Config, given: Collection[str]) -> Iterator[str]:
    if not config.corpus.validation:
        for name in ("patience", "stop_when_gain_unlikely"):
            if getattr(config.training, name) is not None:
                yield f"training.{name} needs a validation set: set corpus.validation"
        for name in sorted(given):
            # `dragoman evaluate` scores test sets with the same tokenizer.
            if name.startswith("evaluation.") and name != "evaluation.bleu_tokenize":
                yield (
                    f"{name} has no effect without a validation set; remove it or set "
                    "corpus.validation"
                )
    if "training.patience_metric" in given and not config.training.patience:
        yield "training.patience_metric has no effect without training.patience"


def _translation_contradictions(
    translation: TranslationSettings, given: Collection[str]
) -> Iterator[str]:
    if translation.beam == 1 and "translation.patience" in given:
        yield "translation.patience has no effect with translation.beam = 1; remove it"


def _notify_contradictions(notify: NotifySettings, given: Collection[str]) -> Iterator[str]:
    problem = _problem_of_address(notify.webhook) if notify.webhook else ""
    if problem:  # Without the address, which may be a secret.
        yield f"notify.webhook {problem}; write it like https://chat.example/hooks/1"
    if "notify.on" in given and not (notify.command or notify.webhook):
        yield "notify.on has no effect without notify.command or notify.webhook"


def _problem_of_address(address: str) -> str:
    """Why nothing can be sent there; empty if something may."""
    if re.search(r"[\s\x00-\x1f\x7f]", address):
        return "contains a space or a control character"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:  # Of a host in brackets, or of a port.
        return f"is no valid URL ({error})"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    if not parts.hostname or port == 0:
        return "names no host" if not parts.hostname else "has port 0"
    if "@" in parts.netloc:
        return "has a user name or password before the host, which cannot be sent"
    return "" if f"{parts.path}{parts.query}".isascii() else "has letters that must be %-encoded"


def _distributed_contradictions(
    distributed: DistributedSettings, given: Collection[str]
) -> Iterator[str]:
    local = {"local_steps", "local_fragments", "local_delay"}
    rates = {"local_rate", "outer_learning_rate", "outer_momentum"}
    if distributed.sync == "auto":
        for name in sorted(local | {"compression"}):
            if f"distributed.{name}" in given:
                yield (
                    f'distributed.{name} has no effect with sync = "auto", which chooses it; '
                    "remove one"
                )
        return
    if distributed.sync == "gradients":
        if distributed.compression in FEW_BITS:
            yield (
                f'distributed.compression = "{distributed.compression}" needs sync = "local": so '
                "few bits suffice for weight differences, not for gradients"
            )
        for name in sorted(local | rates):
            if f"distributed.{name}" in given:
                yield f'distributed.{name} needs sync = "local", but sync is "gradients"'
        return
    if "distributed.bucket_megabytes" in given:
        yield 'distributed.bucket_megabytes is for gradients and sync is "local"; remove it'
    if distributed.local_steps == 1 and distributed.compression in FEW_BITS:
        yield (
            f'distributed.compression = "{distributed.compression}" needs local_steps of 2 or '
            "more: what rounding keeps back follows only with the next exchange"
        )
    elif distributed.local_fragments > distributed.local_steps:
        yield (
            f"distributed.local_fragments = {distributed.local_fragments} is more than "
            f"local_steps = {distributed.local_steps}"
        )
    elif (distributed.local_delay or 0) > distributed.local_steps:
        yield (
            f"distributed.local_delay = {distributed.local_delay} is more than local_steps = "
            f"{distributed.local_steps}: the next exchange would start before it arrives"
        )


def _powersgd_contradictions(config: Config, given: Collection[str]) -> Iterator[str]:
    compression = config.distributed.compression
    if compression != "powersgd":
        if "distributed.powersgd_rank" in given:
            yield (
                'distributed.powersgd_rank needs compression = "powersgd", but compression is '
                f'"{compression}"'
            )
        return
    if config.distributed.sync == "local":
        yield (
            "distributed.compression = 'powersgd' only works on gradients; with sync = \"local\" "
            "choose none, bf16, fp16, int8, int4 or int2"
        )
    if config.training.precision == "float16":
        yield (
            "distributed.compression = 'powersgd' remembers gradients, whose scale "
            'training.precision = "float16" changes; choose bfloat16 or float32'
        )


def refuse_idle_workers(batches: BatchSettings, workers: int) -> None:
    """Refuse more workers than there are rows to share."""
    if batches.rows_per_step < workers:
        raise UserError(
            f"batches.tokens_per_step = {batches.tokens_per_step} is {batches.rows_per_step} "
            f"rows, fewer than the {workers} workers; raise it"
        )

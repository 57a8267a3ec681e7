"""The run that another one starts from: its weights, its vocabulary, its validation sets."""

from dataclasses import dataclass
from pathlib import Path

from dragoman.config import Config, ModelShape, shape_of
from dragoman.config_file import load_saved_config
from dragoman.console import say
from dragoman.corpus.inputs import OldRun, OldSet
from dragoman.corpus.manifest import SIDES, Manifest
from dragoman.corpus.store import PreparedCorpus
from dragoman.corpus.subwords import Subwords
from dragoman.documents import decode
from dragoman.errors import UserError
from dragoman.files import sha256
from dragoman.inference.export_folder import INFO, SUBWORDS, TENSORS, ExportInfo, read_info
from dragoman.inference.load import choose_checkpoints, load_mean, run_manifest
from dragoman.inference.pegasus import pegasus_weights, transformer_weights
from dragoman.inference.tokenizer_json import tokenizer_ids
from dragoman.model.transformer import Transformer, load_weights
from dragoman.records import ParentRun
from dragoman.runs.folder import RunFolder
from dragoman.runs.provenance import read_provenance
from dragoman.runs.tensors import read_tensors


@dataclass(frozen=True)
class Parent:
    """A run, and which of its checkpoints the first weights are the mean of."""

    run: RunFolder
    checkpoints: list[str]

    def described(self) -> ParentRun:
        """As a run's provenance has it."""
        return ParentRun(self.run.name, str(self.run.path.resolve()), tuple(self.checkpoints))

    def load(self, model: Transformer) -> None:
        """Give a model the weights; shapes that differ are refused by name."""
        _refuse_other_shape(model, shape_of(load_saved_config(self.run.config).model))
        load_mean(model, self.run.checkpoints, self.checkpoints)

    def vocabulary(self, side: str) -> str:
        """Checksum of a side's subwords."""
        return run_manifest(self.run).vocabulary_of(side).sha256

    def vocabulary_settings(self) -> str:
        """What a config must say to have the same subwords."""
        return f'vocabulary.from_run = "{self.run.path}"'


@dataclass(frozen=True)
class ExportedParent:
    """A model that was exported for Transformers."""

    folder: Path
    info: ExportInfo

    def described(self) -> ParentRun:
        """As a run's provenance has it."""
        return ParentRun(self.info.run, str(self.folder.resolve()), self.info.checkpoints)

    def load(self, model: Transformer) -> None:
        """Give a model the weights; shapes that differ are refused by name."""
        source, target = (Subwords((self.folder / name).read_bytes()) for name in SUBWORDS)
        is_joint = model.source_embedding is model.target_embedding
        config = decode((self.folder / "config.json").read_bytes())
        theirs = ModelShape(
            config["encoder_layers"],
            config["decoder_layers"],
            config["d_model"],
            config["encoder_attention_heads"],
            config["encoder_ffn_dim"],
        )
        _refuse_other_shape(model, theirs)
        positions = config["max_position_embeddings"]
        ids = tokenizer_ids(source, target, is_joint)
        weights = read_tensors(self.folder / TENSORS, pegasus_weights(model, ids, positions))
        load_weights(model, transformer_weights(model, weights))

    def vocabulary(self, side: str) -> str:
        """Checksum of a side's subwords."""
        return sha256(self.folder / SUBWORDS[SIDES.index(side)])

    def vocabulary_settings(self) -> str:
        """What a config must say to have the same subwords."""
        source, target = (self.folder / name for name in SUBWORDS)
        if sha256(source) == sha256(target):
            return f'vocabulary.model = "{source}"'
        return f'vocabulary.source_model = "{source}" and target_model = "{target}"'


def _refuse_other_shape(model: Transformer, theirs: ModelShape) -> None:
    """Name the settings that would fit; a number of heads shows in no tensor."""
    own = vars(model.shape)
    different = [
        f"model.{name} = {value} (not {own[name]})"
        for name, value in vars(theirs).items()
        if value != own[name]
    ]
    if different:
        raise UserError(f"training.start_from: those weights need {', '.join(different)}")


def find_parent(config: Config) -> Parent | ExportedParent:
    """Find what `training.start_from` names: a run, one of its checkpoints, or an export."""
    path, average = Path(config.training.start_from), config.training.start_from_average
    if (path / INFO).is_file():
        if average > 1:
            raise UserError("training.start_from_average: start_from names an export")
        return ExportedParent(path, read_info(path, "transformers"))
    run, checkpoint = RunFolder(path), "best"
    if not run.exists():
        inside = RunFolder(path.parent.parent)
        if path.parent != inside.checkpoints or not inside.exists():
            raise UserError(
                f"training.start_from: {path} is neither a run, nor a checkpoint of one, nor an "
                "export for transformers; give the folder of a run, for example runs/general"
            )
        if average > 1:
            raise UserError(
                "training.start_from_average has no effect: start_from names a single checkpoint"
            )
        run, checkpoint = inside, path.name.removeprefix("step-")
    keep = load_saved_config(run.config).checkpoints.keep_latest
    try:
        names = choose_checkpoints(run, checkpoint, average, keep, "start_from_average =")
    except UserError as error:
        raise UserError(f"training.start_from: {error}") from None
    return Parent(run, names)


def refuse_other_vocabulary(
    parent: Parent | ExportedParent, manifest: Manifest, corpus: Path
) -> None:
    """Token ids mean the same in both runs, or nothing that was learnt is of use."""
    for side in SIDES:
        if manifest.vocabulary_of(side).sha256 != parent.vocabulary(side):
            raise UserError(
                f"{corpus} was prepared with a different {side} vocabulary than "
                f"{parent.described().folder}: set {parent.vocabulary_settings()} and run "
                "`dragoman prepare` again"
            )


def find_old_run(config: Config) -> OldRun | None:
    """What a corpus takes over from `vocabulary.from_run`."""
    if not config.vocabulary.from_run:
        return None
    run = RunFolder(Path(config.vocabulary.from_run))
    if not run.exists():
        raise UserError(
            f"vocabulary.from_run: no run at {run.path}; give the folder of a run, for example "
            "runs/general"
        )
    theirs = load_saved_config(run.config)
    if theirs.vocabulary.joint != config.vocabulary.joint:
        one_or_two = (
            "one vocabulary for both languages"
            if theirs.vocabulary.joint
            else "one vocabulary per language"
        )
        raise UserError(
            f"vocabulary.joint = {str(config.vocabulary.joint).lower()}, but {run.path} has "
            f"{one_or_two}; change the setting"
        )
    models = run.subwords[:1] if theirs.vocabulary.joint else run.subwords
    return OldRun(run.name, models, _old_sets(run, theirs))


def _old_sets(run: RunFolder, theirs: Config) -> dict[str, OldSet]:
    """The validation sets that a run was watched on, if they are still there."""
    was = run_manifest(run)
    try:
        corpus = PreparedCorpus(Path(theirs.corpus.folder))
    except UserError as error:
        say(
            "forgetting will not be measured, because the old validation sets are not "
            f"available: {error}"
        )
        return {}
    found = {}
    for one in corpus.evaluation_sets("validation"):
        names = [f"validation.{one.name}.{side}.txt" for side in SIDES]
        if all(was.files.get(name) == corpus.manifest.files[name] for name in names):
            found[one.name] = OldSet(one.source, one.target, one.tag)
        else:
            say(f"{corpus.folder}: {one.name} is not the set that {run.path} was trained with")
    return found


def parent_of(run: RunFolder) -> Parent:
    """The run that an existing one started from."""
    recorded = read_provenance(run).parent
    if recorded is None:
        raise UserError(f"--blend: {run.path} did not start from another run")
    parent = RunFolder(Path(recorded.folder))
    if (parent.path / INFO).is_file():
        raise UserError(f"--blend: {run.path} started from an export; only runs can be blended")
    if not parent.exists():
        raise UserError(
            f"--blend: the run that {run.path} started from is not at {parent.path}: put it back "
            "there"
        )
    checkpoints = [name for name in recorded.checkpoints if (parent.checkpoints / name).is_dir()]
    if len(checkpoints) < len(recorded.checkpoints):
        gone = sorted(set(recorded.checkpoints) - set(checkpoints))
        raise UserError(f"--blend: {parent.path} no longer has the checkpoint {gone[0]}")
    return Parent(parent, checkpoints)

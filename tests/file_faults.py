"""Damage to every file of a run, a prepared corpus and an export, and the commands that read it."""

import hashlib
import json
import random
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.report.page import templating
from fault_outcomes import Ended, Finding, Outcome, judge_refusal, run_forked, worst
from mutations import mutate
from support import SMALL, run_dragoman, write_small_text

LINES = b"one two three\nseven\n\nnine nine four unheard-of \xf0\x9f\x98\x80\n"
PAGES = ("report", "whatif", "compare")
EVERY_READER = (*PAGES, "translate", "evaluate", "export", "train")
# Where a mutation lies, as patterns in the folder, and the commands that read it.
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "config.toml": (("run/config.toml",), EVERY_READER),
    "provenance.json": (("run/provenance.json",), EVERY_READER),
    "metrics.jsonl": (("run/metrics.jsonl",), (*PAGES, "export", "train")),
    "samples.jsonl": (("run/samples.jsonl",), ("report", "train")),
    "monitor": (("run/monitor/*.jsonl",), (*PAGES, "train")),
    "checkpoints.json": (
        ("run/checkpoints/checkpoints.json",),
        ("report", "translate", "export", "train"),
    ),
    "state.json": (("run/checkpoints/step-*/state.json",), ("report", "translate", "train")),
    "weights": (("run/checkpoints/step-*/weights.safetensors",), ("translate", "export", "train")),
    "optimizer": (("run/checkpoints/step-*/optimizer.safetensors",), ("translate", "train")),
    "vocabularies": (("run/source.model", "run/target.model"), ("translate", "evaluate", "train")),
    "corpus": (
        ("prepared/manifest.json", "prepared/manifest.json", "prepared/*"),
        ("evaluate", "check", "train"),
    ),
    "export": (("run/export/ctranslate2/*",), ("translate-export",)),
}
# Text that people may edit: a value that is valid is obeyed.
EDITABLE = ("config.toml", "dragoman.json")
# What commands write beside the files they read; each is compared by itself, or made anew.
WRITTEN = ("report", "export", "tensorboard", "checkpoints", "train.log", "config.toml", ".lock")
STEPS_OF_TWO, STEPS, MORE_STEPS = 8, 20, 24


@dataclass
class World:
    """A folder with a corpus, a run and its export, and what the commands make of them."""

    folder: Path
    pristine: Path
    streams: Path
    references: dict[str, object] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """The run that is damaged."""
        return self.folder / "run"

    def restore(self) -> None:
        """Put all back as it was."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.pristine, self.folder)


def build_world(place: Path) -> World:
    """Train a small run on two workers, export it, and note what every command says of it."""
    world = World(place / "world", place / "pristine", place / "streams")
    world.streams.mkdir(parents=True)
    config = write_small_text(world.folder) / "config.toml"
    (world.folder / "precious").mkdir()
    (world.folder / "precious" / "thesis.txt").write_text("not ours\n")
    train = ("train", config, "--run", world.run, *SMALL)
    for words in (
        ("prepare", config, "--processes", "1", *SMALL),
        # Then one worker, as after the damage: steps that are made again must have the same bits.
        (*train, "--workers", "2", f"training.steps={STEPS_OF_TWO}"),
        (*train, f"training.steps={STEPS}"),
        _words(world, "export"),
    ):
        ended = run_dragoman(*words)
        assert ended.returncode == 0, ended.stderr
    shutil.copytree(world.run, world.folder / "other")
    shutil.copytree(world.folder, world.pristine)
    for verb in (*EVERY_READER, "check", "translate-export"):
        told = _run(world, verb, draws_pictures=True)
        assert told.code in (0, 3), (verb, told)
        world.references[verb] = _result(world, verb, told)
        if verb == "train":
            world.references["kept"] = sorted(_checkpoints(world))
        world.restore()
    return world


def try_damage(world: World, kind: str, generator: random.Random) -> Finding:
    """Damage one file, run what reads it, and put all back."""
    patterns, verbs = FILES[kind]
    found = [sorted(path for path in world.folder.glob(one) if path.is_file()) for one in patterns]
    damaged = generator.choice(generator.choice([paths for paths in found if paths]))
    name = damaged.relative_to(world.folder)
    what = f"{name}: {damage(damaged, generator)}"
    before = _contents(world.folder)
    draws_pictures = generator.random() < 0.1
    findings = [judge(world, verb, name.name, draws_pictures) for verb in verbs]
    findings.append(_find_loss(world, before, name))
    world.restore()
    found_worst = worst(findings)
    return Finding(found_worst.outcome, f"{what}: {found_worst.detail}")


def damage(path: Path, generator: random.Random) -> str:
    """One flipped bit, one mutation, or the file is gone or another thing."""
    chance = generator.random()
    if chance < 0.4:
        content = bytearray(path.read_bytes())
        place, bit = generator.randrange(max(len(content), 1)), generator.randrange(8)
        if content:
            content[place] ^= 1 << bit
        path.write_bytes(content)
        return f"bit {bit} of byte {place} flipped"
    if chance < 0.94:
        return mutate(path, generator)
    path.unlink()
    if chance < 0.97:
        return "removed"
    path.mkdir()
    return "a folder in its place"


def judge(world: World, verb: str, name: str, draws_pictures: bool = False) -> Finding:
    """Run one command after damage to the file of that name."""
    ended = _run(world, verb, draws_pictures)
    refusal = judge_refusal(ended, lines_allowed=50 if name == "config.toml" else 1)
    if refusal and not (verb == "check" and ended.code == 3):
        return Finding(refusal.outcome, f"{verb}: {refusal.detail}")
    result = _result(world, verb, ended)
    if result == world.references[verb]:
        return Finding(Outcome.IDENTICAL)
    is_obeyed = verb in PAGES or name in EDITABLE
    return Finding(Outcome.AS_EDITED if is_obeyed else Outcome.LOST, f"{verb}: another result")


def _words(world: World, verb: str) -> list[str | Path]:
    folder, run = world.folder, world.run
    match verb:
        case "train":
            more = f"training.steps={MORE_STEPS}"
            return ["train", folder / "config.toml", "--run", run, *SMALL, more]
        case "check":
            return ["check", folder / "config.toml", *SMALL]
        case "compare":
            return ["compare", run, folder / "other", "--output", run / "report" / "compared"]
        case "export":
            return ["export", run, "--to", "ctranslate2", "--check-pairs", "2"]
        case "evaluate":
            return ["evaluate", run, "--beam", "1"]
        case "translate-export":
            return ["translate", run, "--engine", "ctranslate2"]
        case _:
            return [verb, run]


def _run(world: World, verb: str, draws_pictures: bool) -> Ended:
    now = (world.pristine / "run" / "metrics.jsonl").stat().st_mtime + 1_000

    def before() -> None:
        if verb in PAGES:
            time.time = lambda: now
        if not draws_pictures:
            # It takes most of the time.
            vars(templating)["render_svg"] = lambda *_: "<svg/>"

    return run_forked(_words(world, verb), world.streams, LINES, before)


def _result(world: World, verb: str, ended: Ended) -> object:
    """What a command made that must not change without a word."""
    match verb:
        case "train":
            return _final_state(world.run)
        case "report":
            return (world.run / "report" / "report.md").read_bytes()
        case "compare":
            return (world.run / "report" / "compared" / "compare.md").read_bytes()
        case "export":
            folder = world.run / "export" / "ctranslate2"
            names = ("model.bin", "source.model", "target.model", "config.json")
            return [_hash(folder / name) for name in names if (folder / name).exists()]
        case "check":
            return None
        case _:
            return ended.output


def _final_state(run: Path) -> object:
    """Final tensors, and the loss of every step that was made after the damage."""
    name = f"step-{MORE_STEPS:08d}"
    tensors = [
        _hash(run / "checkpoints" / name / file)
        for file in ("weights.safetensors", "optimizer.safetensors")
    ]
    losses = {}
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        with suppress(ValueError, RecursionError):  # Damaged; those of later steps are not.
            step = json.loads(line)
            if (
                isinstance(step, dict)
                and step.get("kind") == "train"
                and step.get("step") in range(STEPS + 1, MORE_STEPS + 1)
            ):
                losses[step["step"]] = (step.get("loss"), step.get("gradient_norm"))
    return tensors, losses


def _checkpoints(world: World) -> list[str]:
    return [path.name for path in (world.run / "checkpoints").glob("step-*")]


def _find_loss(world: World, before: dict[Path, str], damaged: Path) -> Finding:
    """Whether anything that was intact is gone or changed; logs may only grow."""
    after = _contents(world.folder)
    lost = [
        path
        for path, content in before.items()
        if after.get(path) != content and not _may_change(world, path)
    ]
    trained = world.run / "checkpoints" / f"step-{MORE_STEPS:08d}"
    kept = world.references["kept"]
    assert isinstance(kept, list)
    if trained.exists():
        lost += [Path(name) for name in kept if name not in _checkpoints(world)]
    else:
        lost += [
            path
            for path, content in before.items()
            if "checkpoints" in path.parts
            and after.get(path) != content
            and path.name != "checkpoints.json"
        ]
    logs = [world.run / name for name in ("metrics.jsonl", "samples.jsonl")]
    for log in logs:
        name = log.relative_to(world.folder)
        if name != damaged and not _begins_with(log, world.pristine / name):
            lost.append(name)
    if lost:
        return Finding(Outcome.LOST, f"lost: {', '.join(map(str, lost))}")
    return Finding(Outcome.IDENTICAL)


def _begins_with(log: Path, pristine: Path) -> bool:
    start = pristine.read_bytes()
    return log.is_file() and log.read_bytes().startswith(start)


def _may_change(world: World, path: Path) -> bool:
    logs = ("metrics.jsonl", "samples.jsonl", "provenance.json")
    if path.parts[0] != "run":
        return False
    return path.parts[1] in (*WRITTEN, *logs, "monitor")


def _contents(folder: Path) -> dict[Path, str]:
    return {
        path.relative_to(folder): _hash(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""What `distributed.sync = "auto"` chooses: measured when a run begins, kept when it resumes."""

from dataclasses import replace
from typing import Any

from dragoman.cluster.links import SECONDS_PER_LINK, measure_links, neighbours
from dragoman.cluster.processes import Workers
from dragoman.config import Config, DistributedSettings
from dragoman.config_file import load_saved_config
from dragoman.prediction.step_model import before_training
from dragoman.prediction.sync_choice import SyncChoice, choose_sync, in_words
from dragoman.runs.folder import RunFolder
from dragoman.training.trial import trial_parts, try_steps

CHOSEN = ("sync", "compression", "local_steps", "local_fragments", "local_delay")


def settle_sync(config: Config, run: RunFolder, workers: Workers) -> tuple[Config, str]:
    """Replace "auto" by how this run synchronizes; all workers learn the same, and why."""
    if config.distributed.sync != "auto":
        return config, ""
    found = [one for one in workers.gather_json(_chosen_before(run)) if one]
    if found:
        kept = replace(config.distributed, **found[0])
        words = f'keeps sync = "{kept.sync}", as this run began; only a new run (--run) measures'
        return _with(config, kept), f'distributed.sync = "auto" {words}'
    choice = _measure(config, workers)
    chosen = choice.apply_to(config.distributed)
    words = f'distributed.sync = "auto" chooses {in_words(choice.way)}: {choice.reason}'
    return _with(config, chosen), words


def _chosen_before(run: RunFolder) -> dict[str, Any] | None:
    """What the run folder here says of an earlier attempt."""
    if not run.exists():
        return None
    before = load_saved_config(run.config).distributed
    return {name: getattr(before, name) for name in CHOSEN}


def _with(config: Config, distributed: DistributedSettings) -> Config:
    return replace(config, distributed=distributed)


def _measure(config: Config, workers: Workers) -> SyncChoice:
    """Time links, passes and sums with a model that is thrown away."""
    plain, parts = trial_parts(config, workers)
    step = try_steps(plain, parts, workers)
    links = measure_links(workers, neighbours(workers), SECONDS_PER_LINK)
    machines, is_balanced = len(set(workers.hosts)), config.distributed.balance
    return choose_sync(before_training(step, machines, links, is_balanced=is_balanced))

"""What `distributed.sync = "auto"` chooses: measured when a run begins, kept when it resumes."""

from dataclasses import replace
from typing import Any

from dragoman.cluster.links import measure_links, neighbours
from dragoman.cluster.processes import Workers
from dragoman.config import Config, DistributedSettings
from dragoman.config_file import load_saved_config
from dragoman.corpus.rows import Position
from dragoman.prediction.step_model import before_training
from dragoman.prediction.sync_choice import SyncChoice, choose_sync
from dragoman.runs.folder import RunFolder
from dragoman.training.calibration import calibrate
from dragoman.training.parts import choose_rows_per_device, make_parts

SECONDS_PER_LINK = 0.2
CHOSEN = ("sync", "compression", "local_steps", "local_fragments", "local_delay")


def settle_sync(config: Config, run: RunFolder, workers: Workers) -> tuple[Config, str]:
    """Replace "auto" by how this run synchronizes; all workers learn the same, and why."""
    if config.distributed.sync != "auto":
        return config, ""
    found = [one for one in workers.gather_json(_chosen_before(run)) if one]
    if found:
        return _with(config, replace(config.distributed, **found[0])), ""
    choice = _measure(config, workers)
    chosen = choice.apply_to(config.distributed)
    way = f"{chosen.compression} gradients".replace("none ", "")
    if chosen.sync == "local":
        way = (
            f"{chosen.local_steps} local steps in {chosen.local_fragments} {chosen.compression} "
            f"fragments that may take {chosen.local_delay} steps to arrive"
        )
    return _with(config, chosen), f'distributed.sync = "auto" chooses {way}: {choice.reason}'


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
    plain = _with(config, replace(config.distributed, sync="gradients", compression="none"))
    parts = make_parts(plain, workers)
    rows = choose_rows_per_device(plain, parts, workers)
    parts.step.begin(rows)
    batch = next(parts.stream.steps(Position())).share(workers.rank, workers.count)
    measured = calibrate(parts.step, parts.model, batch, workers, plain)
    exchange = measured.seconds_all_reduce
    return choose_sync(
        before_training(
            machines=len(set(workers.hosts)),
            workers=workers.count,
            parameters=measured.parameters,
            target_tokens=batch.target_tokens,
            seconds_compute=max(measured.seconds_compute_by_worker),
            seconds_optimizer=0.0,  # A small part, which whole steps would have to tell.
            seconds_exposed=exchange or 0.0,
            seconds_all_reduce=exchange,
            links=measure_links(workers, neighbours(workers), SECONDS_PER_LINK),
            device=workers.device.type,
        )
    )

"""Measure machines, links and a few steps; worker 0 reports the findings to the launcher."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.check.facts import Findings, MachineFacts, StepFacts
from dragoman.cluster.agreement import Facts, agree
from dragoman.cluster.hosts import Host, unreachable
from dragoman.cluster.launch import Job, launch
from dragoman.cluster.links import all_pairs, measure_links
from dragoman.cluster.network import interface_speeds
from dragoman.cluster.processes import Workers, join_workers
from dragoman.cluster.supervision import supervised
from dragoman.config import Config
from dragoman.config_file import dump_config
from dragoman.corpus.rows import Position
from dragoman.documents import encode, parse
from dragoman.errors import UserError
from dragoman.model.transformer import count_parameters
from dragoman.runs.provenance import describe_machine
from dragoman.training.calibration import calibrate
from dragoman.training.parts import Parts, choose_rows_per_device, make_parts

SECONDS_PER_LINK = 0.5
STEPS_TO_TRY = 3
WAIT_SECONDS = 30.0


def check(config: Config) -> Findings | None:
    """Look at this machine, perhaps as one of several workers; None if another process tells."""
    with supervised() as supervision:
        workers = join_workers(config.distributed)
        findings = measure(config, workers)
        supervision.conclude(workers, json.dumps(encode(findings)))
        workers.leave()
        return findings if workers.is_first and not supervision.is_launched else None


def check_on(hosts: Sequence[Host], config: Config) -> Findings:
    """Look at several workers, here or on other machines, from one place."""
    if silent := unreachable(hosts):
        raise UserError(
            f"{', '.join(silent)}: no answer over ssh; try `ssh {silent[0]} true` yourself"
        )
    settings = replace(
        config.distributed, max_restarts=0, min_workers=None, wait_seconds=WAIT_SECONDS
    )
    config_text = dump_config(config, with_defaults=False)
    result = launch(hosts, Job(["-m", "dragoman", "check"], config_text), settings)
    return parse(Findings, json.loads(result))


def measure(config: Config, workers: Workers) -> Findings:
    """Find out everything; all workers take part and learn the same."""
    # The other sync settings are predicted from this one.
    distributed = replace(config.distributed, sync="gradients", compression="none")
    plain = replace(config, distributed=distributed)
    parts = make_parts(plain, workers)
    leads = agree(Facts.collect(config, parts.corpus.identity, parts.model.parameters()), workers)
    machines = workers.gather_json(encode(describe_here(workers.hosts[workers.rank])))
    links = measure_links(workers, all_pairs(workers), SECONDS_PER_LINK)
    rows = choose_rows_per_device(plain, parts, workers)
    parts.step.begin(rows)
    return Findings(
        hosts=workers.hosts,
        machines=tuple(
            replace(parse(MachineFacts, machine), clock_lead_seconds=lead)
            for rank, (machine, lead) in enumerate(zip(machines, leads, strict=True))
            if workers.hosts.index(workers.hosts[rank]) == rank
        ),
        links=tuple(links),
        step=_try_steps(plain, parts, workers),
    )


def _try_steps(config: Config, parts: Parts, workers: Workers) -> StepFacts:
    """Calibrate, then make a few whole steps; the weights are thrown away."""
    batch = next(parts.stream.steps(Position())).share(workers.rank, workers.count)
    measured = calibrate(parts.step, parts.model, batch, workers, config)
    results = []
    for step in range(1, STEPS_TO_TRY + 1):
        parts.step.queue(batch, step, learning_rate=0.0, seconds_waited=0.0)
        results.append(parts.step.result())
    return StepFacts(
        parameters=count_parameters(parts.model),
        target_tokens=batch.target_tokens,
        seconds_compute_by_worker=measured.seconds_compute_by_worker,
        seconds_optimizer=min(one.seconds_optimizer for one in results),
        seconds_exposed=min(one.seconds_exposed_communication for one in results),
        seconds_all_reduce=measured.seconds_all_reduce,
        device=workers.device.type,
    )


def describe_here(host: str) -> MachineFacts:
    """What this machine has."""
    machine = describe_machine()
    return MachineFacts(
        host=host,
        cores=machine.cores,
        memory_bytes=machine.memory_bytes,
        gpus=tuple(gpu.name for gpu in machine.gpus),
        gpu_memory_bytes=tuple(gpu.memory_bytes for gpu in machine.gpus),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        interfaces=interface_speeds(),
    )

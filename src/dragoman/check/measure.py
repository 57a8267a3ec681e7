"""Measure machines, links and a few steps; worker 0 reports the findings to the launcher."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.check.facts import Findings, MachineFacts
from dragoman.cluster.agreement import Facts, agree
from dragoman.cluster.hosts import Host, unreachable
from dragoman.cluster.launch import Job, launch
from dragoman.cluster.links import all_pairs, measure_links
from dragoman.cluster.network import interface_speeds
from dragoman.cluster.processes import Workers, join_workers
from dragoman.cluster.supervision import supervised
from dragoman.config import Config
from dragoman.config_file import dump_config
from dragoman.documents import encode, parse
from dragoman.errors import UserError
from dragoman.runs.provenance import describe_machine
from dragoman.training.trial import trial_parts, try_steps

SECONDS_PER_LINK = 0.5  # Longer than before training: this is what a check is for.
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
    job = Job(["-m", "dragoman", "check"], config_text, has_checkpoints=False)
    return parse(Findings, json.loads(launch(hosts, job, settings)))


def measure(config: Config, workers: Workers) -> Findings:
    """Find out everything; all workers take part and learn the same."""
    plain, parts = trial_parts(config, workers)
    leads = agree(Facts.collect(config, parts.corpus.identity, parts.model.parameters()), workers)
    machines = workers.gather_json(encode(describe_here(workers.hosts[workers.rank])))
    links = measure_links(workers, all_pairs(workers), SECONDS_PER_LINK)
    return Findings(
        hosts=workers.hosts,
        machines=tuple(
            replace(parse(MachineFacts, machine), clock_lead_seconds=lead)
            for rank, (machine, lead) in enumerate(zip(machines, leads, strict=True))
            if workers.hosts.index(workers.hosts[rank]) == rank
        ),
        links=tuple(links),
        step=try_steps(plain, parts, workers),
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

"""A large text through a model in parts, in this process or as one of several workers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from dragoman.cluster.hosts import Host
from dragoman.cluster.launch import Job, launch
from dragoman.cluster.processes import Workers, join_workers
from dragoman.cluster.supervision import Supervision, supervised
from dragoman.config import DistributedSettings
from dragoman.console import say
from dragoman.documents import encode, parse
from dragoman.errors import UserError
from dragoman.files import describe_file
from dragoman.inference.decoder import (
    Decoder,
    LineOutput,
    TrainedChoice,
    decode_lines,
    make_decoder,
    render,
)
from dragoman.inference.parts import (
    PartsDone,
    PartsJob,
    PartsRequest,
    count_parts,
    describe_input,
    make_output_folder,
    translate_parts,
)
from dragoman.inference.sampling import Sampling

# Whoever is there goes on: parts are nobody's in particular.
SPREAD = DistributedSettings(min_workers=1)


@dataclass(frozen=True)
class TextRequest:
    """A text to translate, by what, and how."""

    choice: TrainedChoice
    output: LineOutput
    engine: str
    sampling: Sampling | None
    parts: PartsRequest


def translate_file(request: TextRequest) -> PartsDone | None:
    """Make the parts that are missing, perhaps as one of several workers; None if another tells."""
    with supervised() as supervision:
        supervision.note_parts(count_parts(request.parts.folder))
        # Under torchrun and Slurm nobody heeds what is meant for our launcher.
        workers = join_workers(SPREAD if supervision.is_launched else DistributedSettings())
        made_before = _begin_attempt(request.parts.folder, workers, supervision)
        text = describe_input(request.parts.input)
        make_output_folder(request.parts.folder)
        decoder = make_decoder(request.choice, request.output, request.engine, request.sampling)
        job = PartsJob(
            text,
            request.parts.lines,
            tuple(describe_file(path).sha256 for path in decoder.weights),
            decoder.arithmetic,
            decoder.settings,
            request.output.n_best,
            request.output.with_scores,
            request.sampling,
            decoder.text.tag,
            request.choice.blend,
        )
        _refuse_other_folders(request.parts.folder, workers)
        done = _make_parts(request, decoder, job, workers, supervision)
        made = done.made + made_before
        done = replace(done, made=made, found=done.parts - made - done.busy)
        supervision.conclude(workers, json.dumps(encode(done)))
        workers.leave()
        return done if workers.is_first and not supervision.is_launched else None


def translate_file_on(hosts: Sequence[Host], words: Sequence[str]) -> PartsDone:
    """Give the same command to several workers, here or on other machines, until all is made."""
    job = Job(["-m", "dragoman", *words], has_checkpoints=False)
    return parse(PartsDone, json.loads(launch(hosts, job, SPREAD)))


def _begin_attempt(folder: Path, workers: Workers, supervision: Supervision) -> int:
    """Say why the workers begin again; on worker 0, how many parts earlier attempts made."""
    made_before = 0
    if workers.is_first:
        there = count_parts(folder)  # The others wait to hear of the attempt, and make none yet.
        made_before = there - supervision.note_parts_found(there)
    attempt = supervision.begin_attempt(workers)
    if workers.is_first and attempt and attempt.number:
        say(f"restarted ({attempt.reason})")
    return made_before


def _make_parts(
    request: TextRequest,
    decoder: Decoder,
    job: PartsJob,
    workers: Workers,
    supervision: Supervision,
) -> PartsDone:
    def translated(lines: Sequence[bytes], first: int) -> str:
        supervision.note_parts(count_parts(request.parts.folder))
        return render(decoder.translate, request.output, decode_lines(lines, first))

    done = translate_parts(request.parts, job, translated, waits=workers.count > 1)
    return replace(done, made=int(sum(workers.gather_number(done.made))))


def _refuse_other_folders(folder: Path, workers: Workers) -> None:
    """Machines that do not share the folder would each make everything."""
    if workers.count == 1:
        return
    sign = folder / f".{workers.broadcast(uuid4().hex)}"
    if workers.is_first:
        sign.touch()
    workers.barrier()  # Nobody looks before it is there.
    seen = workers.gather_number(sign.exists())
    if workers.is_first:
        sign.unlink()
    if not all(seen):
        other = workers.hosts[seen.index(0.0)]
        raise UserError(
            f"{folder.absolute()} on {other} is not the one on {workers.hosts[0]}: with --hosts, "
            "--output must be a folder that all machines share"
        )

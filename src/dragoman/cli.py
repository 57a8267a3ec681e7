"""The commands, nothing else; heavy imports wait until a command needs them."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.arguments import PROBLEMS_FOUND, STOPPED, parse
from dragoman.child_process import (
    QUIET,
    QUIET_VARIABLE,
    SPIN,
    SPIN_VARIABLE,
    die_with_agent,
    is_launched,
)
from dragoman.cluster.world import read_world, told_once_per_machine
from dragoman.config import Config, has_end
from dragoman.config_file import load_config
from dragoman.console import open_closed_streams, printable, protect_console, say
from dragoman.contradictions import refuse_idle_workers
from dragoman.errors import SystemFault, UserError, explain, is_disk_full, is_lack_of_memory
from dragoman.model_arguments import read_choice
from dragoman.stop_signals import INTERRUPTED
from dragoman.text_arguments import (
    read_augment,
    read_pairs,
    read_parts,
    read_sampling,
    refuse_ignored,
)
from dragoman.worker_arguments import read_hosts, refuse_processes

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Host
    from dragoman.corpus.inputs import OldRun
    from dragoman.inference.parts import PartsDone
    from dragoman.inference.text_parts import TextRequest
    from dragoman.training.stopping import Stop


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit with one of EXIT_CODES."""
    die_with_agent()
    os.environ.setdefault(QUIET_VARIABLE, QUIET)
    os.environ.setdefault(SPIN_VARIABLE, SPIN)
    open_closed_streams()
    protect_console()
    parsed = parse(arguments)
    try:
        _refuse_odd_names(sys.argv[1:] if arguments is None else arguments)
        VERBS[parsed.verb](parsed)
    except UserError as error:
        _fail(str(error), 2)
    except SystemFault as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        # Who reads our output has had enough; Python must not try to give them the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        is_system = is_disk_full(error) or error.errno in (errno.EIO, errno.EMFILE, errno.ENFILE)
        _fail(explain(error), 1 if is_system else 2)
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        reason = (str(error) or "it is used up").splitlines()[0].split("DefaultCPUAllocator: ")[-1]
        _fail(f"not enough memory: {reason}; use a smaller model, batch or beam", 1)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The first is enough.
        _fail("interrupted", INTERRUPTED)


def _refuse_odd_names(words: Sequence[str]) -> None:
    """Refuse names that no page, JSON or TOML could hold, before hours of work end at one."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        raise UserError("the current folder no longer exists: change to another one") from None
    for name in (*words, here):
        if any("\ud800" <= character <= "\udfff" for character in name):
            encoding = sys.getfilesystemencoding()
            raise UserError(f"{name!r}: not valid {encoding}: rename it")


def _fail(message: str, code: int) -> None:
    for line in message.splitlines():
        say(f"dragoman: {line}")
    sys.exit(code)


def _demo(arguments: argparse.Namespace) -> None:
    from dragoman.demo import run_demo

    _end(run_demo(arguments.folder))


def _prepare(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    refuse_processes(arguments.processes)

    from dragoman.corpus.prepare import prepare
    from dragoman.corpus.summary import summarize
    from dragoman.inspection.command import inspect_prepared

    old = _old_run(config)
    print(summarize(prepare(config, arguments.processes, old)))
    inspect_prepared(config, arguments.processes, old)


def _inspect(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    refuse_processes(arguments.processes)

    from dragoman.inspection.command import inspect_corpus

    inspect_corpus(config, arguments.processes, _old_run(config))


def _old_run(config: Config) -> "OldRun | None":
    if not config.vocabulary.from_run:
        return None  # Finding one imports torch.

    from dragoman.inference.parent import find_old_run

    return find_old_run(config)


def _train(arguments: argparse.Namespace) -> None:
    with told_once_per_machine():
        config = load_config(arguments.config, arguments.overrides)
        if not has_end(config.training):
            raise UserError(
                f"{arguments.config}: the run would never end: set training.steps, epochs, hours, "
                "patience or stop_when_gain_unlikely"
            )
        hosts = _hosts(arguments, config)

        from dragoman.runs.tracker_kinds import refuse_missing

        refuse_missing(config.logging.trackers)

    from dragoman.beside_training import attach_report, notified, watched
    from dragoman.training.start import train, train_on

    name = arguments.run or arguments.config.stem
    is_first = read_world().rank == 0  # Of those that torchrun or Slurm started.
    with watched(name, is_asked_for=arguments.watch and is_first), notified(config, name):
        stop = train_on(hosts, config, name) if hosts else train(config, name)
    if stop is not None:
        attach_report(config, name)
    _end(stop)


def _end(stop: "Stop | None") -> None:
    """Tell scripts whether to give the same command again."""
    from dragoman.training.stopping import Stop

    if stop is Stop.SIGNAL:
        sys.exit(STOPPED)


def _check(arguments: argparse.Namespace) -> None:
    with told_once_per_machine():
        config = load_config(arguments.config, arguments.overrides)
        hosts = _hosts(arguments, config)

    from dragoman.check.measure import check, check_on
    from dragoman.check.page import page
    from dragoman.check.problems import problems

    findings = check_on(hosts, config) if hosts else check(config)
    if findings is None:
        return  # One of several workers: the launcher speaks.
    print(printable(page(findings, config)))
    if problems(findings, config):
        sys.exit(PROBLEMS_FOUND)


def _hosts(arguments: argparse.Namespace, config: Config) -> "list[Host]":
    """The machines asked for; none if this process does the work itself."""
    hosts = read_hosts(arguments)
    refuse_idle_workers(config.batches, sum(host.workers for host in hosts))
    return hosts


def _evaluate(arguments: argparse.Namespace) -> None:
    if (arguments.source is None) != (arguments.reference is None):
        raise UserError("--source and --reference must be given together")
    if arguments.source and arguments.set:
        raise UserError(
            "--set selects sets of the corpus, --source other text: give only one of them"
        )

    from dragoman.inference.commands import evaluate_run

    evaluate_run(
        read_choice(arguments),
        arguments.source,
        arguments.reference,
        arguments.set,
        arguments.output,
    )


def _translate(arguments: argparse.Namespace) -> None:
    refuse_ignored(arguments)

    from dragoman.inference.commands import translate_lines
    from dragoman.inference.decoder import LineOutput
    from dragoman.inference.text_parts import TextRequest

    choice = read_choice(arguments)
    output = LineOutput(arguments.n_best, arguments.scores or arguments.n_best > 1)
    sampling = read_sampling(arguments) if arguments.sample else None
    parts = read_parts(arguments)
    if not parts:
        translate_lines(choice, output, arguments.engine, sampling)
        return
    done = _make_parts(arguments, TextRequest(choice, output, arguments.engine, sampling, parts))
    if done:
        print(done.told(parts.folder))


def _make_parts(arguments: argparse.Namespace, text: "TextRequest") -> "PartsDone | None":
    """Translate a text here or by workers; None in those, for whom the launcher speaks."""
    from dragoman.inference.text_parts import translate_file, translate_file_on

    # Workers are given the same command, and must not launch others.
    hosts = [] if is_launched() else read_hosts(arguments)
    return translate_file_on(hosts, arguments.words) if hosts else translate_file(text)


def _augment(arguments: argparse.Namespace) -> None:
    text = read_augment(arguments)
    if is_launched():
        _make_parts(arguments, text)
        return
    refuse_processes(arguments.processes)
    pairs = read_pairs(arguments, text)

    from dragoman.inference.augment import told, write_pairs

    done = _make_parts(arguments, text)
    if done is None:
        return  # One of several workers of torchrun or Slurm, the first of which speaks.
    print(done.told(text.parts.folder))
    if done.busy:
        say("the pairs are written once all parts are there: give the same command again then")
        return
    for line in told(write_pairs(pairs, done.parts), pairs.folder):
        print(line)


def _export(arguments: argparse.Namespace) -> None:
    from dragoman.inference.export import ExportRequest, export_run
    from dragoman.inference.model_card import Verdict
    from dragoman.report.answers import answers_now
    from dragoman.runs.folder import find_run

    run = find_run(arguments.run)
    verdicts = [Verdict(one.question, one.headline, one.answer) for one in answers_now(run.path)]
    request = ExportRequest(
        arguments.to,
        arguments.quantization,
        arguments.checkpoint or "best",
        1 if arguments.average is None else arguments.average,
        arguments.output,
        None if arguments.no_check else arguments.check_pairs,
        arguments.blend,
    )
    export_run(run, request, verdicts)


def _serve(arguments: argparse.Namespace) -> None:
    from dragoman.serve.command import ServeRequest, serve

    given = vars(arguments) | {"run": "", "average": None, "blend": None}
    names = [field.name for field in fields(ServeRequest) if field.name != "choice"]
    choice = read_choice(argparse.Namespace(**given))
    serve(ServeRequest(choice=choice, **{name: given[name] for name in names}))


def _report(arguments: argparse.Namespace) -> None:
    from dragoman.report.page.report_page import write_report
    from dragoman.runs.folder import find_evidence

    print(write_report(find_evidence(arguments.run).path, output=arguments.output))


def _watch(arguments: argparse.Namespace) -> None:
    from dragoman.report.live.server import LivePage
    from dragoman.runs.folder import find_evidence, new_run

    if not 0 <= arguments.port <= 65_535:
        raise UserError(f"--port {arguments.port}: must be between 0 and 65535")
    run = new_run(arguments.run) if arguments.wait else find_evidence(arguments.run)
    page = LivePage(run, arguments.port)
    with suppress(KeyboardInterrupt):  # The usual way to end it is no failure.
        print(f"watch {run.path}: {page.address}", flush=True)
        page.serve_forever()


def _whatif(arguments: argparse.Namespace) -> None:
    from dragoman.report.page.whatif_table import WhatifOptions, whatif_command
    from dragoman.runs.folder import find_evidence

    names = [field.name for field in fields(WhatifOptions)]
    options = WhatifOptions(**{name: getattr(arguments, name) for name in names})
    whatif_command(find_evidence(arguments.run).path, options)


def _compare(arguments: argparse.Namespace) -> None:
    from dragoman.report.comparison.comparison_page import compare_runs
    from dragoman.runs.folder import find_evidence

    first, second = (find_evidence(name).path for name in (arguments.first, arguments.second))
    print(compare_runs(first, second, arguments.output))


def _settings(_: argparse.Namespace) -> None:
    from dragoman.settings_page import render_settings

    print(render_settings(), end="")


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "demo": _demo,
    "inspect": _inspect,
    "prepare": _prepare,
    "train": _train,
    "check": _check,
    "evaluate": _evaluate,
    "translate": _translate,
    "augment": _augment,
    "export": _export,
    "serve": _serve,
    "report": _report,
    "watch": _watch,
    "whatif": _whatif,
    "compare": _compare,
    "settings": _settings,
}

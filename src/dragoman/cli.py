"""The verbs, nothing else; heavy imports wait until a verb needs them."""

import argparse
import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import __version__
from dragoman.config import has_end
from dragoman.config_file import load_config
from dragoman.console import say
from dragoman.errors import SystemFault, UserError

if TYPE_CHECKING:
    from dragoman.inference.commands import TrainedChoice


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit: 0 done, 1 the system's fault, 2 the user's."""
    parsed = _parse(arguments)
    try:
        parsed.verb(parsed)
    except UserError as error:
        _fail(str(error), 2)
    except SystemFault as error:
        _fail(str(error), 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        system = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)
        _fail(f"{where}{error.strerror or error}", 1 if system else 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    for line in message.splitlines():
        say(f"dragoman: {line}")
    sys.exit(code)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    # argparse gives up on overrides that stand behind an option; they are welcome anywhere.
    parsed, rest = parser.parse_known_args(arguments)
    unknown = [word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        parsed.overrides += rest
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dragoman",
        description="Train translation models across machines; learn the truth about the run.",
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    demo = verbs.add_parser("demo", help="the whole story on the embedded corpus")
    demo.add_argument("--folder", type=Path, default=Path("demo"), help="where to put everything")
    demo.set_defaults(verb=_demo)

    prepare = verbs.add_parser("prepare", help="raw text -> prepared corpus")
    _add_config(prepare)
    prepare.add_argument("--processes", type=int, help="worker processes (default: all cores)")
    prepare.set_defaults(verb=_prepare)

    train = verbs.add_parser("train", help="train, or go on with a run")
    _add_config(train)
    train.add_argument("--workers", type=int, metavar="N", help="worker processes on this machine")
    train.add_argument("--hosts", metavar="A:2,B:2", help="machines and their workers, over ssh")
    train.add_argument(
        "--run", "--name", help="name under runs/, or a path (default: the config's name)"
    )
    train.set_defaults(verb=_train)

    evaluate = verbs.add_parser("evaluate", help="loss, BLEU and chrF of a trained model")
    _add_trained(evaluate)
    evaluate.add_argument("--source", type=Path, help="a file to translate (default: test sets)")
    evaluate.add_argument("--reference", type=Path, help="its reference translation")
    evaluate.set_defaults(verb=_evaluate)

    translate = verbs.add_parser("translate", help="translate standard input, line by line")
    _add_trained(translate)
    translate.add_argument("--n-best", type=int, default=1, metavar="N", help="best N, with scores")
    translate.set_defaults(verb=_translate)

    report = verbs.add_parser("report", help="answer the questions everyone asks of a run")
    report.add_argument("run", metavar="RUN", help="a run's name or folder")
    report.set_defaults(verb=_report)

    compare = verbs.add_parser("compare", help="two runs: what changed, what it did")
    compare.add_argument("first", metavar="RUN", help="a run's name or folder")
    compare.add_argument("second", metavar="RUN", help="another one")
    compare.add_argument("--output", type=Path, default=Path("compare"), help="folder to write to")
    compare.set_defaults(verb=_compare)

    settings = verbs.add_parser("settings", help="print every setting with its default")
    settings.set_defaults(verb=_settings)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument("overrides", nargs="*", metavar="a.b=c", help="settings to override")


def _add_trained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step")
    parser.add_argument("--average", type=int, default=1, metavar="N", help="mean of the last N")
    parser.add_argument("--beam", type=int, help="instead of the run's setting")
    parser.add_argument("--length-penalty", type=float, help="instead of the run's setting")


def _demo(arguments: argparse.Namespace) -> None:
    from dragoman.demo import run_demo

    run_demo(arguments.folder)


def _prepare(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)

    from dragoman.corpus.prepare import prepare
    from dragoman.corpus.summary import summarize

    print(summarize(prepare(config, arguments.processes)))


def _train(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    if not has_end(config.training):
        raise UserError(
            f"{arguments.config}: no end: set training.steps, epochs, hours or patience"
        )

    if arguments.workers is not None and arguments.workers < 1:
        raise UserError(f"--workers {arguments.workers}: must be at least 1")
    if arguments.workers is not None and arguments.hosts:
        raise UserError("--workers is for this machine, --hosts for others: give one of them")

    from dragoman.cluster.launch import Host, parse_hosts
    from dragoman.training.start import train, train_on

    name = arguments.run or arguments.config.stem
    if arguments.hosts:
        train_on(parse_hosts(arguments.hosts), config, name)
    elif arguments.workers and arguments.workers > 1:
        train_on([Host("", arguments.workers)], config, name)
    else:
        train(config, name)


def _evaluate(arguments: argparse.Namespace) -> None:
    if (arguments.source is None) != (arguments.reference is None):
        raise UserError("--source and --reference go together")

    from dragoman.inference.commands import evaluate_run

    evaluate_run(_choice(arguments), arguments.source, arguments.reference)


def _translate(arguments: argparse.Namespace) -> None:
    from dragoman.inference.commands import translate_lines

    translate_lines(_choice(arguments), arguments.n_best)


def _choice(arguments: argparse.Namespace) -> "TrainedChoice":
    from dragoman.inference.commands import TrainedChoice

    names = ("run", "checkpoint", "average", "beam", "length_penalty")
    return TrainedChoice(**{name: getattr(arguments, name) for name in names})


def _report(arguments: argparse.Namespace) -> None:
    from dragoman.report.render import write_report
    from dragoman.runs.folder import find_run

    print(write_report(find_run(arguments.run).path))


def _compare(arguments: argparse.Namespace) -> None:
    from dragoman.report.compare import compare_runs
    from dragoman.runs.folder import find_run

    first, second = (find_run(name).path for name in (arguments.first, arguments.second))
    print(compare_runs(first, second, arguments.output))


def _settings(_: argparse.Namespace) -> None:
    from dragoman.settings_page import render_settings

    print(render_settings(), end="")

"""The verbs, nothing else; heavy imports wait until a verb needs them."""

import argparse
import errno
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from dragoman import __version__
from dragoman.config import Precision, has_end
from dragoman.config_file import load_config
from dragoman.console import say
from dragoman.errors import SystemFault, UserError
from dragoman.report.whatif import COMPRESSED

if TYPE_CHECKING:
    from dragoman.cluster.launch import Host
    from dragoman.inference.commands import TrainedChoice
    from dragoman.training.stopping import Stop

QUANTIZATIONS = (
    *("float32", "float16", "bfloat16", "int16"),
    *("int8", "int8_float32", "int8_float16", "int8_bfloat16"),
)

PROBLEMS_FOUND = 3
STOPPED = 4
EXIT_CODES = (
    "exit codes: 0 done; 1 a fault of the system; 2 a mistake in what was asked for; "
    f"{PROBLEMS_FOUND} check has found problems; {STOPPED} a signal stopped the training, which "
    "can go on; 130 interrupted"
)

DESCRIPTIONS = {
    "demo": "Make a small corpus, train on it with two workers, translate sentences that the model "
    "has never seen, and write a report. The same command again repeats nothing.",
    "prepare": "Clean the text that CONFIG names, cut it into subwords, shuffle it and write it to "
    "corpus.folder. Does nothing if text and settings are those of the corpus there.",
    "train": "Train on a prepared corpus. Ctrl-C saves and ends; the same command goes on.",
    "check": "Measure machines, links and a few steps of the model, and predict how long a step "
    "and the whole run will take.",
    "evaluate": "Print loss, BLEU and chrF with 95% intervals and sacreBLEU's signatures, on the "
    "test sets of the run's corpus (on its validation sets if it has no test sets).",
    "translate": "Translate standard input to standard output, a line for a line.",
    "export": "Write a model for CTranslate2, check that it translates as Dragoman does, and write "
    "a model card.",
    "report": "Write a page that answers whether a run is trained, whether it overfits, where its "
    "time went and whether the network was the bottleneck.",
    "whatif": "Predict a run's speed with another network, other machines or another way to meet, "
    "from its own measurements.",
    "compare": "Write a page with what two runs have in common, what differs, and what came of it.",
    "settings": "Print a page with every setting of a config, its default and what it does.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit with one of EXIT_CODES."""
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
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    demo = verbs.add_parser("demo", help="the whole story on the embedded corpus")
    demo.add_argument(
        "--folder", type=Path, default=Path("demo"), help="where to put everything (default: demo)"
    )
    demo.set_defaults(verb=_demo)

    prepare = verbs.add_parser("prepare", help="raw text -> prepared corpus")
    _add_config(prepare)
    prepare.add_argument("--processes", type=int, help="worker processes (default: all cores)")
    prepare.set_defaults(verb=_prepare)

    train = verbs.add_parser("train", help="train, or go on with a run")
    _add_config(train)
    _add_workers(train)
    train.add_argument(
        "--run", "--name", help="name under runs/, or a path (default: the config's name)"
    )
    train.set_defaults(verb=_train)

    check = verbs.add_parser("check", help="look at machines and links before spending hours")
    _add_config(check)
    _add_workers(check)
    check.set_defaults(verb=_check)

    evaluate = verbs.add_parser("evaluate", help="loss, BLEU and chrF of a trained model")
    _add_trained(evaluate)
    evaluate.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME",
        help="a set of the corpus, as in dev or validation.dev; may be given several times",
    )
    evaluate.add_argument("--source", type=Path, help="a file to translate instead of a set")
    evaluate.add_argument("--reference", type=Path, help="its reference translation")
    evaluate.add_argument(
        "--output", type=Path, metavar="FOLDER", help="keep translations there, in NAME.txt"
    )
    evaluate.set_defaults(verb=_evaluate)

    translate = verbs.add_parser("translate", help="translate standard input, line by line")
    _add_trained(translate)
    translate.add_argument(
        "--n-best",
        type=int,
        default=1,
        metavar="N",
        help="the best N of every line, each on a line of its own: score, tab, text; the score is "
        "the log-probability divided by length^length_penalty (default: the best alone, as text)",
    )
    translate.add_argument(
        "--engine",
        choices=["dragoman", "ctranslate2"],
        default="dragoman",
        help="our own decoder (the default), or an export (then RUN may be its folder)",
    )
    translate.set_defaults(verb=_translate)

    export = verbs.add_parser("export", help="a trained model for other programs")
    _add_weights(export)
    export.add_argument("--to", choices=["ctranslate2"], required=True, help="the format")
    export.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="float32",
        help="of the weights (default: float32)",
    )
    export.add_argument("--output", type=Path, help="a folder (default: RUN/export/ctranslate2)")
    parity = export.add_mutually_exclusive_group()
    parity.add_argument(
        "--check-pairs",
        type=int,
        default=500,
        metavar="N",
        help="compare with our own decoder on N validation pairs (default: 500)",
    )
    parity.add_argument("--no-check", action="store_true", help="do not compare")
    export.set_defaults(verb=_export)

    report = verbs.add_parser("report", help="answer the questions everyone asks of a run")
    report.add_argument("run", metavar="RUN", help="a run's name or folder")
    report.add_argument("--output", type=Path, help="folder to write to (default: RUN/report)")
    report.set_defaults(verb=_report)

    whatif = verbs.add_parser("whatif", help="predict other links, machines and ways to meet")
    whatif.add_argument("run", metavar="RUN", help="a run's name or folder")
    _add_scenario(whatif)
    whatif.set_defaults(verb=_whatif)

    compare = verbs.add_parser("compare", help="two runs: what changed, what it did")
    compare.add_argument("first", metavar="RUN", help="a run's name or folder")
    compare.add_argument("second", metavar="RUN", help="another one")
    compare.add_argument(
        "--output", type=Path, default=Path("compare"), help="folder (default: compare)"
    )
    compare.set_defaults(verb=_compare)

    settings = verbs.add_parser("settings", help="print every setting with its default")
    settings.set_defaults(verb=_settings)

    for name, verb in verbs.choices.items():
        verb.description, verb.epilog = DESCRIPTIONS[name], EXIT_CODES
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument("overrides", nargs="*", metavar="a.b=c", help="settings to override")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes on this machine")
    parser.add_argument("--hosts", metavar="A:2,B:2", help="machines and their workers, over ssh")


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", help="best (the default), latest or a step")
    weights.add_argument(
        "--average", type=int, metavar="N", help="mean of the latest N, if the run keeps so many"
    )


def _add_trained(parser: argparse.ArgumentParser) -> None:
    _add_weights(parser)
    parser.add_argument("--beam", type=int, help="instead of the run's setting")
    parser.add_argument("--length-penalty", type=float, help="instead of the run's setting")
    parser.add_argument("--batch-tokens", type=int, help="instead of the run's setting")
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="of the arithmetic (default: the run's on a GPU, float32 on a CPU)",
    )


def _add_scenario(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bandwidth", metavar="RATE", help="of the links, as in 10Gbit")
    parser.add_argument("--latency-milliseconds", type=float, metavar="MS", help="of the links")
    parser.add_argument("--machines", type=int, metavar="N", help="machines")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="worker processes on all machines together"
    )
    parser.add_argument("--compression", choices=tuple(COMPRESSED), help="how gradients travel")
    parser.add_argument("--local-steps", type=int, metavar="N", help="steps between meetings")
    parser.add_argument(
        "--local-fragments", type=int, metavar="N", help="parts that meet one after the other"
    )
    parser.add_argument(
        "--batch-factor", type=float, default=1.0, metavar="X", help="a batch X times as large"
    )
    parser.add_argument(
        "--device-speed", type=float, default=1.0, metavar="X", help="devices X times as fast"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="hours and cost of N steps (default: the run's)"
    )
    parser.add_argument("--price-per-hour", type=float, metavar="X", help="price of one machine")


def _demo(arguments: argparse.Namespace) -> None:
    from dragoman.demo import run_demo

    _end(run_demo(arguments.folder))


def _prepare(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    if arguments.processes is not None and arguments.processes < 1:
        raise UserError(f"--processes {arguments.processes}: must be at least 1")

    from dragoman.corpus.prepare import prepare
    from dragoman.corpus.summary import summarize

    print(summarize(prepare(config, arguments.processes)))


def _train(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    if not has_end(config.training):
        raise UserError(
            f"{arguments.config}: no end: set training.steps, epochs, hours or patience"
        )

    hosts = _hosts(arguments)

    from dragoman.training.start import train, train_on

    name = arguments.run or arguments.config.stem
    _end(train_on(hosts, config, name) if hosts else train(config, name))


def _end(stop: "Stop | None") -> None:
    """Tell scripts whether to give the same command again."""
    from dragoman.training.stopping import Stop

    if stop is Stop.SIGNAL:
        sys.exit(STOPPED)


def _check(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    hosts = _hosts(arguments)

    from dragoman.check import check, check_on
    from dragoman.findings import page, problems

    findings = check_on(hosts, config) if hosts else check(config)
    if findings is None:
        return  # One of several workers: the launcher speaks.
    print(page(findings, config))
    if problems(findings, config):
        sys.exit(PROBLEMS_FOUND)


def _hosts(arguments: argparse.Namespace) -> "list[Host]":
    """The machines asked for; none if this process does the work itself."""
    if arguments.workers is not None and arguments.workers < 1:
        raise UserError(f"--workers {arguments.workers}: must be at least 1")
    if arguments.workers is not None and arguments.hosts:
        raise UserError("--workers is for this machine, --hosts for others: give one of them")

    from dragoman.cluster.launch import Host, parse_hosts

    if arguments.hosts:
        return parse_hosts(arguments.hosts)
    return [Host("", arguments.workers)] if (arguments.workers or 1) > 1 else []


def _evaluate(arguments: argparse.Namespace) -> None:
    if (arguments.source is None) != (arguments.reference is None):
        raise UserError("--source and --reference go together")
    if arguments.source and arguments.set:
        raise UserError("--set is for sets of the corpus, --source for other text: give one")

    from dragoman.inference.commands import evaluate_run

    evaluate_run(
        _choice(arguments), arguments.source, arguments.reference, arguments.set, arguments.output
    )


def _translate(arguments: argparse.Namespace) -> None:
    if arguments.engine == "ctranslate2":
        of_export = {"checkpoint": "checkpoint", "average": "average", "precision": "quantization"}
        for name, option in of_export.items():
            if getattr(arguments, name) is not None:
                raise UserError(
                    f"--{name}: the weights of an export are chosen when it is made, with "
                    f"dragoman export {arguments.run} --to ctranslate2 --{option} ..."
                )

    from dragoman.inference.commands import translate_lines

    translate_lines(_choice(arguments), arguments.n_best, arguments.engine)


def _choice(arguments: argparse.Namespace) -> "TrainedChoice":
    from dragoman.inference.commands import TrainedChoice

    names = [field.name for field in fields(TrainedChoice)]
    given = {name: getattr(arguments, name) for name in names}
    return TrainedChoice(**{name: value for name, value in given.items() if value is not None})


def _export(arguments: argparse.Namespace) -> None:
    from dragoman.inference.export import ExportRequest, export_run
    from dragoman.inference.model_card import Verdict
    from dragoman.report.answers import answer_all
    from dragoman.report.evidence import load_evidence
    from dragoman.report.findings import analyse
    from dragoman.runs.folder import find_run

    run = find_run(arguments.run)
    evidence = load_evidence(run.path, time.time())
    answers = answer_all(evidence, analyse(evidence))
    request = ExportRequest(
        arguments.quantization,
        arguments.checkpoint or "best",
        1 if arguments.average is None else arguments.average,
        arguments.output,
        None if arguments.no_check else arguments.check_pairs,
    )
    verdicts = [Verdict(one.question, one.headline, one.answer) for one in answers]
    export_run(run, request, verdicts)


def _report(arguments: argparse.Namespace) -> None:
    from dragoman.report.render import write_report
    from dragoman.runs.folder import find_run

    print(write_report(find_run(arguments.run).path, output=arguments.output))


def _whatif(arguments: argparse.Namespace) -> None:
    from dragoman.report.whatif_command import WhatifOptions, whatif_command
    from dragoman.runs.folder import find_run

    names = [field.name for field in fields(WhatifOptions)]
    options = WhatifOptions(**{name: getattr(arguments, name) for name in names})
    whatif_command(find_run(arguments.run).path, options)


def _compare(arguments: argparse.Namespace) -> None:
    from dragoman.report.compare import compare_runs
    from dragoman.runs.folder import find_run

    first, second = (find_run(name).path for name in (arguments.first, arguments.second))
    print(compare_runs(first, second, arguments.output))


def _settings(_: argparse.Namespace) -> None:
    from dragoman.settings_page import render_settings

    print(render_settings(), end="")

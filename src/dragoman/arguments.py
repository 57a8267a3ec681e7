"""Command-line arguments."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from dragoman import __version__
from dragoman.config import COMPRESSIONS, Library, Quantization
from dragoman.model_arguments import add_decoding, add_trained, add_weights
from dragoman.text_arguments import add_augment, add_engine, add_parts, add_sampling
from dragoman.worker_arguments import add_workers, filled

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

PROBLEMS_FOUND = 3
STOPPED = 4
EXIT_CODES = (
    f"exit codes: 0 success; 1 system failure; 2 invalid input or settings; {PROBLEMS_FOUND} "
    f"check found problems; {STOPPED} training was stopped by a signal and can be resumed; 130 "
    "interrupted"
)

DESCRIPTIONS = {
    "demo": "Create a small corpus, train on it with two workers, translate sentences the model "
    "has never seen, and write a report. Running it again does not repeat the training.",
    "inspect": "Look for problems in the text named in CONFIG and write inspect.html and "
    "inspect.json to corpus.folder. Changes nothing. `prepare` ends with the same check.",
    "prepare": "Clean the text named in CONFIG, split it into subwords, shuffle it and write it to "
    "corpus.folder. Does nothing if the corpus there is up to date.",
    "train": "Train on a prepared corpus. Ctrl-C saves and exits; the same command resumes.",
    "check": "Measure machines, links and a few steps of the model, and predict how long a step "
    "and the whole run will take.",
    "evaluate": "Print loss, BLEU and chrF with 95% confidence intervals and sacreBLEU "
    "signatures, on the test sets of the run's corpus (or on its validation sets if it has "
    "no test sets).",
    "translate": "Translate standard input to standard output, or a file to a folder, line by "
    "line.",
    "augment": "Make training pairs with a model: from text in the target language through a model "
    "of the other direction (back-translate), or from source text through a teacher (distill). "
    "Filters drop bad pairs; mix.toml holds what to add to a config. The same command resumes.",
    "export": "Export the model for CTranslate2, Hugging Face Transformers or Argos Translate, "
    "check that it translates as Dragoman does, and write a model card.",
    "serve": "Serve translations over HTTP: LibreTranslate's API and a web page, at the address "
    "printed once it is ready. Ctrl-C finishes the accepted requests and exits.",
    "report": "Write a page that says whether the model is fully trained, whether it overfits, "
    "where the time went and whether the network was the bottleneck.",
    "watch": "Serve a live page of the run for a browser on this machine: answers, curves, "
    "machines, translations, time left. Only reads the run folder; Ctrl-C ends it. From "
    "another machine: ssh -L PORT:127.0.0.1:PORT MACHINE.",
    "whatif": "Predict how fast a run would be with another network, other machines or other sync "
    "settings, from its own measurements.",
    "compare": "Write a page that shows how two runs differ, in settings and in results.",
    "settings": "Print every config setting with its default and what it does.",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read a command; `verb` is one of DESCRIPTIONS, `words` are all that was typed."""
    parser = _parser()
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    if first and not first.startswith("-") and first not in DESCRIPTIONS:
        near = difflib.get_close_matches(first, DESCRIPTIONS, 1)
        parser.error(f"unknown command {first!r}" + (f"; did you mean {near[0]}?" if near else ""))
    # argparse gives up on overrides that stand behind an option; they are welcome anywhere.
    parsed, rest = parser.parse_known_args(arguments)
    unknown = [word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        parsed.overrides += rest
    parsed.words = list(sys.argv[1:] if arguments is None else arguments)
    return parsed


def _add_corpus_verbs(verbs: "Verbs") -> None:
    """The verbs before a run."""
    demo = verbs.add_parser("demo", help="the whole workflow on a small built-in corpus")
    demo.add_argument(
        "--folder", type=Path, default=Path("demo"), help="folder for all output (default: demo)"
    )

    inspect = verbs.add_parser("inspect", help="find problems in a corpus")
    prepare = verbs.add_parser("prepare", help="raw text -> prepared corpus")
    for verb in (inspect, prepare):
        _add_config(verb)
        verb.add_argument("--processes", type=int, help="worker processes (default: all cores)")


def _add_training_verbs(verbs: "Verbs") -> None:
    """The verbs that make a run."""
    train = verbs.add_parser("train", help="train, or resume a run")
    _add_config(train)
    add_workers(train)
    train.add_argument(
        "--watch",
        action="store_true",
        help="also serve a live page of the run, and print its address",
    )
    train.add_argument(
        "--run",
        "--name",
        type=filled,
        help="name under runs/, or a path (default: the config's name)",
    )

    check = verbs.add_parser("check", help="measure machines and links before a long run")
    _add_config(check)
    add_workers(check)


def _add_model_verbs(verbs: "Verbs") -> None:
    """The verbs that use what was trained."""
    _add_evaluate(verbs.add_parser("evaluate", help="loss, BLEU and chrF of a trained model"))
    _add_translate(verbs.add_parser("translate", help="translate standard input, line by line"))
    _add_augment(verbs.add_parser("augment", help="make synthetic training text with a model"))
    _add_export(verbs.add_parser("export", help="convert a trained model for other programs"))
    _add_serve(verbs.add_parser("serve", help="translation server with a web page"))


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    add_trained(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME",
        help="a set of the corpus, such as dev or validation.dev; may be repeated",
    )
    parser.add_argument("--source", type=Path, help="a file to translate instead of a set")
    parser.add_argument("--reference", type=Path, help="its reference translation")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="write the translations to this folder, as NAME.txt",
    )


def _add_translate(parser: argparse.ArgumentParser) -> None:
    add_trained(parser)
    parser.add_argument(
        "--n-best",
        type=int,
        default=1,
        metavar="N",
        help="print the best N translations of each line, one per line: score, tab, text; the "
        "score is the log-probability divided by length^length_penalty (default: only the "
        "best, without score)",
    )
    parser.add_argument(
        "--scores", action="store_true", help="print the score and a tab before each translation"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="sample translations instead of searching for the best; for synthetic training text",
    )
    add_sampling(parser)
    add_parts(parser, is_required=False)
    add_workers(parser)
    add_engine(parser)


def _add_augment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "way",
        choices=["back-translate", "distill"],
        help="back-translate: text in the target language through a model of the other direction; "
        "distill: source text through a teacher",
    )
    add_trained(parser)
    add_sampling(parser)
    add_parts(parser, is_required=True)
    add_augment(parser)
    add_workers(parser)
    add_engine(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    add_weights(parser)
    parser.add_argument("--to", choices=get_args(Library), required=True, help="the library")
    parser.add_argument(
        "--quantization",
        choices=get_args(Quantization),
        default="float32",
        help="type of the stored weights; not for transformers (default: float32)",
    )
    parser.add_argument("--output", type=Path, help="output folder (default: RUN/export/LIBRARY)")
    parity = parser.add_mutually_exclusive_group()
    parity.add_argument(
        "--check-pairs",
        type=int,
        default=500,
        metavar="N",
        help="compare with Dragoman's decoder on N validation pairs (default: 500)",
    )
    parity.add_argument("--no-check", action="store_true", help="skip the comparison")


def _add_report_verbs(verbs: "Verbs") -> None:
    """The verbs that tell about runs."""
    report = verbs.add_parser("report", help="answer the questions people ask about a run")
    report.add_argument("run", type=filled, metavar="RUN", help="name or folder of a run")
    report.add_argument("--output", type=Path, help="folder to write to (default: RUN/report)")

    watch = verbs.add_parser("watch", help="live report page for a run in progress")
    watch.add_argument("run", type=filled, metavar="RUN", help="name or folder of a run")
    watch.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)"
    )
    watch.add_argument("--wait", action="store_true", help="wait for the run to start")

    whatif = verbs.add_parser(
        "whatif", help="predict speed with other links, machines and sync settings"
    )
    whatif.add_argument("run", type=filled, metavar="RUN", help="name or folder of a run")
    _add_scenario(whatif)

    compare = verbs.add_parser(
        "compare", help="what changed between two runs, and with what effect"
    )
    compare.add_argument("first", metavar="RUN", help="name or folder of a run")
    compare.add_argument("second", metavar="RUN", help="run to compare it with")
    compare.add_argument(
        "--output", type=Path, default=Path("compare"), help="folder to write to (default: compare)"
    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """End with a word about the command's own help."""
        self.exit(2, f"dragoman: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="dragoman",
        description="Train translation models across machines and get an honest report on the run.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    verbs = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND", required=True)
    _add_corpus_verbs(verbs)
    _add_training_verbs(verbs)
    _add_model_verbs(verbs)
    _add_report_verbs(verbs)
    verbs.add_parser("settings", help="print every setting with its default")
    for name, verb in verbs.choices.items():
        verb.description, verb.epilog = DESCRIPTIONS[name], EXIT_CODES
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        type=filled,
        metavar="RUN",
        help="name or folder of a run, or folder of an export; one per direction",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=5_000, help="port to listen on (default: 5000; 0: any free one)"
    )
    parser.add_argument("--source", metavar="CODE", help="source language (default: the run's)")
    parser.add_argument("--target", metavar="CODE", help="target language (default: the run's)")
    parser.add_argument("--checkpoint", help="for runs: best (the default), latest or a step")
    add_decoding(parser)
    parser.add_argument(
        "--max-characters",
        type=int,
        default=100_000,
        metavar="N",
        help="limit per request (default: 100000)",
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=4_000,
        metavar="N",
        help="sentences that may wait; beyond that, requests are told to retry later (default: "
        "4000)",
    )
    parser.add_argument(
        "--timeout-seconds",
        type=float,
        default=60,
        metavar="S",
        help="time limit for receiving a request, and again for translating it (default: 60)",
    )
    parser.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="require an API key; the file holds one per line",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use the API, such as https://example.org; * for all; "
        "may be repeated",
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="a.b=c",
        help="override a setting, such as training.steps=1000",
    )


def _add_scenario(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bandwidth", metavar="RATE", help="link bandwidth, such as 10Gbit, or inf"
    )
    parser.add_argument("--latency-milliseconds", type=float, metavar="MS", help="link latency")
    parser.add_argument("--machines", type=int, metavar="N", help="machines")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="total worker processes on all machines"
    )
    parser.add_argument(
        "--compression", choices=COMPRESSIONS, help="how what is exchanged is compressed"
    )
    parser.add_argument("--local-steps", type=int, metavar="N", help="steps between two exchanges")
    parser.add_argument(
        "--local-fragments", type=int, metavar="N", help="parts that are exchanged in turn"
    )
    parser.add_argument(
        "--local-delay", type=int, metavar="N", help="steps that each of them may travel"
    )
    parser.add_argument(
        "--batch-factor", type=float, default=1.0, metavar="X", help="scale the batch by X"
    )
    parser.add_argument(
        "--device-speed", type=float, default=1.0, metavar="X", help="scale device speed by X"
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="estimate time and cost of N steps (default: the run's)",
    )
    parser.add_argument(
        "--price-per-hour", type=float, metavar="X", help="price of one machine per hour"
    )

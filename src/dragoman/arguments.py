"""What can be asked for on the command line."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from dragoman import __version__
from dragoman.config import COMPRESSIONS, Library, Precision, Quantization
from dragoman.text_arguments import add_augment, add_engine, add_parts, add_sampling

PROBLEMS_FOUND = 3
STOPPED = 4
EXIT_CODES = (
    "exit codes: 0 done; 1 a fault of the system; 2 a mistake in what was asked for; "
    f"{PROBLEMS_FOUND} check has found problems; {STOPPED} a signal stopped the training, which "
    "can be resumed; 130 interrupted"
)

DESCRIPTIONS = {
    "demo": "Make a small corpus, train on it with two workers, translate sentences that the model "
    "has never seen, and write a report. Run again, it does not repeat the training.",
    "inspect": "Look for what is wrong with the text that CONFIG names, and write inspect.html and "
    "inspect.json to corpus.folder. Nothing is changed. `prepare` does the same at its end.",
    "prepare": "Clean the text that CONFIG names, cut it into subwords, shuffle it and write it to "
    "corpus.folder. Does nothing if text and settings are those of the corpus there.",
    "train": "Train on a prepared corpus. Ctrl-C saves and ends; the same command resumes.",
    "check": "Measure machines, links and a few steps of the model, and predict how long a step "
    "and the whole run will take.",
    "evaluate": "Print loss, BLEU and chrF with 95% intervals and sacreBLEU's signatures, on the "
    "test sets of the run's corpus (on its validation sets if it has no test sets).",
    "translate": "Translate standard input to standard output, or a file to a folder, line by "
    "line.",
    "augment": "Make training pairs with a model: from text of the target language through a model "
    "of the other direction (back-translate), or from source text through a teacher (distill). "
    "Filters drop bad ones; mix.toml says what to add to a config. The same command goes on.",
    "export": "Write a model for CTranslate2, Hugging Face Transformers or Argos Translate, check "
    "that it translates as Dragoman does, and write a model card.",
    "serve": "Translate for other programs and for people: LibreTranslate's API and a page, at the "
    "address that is printed once it is ready. Ctrl-C finishes what was accepted and ends.",
    "report": "Write a page that answers whether a run is trained, whether it overfits, where its "
    "time went and whether the network was the bottleneck.",
    "watch": "Serve a page for a browser on this machine that shows the run as it goes: answers, "
    "curves, machines, translations, time left. Reads the run folder alone; ends with Ctrl-C. From "
    "elsewhere: ssh -L PORT:127.0.0.1:PORT MACHINE.",
    "whatif": "Predict a run's speed with another network, other machines or other sync settings, "
    "from its own measurements.",
    "compare": "Write a page with what two runs have in common, what differs, and what came of it.",
    "settings": "Print a page with every setting of a config, its default and what it does.",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read a command; `verb` is one of DESCRIPTIONS, `words` are all that was typed."""
    parser = _parser()
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    if first and not first.startswith("-") and first not in DESCRIPTIONS:
        near = difflib.get_close_matches(first, DESCRIPTIONS, 1)
        parser.error(f"no verb {first!r}" + (f"; did you mean {near[0]}?" if near else ""))
    # argparse gives up on overrides that stand behind an option; they are welcome anywhere.
    parsed, rest = parser.parse_known_args(arguments)
    unknown = [word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        parsed.overrides += rest
    parsed.words = list(sys.argv[1:] if arguments is None else arguments)
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dragoman",
        description="Train translation models across machines; learn the truth about the run.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)

    demo = verbs.add_parser("demo", help="the whole story on the embedded corpus")
    demo.add_argument(
        "--folder", type=Path, default=Path("demo"), help="where to put everything (default: demo)"
    )

    inspect = verbs.add_parser("inspect", help="what is wrong with a corpus")
    _add_config(inspect)
    inspect.add_argument("--processes", type=int, help="worker processes (default: all cores)")

    prepare = verbs.add_parser("prepare", help="raw text -> prepared corpus")
    _add_config(prepare)
    prepare.add_argument("--processes", type=int, help="worker processes (default: all cores)")

    train = verbs.add_parser("train", help="train, or resume a run")
    _add_config(train)
    _add_workers(train)
    train.add_argument(
        "--watch",
        action="store_true",
        help="serve a live page of the run beside it, and print its address",
    )
    train.add_argument(
        "--run",
        "--name",
        type=_name,
        help="name under runs/, or a path (default: the config's name)",
    )

    check = verbs.add_parser("check", help="look at machines and links before spending hours")
    _add_config(check)
    _add_workers(check)

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
    translate.add_argument("--scores", action="store_true", help="score and tab before every line")
    translate.add_argument(
        "--sample",
        action="store_true",
        help="draw translations at random, for text to train on, instead of searching the best",
    )
    add_sampling(translate)
    add_parts(translate, is_required=False)
    _add_workers(translate)
    add_engine(translate)

    augment = verbs.add_parser("augment", help="make text for the next model")
    augment.add_argument(
        "way",
        choices=["back-translate", "distill"],
        help="back-translate: text of the target language by a model of the other direction; "
        "distill: source text of the training by a teacher",
    )
    _add_trained(augment)
    add_sampling(augment)
    add_parts(augment, is_required=True)
    add_augment(augment)
    _add_workers(augment)
    add_engine(augment)

    export = verbs.add_parser("export", help="a trained model for other programs")
    _add_weights(export)
    export.add_argument("--to", choices=get_args(Library), required=True, help="the library")
    export.add_argument(
        "--quantization",
        choices=get_args(Quantization),
        default="float32",
        help="of the weights, not for transformers (default: float32)",
    )
    export.add_argument("--output", type=Path, help="a folder (default: RUN/export/LIBRARY)")
    parity = export.add_mutually_exclusive_group()
    parity.add_argument(
        "--check-pairs",
        type=int,
        default=500,
        metavar="N",
        help="compare with our own decoder on N validation pairs (default: 500)",
    )
    parity.add_argument("--no-check", action="store_true", help="do not compare")

    _add_serve(verbs.add_parser("serve", help="an address that translates, and a page"))

    report = verbs.add_parser("report", help="answer the questions everyone asks of a run")
    report.add_argument("run", type=_name, metavar="RUN", help="a run's name or folder")
    report.add_argument("--output", type=Path, help="folder to write to (default: RUN/report)")

    watch = verbs.add_parser("watch", help="the report as a live page, while the run goes on")
    watch.add_argument("run", type=_name, metavar="RUN", help="a run's name or folder")
    watch.add_argument(
        "--port", type=int, default=0, help="on 127.0.0.1 (default: any that is free)"
    )
    watch.add_argument("--wait", action="store_true", help="for a run that has not begun")

    whatif = verbs.add_parser("whatif", help="predict other links, machines and sync settings")
    whatif.add_argument("run", type=_name, metavar="RUN", help="a run's name or folder")
    _add_scenario(whatif)

    compare = verbs.add_parser("compare", help="two runs: what changed, what it did")
    compare.add_argument("first", metavar="RUN", help="a run's name or folder")
    compare.add_argument("second", metavar="RUN", help="another one")
    compare.add_argument(
        "--output", type=Path, default=Path("compare"), help="folder (default: compare)"
    )

    verbs.add_parser("settings", help="print every setting with its default")

    for name, verb in verbs.choices.items():
        verb.description, verb.epilog = DESCRIPTIONS[name], EXIT_CODES
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        type=_name,
        metavar="RUN",
        help="a run's name or folder, or an export's folder; one for each direction",
    )
    parser.add_argument("--host", default="127.0.0.1", help="to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=5_000, help="to listen at (default: 5000; 0: any that is free)"
    )
    parser.add_argument("--source", metavar="CODE", help="source language, instead of the run's")
    parser.add_argument("--target", metavar="CODE", help="target language, instead of the run's")
    parser.add_argument("--checkpoint", help="of runs: best (the default), latest or a step")
    _add_decoding(parser)
    parser.add_argument(
        "--max-characters",
        type=int,
        default=100_000,
        metavar="N",
        help="of one request (default: 100000)",
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=1_000,
        metavar="N",
        help="sentences that may wait before others are told to try again (default: 1000)",
    )
    parser.add_argument(
        "--timeout-seconds",
        type=float,
        default=60,
        metavar="S",
        help="for a request to arrive, and then to be translated (default: 60)",
    )
    parser.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="answer only those who send one of its lines"
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of another origin ask, such as https://example.org; * for all; may be "
        "given several times",
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="a.b=c", help="settings to override"
    )


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes on this machine")
    parser.add_argument(
        "--hosts", type=_name, metavar="A:2,B:2", help="machines and their workers, over ssh"
    )


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_name, metavar="RUN", help="a run's name or folder")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", help="best (the default), latest or a step")
    weights.add_argument(
        "--average", type=int, metavar="N", help="mean of the latest N, if the run keeps so many"
    )
    parser.add_argument(
        "--blend",
        type=float,
        metavar="X",
        help="weights between those that the run started from (0) and its own (1)",
    )


def _add_trained(parser: argparse.ArgumentParser) -> None:
    _add_weights(parser)
    _add_decoding(parser)


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--beam", type=int, help="instead of the run's setting")
    parser.add_argument("--patience", type=int, help="instead of the run's setting")
    parser.add_argument("--length-penalty", type=float, help="instead of the run's setting")
    parser.add_argument(
        "--tag", help="what goes before every sentence, in a model that was trained with tags"
    )
    parser.add_argument("--batch-tokens", type=int, help="instead of the run's setting")
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="of the arithmetic (default: the run's on a GPU, float32 on a CPU)",
    )


def _add_scenario(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bandwidth", metavar="RATE", help="of the links, as in 10Gbit; or inf")
    parser.add_argument("--latency-milliseconds", type=float, metavar="MS", help="of the links")
    parser.add_argument("--machines", type=int, metavar="N", help="machines")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="worker processes on all machines together"
    )
    parser.add_argument("--compression", choices=COMPRESSIONS, help="how gradients travel")
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

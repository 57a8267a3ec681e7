"""Which trained weights can be asked for, and how they decode."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, get_args

from dragoman.config import Precision
from dragoman.worker_arguments import filled

if TYPE_CHECKING:
    from dragoman.inference.decoder import TrainedChoice


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Which weights of a run."""
    parser.add_argument("run", type=filled, metavar="RUN", help="name or folder of a run")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", help="best (the default), latest or a step")
    weights.add_argument(
        "--average",
        type=int,
        metavar="N",
        help="average the latest N checkpoints, if the run keeps that many",
    )
    parser.add_argument(
        "--blend",
        type=float,
        metavar="X",
        help="interpolate between the weights the run started from (0) and its own (1)",
    )


def add_trained(parser: argparse.ArgumentParser) -> None:
    """Which weights, and how to decode."""
    add_weights(parser)
    add_decoding(parser)


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """How to decode."""
    parser.add_argument("--beam", type=int, help="beam size; 1 is greedy (default: the run's)")
    parser.add_argument(
        "--patience", type=int, help="end after so many beams of hypotheses (default: the run's)"
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        help="above 0: favour longer translations (default: the run's)",
    )
    parser.add_argument(
        "--tag", help="tag to put before each sentence, for a model trained with tags"
    )
    parser.add_argument(
        "--batch-tokens", type=int, help="source tokens decoded at a time (default: the run's)"
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="arithmetic precision (default: the run's on a GPU, float32 on a CPU)",
    )


def read_choice(arguments: argparse.Namespace) -> "TrainedChoice":
    """Which weights, and how to decode."""
    from dragoman.inference.decoder import TrainedChoice

    names = [field.name for field in fields(TrainedChoice)]
    given = {name: getattr(arguments, name) for name in names}
    return TrainedChoice(**{name: value for name, value in given.items() if value is not None})

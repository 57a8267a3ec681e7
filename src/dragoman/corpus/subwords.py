"""sentencepiece: train, encode, decode."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from dragoman.config import VocabularySettings
from dragoman.errors import UserError

# sentencepiece writes blanks as U+2581, so a U+2581 of the text itself would come back as a
# blank. It travels as a noncharacter instead, which byte fallback carries unharmed.
BLANK_MARK, STAND_IN = "\u2581", "\ufdd0"

TRAINING_THREADS = 8
LONGEST_LINE = 65_535  # Characters; over a longer word sentencepiece's trainer ends the process.


class Subwords:
    """A trained vocabulary of one language, or of both."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size: int = self._processor.get_piece_size()
        self.end: int = self._processor.eos_id()
        # Models without a begin mark start their targets with the end mark, as Marian does.
        begin: int = self._processor.bos_id()
        self.begin = begin if begin >= 0 else self.end

    def encode(self, lines: Sequence[str], tag: str = "") -> list[list[int]]:
        """Turn normalised text into token ids, each line closed by the end mark."""
        plain = [line.replace(BLANK_MARK, STAND_IN) for line in lines]
        encoded: list[list[int]] = self._processor.encode(plain, add_eos=True)
        if tag:
            token = self.tag(tag)
            assert token is not None, "tags are looked up before they are used"
            return [[token, *line] for line in encoded]
        return encoded

    def sample(self, lines: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """Cut lines of token ids anew, leaving out merges at random; the seed decides which."""
        sentencepiece.set_random_generator_seed(seed % 2**32)
        plain: list[str] = self._processor.decode([list(line) for line in lines])
        sampled: list[list[int]] = self._processor.encode(
            plain, enable_sampling=True, alpha=dropout, nbest_size=-1, add_eos=True, num_threads=1
        )
        # A tag is no part of the text.
        return [
            [first, *cut] if first != self.end and self._processor.is_control(first) else cut
            for (first, *_), cut in zip(lines, sampled, strict=True)
        ]

    def tag(self, tag: str) -> int | None:
        """The token of a tag, which no text is ever cut into; None if there is none."""
        token: int = self._processor.piece_to_id(tag)
        return token if self._processor.is_control(token) else None

    def decode(self, lines: Sequence[Sequence[int]]) -> list[str]:
        """Turn token ids back into text; marks are left out."""
        plain: list[str] = self._processor.decode([list(line) for line in lines])
        return [line.replace(STAND_IN, BLANK_MARK) for line in plain]


def train_subwords(
    sample: Iterable[bytes], settings: VocabularySettings, tags: Sequence[str] = ()
) -> bytes:
    """Train a vocabulary on normalised lines and return the model's bytes."""
    model = io.BytesIO()
    failures: list[BaseException] = []
    try:
        sentencepiece.SentencePieceTrainer.train(
            # No file name and a fixed number of threads: both end up in the model's bytes,
            # which must not depend on the machine.
            sentence_iterator=_lines(sample, failures),
            num_threads=TRAINING_THREADS,
            model_writer=model,
            model_type=settings.kind,
            vocab_size=settings.size,
            character_coverage=settings.character_coverage,
            byte_fallback=True,
            control_symbols=list(tags),
            # Text is normalised before, and blanks must survive a round trip.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            minloglevel=2,
        )
    except (RuntimeError, SystemError) as error:
        if not failures:
            reason = _reason(str(error))
            raise UserError(
                f"vocabulary.size = {settings.size} does not work for this text: {reason}"
            ) from None
    if failures:
        raise failures[0]
    return model.getvalue()


def _lines(sample: Iterable[bytes], failures: list[BaseException]) -> Iterator[str]:
    """The lines to train on; sentencepiece may take a failure to read them for their end."""
    try:
        for line in sample:
            text = line.decode().rstrip("\n").replace(BLANK_MARK, STAND_IN)
            if len(text) <= LONGEST_LINE:
                yield text
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)
        raise


def load_subwords(path: Path, name: str) -> bytes:
    """Read an existing sentencepiece model and check that it can close a sentence."""
    if not path.is_file():
        raise UserError(f"{name}: no such file: {path}")
    model = path.read_bytes()
    if not model:
        raise UserError(f"{name}: {path} is empty; name a sentencepiece model")
    try:
        subwords = Subwords(model)
    except RuntimeError:
        raise UserError(f"{name}: {path} is not a sentencepiece model") from None
    if subwords.end < 0:
        raise UserError(f"{name}: {path} has no end-of-sentence token; train it with eos_id >= 0")
    return model


def _reason(message: str) -> str:
    """The part of a sentencepiece error that a user can act on."""
    if match := re.search(r"<= (\d+)", message):
        return f"it must be at most {match[1]}"
    if match := re.search(r"\d+ vs (\d+)", message):
        return f"it must be at least {match[1]}"
    if "sentences_.empty()" in message:
        return f"every line is longer than {LONGEST_LINE:,} characters"
    return message.rsplit("] ", 1)[-1]

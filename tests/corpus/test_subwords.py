import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.config import VocabularySettings
from dragoman.corpus.subwords import Subwords, load_subwords, train_subwords
from dragoman.errors import UserError
from support import number_pairs

CURIOUS = [
    "",
    " ",
    "  two  blanks  ",
    "\t tab",
    "a ▁ mark ▁▁",
    "emoji 👩‍👩‍👧 and flags 🇩🇪",
    "汉字 と かな 한국어 العربية ไทย",
    "zero\u200bwidth \u00a0nbsp\u202f",
    "<unk> <s> </s> <0x41>",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def model(request: pytest.FixtureRequest) -> bytes:
    sample = [line.encode() for side in number_pairs(10_000, 300) for line in side]
    size = 300 if request.param == "bpe" else 290
    return train_subwords(sample, VocabularySettings(kind=request.param, size=size))


def test_any_text_survives_a_round_trip(model: bytes) -> None:
    subwords = Subwords(model)
    generator = random.Random(0)
    letters = [*map(chr, range(32, 0xD800)), *map(chr, range(0x10000, 0x1FFFF))]
    noise = ["".join(generator.choices(letters, k=30)) for _ in range(50)]
    lines = CURIOUS + [line.replace("\ufdd0", "") for line in noise]
    encoded = subwords.encode(lines)
    assert all(line[-1] == subwords.end for line in encoded)
    assert subwords.decode(encoded) == lines


def test_joint_marks_are_where_they_are_expected(model: bytes) -> None:
    subwords = Subwords(model)
    assert subwords.begin != subwords.end
    assert subwords.begin < subwords.size
    assert subwords.encode([""]) == [[subwords.end]]


def test_too_large_a_vocabulary_says_what_fits() -> None:
    with pytest.raises(UserError, match=r"vocabulary.size = 32768 .* at most \d+"):
        train_subwords([b"a b c"], VocabularySettings())


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_what_happens_while_the_sample_is_read_stays_what_it_is(failure: BaseException) -> None:
    def sample() -> Iterator[bytes]:
        yield from (line.encode() for line in number_pairs(10_000, 600)[0])
        raise failure

    with pytest.raises(type(failure)) as caught:
        train_subwords(sample(), VocabularySettings(size=300))
    assert caught.value is failure


def test_existing_model_must_be_one(tmp_path: Path, model: bytes) -> None:
    good, bad = tmp_path / "good.model", tmp_path / "bad.model"
    good.write_bytes(model)
    bad.write_text("not a model")
    assert load_subwords(good, "vocabulary.model") == model
    with pytest.raises(UserError, match=r"bad\.model is not a sentencepiece model"):
        load_subwords(bad, "vocabulary.model")
    with pytest.raises(UserError, match="no such file"):
        load_subwords(tmp_path / "none.model", "vocabulary.model")


def test_nfc_text_is_its_own_normal_form() -> None:
    assert all(unicodedata.normalize("NFC", line) == line for line in CURIOUS)

"""sentencepiece models as a tokenizer.json, which Hugging Face's tokenizers read.

One tokenizer has one vocabulary. Where ours has two, the target's subwords stand behind the
source's under marked names: no text becomes one of them, and decoding takes the marks away.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from dragoman.corpus.subwords import BLANK_MARK, STAND_IN, Subwords
from dragoman.corpus.text import PLAIN_PUNCTUATION

TARGET_MARK = "\ue000"  # Of Unicode's private use; taken out of text, where nobody misses it.
PADDING = "<pad>"
_UNIGRAM, _BPE = 1, 2  # As sentencepiece numbers its kinds of models,
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # and its kinds of subwords.


@dataclass(frozen=True)
class TokenizerIds:
    """Ids of a tokenizer that differ from those of our vocabularies."""

    target_offset: int  # 0 if both languages share a vocabulary.
    begin: int
    end: int
    padding: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.padding + 1


def tokenizer_ids(source: Subwords, target: Subwords, joint: bool) -> TokenizerIds:
    """Where everything is: the source, the target if it is another, and one more for padding."""
    offset = 0 if joint else source.size
    return TokenizerIds(offset, offset + target.begin, offset + target.end, offset + target.size)


def tokenizer_json(
    source: Path, target: Path, ids: TokenizerIds, normalize_punctuation: bool
) -> dict[str, Any]:
    """The tokenizer, as its file has it."""
    model = _read(source)
    pieces = [piece.piece for piece in model.pieces]
    marks = [index for index, piece in enumerate(model.pieces) if piece.type == _CONTROL]
    scores = [piece.score for piece in model.pieces]
    if ids.target_offset:
        behind = _read(target).pieces
        pieces += [TARGET_MARK + piece.piece for piece in behind]
        marks += [
            ids.target_offset + index
            for index, piece in enumerate(behind)
            if piece.type == _CONTROL
        ]
        scores += [min(scores)] * len(behind)
    pieces.append(PADDING)
    scores.append(min(scores))
    special = [_added(index, pieces[index]) for index in (*marks, ids.padding)]
    unknown = next(index for index, one in enumerate(model.pieces) if one.type == _UNKNOWN)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": _sequence("normalizers", _normalizers(model, normalize_punctuation)),
        "pre_tokenizer": None,
        "post_processor": _closing(Subwords(source.read_bytes()).end, pieces),
        "decoder": _sequence("decoders", _decoders(model)),
        "model": _unigram(pieces, scores, unknown)
        if model.trainer_spec.model_type == _UNIGRAM
        else _bpe(model, pieces, unknown),
    }


def special_tokens(source: Path, ids: TokenizerIds) -> dict[str, str]:
    """What the tokenizer calls its marks."""
    model = _read(source)
    spec = model.trainer_spec
    named = {"unk_token": spec.unk_id, "eos_token": spec.eos_id, "bos_token": spec.bos_id}
    found = {name: model.pieces[index].piece for name, index in named.items() if index >= 0}
    return found | {"pad_token": PADDING}


def _read(path: Path) -> Any:
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # Made at import.
    model.ParseFromString(path.read_bytes())
    return model


def _sequence(name: str, steps: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}


def _replace(text: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def _normalizers(model: Any, normalize_punctuation: bool) -> Iterator[dict[str, Any]]:
    """What we do to text before sentencepiece sees it, and what sentencepiece does then."""
    yield _replace(TARGET_MARK, "")
    if normalize_punctuation:
        for code, plain in PLAIN_PUNCTUATION.items():
            yield _replace(chr(code), plain)
    yield {"type": "NFC"}
    yield {"type": "Strip", "strip_left": True, "strip_right": True}
    yield _replace(BLANK_MARK, STAND_IN)
    spec = model.normalizer_spec
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        yield {"type": "Precompiled", "precompiled_charsmap": charsmap}
    if spec.remove_extra_whitespaces:
        yield {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    if spec.add_dummy_prefix:
        yield {"type": "Prepend", "prepend": BLANK_MARK}
    yield _replace(" ", BLANK_MARK)


def _decoders(model: Any) -> Iterator[dict[str, Any]]:
    yield _replace(TARGET_MARK, "")
    yield _replace(BLANK_MARK, " ")
    yield {"type": "ByteFallback"}
    yield {"type": "Fuse"}
    if model.normalizer_spec.add_dummy_prefix:
        yield {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    yield _replace(STAND_IN, BLANK_MARK)


def _added(index: int, name: str) -> dict[str, Any]:
    return {
        "id": index,
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _closing(end: int, pieces: list[str]) -> dict[str, Any]:
    """Every text is closed by the end mark."""
    name = pieces[end]
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": name, "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [end], "tokens": [name]}},
    }


def _unigram(pieces: list[str], scores: list[float], unknown: int) -> dict[str, Any]:
    vocabulary = [list(pair) for pair in zip(pieces, scores, strict=True)]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": True}


def _bpe(model: Any, pieces: list[str], unknown: int) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": pieces[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {piece: index for index, piece in enumerate(pieces)},
        "merges": _merges(model),
    }


def _merges(model: Any) -> list[list[str]]:
    """Every way to put a subword together from two others, in the order in which it is tried.

    sentencepiece merges the two neighbours that make the subword with the best score, wherever they
    come from; tokenizers want the pairs themselves.
    """
    scores = {
        piece.piece: piece.score for piece in model.pieces if piece.type in (_NORMAL, _USER_DEFINED)
    }
    pairs = [
        (-score, len(piece[:cut]), piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [[left, right] for _, _, left, right in sorted(pairs)]

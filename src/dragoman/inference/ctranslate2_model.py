"""A trained Transformer in CTranslate2's own format, and a translator that runs it.

The only module that imports ctranslate2, which is optional: `require_package` comes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import ctranslate2
import sentencepiece
import torch
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import TranslationSettings
from dragoman.corpus.subwords import Subwords
from dragoman.errors import UserError
from dragoman.inference.export_folder import SUBWORDS
from dragoman.inference.hypotheses import Hypothesis
from dragoman.inference.translate import TextSides, Translation, longest_output, translate_text
from dragoman.model.transformer import (
    NORM_EPSILON,
    DecoderLayer,
    EncoderLayer,
    Transformer,
    sinusoids,
)

VERSION: str = ctranslate2.__version__
# CTranslate2 cuts inputs at 1,024 tokens unless told otherwise.
FEWEST_POSITIONS = 1_024
# With a penalty of exactly 0 CTranslate2 ends its search by another rule than ours; x ** this is 1.
NO_LENGTH_PENALTY = 1e-30


@dataclass(frozen=True)
class Pieces:
    """A vocabulary as CTranslate2 knows it: strings instead of ids, each of them unique."""

    names: list[str]
    ids: dict[str, int]
    unknown: str
    begin: str
    end: str


def read_pieces(path: Path) -> Pieces:
    """Read the pieces of a sentencepiece model."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    subwords = Subwords(path.read_bytes())
    names = [processor.id_to_piece(index) for index in range(subwords.size)]
    ids = {name: index for index, name in enumerate(names)}
    assert len(ids) == len(names), "sentencepiece has no piece twice"
    marks = (processor.unk_id(), subwords.begin, subwords.end)
    return Pieces(names, ids, *(names[mark] for mark in marks))


def write_model(
    model: Transformer,
    source: Pieces,
    target: Pieces,
    max_tokens: int,
    quantization: str,
    folder: Path,
) -> None:
    """Write weights and vocabularies into an existing folder."""
    spec = _specify(model, max(FEWEST_POSITIONS, longest_output(max_tokens)))
    spec.register_source_vocabulary(source.names)
    spec.register_target_vocabulary(target.names)
    spec.config.unk_token = target.unknown
    spec.config.bos_token = spec.config.decoder_start_token = target.begin
    spec.config.eos_token = target.end
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = NORM_EPSILON
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _specify(model: Transformer, positions: int) -> Any:
    shape = model.shape
    spec = TransformerSpec(
        TransformerEncoderSpec(shape.encoder_layers, shape.heads, pre_norm=True),
        TransformerDecoderSpec(shape.decoder_layers, shape.heads, pre_norm=True),
    )
    # CTranslate2's own sinusoids count from 1, ours from 0: the table travels as a weight.
    table = sinusoids(torch.arange(positions), shape.d_model)
    for side in (spec.encoder, spec.decoder):
        side.position_encodings.encodings = _numbers(table)
        side.scale_embeddings = True
    spec.encoder.embeddings[0].weight = _numbers(model.source_embedding.weight)
    spec.decoder.embeddings.weight = _numbers(model.target_embedding.weight)
    spec.decoder.projection.weight = _numbers(model.target_embedding.weight)
    _set_norm(spec.encoder.layer_norm, model.encoder_norm)
    _set_norm(spec.decoder.layer_norm, model.decoder_norm)
    for side, layers in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        for layer_spec, layer in zip(side.layer, layers, strict=True):
            _set_layer(layer_spec, cast(EncoderLayer | DecoderLayer, layer))
    return spec


def _set_layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    own = layer.attention
    _set_attention(spec.self_attention, layer.attention_norm, own.query_key_value, own.output)
    if isinstance(layer, DecoderLayer):
        cross = layer.cross
        _set_attention(spec.attention, layer.cross_norm, cross.query, cross.key_value, cross.output)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_norm)
    _set_linear(spec.ffn.linear_0, layer.feed_forward.inner)
    _set_linear(spec.ffn.linear_1, layer.feed_forward.outer)


def _set_attention(spec: Any, norm: nn.LayerNorm, *projections: nn.Linear) -> None:
    _set_norm(spec.layer_norm, norm)
    for own, projection in zip(spec.linear, projections, strict=True):
        _set_linear(own, projection)


def _set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma = _numbers(norm.weight)
    spec.beta = _numbers(norm.bias)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _numbers(linear.weight)
    if linear.bias is not None:
        spec.bias = _numbers(linear.bias)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    # A copy: quantization scales the numbers in place.
    return tensor.detach().to("cpu", torch.float32, copy=True).numpy()


@dataclass(frozen=True)
class CTranslate2Translator:
    """An exported model; translates by the same rules as `Translator`."""

    engine: Any
    text: TextSides
    source_pieces: Pieces
    target_pieces: Pieces

    def translate(
        self,
        lines: Sequence[str],
        settings: TranslationSettings,
        n_best: int = 1,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> list[list[Translation]]:
        """Translate lines in any number and shape; as many come out, in the same order."""
        return translate_text(
            lines,
            self.text,
            lambda sentences: self._search(sentences, settings, n_best),
            settings.batch_tokens,
            n_best,
            on_progress,
        )

    def _search(
        self, sentences: Sequence[Sequence[int]], settings: TranslationSettings, n_best: int
    ) -> list[list[Hypothesis]]:
        """Search a batch under one limit of length, and again what went beyond its own limit.

        All hypotheses that end are asked for: if none is longer than the sentence's own limit,
        the search was over by then, and found what it finds under that limit.
        """
        settings = replace(settings, beam=max(settings.beam, n_best))
        limits = [longest_output(len(sentence)) for sentence in sentences]
        found = self._search_up_to(max(limits), sentences, settings)
        too_long: dict[int, list[int]] = {}
        for place, (limit, hypotheses) in enumerate(zip(limits, found, strict=True)):
            if any(one.length > limit for one in hypotheses):
                too_long.setdefault(limit, []).append(place)
        for limit, places in too_long.items():
            again = [sentences[place] for place in places]
            shorter = self._search_up_to(limit, again, settings)
            for place, hypotheses in zip(places, shorter, strict=True):
                found[place] = hypotheses
        return [[one.hypothesis for one in hypotheses[: settings.beam]] for hypotheses in found]

    def _search_up_to(
        self, limit: int, sentences: Sequence[Sequence[int]], settings: TranslationSettings
    ) -> list[list["_Found"]]:
        names, beam = self.source_pieces.names, settings.beam
        patience = settings.patience if beam > 1 else 1
        results = self.engine.translate_batch(
            # Without the end mark, which CTranslate2 adds.
            [[names[token] for token in sentence[:-1]] for sentence in sentences],
            beam_size=beam,
            patience=patience,
            num_hypotheses=patience * beam,
            length_penalty=settings.length_penalty or NO_LENGTH_PENALTY,
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,  # Tells those that ended from those that were cut.
        )
        return [
            [
                self._read(pieces, score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _read(self, pieces: list[str], score: float) -> "_Found":
        ids = self.target_pieces.ids
        tokens = tuple(ids[piece] for piece in pieces if piece != self.target_pieces.end)
        return _Found(Hypothesis(tokens, score), len(pieces))


@dataclass(frozen=True)
class _Found:
    hypothesis: Hypothesis
    length: int  # In tokens, with the end mark if it has one.


def load_translator(folder: Path, text: TextSides) -> CTranslate2Translator:
    """Load an exported model, on a GPU if there is one."""
    on_gpu = torch.cuda.is_available() and ctranslate2.get_cuda_device_count() > 0
    try:
        engine = ctranslate2.Translator(
            str(folder),
            device="cuda" if on_gpu else "cpu",
            intra_threads=torch.get_num_threads(),
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{folder}: ctranslate2 {VERSION} cannot load it: {error}") from None
    return CTranslate2Translator(engine, text, *(read_pieces(folder / name) for name in SUBWORDS))

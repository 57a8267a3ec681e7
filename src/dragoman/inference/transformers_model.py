"""A folder that Hugging Face Transformers opens, and a translator that runs it for the check.

The only module that imports transformers, which is optional: `require_package` comes first.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dragoman.config import TranslationSettings
from dragoman.inference.export_folder import SUBWORDS, TENSORS
from dragoman.inference.load import TrainedModel
from dragoman.inference.pegasus import pegasus_config, pegasus_weights
from dragoman.inference.tokenizer_json import special_tokens, tokenizer_ids, tokenizer_json
from dragoman.inference.translate import (
    Translation,
    batches_by_length,
    longest_output,
    one_line,
)
from dragoman.runs.tensors import write_tensors

FEWEST_POSITIONS = 1_024  # A line that is longer than the table is an error there.


def write_model(trained: TrainedModel, folder: Path) -> None:
    """Write weights, settings and tokenizer beside the sentencepiece models in a folder."""
    model, text, config = trained.translator.model, trained.translator.text, trained.config
    source, target = (folder / name for name in SUBWORDS)
    ids = tokenizer_ids(text.source, text.target, config.vocabulary.joint)
    positions = max(FEWEST_POSITIONS, longest_output(text.max_tokens))
    write_tensors(pegasus_weights(model, ids, positions), folder / TENSORS, {"format": "pt"})
    files = {
        "config.json": pegasus_config(model, config.model, ids, positions),
        "generation_config.json": {
            "bos_token_id": ids.begin,
            "eos_token_id": ids.end,
            "pad_token_id": ids.padding,
            "decoder_start_token_id": ids.begin,
            "max_length": longest_output(text.max_tokens),
            **_search(config.translation),
        },
        "tokenizer.json": tokenizer_json(source, target, ids, text.normalize_punctuation),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": text.max_tokens,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            **special_tokens(source, ids),
        },
    }
    for name, written in files.items():
        (folder / name).write_text(
            json.dumps(written, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )


def _search(settings: TranslationSettings) -> dict[str, Any]:
    """Our search in Transformers' words."""
    if settings.beam == 1:
        return {"num_beams": 1, "do_sample": False}
    return {
        "num_beams": settings.beam,
        "do_sample": False,
        "length_penalty": settings.length_penalty,
        # Patience 1 ends a search as `True` does. With more, ours goes on for longer; `False` goes
        # on as long as anything better can be expected.
        "early_stopping": settings.patience == 1,
    }


@dataclass(frozen=True)
class TransformersTranslator:
    """An exported model as its users run it: generate, with the settings in the folder."""

    model: Any
    tokenizer: Any

    @torch.inference_mode()
    def translate(
        self,
        lines: Sequence[str],
        settings: TranslationSettings,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> list[list[Translation]]:
        """Translate lines; the settings only say how many tokens a batch may have."""
        found = [[Translation("", 0.0)] for _ in lines]
        tokens = self.tokenizer(list(lines))["input_ids"]
        filled = [place for place, line in enumerate(lines) if line.strip()]
        on_progress(len(lines) - len(filled))
        lengths = [len(tokens[place]) for place in filled]
        for batch in batches_by_length(lengths, settings.batch_tokens):
            places = [filled[index] for index in batch]
            inputs = self.tokenizer(
                [lines[place] for place in places], padding=True, return_tensors="pt"
            )
            results = self.model.generate(
                **inputs.to(self.model.device), return_dict_in_generate=True, output_scores=True
            )
            texts = self.tokenizer.batch_decode(results.sequences, skip_special_tokens=True)
            scores = self._scores(results, settings.length_penalty)
            for place, translation, score in zip(places, texts, scores, strict=True):
                found[place] = [Translation(one_line(translation), score)]
            on_progress(len(places))
        return found

    def _scores(self, results: Any, length_penalty: float) -> list[float]:
        """Normalised log-probabilities; greedy search has to be asked for its words' own."""
        if "sequences_scores" in results:
            scores: list[float] = results.sequences_scores.tolist()
            return scores
        each = self.model.compute_transition_scores(
            results.sequences, results.scores, normalize_logits=True
        )
        is_word = results.sequences[:, 1:] != self.model.config.pad_token_id
        totals = each.masked_fill(~is_word, 0.0).sum(1) / is_word.sum(1) ** length_penalty
        greedy: list[float] = totals.tolist()
        return greedy


def load_translator(folder: Path, device: torch.device) -> TransformersTranslator:
    """Open a folder as anyone would, from disk alone."""
    transformers.logging.disable_progress_bar()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return TransformersTranslator(model.to(device).eval(), tokenizer)

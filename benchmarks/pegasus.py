"""Our weights in a Hugging Face Pegasus, as `dragoman export --to transformers` writes them."""

from typing import Any

import torch

from dragoman.config import ModelSettings
from dragoman.inference.pegasus import pegasus_config, pegasus_weights
from dragoman.inference.tokenizer_json import tokenizer_ids
from dragoman.inference.translate import TextSides, longest_output
from dragoman.model.transformer import Transformer

LARGEST_LOGIT_DIFFERENCE = 1e-3


def make_pegasus(model: Transformer, text: TextSides) -> Any:
    """Our weights in a Hugging Face model, without dropout."""
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    assert model.source_embedding is model.target_embedding, "two vocabularies cost it more"
    ids, positions = tokenizer_ids(text.source, text.target, True), longest_output(text.max_tokens)
    config = pegasus_config(model, ModelSettings(), ids, positions)
    peer = PegasusForConditionalGeneration(PegasusConfig(**config)).eval()
    # What is missing there is shared with what is not.
    loaded = peer.load_state_dict(pegasus_weights(model, ids, positions), strict=False)
    assert not loaded.unexpected_keys, loaded.unexpected_keys
    return peer


@torch.inference_mode()
def compare_logits(model: Transformer, peer: Any) -> None:
    """Both models must say the same of random sentences before their speeds mean anything."""
    words = len(model.target_embedding.weight)
    source, target = torch.randint(words, (2, 4, 30), generator=torch.Generator().manual_seed(1))
    ones, positions = torch.ones_like(source), torch.arange(30).expand_as(source)
    encoded = model.encode(source, positions, ones)
    hidden = model.decode(encoded, ones, target, positions, ones)
    expected = hidden @ model.target_embedding.weight.T
    found = peer(input_ids=source, attention_mask=ones, decoder_input_ids=target).logits
    difference = float((found[..., :words] - expected).abs().max())
    assert difference < LARGEST_LOGIT_DIFFERENCE, f"the models differ by {difference}"
    print(f"largest difference of logits between our model and Pegasus: {difference:.1e}")

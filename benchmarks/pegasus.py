"""Our weights in a Hugging Face Pegasus, which is pre-norm with a table of positions as ours is."""

from typing import Any

import torch
from torch import Tensor, nn

from dragoman.inference.translate import TextSides, longest_output
from dragoman.model.transformer import NORM_EPSILON, Transformer, sinusoids
from peers import named_by_hugging_face

LARGEST_LOGIT_DIFFERENCE = 1e-3


def make_pegasus(model: Transformer, text: TextSides) -> Any:
    """Our weights in a Hugging Face model; one more word stands for padding."""
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    shape, embedding = model.shape, model.target_embedding.weight
    assert model.source_embedding is model.target_embedding, "Pegasus has one vocabulary"
    padding, positions = len(embedding), longest_output(text.max_tokens)
    peer = PegasusForConditionalGeneration(
        PegasusConfig(
            vocab_size=padding + 1,
            max_position_embeddings=positions,
            **named_by_hugging_face(shape),
            pad_token_id=padding,
            bos_token_id=text.target.begin,
            eos_token_id=text.target.end,
            decoder_start_token_id=text.target.begin,
            forced_eos_token_id=None,
        )
    ).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.zero_()
        peer.model.shared.weight[:padding] = embedding
        peer.final_logits_bias[0, padding] = float("-inf")
        table = sinusoids(torch.arange(positions), shape.d_model)
        for side in (peer.model.encoder, peer.model.decoder):
            side.embed_positions.weight.copy_(table)
        for name, tensor in named_as_pegasus(model):
            peer.model.get_parameter(name).copy_(tensor)
    for module in peer.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = NORM_EPSILON
    return peer


def named_as_pegasus(model: Transformer) -> list[tuple[str, Tensor]]:
    """Our weights by Pegasus's names."""
    named: list[tuple[str, Tensor]] = []

    def put(name: str, module: Any) -> None:
        named.extend((f"{name}.{kind}", value) for kind, value in module.named_parameters())

    def put_parts(name: str, weight: Tensor, parts: str) -> None:
        for part, value in zip(parts, weight.chunk(len(parts)), strict=True):
            named.append((f"{name}.{part}_proj.weight", value))

    for side in ("encoder", "decoder"):
        put(f"{side}.layer_norm", getattr(model, f"{side}_norm"))
        layers: Any = getattr(model, side)
        for index, layer in enumerate(layers):
            name = f"{side}.layers.{index}"
            put(f"{name}.self_attn_layer_norm", layer.attention_norm)
            put_parts(f"{name}.self_attn", layer.attention.query_key_value.weight, "qkv")
            put(f"{name}.self_attn.out_proj", layer.attention.output)
            put(f"{name}.final_layer_norm", layer.feed_forward_norm)
            put(f"{name}.fc1", layer.feed_forward.inner)
            put(f"{name}.fc2", layer.feed_forward.outer)
            if side == "decoder":
                put(f"{name}.encoder_attn_layer_norm", layer.cross_norm)
                put(f"{name}.encoder_attn.q_proj", layer.cross.query)
                put_parts(f"{name}.encoder_attn", layer.cross.key_value.weight, "kv")
                put(f"{name}.encoder_attn.out_proj", layer.cross.output)
    return named


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

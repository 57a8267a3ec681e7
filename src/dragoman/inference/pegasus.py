"""A trained Transformer as a Pegasus, the matching architecture in Hugging Face Transformers.

Pegasus too normalises before each branch and after the last one, scales its embeddings, shares
them with the output and adds positions from a table, which is saved with the weights. Its biases in
attention, which ours has not, are zero. Its layer norms add 1e-5 to the variance where ours add
1e-6, and there is no setting for it: the residual stream is scaled by the root of their ratio,
which makes up for it exactly.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.config import ModelSettings
from dragoman.inference.tokenizer_json import TokenizerIds
from dragoman.model.transformer import NORM_EPSILON, Transformer, sinusoids

PEGASUS_NORM_EPSILON = 1e-5
NEVER = -1e9  # Added to the logits of what is no word of the target language.


def pegasus_config(
    model: Transformer, settings: ModelSettings, ids: TokenizerIds, positions: int
) -> dict[str, Any]:
    """What config.json says."""
    shape = model.shape
    return {
        "architectures": ["PegasusForConditionalGeneration"],
        "model_type": "pegasus",
        "dtype": "float32",
        "vocab_size": ids.count,
        "max_position_embeddings": positions,
        "d_model": shape.d_model,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "encoder_attention_heads": shape.heads,
        "decoder_attention_heads": shape.heads,
        "encoder_ffn_dim": shape.feed_forward,
        "decoder_ffn_dim": shape.feed_forward,
        "activation_function": "relu",
        "scale_embedding": True,
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "activation_dropout": settings.relu_dropout,
        "bos_token_id": ids.begin,
        "eos_token_id": ids.end,
        "pad_token_id": ids.padding,
        "decoder_start_token_id": ids.begin,
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def pegasus_weights(model: Transformer, ids: TokenizerIds, positions: int) -> dict[str, Tensor]:
    """All weights by Pegasus's names, on the CPU, each with memory of its own."""
    scale = math.sqrt(PEGASUS_NORM_EPSILON / NORM_EPSILON)
    weights: dict[str, Tensor] = {}
    embeddings = [model.target_embedding.weight]
    if ids.target_offset:
        embeddings.insert(0, model.source_embedding.weight)
    padding = embeddings[0].new_zeros(1, model.shape.d_model)
    weights["model.shared.weight"] = scale * torch.cat((*embeddings, padding))
    bias = torch.zeros(1, ids.count)
    bias[:, : ids.target_offset] = bias[:, ids.padding] = NEVER
    weights["final_logits_bias"] = bias
    table = scale * sinusoids(torch.arange(positions), model.shape.d_model)
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_positions.weight"] = table
        norm: nn.LayerNorm = getattr(model, f"{side}_norm")
        # The output shares the embeddings, which are scaled: its input makes up for it.
        part = 1 / scale if side == "decoder" else 1.0
        weights[f"model.{side}.layer_norm.weight"] = part * norm.weight
        weights[f"model.{side}.layer_norm.bias"] = part * norm.bias
        for index, layer in enumerate(getattr(model, side)):
            name = f"model.{side}.layers.{index}"
            weights |= {f"{name}.{key}": one for key, one in _layer(layer, scale).items()}
    return {
        name: weight.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, weight in weights.items()
    }


def transformer_weights(model: Transformer, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights for a model by its own names, out of those that `pegasus_weights` made of it."""
    scale = math.sqrt(PEGASUS_NORM_EPSILON / NORM_EPSILON)
    shared = weights["model.shared.weight"] / scale
    # The padding stands last, and the source's words first if they are others.
    end = len(shared) - 1
    words = len(model.target_embedding.weight)
    found = {"target_embedding.weight": shared[end - words : end]}
    if words < end:
        found["source_embedding.weight"] = shared[: end - words]
    for side in ("encoder", "decoder"):
        part = scale if side == "decoder" else 1.0
        for kind in ("weight", "bias"):
            found[f"{side}_norm.{kind}"] = part * weights[f"model.{side}.layer_norm.{kind}"]
        for index in range(len(getattr(model, side))):
            prefix = f"model.{side}.layers.{index}."
            theirs = {
                name.removeprefix(prefix): one
                for name, one in weights.items()
                if name.startswith(prefix)
            }
            own = _own_layer(theirs, scale)
            found |= {f"{side}.{index}.{name}": one for name, one in own.items()}
    return found


def _own_layer(theirs: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """What `_layer` made, undone."""

    def stacked(name: str, parts: str) -> Tensor:
        return torch.cat([theirs[f"{name}.{part}_proj.weight"] for part in parts])

    own = {
        "attention.query_key_value.weight": stacked("self_attn", "qkv"),
        "attention.output.weight": theirs["self_attn.out_proj.weight"] / scale,
        "feed_forward.inner.weight": theirs["fc1.weight"],
        "feed_forward.inner.bias": theirs["fc1.bias"],
        "feed_forward.outer.weight": theirs["fc2.weight"] / scale,
        "feed_forward.outer.bias": theirs["fc2.bias"] / scale,
    }
    norms = {"attention_norm": "self_attn_layer_norm", "feed_forward_norm": "final_layer_norm"}
    if "encoder_attn.q_proj.weight" in theirs:
        own["cross.query.weight"] = stacked("encoder_attn", "q")
        own["cross.key_value.weight"] = stacked("encoder_attn", "kv")
        own["cross.output.weight"] = theirs["encoder_attn.out_proj.weight"] / scale
        norms["cross_norm"] = "encoder_attn_layer_norm"
    for ours, name in norms.items():
        own |= {f"{ours}.{kind}": theirs[f"{name}.{kind}"] for kind in ("weight", "bias")}
    return own


def _layer(layer: Any, scale: float) -> dict[str, Tensor]:
    """A layer of the encoder or the decoder; what it adds to the residual stream is scaled."""
    attention, feed_forward = layer.attention, layer.feed_forward
    query_key_value = attention.query_key_value.weight.chunk(3)
    weights = {
        **_attention("self_attn", query_key_value, scale * attention.output.weight),
        **_norm("self_attn_layer_norm", layer.attention_norm),
        "fc1.weight": feed_forward.inner.weight,
        "fc1.bias": feed_forward.inner.bias,
        "fc2.weight": scale * feed_forward.outer.weight,
        "fc2.bias": scale * feed_forward.outer.bias,
        **_norm("final_layer_norm", layer.feed_forward_norm),
    }
    if hasattr(layer, "cross"):
        cross = layer.cross
        query_key_value = (cross.query.weight, *cross.key_value.weight.chunk(2))
        weights |= _attention("encoder_attn", query_key_value, scale * cross.output.weight)
        weights |= _norm("encoder_attn_layer_norm", layer.cross_norm)
    return weights


def _attention(name: str, query_key_value: tuple[Tensor, ...], output: Tensor) -> dict[str, Tensor]:
    matrices = zip(
        ("q_proj", "k_proj", "v_proj", "out_proj"), (*query_key_value, output), strict=True
    )
    weights = {}
    for part, matrix in matrices:
        weights[f"{name}.{part}.weight"] = matrix
        weights[f"{name}.{part}.bias"] = matrix.new_zeros(len(matrix))
    return weights


def _norm(name: str, norm: nn.LayerNorm) -> dict[str, Tensor]:
    return {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}

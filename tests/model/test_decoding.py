"""The decoder's step against the whole decoder, and its kernels against plain PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelSettings
from dragoman.model.decoding import (
    DecoderKernels,
    DecoderState,
    DecoderWeights,
    PlainKernels,
    best_candidates,
    decoder_step,
    empty_state,
)
from dragoman.model.transformer import Transformer
from model.fused_reference import COMPUTE_TYPES, DEVICE, TOLERANCES, needs_kernels, relative_error

WORDS = 600  # More than twice as many as are looked at in one group.
SETTINGS = ModelSettings(
    preset="tiny", encoder_layers=1, decoder_layers=2, d_model=48, heads=4, feed_forward=64
)

Kernels = Callable[[DecoderWeights], DecoderKernels]


def fused(weights: DecoderWeights) -> DecoderKernels:
    pytest.importorskip("triton", reason="triton is not installed")
    from dragoman.model.fused.decoding import FusedDecoderKernels

    return FusedDecoderKernels(weights)


KERNELS = [
    pytest.param(PlainKernels, id="plain"),
    pytest.param(fused, id="fused", marks=[pytest.mark.gpu, needs_kernels]),
]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SETTINGS, WORDS, WORDS, joint=True).eval()


@torch.no_grad()
def whole(model: Transformer, source: Tensor, words: Tensor) -> Tensor:
    """Logits after every word, by the decoder that sees all of them at once."""
    encoded = model.encode(
        source[None], torch.arange(len(source))[None], torch.ones_like(source)[None]
    )
    hidden = model.decode(
        encoded,
        torch.ones_like(source)[None],
        words[None],
        torch.arange(len(words))[None],
        torch.ones_like(words)[None],
    )
    return hidden[0] @ model.target_embedding.weight.T


@pytest.mark.parametrize("kernels", KERNELS)
@torch.inference_mode()
def test_steps_of_hypotheses_at_places_of_their_own_equal_the_whole_decoder(
    model: Transformer, kernels: Kernels
) -> None:
    """Three slots start one after the other, and hypotheses go on from others of their slot."""
    device = DEVICE if kernels is fused else torch.device("cpu")
    beam, steps, starts = 2, 40, [0, 3, 11]
    sources = [torch.randint(3, WORDS, (length,)) for length in (5, 70, 2)]
    encoded = torch.cat(
        [
            model.encode(one[None], torch.arange(len(one))[None], torch.ones_like(one)[None])[0]
            for one in sources
        ]
    )
    expected_model = model
    weights = DecoderWeights(model.to(device), torch.float32, are_copies=True)
    state = empty_state(weights, len(sources), beam, steps, weights.memory(encoded.to(device)))
    lengths = torch.tensor(list(map(len, sources)))
    state.lengths.copy_(lengths)
    state.starts.copy_(lengths.cumsum(0) - lengths)
    chosen = kernels(weights)
    said = [[[1] for _ in range(beam)] for _ in sources]
    found: list[tuple[int, list[int], Tensor]] = []
    for step in range(steps):
        words = torch.tensor([row[-1] for slot in said for row in slot], device=device)
        logits = decoder_step(weights, chosen, state, words).cpu()
        parents = torch.randint(beam, (len(sources), beam))
        for slot, start in enumerate(starts):
            if step < start:
                continue
            for row in range(beam):
                found.append((slot, list(said[slot][row]), logits[slot * beam + row]))
            said[slot] = [
                [*said[slot][parent], int(torch.randint(3, WORDS, ()))]
                for parent in parents[slot].tolist()
            ]
        state.positions.copy_(torch.tensor([max(0, step + 1 - start) for start in starts]))
        go_on_from(state, parents.to(device))
    expected_model.cpu()
    for slot, words_so_far, logits in found[:: len(found) // 40]:
        expected = whole(expected_model, sources[slot], torch.tensor(words_so_far))[-1]
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)


def go_on_from(state: DecoderState, parents: Tensor) -> None:
    """Let every hypothesis go on from another of its slot."""
    chosen = parents[:, :, None].expand_as(state.ancestry)
    state.ancestry.copy_(state.ancestry.gather(1, chosen))


@pytest.mark.parametrize("words", [7, WORDS, 2_560])
def test_candidates_are_the_best_of_all(words: int) -> None:
    slots, beam, count = 3, 2, 4
    logits, scores = torch.randn(slots * beam, words), torch.randn(slots, beam)
    every = scores[:, :, None] + logits.log_softmax(dim=1).view(slots, beam, words)
    expected, places = every.flatten(1).topk(count)
    totals, parents, chosen = best_candidates(logits, scores, count)
    torch.testing.assert_close(totals, expected)
    assert torch.equal(parents, places // words)
    assert torch.equal(chosen, places % words)


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("kind", COMPUTE_TYPES, ids=str)
@torch.inference_mode()
def test_kernels_equal_plain_ones(kind: torch.dtype, model: Transformer) -> None:
    weights = DecoderWeights(model.to(DEVICE), kind, are_copies=True)
    plain, kernels = PlainKernels(weights), fused(weights)
    slots, beam, longest, width = 5, 3, 70, model.shape.d_model
    state = empty_state(
        weights, slots, beam, longest, torch.randn(200, 2 * 2 * width, device=DEVICE).to(kind)
    )
    state.caches.normal_()
    state.ancestry.random_(0, beam)
    state.positions.copy_(torch.tensor([0, 69, 33, 32, 5]))
    state.starts.copy_(torch.tensor([0, 20, 199, 100, 40]))
    state.lengths.copy_(torch.tensor([20, 90, 1, 33, 64]))
    each = torch.arange(beam, dtype=torch.int32, device=DEVICE).expand(slots, beam)
    state.ancestry.scatter_(2, state.positions[:, None, None].expand(-1, beam, 1), each[:, :, None])
    plain.begin_step(state)
    projected = torch.randn(slots * beam, 3 * width, device=DEVICE).to(kind)
    caches = state.caches.clone()
    expected = plain.attend_earlier(projected, state, 1)
    written = state.caches.clone()
    state.caches.copy_(caches)
    found = kernels.attend_earlier(projected, state, 1)
    assert relative_error(found, expected) < TOLERANCES[kind]
    assert torch.equal(state.caches, written)
    query = projected[:, :width].contiguous()
    expected = plain.attend_source(query, state, 1)
    assert relative_error(kernels.attend_source(query, state, 1), expected) < TOLERANCES[kind]
    norm = torch.randn(width, device=DEVICE), torch.randn(width, device=DEVICE)
    streams = [torch.randn(slots * beam, width, device=DEVICE)] * 2
    streams[1] = streams[0].clone()
    expected, found = (
        one.add_norm(stream, query, norm)
        for one, stream in zip((plain, kernels), streams, strict=True)
    )
    assert relative_error(found, expected) < TOLERANCES[kind]
    torch.testing.assert_close(streams[0], streams[1])


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("words", [9, WORDS, 20_000])
def test_kernels_find_the_same_candidates(beam: int, words: int, model: Transformer) -> None:
    kernels = fused(DecoderWeights(model.to(DEVICE), torch.float32, are_copies=True))
    logits = torch.randn(6 * beam, words, device=DEVICE)
    scores = torch.randn(6, beam, device=DEVICE)
    scores[0, 1:] = float("-inf")
    expected = best_candidates(logits, scores, 2 * beam)
    found = kernels.best(logits, scores, 2 * beam)
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])

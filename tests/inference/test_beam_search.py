import copy

import pytest
import torch

from dragoman.config import ModelSettings
from dragoman.inference.beam_search import BeamSearch, beam_search
from dragoman.inference.hypotheses import Hypothesis, SearchOptions
from dragoman.inference.room import Room
from dragoman.inference.sampling import Sampling
from dragoman.model.decoding import DecoderState, PlainKernels
from dragoman.model.transformer import Transformer
from model.fused_reference import DEVICE, IS_INTERPRETED

WORDS, BEGIN, END = 12, 1, 2


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Random weights, made loud so that the probabilities are far from even."""
    torch.manual_seed(3)
    settings = ModelSettings(preset="tiny", encoder_layers=1, decoder_layers=2, d_model=16, heads=2)
    model = Transformer(settings, WORDS, WORDS, joint=True).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


def sentences(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(3, WORDS, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def log_probabilities(model: Transformer, sentence: list[int], prefix: list[int]) -> torch.Tensor:
    """Next word after a prefix, by full decoding without any cache."""
    source = torch.tensor([sentence])
    segments = torch.ones_like(source)
    encoded = model.encode(source, torch.arange(source.shape[1])[None], segments)
    inputs = torch.tensor([[BEGIN, *prefix]])
    positions = torch.arange(inputs.shape[1])[None]
    hidden = model.decode(encoded, segments, inputs, positions, torch.ones_like(inputs))
    return (hidden[0, -1] @ model.target_embedding.weight.T).log_softmax(-1)


def greedy(model: Transformer, sentence: list[int], longest: int) -> tuple[int, ...]:
    prefix: list[int] = []
    while len(prefix) < longest:
        word = int(log_probabilities(model, sentence, prefix).argmax())
        if word == END:
            break
        prefix.append(word)
    return tuple(prefix)


def test_beam_of_one_is_greedy_in_any_batch(model: Transformer) -> None:
    lengths = [5, 1, 8, 3, 3, 7]
    source, longest = sentences(lengths), [9, 3, 12, 1, 20, 6]
    found = beam_search(model, source, longest, SearchOptions(1, 2, 0.6, BEGIN, END))
    for sentence, most, best in zip(source, longest, found, strict=True):
        assert best[0].tokens == greedy(model, sentence, most)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_wide_beam_finds_the_best_of_all_short_translations(
    model: Transformer, length_penalty: float
) -> None:
    (sentence,) = sentences([4])
    options = SearchOptions(WORDS**2, 1, length_penalty, BEGIN, END)
    found = beam_search(model, [sentence], [3], options)[0]
    scores: dict[tuple[int, ...], float] = {}
    unfinished: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for length in range(1, 4):
        grown = []
        for prefix, total in unfinished:
            following = log_probabilities(model, sentence, list(prefix))
            for word in range(WORDS):
                score = total + float(following[word])
                if word == END or length == 3:
                    tokens = prefix if word == END else (*prefix, word)
                    scores[tokens] = max(
                        scores.get(tokens, float("-inf")), score / length**length_penalty
                    )
                if word != END:
                    grown.append(((*prefix, word), score))
        unfinished = grown
    best = max(scores, key=lambda tokens: scores[tokens])
    assert found[0].tokens == best
    assert found[0].score == pytest.approx(scores[best], abs=1e-4)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_patience_finds_what_poor_short_hypotheses_hide(model: Transformer) -> None:
    source = sentences([7] * 40)
    best = [
        [
            found[0].score
            for found in beam_search(
                model, source, [20] * 40, SearchOptions(4, patience, 1.0, BEGIN, END)
            )
        ]
        for patience in (1, 2)
    ]
    gains = [more - less for less, more in zip(*best, strict=True)]
    assert min(gains) > -1e-5, "what ended in time is still there"
    assert max(gains) > 0.01


def test_batching_changes_no_hypothesis(model: Transformer) -> None:
    source = sentences([5, 2, 8, 6])
    options = SearchOptions(4, 2, 0.6, BEGIN, END)
    together = beam_search(model, source, [12] * 4, options)
    alone = [beam_search(model, [sentence], [12], options)[0] for sentence in source]
    assert_same(together, alone)
    for found in alone:
        assert len({one.tokens for one in found}) == len(found)


def test_as_many_come_as_are_wanted(model: Transformer) -> None:
    source = sentences([5, 2, 8, 6])
    every, two = (
        beam_search(model, source, [12] * 4, SearchOptions(4, 2, 0.6, BEGIN, END, n_best))
        for n_best in (None, 2)
    )
    assert [len(one) for one in every] == [4] * 4
    assert_same([one[:2] for one in every], two)


DRAWN = SearchOptions(1, 1, 0.6, BEGIN, END, 3, Sampling(top_k=5, temperature=0.7, seed=4))


@pytest.mark.parametrize("slots", [1, 3, 4])
@pytest.mark.parametrize(
    "options", [SearchOptions(1, 2, 0.6, BEGIN, END), SearchOptions(4, 2, 0.6, BEGIN, END), DRAWN]
)
def test_waiting_for_a_slot_changes_no_hypothesis(
    model: Transformer, options: SearchOptions, slots: int
) -> None:
    lengths = [5, 2, 8, 6, 1, 1, 3, 12, 7, 9]
    source = sentences(lengths)
    longest = [2 * length + 4 for length in lengths]
    together = beam_search(model, source, longest, options)
    assert_same(together, beam_search(model, source, longest, options, slots))


def test_a_search_that_was_broken_off_leaves_nothing_behind(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, longest = sentences([5, 2, 8, 6]), [12] * 4
    options = SearchOptions(3, 2, 0.6, BEGIN, END)
    expected = beam_search(model, source, longest, options)
    room = Room(slots=2, sentences=4, source_tokens=30, longest=12)
    search = BeamSearch(model, options, room, is_recorded=False)
    steps = 0

    def break_off(self: PlainKernels, state: DecoderState) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        begin_step(self, state)

    begin_step = PlainKernels.begin_step
    monkeypatch.setattr(PlainKernels, "begin_step", break_off)
    with pytest.raises(KeyboardInterrupt):
        search.search(source, longest)
    assert_same(expected, search.search(source, longest))


@pytest.fixture(params=["a GPU", "Triton's interpreter"])
def device_with_kernels(request: pytest.FixtureRequest) -> torch.device:
    pytest.importorskip("triton", reason="triton is not installed")
    if (request.param == "a GPU") == IS_INTERPRETED:
        pytest.skip("the kernels run either on a GPU or in the interpreter")
    if request.param == "a GPU" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return DEVICE


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [*(SearchOptions(beam, 2, 0.6, BEGIN, END) for beam in (1, 4, 20)), DRAWN]
)
def test_recorded_search_finds_the_same_again_and_again(
    model: Transformer, options: SearchOptions, device_with_kernels: torch.device
) -> None:
    from dragoman.model.fused.decoding import FusedDecoderKernels

    if (options.beam > 4 or options.copies > 1) and IS_INTERPRETED:
        pytest.skip("takes minutes in the interpreter")
    lengths = [5, 2, 8, 6, 1, 1, 3, 12, 7, 9]
    longest = [2 * length + 4 for length in lengths]
    expected = beam_search(model, sentences(lengths), longest, options)
    moved = copy.deepcopy(model).to(device_with_kernels)
    room = Room(slots=3, sentences=30, source_tokens=80, longest=40)
    is_recorded = device_with_kernels.type == "cuda"
    search = BeamSearch(moved, options, room, is_recorded=is_recorded, kernels=FusedDecoderKernels)
    assert_same(expected, search.search(sentences(lengths), longest))
    if not is_recorded:
        return
    # Fewer of them the next time, and then with other weights.
    fewer = search.search(sentences(lengths)[:4], longest[:4])
    assert_same(expected[:4], fewer)
    with torch.no_grad():
        for one in (model, moved):
            one.target_embedding.weight.mul_(0.5)
    other = search.search(sentences(lengths), longest)
    again = beam_search(model, sentences(lengths), longest, options)
    with torch.no_grad():
        model.target_embedding.weight.mul_(2.0)
    assert_same(again, other)


def assert_same(expected: list[list[Hypothesis]], found: list[list[Hypothesis]]) -> None:
    for one, other in zip(expected, found, strict=True):
        assert [hypothesis.tokens for hypothesis in one] == [same.tokens for same in other]
        for hypothesis, same in zip(one, other, strict=True):
            assert hypothesis.score == pytest.approx(same.score, abs=1e-4)

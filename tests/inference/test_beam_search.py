import pytest
import torch

from dragoman.config import ModelSettings
from dragoman.inference import beam_search as beam_search_module
from dragoman.inference.beam_search import SearchOptions, beam_search
from dragoman.model.transformer import Decoding, Transformer, in_large_pieces

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


def batch(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    width = max(lengths)
    source = torch.randint(3, WORDS, (len(lengths), width), generator=generator)
    segments = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return source * segments, segments


@torch.no_grad()
def log_probabilities(
    model: Transformer, source: torch.Tensor, segments: torch.Tensor, prefix: list[int]
) -> torch.Tensor:
    """Next word after a prefix, by full decoding without any cache."""
    encoded = model.encode(source, torch.arange(source.shape[1])[None], segments)
    inputs = torch.tensor([[BEGIN, *prefix]])
    positions = torch.arange(inputs.shape[1])[None]
    hidden = model.decode(encoded, segments, inputs, positions, torch.ones_like(inputs))
    return (hidden[0, -1] @ model.target_embedding.weight.T).log_softmax(-1)


def greedy(
    model: Transformer, source: torch.Tensor, segments: torch.Tensor, longest: int
) -> tuple[int, ...]:
    prefix: list[int] = []
    while len(prefix) < longest:
        word = int(log_probabilities(model, source, segments, prefix).argmax())
        if word == END:
            break
        prefix.append(word)
    return tuple(prefix)


def test_beam_of_one_is_greedy_in_any_batch(model: Transformer) -> None:
    lengths = [5, 1, 8, 3, 3, 7]
    source, segments = batch(lengths)
    longest = [9, 3, 12, 1, 20, 6]
    found = beam_search(model, source, segments, longest, SearchOptions(1, 2, 0.6, BEGIN, END))
    for row, (length, most) in enumerate(zip(lengths, longest, strict=True)):
        one = source[row : row + 1, :length], segments[row : row + 1, :length]
        assert found[row][0].tokens == greedy(model, *one, most)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_wide_beam_finds_the_best_of_all_short_translations(
    model: Transformer, length_penalty: float
) -> None:
    source, segments = batch([4])
    options = SearchOptions(WORDS**2, 1, length_penalty, BEGIN, END)
    found = beam_search(model, source, segments, [3], options)[0]
    scores: dict[tuple[int, ...], float] = {}
    unfinished: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for length in range(1, 4):
        grown = []
        for prefix, total in unfinished:
            following = log_probabilities(model, source, segments, list(prefix))
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
    source, segments = batch([7] * 40)
    best = [
        [
            found[0].score
            for found in beam_search(
                model, source, segments, [20] * 40, SearchOptions(4, patience, 1.0, BEGIN, END)
            )
        ]
        for patience in (1, 2)
    ]
    gains = [more - less for less, more in zip(*best, strict=True)]
    assert min(gains) > -1e-5, "what ended in time is still there"
    assert max(gains) > 0.01


def test_batching_changes_no_hypothesis(model: Transformer) -> None:
    lengths = [5, 2, 8, 6]
    source, segments = batch(lengths)
    options = SearchOptions(4, 2, 0.6, BEGIN, END)
    together = beam_search(model, source, segments, [12] * 4, options)
    for row, length in enumerate(lengths):
        one = source[row : row + 1, :length], segments[row : row + 1, :length]
        alone = beam_search(model, *one, [12], options)[0]
        assert [one.tokens for one in together[row]] == [one.tokens for one in alone]
        for one_score, other in zip(together[row], alone, strict=True):
            assert one_score.score == pytest.approx(other.score, abs=1e-4)
        assert len({one.tokens for one in alone}) == len(alone)


@pytest.fixture(params=["a GPU", "as on a GPU"])
def other_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU, where steps are replayed; or the CPU, doing what a GPU does but for the replay."""
    if request.param == "a GPU":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        return torch.device("cuda")

    def all_places(self: Decoding) -> torch.Tensor:
        return (torch.arange(len(self.sinusoids)) <= self.position)[None, None, None]

    def reorder_all(self: Decoding, rows: torch.Tensor) -> None:
        pieces = in_large_pieces(self.caches)
        assert pieces.dtype == torch.complex128
        pieces.copy_(pieces[:, :, rows])

    monkeypatch.setattr(Decoding, "mask", all_places)
    monkeypatch.setattr(Decoding, "reorder", reorder_all)
    for name in ("STEPS_BETWEEN_LOOKS", "SHARE_HELD_UNTIL"):
        settings = getattr(beam_search_module, name)
        monkeypatch.setitem(settings, "cpu", settings["cuda"])
    return torch.device("cpu")


@pytest.mark.parametrize("beam", [1, 4])
def test_another_device_finds_the_same(
    model: Transformer, beam: int, other_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [5, 2, 8, 6, 1, 1, 3, 12, 7, 9]
    source, segments = batch(lengths)
    longest = [2 * length + 4 for length in lengths]
    options = SearchOptions(beam, 2, 0.6, BEGIN, END)
    there = beam_search(
        model.to(other_device), source.to(other_device), segments.to(other_device), longest, options
    )
    monkeypatch.undo()
    here = beam_search(model.cpu(), source, segments, longest, options)
    for one, other in zip(here, there, strict=True):
        assert [hypothesis.tokens for hypothesis in one] == [found.tokens for found in other]
        for hypothesis, found in zip(one, other, strict=True):
            assert hypothesis.score == pytest.approx(found.score, abs=1e-4)

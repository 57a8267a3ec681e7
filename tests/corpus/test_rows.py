from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from dragoman.corpus import rows as rows_module
from dragoman.corpus.rows import Position, Rows, RowStream, StepRows, pack
from dragoman.corpus.store import PairTokens, pack_lines

BEGIN, END = 1, 2


def random_pairs(count: int, longest: int, seed: int = 0) -> PairTokens:
    """Pairs whose first tokens number them, so that each can be told apart."""
    generator = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        lengths = generator.integers(3, longest + 1, size=count)
        body = [generator.integers(3, 1000, size=length - 3).tolist() for length in lengths]
        sides.append([[pair // 1000, pair % 1000, *body[pair], END] for pair in range(count)])
    return PairTokens(*(pack_lines(side, "uint16") for side in sides))


def unpack(rows: Rows) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Read the pairs back out of the rows, checking inputs, positions and padding."""
    pairs = []
    for row in range(len(rows)):
        for segment in range(1, rows.target_segments[row].max() + 1):
            at_source = rows.source_segments[row] == segment
            at_target = rows.target_segments[row] == segment
            target = rows.target[row][at_target]
            assert rows.target_input[row][at_target].tolist() == [BEGIN, *target[:-1]]
            for positions, where in (
                (rows.source_positions, at_source),
                (rows.target_positions, at_target),
            ):
                assert positions[row][where].tolist() == list(range(where.sum()))
            pairs.append((tuple(rows.source[row][at_source]), tuple(target)))
    padding = rows.target_segments == 0
    assert not rows.target[padding].any()
    assert not rows.target_input[padding].any()
    return pairs


def original(pairs: PairTokens) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [
        (tuple(pairs.source.line(index)), tuple(pairs.target.line(index)))
        for index in range(len(pairs))
    ]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several windows an epoch even for small corpora, the last one short."""
    monkeypatch.setattr(rows_module, "PAIRS_PER_BLOCK", 16)
    monkeypatch.setattr(rows_module, "BLOCKS_PER_WINDOW", 4)


def stream(pairs: PairTokens, rows_per_step: int = 8, seed: int = 1) -> RowStream:
    return RowStream(pairs, row_tokens=32, rows_per_step=rows_per_step, begin=BEGIN, seed=seed)


def steps(source: RowStream, position: Position | None = None) -> Iterator[StepRows]:
    return source.steps(position or Position())


def test_packing_loses_and_changes_nothing() -> None:
    pairs = random_pairs(500, longest=32)
    rows = pack(pairs, 32, BEGIN)
    assert Counter(unpack(rows)) == Counter(original(pairs))
    assert rows.pairs == 500
    assert rows.target_tokens == pairs.target.offsets[-1]
    assert rows.source_tokens == pairs.source.offsets[-1]


def test_every_pair_comes_exactly_once_an_epoch() -> None:
    pairs = random_pairs(300, longest=20)
    source = stream(pairs)
    for epoch in range(2):
        windows = [source.window(epoch, window) for window in range(source.windows)]
        seen = Counter(pair for rows in windows for pair in unpack(rows))
        assert seen == Counter(original(pairs))


def test_order_depends_on_seed_and_epoch_alone() -> None:
    pairs = random_pairs(300, longest=20)
    first = [unpack(step.rows) for step in islice(steps(stream(pairs)), 5)]
    again = [unpack(step.rows) for step in islice(steps(stream(pairs)), 5)]
    other = [unpack(step.rows) for step in islice(steps(stream(pairs, seed=2)), 5)]
    next_epoch = [unpack(step.rows) for step in islice(steps(stream(pairs), Position(1)), 5)]
    assert first == again
    assert first != other
    assert first != next_epoch


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_shares_of_all_workers_make_the_same_step(workers: int) -> None:
    source = stream(random_pairs(300, longest=20))
    for whole in islice(steps(source), 40):
        shares = [whole.share(rank, workers) for rank in range(workers)]
        for index, array in enumerate(whole.rows.arrays()):
            joined = np.concatenate([share.rows.arrays()[index] for share in shares])
            assert np.array_equal(joined, array)
        assert {share.target_tokens for share in shares} == {whole.rows.target_tokens}
        assert {share.pairs for share in shares} == {whole.rows.pairs}
        sizes = [len(share.rows) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1


def test_any_position_goes_on_exactly_even_across_epochs() -> None:
    source = stream(random_pairs(200, longest=20))
    whole = list(islice(steps(source), 30))
    assert whole[-1].next.epoch >= 2
    for index, step in enumerate(whole[:-1]):
        following = next(steps(source, step.next))
        assert following.next == whole[index + 1].next
        assert np.array_equal(following.rows.target, whole[index + 1].rows.target)
    epochs = [step.epoch for step in whole]
    assert epochs == sorted(epochs)
    assert epochs[0] > 0


def test_step_larger_than_the_corpus_spans_epochs() -> None:
    pairs = random_pairs(20, longest=10)
    step = next(steps(stream(pairs, rows_per_step=64)))
    assert len(step.rows) == 64
    assert min(Counter(unpack(step.rows)).values()) >= 2


def test_pair_longer_than_a_row_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="exceeds a row"):
        pack(random_pairs(10, longest=40), 16, BEGIN)

"""Which pairs of machines are measured at the same time."""

from itertools import permutations

import pytest

from dragoman.cluster.links import in_rounds


@pytest.mark.parametrize(("count", "most"), [(2, 2), (3, 6), (8, 14), (10, 25), (30, 71)])
def test_every_pair_has_its_round_and_no_machine_two_things_to_do(count: int, most: int) -> None:
    pairs = list(permutations([f"host{index}" for index in range(count)], 2))
    rounds = in_rounds(pairs)
    assert sorted(pair for one in rounds for pair in one) == sorted(pairs)
    for one in rounds:
        busy = [host for pair in one for host in pair]
        assert len(set(busy)) == len(busy)
    assert len(rounds) <= most

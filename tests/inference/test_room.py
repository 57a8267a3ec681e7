import pytest
import torch

from dragoman.config import ModelSettings, shape_of
from dragoman.inference.room import SHARE_OF_FREE_MEMORY, SizeOfSearch, room_for_many


@pytest.mark.parametrize("beam", [1, 4, 1_000])
@pytest.mark.parametrize("batch_tokens", [1, 100, 4_096])
@pytest.mark.parametrize("gibibytes", [0, 4, 16, 140])
def test_room_fits_beside_everything_else_and_takes_any_sentence(
    beam: int, batch_tokens: int, gibibytes: int
) -> None:
    size = SizeOfSearch(shape_of(ModelSettings(preset="base")), 32_768, torch.bfloat16, beam)
    room = room_for_many(size, batch_tokens, 128, 272, gibibytes << 30)
    assert room.slots == 1 or size.bytes_of(room) <= SHARE_OF_FREE_MEMORY * (gibibytes << 30)
    assert room.slots >= 1
    assert room.sentences >= 1
    assert room.source_tokens >= 128


def test_a_large_device_decodes_as_many_hypotheses_with_any_beam() -> None:
    shape = shape_of(ModelSettings(preset="base"))
    rooms = {
        beam: room_for_many(
            SizeOfSearch(shape, 32_768, torch.bfloat16, beam), 4_096, 128, 272, 140 << 30
        )
        for beam in (1, 4)
    }
    assert [room.slots * beam for beam, room in rooms.items()] == [2_048, 2_048]

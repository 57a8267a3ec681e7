"""How large a recorded search can be, and how much of it fits on a GPU."""

from dataclasses import dataclass, replace

import torch

from dragoman.config import ModelShape

# A GPU decodes so many times translation.batch_tokens side by side, all hypotheses counted, and
# encodes so many before it starts: a step of few hypotheses takes as long as one of many.
DECODED, ENCODED = 64, 32
FEW_SENTENCES = 16  # These go through a search of their own size.
TOKENS_PER_SENTENCE = 16  # Of many short ones fewer are encoded at a time.
SHARE_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True)
class Room:
    """The most that a search can take."""

    slots: int
    sentences: int
    source_tokens: int  # Of all sentences.
    longest: int  # Tokens of a translation.


@dataclass(frozen=True)
class SizeOfSearch:
    """What the memory of a search depends on, but for its room."""

    shape: ModelShape
    words: int
    kind: torch.dtype
    beam: int

    def bytes_of(self, room: Room) -> int:
        """What the large buffers of a search take."""
        width = 2 * self.shape.decoder_layers * self.shape.d_model * self.kind.itemsize
        rows = room.slots * self.beam
        logits = rows * self.words * self.kind.itemsize
        nodes = room.sentences * (room.longest + 1) * self.beam * 2 * torch.int32.itemsize
        return rows * room.longest * width + room.source_tokens * width + logits + nodes


def room_for_few(max_tokens: int, longest: int) -> Room:
    """Room for a few sentences, whose translation shall not wait for slots without any."""
    return Room(FEW_SENTENCES, FEW_SENTENCES, FEW_SENTENCES * max_tokens, longest)


def room_for_many(
    size: SizeOfSearch, batch_tokens: int, max_tokens: int, longest: int, free_bytes: int
) -> Room:
    """As much room as is worth it, or as fits beside what else is on the device."""
    slots = DECODED * batch_tokens // (max_tokens * size.beam)
    encoded = ENCODED * batch_tokens
    room = Room(max(slots, 1), encoded // TOKENS_PER_SENTENCE, max(encoded, max_tokens), longest)
    room = replace(room, sentences=max(room.sentences, 1))
    while room.slots > 1 and size.bytes_of(room) > SHARE_OF_FREE_MEMORY * free_bytes:
        room = Room(
            room.slots // 2,
            max(room.sentences // 2, 1),
            max(room.source_tokens // 2, max_tokens),
            longest,
        )
    return room


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that nobody uses, or that PyTorch keeps without using it."""
    free, _ = torch.cuda.mem_get_info(device)
    kept: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + kept

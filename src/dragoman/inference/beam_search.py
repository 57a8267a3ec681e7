"""Beam search with cached keys and values; a beam of 1 is greedy search, or drawing.

Shapes: N sentences, B slots in which one is decoded at a time, K beam, V words, L the longest
translation allowed. All bookkeeping stays on the device until all sentences are done. On a GPU a
step is recorded once and replayed: starting its hundreds of kernels one by one would take longer
than they do. Slots whose sentence is done get the next one, so that every step is worth its time.
"""

import importlib.util
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.inference.hypotheses import Hypotheses, Hypothesis, SearchOptions
from dragoman.inference.room import Room
from dragoman.inference.sampling import draw, sentence_keys, uniform
from dragoman.model.attention import kernels_for_any_shape
from dragoman.model.decoding import (
    DecoderKernels,
    DecoderWeights,
    PlainKernels,
    decoder_step,
    empty_state,
)
from dragoman.model.transformer import Transformer

# Slots are let go, where steps are not recorded, once so many of them have nothing left to do.
SHARE_HELD_UNTIL = 7 / 8
# A recorded step runs so often before slots that are done get their next sentence.
STEPS_BETWEEN_LOOKS = 4
ENCODED_AT_ONCE = 65_536  # Source slots, padding included.


def beam_search(
    model: Transformer,
    sentences: Sequence[Sequence[int]],
    longest: Sequence[int],
    options: SearchOptions,
    slots: int = 0,
) -> list[list[Hypothesis]]:
    """Translate sentences, all side by side or in so many slots; best hypotheses first.

    A sentence is done when K times the patience have ended: with no more than K, poor short ones
    would often end it before the best. Or it is done when it reaches its own longest length, where
    the live ones are taken as they are.
    """
    tokens, count = sum(map(len, sentences)), len(sentences) * options.copies
    room = Room(slots or count, count, tokens, max(longest))
    return BeamSearch(model, options, room, is_recorded=False).search(sentences, longest)


def can_record(device: torch.device) -> bool:
    """Whether steps can be recorded on a device: they are, where Triton's kernels are there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class BeamSearch:
    """A search for sentences up to a certain number and length, again and again."""

    @torch.inference_mode()
    def __init__(
        self,
        model: Transformer,
        options: SearchOptions,
        room: Room,
        *,
        is_recorded: bool,
        kernels: Callable[[DecoderWeights], DecoderKernels] | None = None,
    ) -> None:
        device = model.target_embedding.weight.device
        kind = arithmetic_type(device)
        self.room, self._options = room, options
        self._model, self._device = model, device
        self._weights = DecoderWeights(model, kind, are_copies=is_recorded)
        self._kernels = (kernels or _choose_kernels(is_recorded))(self._weights)
        self._slots = _Slots(self._weights, self._kernels, options, room, device)
        self._admit = _Recorded(self._slots.admit) if is_recorded else None
        self._step = _Recorded(self._slots.step) if is_recorded else None
        self._is_used = False

    @torch.inference_mode()
    def search(
        self, sentences: Sequence[Sequence[int]], longest: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Translate sentences; those of like length are best side by side."""
        if self._is_used and self._admit:
            self._weights.refresh()
        self._is_used = True
        encoded = encode(self._model, sentences, self._device)
        with torch.autocast(self._device.type, enabled=False):
            columns = _columns(sentences, longest, self._options)
            self._slots.begin(self._weights.memory(encoded), columns)
            if self._admit and self._step:
                self._replay(self._admit, self._step)
            else:
                self._run()
            found = self._slots.hypotheses.best(columns.shape[1])
        copies = self._options.copies
        groups = (found[first : first + copies] for first in range(0, len(found), copies))
        return [list(chain.from_iterable(group)) for group in groups]

    def _run(self) -> None:
        """Step by step, until nothing is left."""
        slots = self._slots
        while left := slots.admit_and_look():
            slots.step()
            if not slots.is_anyone_waiting() and left <= SHARE_HELD_UNTIL * slots.count:
                slots.let_idle_go()

    def _replay(self, admit: "_Recorded", step: "_Recorded") -> None:
        """The same, but nobody waits: the host looks at what was left some steps before."""
        looks = [_Look(), _Look()]
        turn = 0
        while True:
            admit()
            looks[turn % 2].take(self._slots.left)
            for _ in range(STEPS_BETWEEN_LOOKS):
                step()
            turn += 1
            if turn > 1 and looks[turn % 2].read() == 0:
                return


def arithmetic_type(device: torch.device) -> torch.dtype:
    """What products are made in, by the context around."""
    is_narrow = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_narrow else torch.float32


def _columns(
    sentences: Sequence[Sequence[int]], longest: Sequence[int], options: SearchOptions
) -> NDArray[np.int64]:
    """What the table of the slots has of each sentence, once for each of its copies: [4, N]."""
    lengths = np.array(list(map(len, sentences)))
    columns = np.stack([lengths.cumsum() - lengths, lengths, longest, np.zeros_like(lengths)])
    columns = columns.repeat(options.copies, axis=1)
    if options.sampling:
        columns[3] = sentence_keys(sentences, options.copies, options.sampling)
    return columns


def _choose_kernels(is_recorded: bool) -> Callable[[DecoderWeights], DecoderKernels]:
    if not is_recorded:
        return PlainKernels
    from dragoman.model.fused.decoding import FusedDecoderKernels

    return FusedDecoderKernels


def encode(model: Transformer, sentences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Encode sentences and put them end to end: [source tokens, D]."""
    encoded = []
    start = 0
    while start < len(sentences):
        width, end = len(sentences[start]), start + 1
        while end < len(sentences):
            width = max(width, len(sentences[end]))
            if width * (end + 1 - start) > ENCODED_AT_ONCE:
                break
            end += 1
        with kernels_for_any_shape():
            encoded.append(_encode_padded(model, sentences[start:end], device))
        start = end
    return torch.cat(encoded)


def _encode_padded(
    model: Transformer, sentences: Sequence[Sequence[int]], device: torch.device
) -> Tensor:
    lengths = np.array(list(map(len, sentences)))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    source = np.zeros(is_token.shape, dtype=np.int64)
    source[is_token] = np.concatenate([np.asarray(sentence) for sentence in sentences])
    positions = torch.arange(int(lengths.max()), device=device).expand(len(lengths), -1)
    segments = torch.from_numpy(is_token.astype(np.int64)).to(device)
    encoded = model.encode(torch.from_numpy(source).to(device), positions, segments)
    places = torch.from_numpy(np.flatnonzero(is_token)).to(device)
    return encoded.flatten(0, 1).index_select(0, places)


class _Slots:
    """The state of a search; its methods change it in place, and few of them ask the host."""

    def __init__(
        self,
        weights: DecoderWeights,
        kernels: DecoderKernels,
        options: SearchOptions,
        room: Room,
        device: torch.device,
    ) -> None:
        self._weights, self._kernels, self._options = weights, kernels, options
        self._nobody = room.sentences  # The number of the sentence of a slot that has none.
        self.hypotheses = Hypotheses(options, room.sentences, room.longest, device)
        shape = room.slots, options.beam
        width = weights.shape.decoder_layers * 2 * weights.shape.d_model
        memory = torch.zeros(room.source_tokens, width, dtype=weights.kind, device=device)
        self._state = empty_state(weights, *shape, room.longest, memory)
        self._sentences = torch.full((room.slots,), self._nobody, device=device)
        # The most tokens of a translation, and what the numbers come from that it is drawn with.
        self._limits, self._keys = torch.zeros(2, room.slots, dtype=torch.int64, device=device)
        # Where each sentence starts in the memory, its tokens, and the two above.
        self._table = torch.zeros(4, room.sentences + 1, dtype=torch.int64, device=device)
        self._table[1] = 1
        self._next, self._count, self.left = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        self._words = torch.zeros(shape, dtype=torch.int64, device=device)
        # At first all K rows of a slot are the same: only one of them may grow.
        self._first_scores = torch.full((1, options.beam), float("-inf"), device=device)
        self._first_scores[:, 0] = 0.0
        self._scores = self._first_scores.repeat(room.slots, 1)

    @property
    def count(self) -> int:
        """Slots that are held."""
        return len(self._sentences)

    def begin(self, memory: Tensor, columns: NDArray[np.int64]) -> None:
        """Take sentences, encoded end to end; no slot has one, even if a search was broken off."""
        count = columns.shape[1]
        self._state.memory[: len(memory)] = memory
        self._table[:, :count] = torch.from_numpy(columns).to(memory.device)
        self._count.fill_(count)
        self._next.zero_()
        self._sentences.fill_(self._nobody)
        self._state.positions.zero_()
        self.hypotheses.counts.zero_()

    def admit(self) -> None:
        """Give the next sentences to the slots that have none."""
        is_free = self._sentences == self._nobody
        nth = self._next + is_free.cumsum(dim=0) - 1
        is_new = is_free & (nth < self._count)
        self._sentences.copy_(torch.where(is_new, nth, self._sentences))
        self._next += is_new.sum()
        starts, lengths, limits, keys = self._table[:, self._sentences]
        self._state.starts.copy_(starts)
        self._state.lengths.copy_(lengths)
        self._limits.copy_(limits)
        self._keys.copy_(keys)
        self._scores.copy_(torch.where(is_new[:, None], self._first_scores, self._scores))
        self._words.masked_fill_(is_new[:, None], self._options.begin)
        self.left.copy_((self._sentences != self._nobody).sum())

    def step(self) -> None:
        """Let all live hypotheses grow by one word, and note those that end with it."""
        beam, state = self._options.beam, self._state
        logits = decoder_step(self._weights, self._kernels, state, self._words.flatten())
        length = state.positions + 1  # Of the hypotheses with the new word.
        if sampling := self._options.sampling:
            numbers = uniform(self._keys, length)
            totals, parents, words = draw(logits, self._scores, numbers, sampling)
        else:
            totals, parents, words = self._kernels.best(logits, self._scores, 2 * beam)
        # At most K of the 2K candidates can end, so that K are left to live on: the first of those
        # that do not, by a stable sort in the order of their scores.
        is_end = words == self._options.end
        order = is_end.to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
        scores = totals.gather(1, order).masked_fill(is_end.gather(1, order), float("-inf"))
        is_open = (self._sentences != self._nobody)[:, None]
        is_full = (length >= self._limits)[:, None] & is_open
        is_ended = (is_end & (totals > float("-inf")))[:, :beam] & is_open
        is_cut = is_full & (scores > float("-inf"))
        live_parents = parents.gather(1, order)
        self._words.copy_(words.gather(1, order))
        self.hypotheses.grow(self._sentences, length, live_parents, self._words)
        self.hypotheses.take(
            self._sentences, length, (is_ended, is_cut), (totals, scores), parents[:, :beam]
        )
        is_enough = self.hypotheses.counts[self._sentences] >= self._options.hypotheses
        is_done = is_enough | is_full[:, 0]
        self._sentences.masked_fill_(is_done, self._nobody)
        self._scores.copy_(scores)
        state.positions.add_(1).masked_fill_(self._sentences == self._nobody, 0)
        if beam > 1:
            ancestors = live_parents[:, :, None].expand_as(state.ancestry)
            state.ancestry.copy_(state.ancestry.gather(1, ancestors))

    def admit_and_look(self) -> int:
        """Give free slots their next sentence, if one waits; tell how many slots have one."""
        if self.is_anyone_waiting():
            self.admit()
            self._kernels.sentences_changed()
        return int((self._sentences != self._nobody).sum())

    def is_anyone_waiting(self) -> bool:
        """Whether sentences are left that no slot has had."""
        return bool(self._next < self._count)

    def let_idle_go(self) -> None:
        """Go on with those slots only that have a sentence."""
        held = (self._sentences != self._nobody).nonzero().flatten()
        self._state = self._state.select(held)
        self._sentences, self._limits = self._sentences[held], self._limits[held]
        self._keys = self._keys[held]
        self._scores, self._words = self._scores[held], self._words[held]
        self._kernels.sentences_changed()


class _Recorded:
    """Work that is recorded when it is done for the first time, and replayed from then on."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do it."""
        if self._graph:
            self._graph.replay()
            return
        self._work()
        graph = torch.cuda.CUDAGraph()
        # Not by torch.cuda.graph, which gives all cached memory back first: that takes longer
        # than many steps.
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            graph.capture_begin(capture_error_mode="thread_local")
            self._work()
            graph.capture_end()
        self._graph = graph


class _Look:
    """A number on its way from the device."""

    def __init__(self) -> None:
        self._number = torch.zeros((), dtype=torch.int64).pin_memory()
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def take(self, number: Tensor) -> None:
        """Send it, once the device comes so far."""
        self._number.copy_(number, non_blocking=True)
        self._event.record()

    def read(self) -> int:
        """Wait until it is here."""
        self._event.synchronize()
        return int(self._number)

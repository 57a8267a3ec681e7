"""Sentences of many requests, collected into shared batches for one model."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from dragoman.inference.decoder import TranslateLines
from dragoman.inference.translate import Translation

SENTENCES_PER_BATCH = 64


class QueueFull(Exception):
    """More sentences wait than are allowed to."""


@dataclass(eq=False)
class _Job:
    """The sentences of one request."""

    sentences: Sequence[str]
    n_best: int
    done: asyncio.Future[list[list[Translation]]]
    found: dict[int, list[Translation]] = field(default_factory=dict)
    next: int = 0  # The first that is not yet in a batch.


class Batches:
    """One model, and the sentences that wait for it.

    While a batch is being translated others arrive; the next one takes from every request in turn,
    so that one sentence need not wait for a whole book.
    """

    def __init__(
        self,
        translate: TranslateLines,
        most_waiting: int,
        on_batch: Callable[[int, float], None],
    ) -> None:
        self._translate, self._most_waiting, self._on_batch = translate, most_waiting, on_batch
        self._jobs: list[_Job] = []
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    @property
    def waiting(self) -> int:
        """Sentences that wait for a batch."""
        return sum(len(job.sentences) - job.next for job in self._jobs if not job.done.done())

    async def translate(self, sentences: Sequence[str], n_best: int) -> list[list[Translation]]:
        """Translate sentences together with those of other requests; if cancelled, no longer."""
        if not sentences:
            return []
        if self.waiting + len(sentences) > self._most_waiting:
            raise QueueFull
        job = _Job(sentences, n_best, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrival.set()
        return await job.done

    async def run(self) -> None:
        """Translate what comes, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._arrival.wait()
                batch = self._take_batch()
                if not batch:
                    self._arrival.clear()
                    continue
                lines = [job.sentences[place] for job, place in batch]
                started = time.monotonic()
                try:
                    translated = await loop.run_in_executor(
                        self._thread, self._translate, lines, batch[0][0].n_best
                    )
                except Exception as error:  # Whatever it is, those who wait must hear of it.
                    _fail(batch, error)
                    continue
                self._on_batch(len(lines), time.monotonic() - started)
                _deliver(batch, translated)
        finally:
            self._thread.shutdown()

    def _take_batch(self) -> list[tuple[_Job, int]]:
        """Sentences of all requests in turn that want as many translations as the oldest one."""
        self._jobs = [job for job in self._jobs if not job.done.done()]
        alike = [job for job in self._jobs if job.n_best == self._jobs[0].n_best]
        others = [job for job in self._jobs if job.n_best != self._jobs[0].n_best]
        turns, batch = deque(alike), list[tuple[_Job, int]]()
        while turns and len(batch) < SENTENCES_PER_BATCH:
            job = turns.popleft()
            batch.append((job, job.next))
            job.next += 1
            if job.next < len(job.sentences):
                turns.append(job)
        # Those who had a turn stand behind the others.
        self._jobs = others + list(turns)
        return batch


def _deliver(batch: Sequence[tuple[_Job, int]], translated: list[list[Translation]]) -> None:
    for (job, place), best in zip(batch, translated, strict=True):
        job.found[place] = best
        if len(job.found) == len(job.sentences) and not job.done.done():
            job.done.set_result([job.found[index] for index in range(len(job.sentences))])


def _fail(batch: Sequence[tuple[_Job, int]], error: Exception) -> None:
    for job, _ in batch:
        if not job.done.done():
            job.done.set_exception(error)

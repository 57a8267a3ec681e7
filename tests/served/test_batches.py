"""Sentences of many requests share batches; the model is a function that tests hold back."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from dragoman.inference.translate import Translation
from dragoman.serve.batches import SENTENCES_PER_BATCH, Batches, QueueFull


class HeldBack:
    """Translates to capitals, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.has_begun = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)

    def __call__(self, lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        self.batches.append(list(lines))
        self.has_begun.release()
        self.may_go.acquire()
        if "poison" in lines:
            raise RuntimeError("poison")
        return [
            [Translation(f"{line.upper()}{rank}", -rank) for rank in range(n_best)]
            for line in lines
        ]

    async def begun(self) -> None:
        await asyncio.to_thread(self.has_begun.acquire)


class Running:
    """Batches at work."""

    def __init__(self, most_waiting: int = 1_000) -> None:
        self.model = HeldBack()
        self.sizes: list[int] = []
        self.batches = Batches(self.model, most_waiting, lambda size, _: self.sizes.append(size))

    async def __aenter__(self) -> "Running":
        self.task = asyncio.create_task(self.batches.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for _turn in range(100):
            self.model.may_go.release()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def ask(self, *lines: str, n_best: int = 1) -> "asyncio.Task[list[list[Translation]]]":
        return asyncio.create_task(self.batches.translate(lines, n_best))


async def texts(task: "asyncio.Task[list[list[Translation]]]") -> list[list[str]]:
    return [[one.text for one in best] for best in await task]


def test_who_comes_while_a_batch_is_made_shares_the_next() -> None:
    async def check() -> None:
        async with Running() as running:
            first = running.ask("first")
            await running.model.begun()
            others = [running.ask(f"other {number}", "twice") for number in range(5)]
            while running.batches.waiting < 10:
                await asyncio.sleep(0)
            running.model.may_go.release()
            running.model.may_go.release()
            assert await texts(first) == [["FIRST0"]]
            assert [await texts(one) for one in others] == [
                [[f"OTHER {number}0"], ["TWICE0"]] for number in range(5)
            ]
            assert running.sizes == [1, 10]

    asyncio.run(check())


def test_one_sentence_does_not_wait_for_a_book() -> None:
    async def check() -> None:
        async with Running(100_000) as running:
            book = running.ask(*(f"line {number}" for number in range(10 * SENTENCES_PER_BATCH)))
            await running.model.begun()
            short = running.ask("short")
            while running.batches.waiting <= 9 * SENTENCES_PER_BATCH:
                await asyncio.sleep(0)
            for _ in range(2):
                running.model.may_go.release()
            assert await texts(short) == [["SHORT0"]]
            assert not book.done()
            for _ in range(20):
                running.model.may_go.release()
            expected = [[f"LINE {number}0"] for number in range(10 * SENTENCES_PER_BATCH)]
            assert await texts(book) == expected
            assert sum(running.sizes) == 10 * SENTENCES_PER_BATCH + 1

    asyncio.run(check())


def test_as_many_translations_as_each_wants() -> None:
    async def check() -> None:
        async with Running() as running:
            asked = [running.ask("a", "b", n_best=count) for count in (1, 3, 1, 2)]
            for _ in range(10):
                running.model.may_go.release()
            for task, count in zip(asked, (1, 3, 1, 2), strict=True):
                assert [len(best) for best in await texts(task)] == [count, count]
            assert running.sizes == [4, 2, 2], "those who want the same share a batch"

    asyncio.run(check())


def test_a_full_queue_refuses_and_a_cancelled_request_makes_room() -> None:
    async def check() -> None:
        async with Running(most_waiting=3) as running:
            first = running.ask("first")
            await running.model.begun()
            with pytest.raises(QueueFull):
                await asyncio.wait_for(running.ask("too", "many", "at", "once"), 60)
            waiting = running.ask("a", "b")
            while running.batches.waiting < 2:
                await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await asyncio.wait_for(running.ask("too", "many"), 60)
            assert running.batches.waiting == 2
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert running.batches.waiting == 0
            last = running.ask("last")
            for _ in range(3):
                running.model.may_go.release()
            assert await texts(first) == [["FIRST0"]]
            assert await texts(last) == [["LAST0"]]
            assert running.model.batches == [["first"], ["last"]], "nothing for who has left"

    asyncio.run(check())


def test_a_failure_is_told_to_those_it_concerns() -> None:
    async def check() -> None:
        async with Running() as running:
            poisoned = running.ask("poison")
            await running.model.begun()
            later = running.ask("fine")
            running.model.may_go.release()
            running.model.may_go.release()
            with pytest.raises(RuntimeError, match="poison"):
                await poisoned
            assert await texts(later) == [["FINE0"]]
            assert await running.batches.translate([], 1) == []

    asyncio.run(check())

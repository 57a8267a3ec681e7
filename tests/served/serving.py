"""A server in a thread of the test, whose models are functions."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dragoman.inference.decoder import TranslateLines
from dragoman.inference.translate import Translation
from dragoman.serve.app import Limits, make_app
from dragoman.serve.command import make_server
from dragoman.serve.models import Direction, ServedModel
from dragoman.serve.sentences import Splitter

LIMITS = Limits(characters=2_000, waiting=100, seconds=30.0, keys=frozenset())


def in_capitals(lines: Sequence[str], n_best: int) -> list[list[Translation]]:
    """The second best translation ends with one exclamation mark, the third with two."""
    return [
        [Translation(line.upper() + "!" * rank, -1.0 - rank) for rank in range(n_best)]
        for line in lines
    ]


def model(source: str, target: str, translate: TranslateLines = in_capitals) -> ServedModel:
    splitter = Splitter(source, lambda text: len(text) <= 60)
    return ServedModel(Direction(source, target), translate, splitter)


@contextmanager
def serving(
    *models: ServedModel, limits: Limits = LIMITS, header_seconds: float = 60.0
) -> Iterator[str]:
    """Serve models, and say where."""
    is_ready = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = make_app({one.direction: one for one in models}, limits, is_ready.set)
        server = make_server(app, header_seconds)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert is_ready.wait(60)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def get(address: str) -> Any:
    with urlopen(address, timeout=60) as answer:
        return json.load(answer)


def post(address: str, body: Any, content_type: str = "application/json") -> tuple[int, Any]:
    """Status and JSON of an answer; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(address, data, {"Content-Type": content_type})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def in_background(ask: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Ask something in a thread; the list has the answer once the thread has ended."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    return thread, answers

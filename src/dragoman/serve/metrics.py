"""What a server counts, for Prometheus."""

import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "dragoman_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "dragoman_request_seconds",
            "Time from a request's arrival to the end of its response.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.characters = Counter(
            "dragoman_characters", "Characters of text accepted.", ["direction"], registry=registry
        )
        self.batch_sentences = Histogram(
            "dragoman_batch_sentences",
            "Sentences per batch; the sum is the total number of sentences.",
            ["direction"],
            buckets=_SENTENCES,
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "dragoman_batch_seconds",
            "Time per batch; the sum is how long the model was busy.",
            ["direction"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.waiting = Gauge(
            "dragoman_waiting_sentences",
            "Sentences waiting for a batch.",
            ["direction"],
            registry=registry,
        )

    def render(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)


def measured(app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> ASGIApp:
    """Count and time the requests to an app; paths that it does not have go under one name."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in paths else "other"
        started, status = time.monotonic(), 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, note)
        finally:
            metrics.requests.labels(path, str(status)).inc()
            metrics.request_seconds.labels(path).observe(time.monotonic() - started)

    return answer

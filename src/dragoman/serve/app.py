"""The application: what each address answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dragoman.console import say
from dragoman.errors import is_lack_of_memory
from dragoman.inference.translate import Translation
from dragoman.languages import language_name
from dragoman.serve import html_text
from dragoman.serve.batches import Batches, QueueFull
from dragoman.serve.metrics import CONTENT_TYPE, Metrics, measured
from dragoman.serve.models import Direction, ServedModel, targets_by_source
from dragoman.serve.requests import (
    BYTES_PER_CHARACTER,
    OTHER_BYTES,
    TranslateRequest,
    check_key,
    parse_translate,
    read_fields,
    refuse,
)
from dragoman.serve.sentences import Part, join, wanted

STATIC = Path(__file__).with_name("static")
PAGES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
CLIENT_GONE = 499  # nginx's number for it; nobody is there to read it but the metrics.
# The page needs nothing from anywhere else, and nobody may frame it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Limits:
    """How much a server takes upon itself."""

    characters: int  # Of one request.
    waiting: int  # Sentences for one model.
    seconds: float  # For one request to arrive, and then to be translated.
    keys: frozenset[str]  # None: everybody may ask.
    origins: tuple[str, ...] = ()  # Of other pages that a browser lets ask; "*" for all.


def make_app(
    models: Mapping[Direction, ServedModel], limits: Limits, on_ready: Callable[[], None]
) -> ASGIApp:
    """The application of these models; `on_ready` is called before the first request."""
    server = _Server(models, limits)
    routes = [
        Route("/translate", server.translate, methods=["POST"]),
        Route("/languages", server.languages),
        Route("/health", server.health),
        Route("/frontend/settings", server.settings),
        Route("/detect", server.detect, methods=["POST"]),
        Route("/metrics", server.metrics_page),
        *(Route(path, partial(_page, _read_page(name))) for path, name in PAGES.items()),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(batches.run()) for batches in server.batches.values()]
        on_ready()
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _explain, Exception: _explain_bug},
    )
    # Browsers let pages of other origins ask only where this says so.
    open_to_others = CORSMiddleware(
        app, limits.origins, allow_methods=["GET", "POST"], allow_headers=["Content-Type"]
    )
    return measured(open_to_others, server.metrics, {route.path for route in routes})


class _Server:
    """Models, their queues and their counters."""

    def __init__(self, models: Mapping[Direction, ServedModel], limits: Limits) -> None:
        self._models, self._limits = models, limits
        self.metrics = Metrics()
        self.batches: dict[Direction, Batches] = {}
        for direction, model in models.items():
            batches = Batches(
                model.translate, limits.waiting, partial(self._note_batch, str(direction))
            )
            self.batches[direction] = batches
            self.metrics.waiting.labels(str(direction)).set_function(
                lambda batches=batches: batches.waiting  # type: ignore[misc]
            )

    async def translate(self, request: Request) -> Response:
        """POST /translate."""
        fields = await self._read(request)
        check_key(fields, self._limits.keys)
        asked = parse_translate(fields, self._limits.characters)
        direction = self._choose(asked.source, asked.target)
        documents = await asyncio.to_thread(_split, asked, self._models[direction])
        sentences = list(dict.fromkeys(text for parts in documents for text in wanted(parts)))
        if len(sentences) > self._limits.waiting:
            raise refuse(
                413,
                f"The request has {len(sentences)} different sentences, but at most "
                f"{self._limits.waiting} may wait: send it in parts",
            )
        self.metrics.characters.labels(str(direction)).inc(sum(map(len, asked.texts)))
        found = await self._found(request, direction, sentences, asked.alternatives + 1)
        ranked = dict(zip(sentences, found, strict=True))
        return JSONResponse(
            _answer(asked, direction, [_rank(asked, one, ranked) for one in documents])
        )

    async def languages(self, _: Request) -> Response:
        """GET /languages: every language, and what it can be translated to."""
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": targets}
                for code, targets in targets_by_source(self._models).items()
            ]
        )

    async def health(self, _: Request) -> Response:
        """GET /health: whoever reads this, the models are loaded."""
        return JSONResponse({"status": "ok"})

    async def settings(self, _: Request) -> Response:
        """GET /frontend/settings: what a page of LibreTranslate asks for first."""
        first = next(iter(self._models))
        return JSONResponse(
            {
                "apiKeys": bool(self._limits.keys),
                "charLimit": self._limits.characters,
                "filesTranslation": False,
                "frontendTimeout": 500,
                "keyRequired": bool(self._limits.keys),
                "language": {
                    "source": {"code": first.source, "name": language_name(first.source)},
                    "target": {"code": first.target, "name": language_name(first.target)},
                },
                "suggestions": False,
                "supportedFilesFormat": [],
            }
        )

    async def detect(self, _: Request) -> Response:
        """POST /detect: a guess would be no answer."""
        raise refuse(501, "This server does not detect languages: name the source language")

    async def metrics_page(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _read(self, request: Request) -> dict[str, Any]:
        """The fields of a body that is neither too large nor too slow."""
        most = BYTES_PER_CHARACTER * self._limits.characters + OTHER_BYTES
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise refuse(
                            413, f"The request is larger than {most} bytes", Connection="close"
                        )
        except TimeoutError:
            raise refuse(
                408,
                f"The request did not arrive within {self._limits.seconds:g} seconds",
                Connection="close",
            ) from None
        except ClientDisconnect:
            raise refuse(CLIENT_GONE, "The client disconnected") from None
        return read_fields(request.headers.get("content-type", ""), bytes(body))

    def _choose(self, source: str, target: str) -> Direction:
        """The direction asked for; "auto" is clear where only one language leads there."""
        if source == "auto":
            sources = [one.source for one in self._models if one.target == target]
            if len(sources) > 1:
                raise refuse(
                    400,
                    "auto is not supported: this server does not detect languages, name one of "
                    f"{', '.join(sources)}",
                )
            source = sources[0] if sources else source
        direction = Direction(source, target)
        if direction not in self._models:
            known = ", ".join(f"{one.source} to {one.target}" for one in self._models)
            raise refuse(
                400, f"{source} to {target} is not supported; this server translates {known}"
            )
        return direction

    async def _found(
        self, request: Request, direction: Direction, sentences: Sequence[str], n_best: int
    ) -> list[list[Translation]]:
        """The translations, unless it takes too long or nobody waits for them any more."""
        work = asyncio.create_task(self.batches[direction].translate(sentences, n_best))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait(
                (work, gone), timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
        except QueueFull:
            raise refuse(
                429, "Too many sentences are waiting: try again later", **{"Retry-After": "1"}
            ) from None
        except Exception as error:
            if not is_lack_of_memory(error):
                raise
            say("not enough memory for a batch: serve a smaller model, or lower --batch-tokens")
            raise refuse(503, "Cannot translate text: the server is out of memory") from None
        finally:
            work.cancel()
            gone.cancel()
        if gone.done():
            raise refuse(CLIENT_GONE, "The client disconnected")
        raise refuse(504, f"The translation took longer than {self._limits.seconds:g} seconds")

    def _note_batch(self, direction: str, sentences: int, seconds: float) -> None:
        self.metrics.batch_sentences.labels(direction).observe(sentences)
        self.metrics.batch_seconds.labels(direction).observe(seconds)


@dataclass(frozen=True)
class _Ranked:
    """The translations of one text, best first, without repetitions."""

    texts: list[str]
    scores: list[float]


def _split(asked: TranslateRequest, model: ServedModel) -> list[list[Part]]:
    if asked.is_html:
        return [html_text.split_html(model.splitter, text) for text in asked.texts]
    return [model.splitter.split_text(text) for text in asked.texts]


def _rank(
    asked: TranslateRequest, parts: Sequence[Part], found: Mapping[str, list[Translation]]
) -> _Ranked:
    """Put a text together from the best of all its sentences, then from the second best, ..."""
    sentences = list(wanted(parts))
    texts: dict[str, float] = {}
    for rank in range(asked.alternatives + 1):
        chosen = {text: found[text][min(rank, len(found[text]) - 1)] for text in sentences}
        translations = {text: one.text for text, one in chosen.items()}
        joined = join(parts, translations, html_text.escape if asked.is_html else str)
        # The mean of the sentences' scores, each a log-probability normalised by its length.
        score = sum(chosen[text].score for text in sentences) / max(len(sentences), 1)
        texts.setdefault(joined, score)
    return _Ranked(list(texts), list(texts.values()))


def _answer(
    asked: TranslateRequest, direction: Direction, ranked: Sequence[_Ranked]
) -> dict[str, Any]:
    """As LibreTranslate answers: lists if q was a list; what was not asked for is left out."""

    def each(values: list[Any]) -> Any:
        return values if asked.is_list else values[0]

    answer = {"translatedText": each([one.texts[0] for one in ranked])}
    if asked.source == "auto":
        # No confidence: it is the only language there is a model for, nothing was detected.
        detected = {"language": direction.source, "confidence": 0}
        answer["detectedLanguage"] = each([detected for _ in ranked])
    if asked.alternatives:
        answer["alternatives"] = each([one.texts[1:] for one in ranked])
    if asked.with_scores:
        answer["scores"] = each([[round(score, 4) for score in one.scores] for one in ranked])
    return answer


async def _disconnected(request: Request) -> None:
    """Return when the client has left; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _read_page(name: str) -> Response:
    path = STATIC / name
    return Response(path.read_bytes(), headers=PAGE_HEADERS, media_type=MEDIA_TYPES[path.suffix])


async def _page(page: Response, _: Request) -> Response:
    return page


async def _explain(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _explain_bug(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"Cannot translate text: {type(error).__name__}"}, 500)

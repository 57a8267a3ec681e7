"""Listen, print the address, and shut down cleanly."""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dragoman.console import say
from dragoman.errors import UserError, explain, require_package
from dragoman.inference.decoder import TrainedChoice
from dragoman.stop_signals import INTERRUPTED, stop_signals_caught
from dragoman.wording import plural

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server
    from uvicorn.protocols.http.h11_impl import H11Protocol

LANGUAGE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
PACKAGES = ("starlette", "uvicorn", "sentencex", "prometheus_client")
# Beyond these uvicorn answers 503 by itself: connections cost memory and descriptors.
MOST_CONNECTIONS = 1_000
WAITING_CONNECTIONS = 1_024  # In the system's queue, before they are accepted.


@dataclass(frozen=True)
class ServeRequest:
    """What to serve, where, and how much of it."""

    models: Sequence[str]
    choice: TrainedChoice
    host: str
    port: int
    source: str | None
    target: str | None
    max_characters: int
    max_waiting: int
    timeout_seconds: float
    api_keys: Path | None
    allow_origin: Sequence[str]


def serve(request: ServeRequest) -> None:
    """Serve until a signal comes; what was accepted by then is finished."""
    for package in PACKAGES:
        require_package(package, "serve")
    _refuse_senseless(request)
    from dragoman.serve.app import Limits, make_app
    from dragoman.serve.models import load_models

    keys = read_keys(request.api_keys) if request.api_keys else frozenset[str]()
    limits = Limits(
        request.max_characters,
        request.max_waiting,
        request.timeout_seconds,
        keys,
        tuple(request.allow_origin),
    )
    # Before the models, which take longer: a port that is taken is told at once.
    with _listen(request.host, request.port) as listener:
        models = load_models(request.models, request.choice, request.source, request.target)
        app = make_app(models, limits, _announce(listener))
        server = make_server(app, request.timeout_seconds)
        # uvicorn catches signals itself while it serves, and passes them on when it is done.
        with stop_signals_caught(lambda _: setattr(server, "should_exit", True)):
            server.run(sockets=[listener])


def make_server(app: "ASGIApp", header_seconds: float) -> "Server":
    """A server of HTTP/1.1 and nothing else, that logs nothing but what goes wrong."""
    import uvicorn

    class Server(uvicorn.Server):
        """Finishes what it has accepted, unless it is asked to stop a second time."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:
                left = plural(len(self.server_state.tasks), "request")
                say(f"dragoman: interrupted; {left} under way abandoned")
                os._exit(INTERRUPTED)
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=_impatient_protocol(header_seconds),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        backlog=WAITING_CONNECTIONS,
    )
    return Server(config)


def _impatient_protocol(header_seconds: float) -> "type[H11Protocol]":
    """That of uvicorn, which by itself waits for ever for the header of a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ImpatientProtocol(H11Protocol):
        """Closes a connection that has no request for too long."""

        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.set_deadline()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.set_deadline()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.set_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.drop_deadline()

        def set_deadline(self) -> None:
            """From the start or the last answer until a request; single bytes do not move it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self.drop_deadline()
            elif self.deadline is None:
                self.deadline = self.loop.call_later(
                    header_seconds, self.timeout_keep_alive_handler
                )

        def drop_deadline(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return ImpatientProtocol


def _refuse_senseless(request: ServeRequest) -> None:
    for option, value, least, most in (
        ("--port", request.port, 0, 65_535),
        ("--max-characters", request.max_characters, 1, 100_000_000),
        ("--max-waiting", request.max_waiting, 1, 100_000_000),
        ("--timeout-seconds", request.timeout_seconds, 0.001, 86_400),
    ):
        if not least <= value <= most:
            raise UserError(f"{option} {value:g}: must be at least {least:g} and at most {most:,}")
    for origin in request.allow_origin:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise UserError(
                f"--allow-origin {origin}: give * or an origin such as https://example.org"
            )
    for side, code in (("source", request.source), ("target", request.target)):
        if code is not None and not LANGUAGE.fullmatch(code):
            raise UserError(f"--{side} {code}: give a language's code, such as de or pt-BR")


def read_keys(path: Path) -> frozenset[str]:
    """The lines of a file without their comments."""
    try:
        # Some editors begin a file with a mark that would become part of its first line.
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"--api-keys {path}: not UTF-8; write one key on each line") from None
    except OSError as error:
        raise UserError(f"--api-keys {path}: {error.strerror}") from None
    # A key may contain a #: cut there, it would be a shorter key, which is easier to guess.
    keys = frozenset(re.split(r"(?:^|\s)#", line)[0].strip() for line in lines) - {""}
    if not keys:
        raise UserError(f"--api-keys {path}: contains no key; write one on each line")
    return keys


def _listen(host: str, port: int) -> socket.socket:
    """Bind, but do not listen yet: who connects before the models are loaded is refused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        # With the protocol: asyncio turns Nagle's delays off only where it is named.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except UnicodeError:  # As the codec of names says it, which no user knows.
        raise UserError(f"{host}:{port}: not the name of a host; choose another --host") from None
    except OSError as error:
        raise UserError(
            f"{host}:{port}: {explain(error)}; choose another --host or --port"
        ) from None
    return listener


def _announce(listener: socket.socket) -> Callable[[], None]:
    def say_where() -> None:
        listener.listen(WAITING_CONNECTIONS)  # From here on nobody who connects is refused.
        host, port = listener.getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    return say_where

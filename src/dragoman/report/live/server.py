"""Serves the live page of one run on loopback; nothing else is served, and nothing is written."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dragoman.errors import UserError
from dragoman.report.live.run_state import RunState
from dragoman.report.page.templating import render
from dragoman.runs.folder import RunFolder

LOOPBACK = "127.0.0.1"
_NAMES = (LOOPBACK, "localhost", "[::1]")  # Another name leads here only by a trick.


class LivePage(ThreadingHTTPServer):
    """The server; `address` is what to open."""

    daemon_threads = True

    def __init__(self, run: RunFolder, port: int) -> None:
        self.state = RunState(run)
        self.lock = threading.Lock()
        self.page = render("watch.html.jinja", {"name": run.name})
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; choose another") from None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: LivePage
    server_version = "dragoman"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page or the state."""
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in _NAMES:
            self.send_error(403, "this page is only available on this machine (127.0.0.1)")
        elif self.path == "/":
            self._send(self.server.page, "text/html; charset=utf-8")
        elif self.path == "/state.json":
            with self.server.lock:
                state = self.server.state.look()
            self._send(json.dumps(state).encode(), "application/json")
        else:
            self.send_error(404)

    def _send(self, content: bytes, kind: str) -> None:
        try:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            pass  # The page was closed.

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: a page that asks every two seconds is no news."""

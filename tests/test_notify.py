"""Who is told of a run: by a command and by a webhook, and that neither can hurt it."""

import json
import math
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman.beside_training import notified
from dragoman.config import NotifySettings
from dragoman.errors import SystemFault
from dragoman.notify import Notice, notify
from dragoman.report.live.verdicts import tell_changes
from dragoman.runs.folder import RunFolder
from report.run_folders import RunFolder as Written

NOTICE = Notice("end", "mine", "the run is complete; it's done")


def _keeps(path: Path) -> str:
    """A command that keeps what it is told, a line each."""
    code = (
        "import json, os, sys; told = json.load(sys.stdin);"
        "assert told['message'] == os.environ['DRAGOMAN_MESSAGE'];"
        f"open({str(path)!r}, 'a').write(json.dumps(told) + chr(10))"
    )
    return shlex.join([sys.executable, "-c", code])


def _kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def _webhook(status: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_command_and_webhook_are_told(tmp_path: Path) -> None:
    warnings: list[str] = []
    with _webhook(200) as (address, told):
        settings = NotifySettings(_keeps(tmp_path / "told"), address)
        notify(settings, NOTICE, warnings.append)
        notify(NotifySettings(webhook=address, on=("failure",)), NOTICE, warnings.append)
    assert warnings == []
    expected = {"event": "end", "run": "mine", "message": NOTICE.message}
    assert _kept(tmp_path / "told") == [expected]
    assert told == [expected | {"text": f"mine: {NOTICE.message}"}]


def test_what_fails_is_one_line_and_nothing_else() -> None:
    warnings: list[str] = []
    notify(NotifySettings("echo 'no such user' >&2; exit 3"), NOTICE, warnings.append)
    with _webhook(500) as (address, _):
        notify(NotifySettings(webhook=address), NOTICE, warnings.append)
    notify(NotifySettings(webhook=address), NOTICE, warnings.append)  # Nobody is there any more.
    assert len(warnings) == 3
    assert "the command exited with code 3: no such user" in warnings[0]
    assert all("nothing else is affected" in warning for warning in warnings)
    assert not any("\n" in warning for warning in warnings)


def test_a_verdict_that_changes_is_told_once(tmp_path: Path) -> None:
    settings = NotifySettings(_keeps(tmp_path / "told"))
    run = Written(tmp_path / "run")
    run.begin()
    for step in range(10, 301, 10):
        run.train(step)
        run.evaluate(step, 4 - 0.3 * math.log(step), 4 * math.log(step))
    folder = RunFolder(run.write())
    before = tell_changes(folder, settings, {})
    assert tell_changes(folder, settings, before).keys() == before.keys()
    assert _kept(tmp_path / "told") == []
    for step in range(310, 1201, 10):
        run.train(step)
        run.evaluate(step, 4 - 0.3 * math.log(300), 4 * math.log(300))
    run.write()
    tell_changes(folder, settings, before)
    (told,) = [one for one in _kept(tmp_path / "told") if "fully trained" in one["message"]]
    assert told["event"] == "verdict"
    assert told["message"].startswith("Is the model fully trained? Was no, now yes: ")


@pytest.mark.parametrize("is_worker", [False, True])
def test_the_end_and_a_failure_are_told_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_worker: bool
) -> None:
    from dragoman.config import Config
    from dragoman.documents import items_of

    if is_worker:
        monkeypatch.setenv("DRAGOMAN_AGENT", "1")
    sections = {section.name: kind() for section, kind in items_of(Config)}
    chosen = NotifySettings(_keeps(tmp_path / "told"), on=("end", "failure"))
    config = Config(**sections | {"notify": chosen})
    run = tmp_path / "mine"
    run.mkdir()
    (run / "train.log").write_text("2026-11-16 12:58:17 the run is complete at step 9: enough\n")
    with notified(config, str(run)):
        pass
    with pytest.raises(SystemFault), notified(config, str(run)):
        raise SystemFault("no room on the disk")
    told = [(one["event"], one["message"]) for one in _kept(tmp_path / "told")]
    expected = [
        ("end", "the run is complete at step 9: enough"),
        ("failure", "failed: no room on the disk"),
    ]
    assert told == ([] if is_worker else expected)

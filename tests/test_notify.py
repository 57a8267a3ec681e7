"""Who is told of a run: by a command and by a webhook, and that neither can hurt it."""

import json
import math
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from dragoman import beside_training
from dragoman import notify as module
from dragoman.beside_training import attach_report, notified
from dragoman.cluster.processes import Workers
from dragoman.config import Config, LoggingSettings, NotifySettings
from dragoman.config_file import load_config
from dragoman.contradictions import contradictions
from dragoman.documents import items_of
from dragoman.errors import SystemFault, UserError
from dragoman.notify import Notice, command_without_secrets, notify, without_secrets
from dragoman.report.live.verdicts import tell_changes
from dragoman.report.page.identity import flat_settings
from dragoman.runs.folder import RunFolder
from dragoman.training import recorder
from report.run_folders import RunFolder as Written

SECRET = "https://chat.example/hooks/secret"
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


def _config(**chosen: Any) -> Config:
    return Config(**{section.name: kind() for section, kind in items_of(Config)} | chosen)


@contextmanager
def _ssh_server() -> Iterator[str]:
    """The address of a webhook on a port where something else answers."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # It was shut down.
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                while connection.recv(65_536):
                    pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()


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
    if is_worker:
        monkeypatch.setenv("DRAGOMAN_AGENT", "1")
    config = _config(notify=NotifySettings(_keeps(tmp_path / "told"), on=("end", "failure")))
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


def test_whatever_answers_a_webhook_a_run_ends_as_it_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _ssh_server() as address:
        for webhook in (address, "http://127.0.0.1:9/my hook", "http://127.0.0.1:abc/"):
            config = _config(notify=NotifySettings(webhook=webhook, on=("end", "failure")))
            with notified(config, str(tmp_path)):
                pass
            with pytest.raises(SystemFault, match="no room"), notified(config, str(tmp_path)):
                raise SystemFault("no room on the disk")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 6
    assert "SSH-2.0-OpenSSH_9.6" in warnings[0]
    assert all("nothing else is affected" in warning for warning in warnings)


def test_an_error_without_words_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: str, notice: Notice) -> None:
        raise TimeoutError

    monkeypatch.setattr(module, "_post", fail)
    warnings: list[str] = []
    notify(NotifySettings(webhook=SECRET), NOTICE, warnings.append)
    assert warnings == ["notify (end) failed: TimeoutError; nothing else is affected"]


def test_a_command_that_takes_too_long_is_not_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_FOR_COMMAND", 0.01)
    warnings: list[str] = []
    notify(NotifySettings(f"exec sleep 600 # {SECRET}"), NOTICE, warnings.append)
    (warning,) = warnings
    assert "the command took more than 0.01 s" in warning
    assert SECRET not in warning


@pytest.mark.parametrize(
    ("webhook", "problem"),
    [
        ("http://127.0.0.1:9/my hook", "contains a space"),
        ("https://chat.example/\thook", "contains a space or a control character"),
        ("http://chat.example:abc/", "is no valid URL"),
        ("http://chat.example:99999/", "is no valid URL"),
        ("http://chat.example:0/", "has port 0"),
        ("http://[::1/hook", "is no valid URL"),
        ("http:///hook", "names no host"),
        ("ftp://chat.example/hook", "must begin with http"),
        ("chat.example/hook/mine", "must begin with http"),
        ("https://me:word@chat.example/hook", "has a user name or password"),
        ("https://chat.example/höök", "must be %-encoded"),
    ],
)
def test_an_address_that_cannot_work_is_refused(tmp_path: Path, webhook: str, problem: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[notify]\nwebhook = {json.dumps(webhook)}\n")
    with pytest.raises(UserError) as refused:
        load_config(path)
    (line,) = [one for one in str(refused.value).splitlines() if "notify" in one]
    assert problem in line
    assert webhook not in line


@pytest.mark.parametrize(
    "webhook", [SECRET, "http://127.0.0.1:80", "http://[::1]:8080/a?b=%20c", "HTTPS://h/"]
)
def test_an_address_that_may_work_is_taken(webhook: str) -> None:
    found = contradictions(_config(notify=NotifySettings(webhook=webhook)), ["notify.webhook"])
    assert not [problem for problem in found if "notify" in problem]


def test_secrets_are_kept_from_what_others_read() -> None:
    settings = {"notify.command": f"curl {SECRET}", "notify.webhook": SECRET, "notify.on": ["end"]}
    hidden = {"notify.command": "(set)", "notify.webhook": "(set)", "notify.on": ["end"]}
    assert without_secrets(settings) == hidden
    assert without_secrets({"notify.webhook": ""}) == {"notify.webhook": ""}
    assert flat_settings({"notify": {"webhook": SECRET}}) == {"notify.webhook": "(set)"}
    command = ["dragoman", "train", "a.toml", f"notify.webhook={SECRET}", "training.steps=9"]
    expected = ["dragoman", "train", "a.toml", "notify.webhook=(set)", "training.steps=9"]
    assert command_without_secrets(command) == expected


def test_trackers_get_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []

    class Trackers:
        def __init__(self, kinds: object, run: object, settings: Any, *_: object) -> None:
            given.append(settings)

        def attach(self, path: Path) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(beside_training, "Trackers", Trackers)
    monkeypatch.setattr(recorder, "Trackers", Trackers)
    config = _config(
        notify=NotifySettings(f"curl {SECRET}", SECRET),
        logging=LoggingSettings(("mlflow",)),
    )
    run = Written(tmp_path / "run")
    run.begin()
    attach_report(config, str(run.write()))
    alone = Workers(0, 1, torch.device("cpu"))
    recorder.Recorder(RunFolder(tmp_path / "run"), config, alone, writes=True, step=0).close()
    assert len(given) == 2
    for settings in given:
        assert settings["notify.command"] == settings["notify.webhook"] == "(set)"
        assert SECRET not in str(settings)


def test_a_report_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Written(tmp_path / "run")
    run.begin()
    (run.write() / "report").write_text("in the way")
    attach_report(_config(logging=LoggingSettings(("mlflow", "wandb"))), str(tmp_path / "run"))
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("no report for mlflow, wandb: ")
    assert warning.endswith("; nothing else is affected")


def test_a_process_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_training, "SECONDS_TO_END", 0.01)
    before = set(psutil.Process().children())
    with beside_training._beside([sys.executable, "-c", "import time; time.sleep(600)"]):
        (beside,) = set(psutil.Process().children()) - before
        os.kill(beside.pid, signal.SIGSTOP)
    psutil.wait_procs([beside], 60)
    assert not beside.is_running()

"""`dragoman serve` as a user starts it: a run, an export, a real client and a signal."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from libretranslatepy import LibreTranslateAPI

from dragoman.cli import main
from dragoman.errors import UserError
from dragoman.inference.decoder import TrainedChoice
from dragoman.inference.load import load_trained
from dragoman.runs.folder import RunFolder
from dragoman.serve.command import read_keys
from dragoman.serve.models import load_models
from dragoman.serve.sentences import Sentence, join
from served.serving import get, in_background, model, post
from served.test_app import metric
from support import dragoman_command, number_pairs, refusal, wait_until

LINES = number_pairs(70_000, 30)[0]


@pytest.fixture(scope="module")
def exported(spelling_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, to Austrian German, so that it can stand beside the run."""
    folder = tmp_path_factory.mktemp("exported") / "austrian"
    words = ["export", spelling_run, "--to", "ctranslate2", "--no-check", "--output", folder]
    main([str(word) for word in words])
    info = json.loads((folder / "dragoman.json").read_text())
    (folder / "dragoman.json").write_text(json.dumps(info | {"target_language": "de-AT"}))
    return folder


@contextmanager
def started(*words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and the address that it says."""
    process = subprocess.Popen(
        dragoman_command("serve", *words, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_a_real_client_two_engines_and_a_signal(spelling_run: Path, exported: Path) -> None:
    limits = ("--max-characters", "1000000", "--max-waiting", "5000")
    with started(spelling_run, exported, *limits) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        client = LibreTranslateAPI(address)
        assert client.languages() == [
            {"code": "en", "name": "English", "targets": ["de", "de-AT"]},
            {"code": "de", "name": "German", "targets": []},
            {"code": "de-AT", "name": "German (Austria)", "targets": []},
        ]
        trained = load_trained(RunFolder(spelling_run), "best", 1, torch.device("cpu"))
        ours = trained.translator.translate(LINES, trained.config.translation)
        for target in ("de", "de-AT"):
            found = [client.translate(line, "en", target) for line in LINES]
            assert found == [best[0].text for best in ours]
        document = "\n\n".join(number_pairs(10_000, 5_000)[0])
        body = {"q": document, "source": "en", "target": "de-AT"}
        thread, answers = in_background(lambda: post(f"{address}/translate", body))
        wait_until(lambda: metric(address, "dragoman_waiting_sentences") > 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        thread.join()
        [(status, answer)] = answers
        assert (status, answer["translatedText"].count("\n")) == (200, document.count("\n"))
        with pytest.raises(URLError):
            get(f"{address}/health")


def abandoned(address: str, body: object) -> str:
    """How a request ends that gets no answer."""
    try:
        return str(post(address, body))
    except OSError as error:
        return type(error).__name__


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_says_what_is_lost(spelling_run: Path) -> None:
    limits = ("--max-characters", "1000000", "--max-waiting", "50000")
    with started(spelling_run, *limits) as (process, address):
        document = "\n\n".join(number_pairs(10_000, 20_000)[0])
        body = {"q": document, "source": "en", "target": "de"}
        thread, ends = in_background(lambda: abandoned(f"{address}/translate", body))
        wait_until(lambda: metric(address, "dragoman_waiting_sentences") > 0)
        while process.poll() is None:  # One signal too early would be none.
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert process.returncode == 130
        thread.join()
        assert process.stderr
        assert "dragoman: interrupted; 1 request under way abandoned" in process.stderr.read()
        assert ends in (["RemoteDisconnected"], ["ConnectionResetError"], ["URLError"])


def test_no_sentence_is_longer_than_the_model_has_learnt(spelling_run: Path) -> None:
    [served] = load_models([str(spelling_run)], TrainedChoice(""), None, None).values()
    trained = load_trained(RunFolder(spelling_run), "best", 1, torch.device("cpu"))
    text = trained.translator.text
    for long in ("seven " * 500, "seven, eight; " * 100, "x" * 1_000, "日" * 300):
        parts = served.splitter.split_text(long)
        sentences = [part.text for part in parts if isinstance(part, Sentence)]
        lengths = [len(tokens) for tokens in text.source.encode(sentences)]
        assert max(lengths) <= text.max_tokens
        assert len(lengths) < 8 * sum(lengths) / text.max_tokens, "not in crumbs either"
        assert join(parts, {one: one for one in sentences}) == long


def test_senseless_requests_are_one_line(
    spelling_run: Path,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(exported, tmp_path / "same")
    (tmp_path / "none").write_text("# nothing but a comment\n\n  # and another\n\t\n")
    (tmp_path / "odd").write_bytes(b"\xff\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, line in (
            (["nowhere"], "nowhere: no run found there"),
            ([spelling_run, "--port", port], f"127.0.0.1:{port}: Address already in use; choose"),
            ([spelling_run, "--host", "no.such.host.invalid"], "no.such.host.invalid:0: "),
            ([spelling_run, "--host", "a..b"], "a..b:0: not the name of a host; choose another"),
            ([spelling_run, "--port", "70000"], "--port 70000: must be at least 0 and at most"),
            ([spelling_run, "--allow-origin", "foo"], "--allow-origin foo: give * or an origin"),
            (
                [spelling_run, "--source", "de", "--target", "de"],
                "--source and --target would make it a model from de to de; it was trained from",
            ),
            ([spelling_run, "--source", ""], "--source : give a language's code, such as de"),
            ([spelling_run, "--target", "../x"], "--target ../x: give a language's code"),
            ([spelling_run, "--max-waiting", "0"], "--max-waiting 0: must be at least 1"),
            ([spelling_run, "--timeout-seconds", "nan"], "--timeout-seconds nan: must be"),
            ([spelling_run, "--beam", "0"], "--beam 0: must be at least 1"),
            ([spelling_run, "--checkpoint", "7"], "--checkpoint 7: choose best, latest or"),
            ([spelling_run, "--api-keys", tmp_path / "none"], "none: contains no key; write one"),
            ([spelling_run, "--api-keys", tmp_path / "odd"], "odd: not UTF-8; write one key"),
            ([spelling_run, "--api-keys", tmp_path / "gone"], "gone: No such file"),
            (
                [spelling_run, exported, "--source", "en"],
                "--source and --target apply to a single model",
            ),
            ([exported, "--checkpoint", "50"], "--checkpoint: "),
            ([exported, "--precision", "bfloat16"], "is an export, whose weights are fixed"),
            ([exported, tmp_path / "same"], "same: there is already a model from en to de-AT"),
        ):
            port_words = [] if "--port" in words else ["--port", "0"]
            code, errors = refusal(capsys, "serve", *words, *port_words)
            assert (code, line in errors.splitlines()[-1]) == (2, True), errors
    monkeypatch.setattr(
        "dragoman.errors.find_spec", lambda name: name if name != "uvicorn" else None
    )
    code, errors = refusal(capsys, "serve", spelling_run)
    expected = "dragoman: uvicorn is not installed: in the checkout, pip install -e '.[serve]'\n"
    assert (code, errors) == (2, expected)


def test_the_direction_announced_for_a_tag_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dragoman.serve.models._load", lambda _: model("en", "de"))
    for tag, languages, direction, told in (
        ("<2en>", (None, None), "en-de", "--tag <2en>: announced as en to de; if the tag stands "),
        ("<2en>", ("de", "en"), "de-en", ""),
        (None, (None, None), "en-de", ""),
    ):
        served = load_models(["both-ways"], TrainedChoice("", tag=tag), *languages)
        assert [str(one) for one in served] == [direction]
        errors = capsys.readouterr().err
        assert (told in errors, errors.count("\n")) == (True, 1 if told else 0), errors
    with pytest.raises(UserError, match="from de to de; it was trained from en to de"):
        load_models(["both-ways"], TrainedChoice("", tag="<2en>"), "de", None)


def test_comments_are_no_part_of_a_key(tmp_path: Path) -> None:
    lines = ["# ours", "plain", "  indented  ", "  # note", "noted # of Ann", "tab\t#of Ben", "a#b"]
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "keys").write_text("\n".join(lines), encoding)
        assert read_keys(tmp_path / "keys") == {"plain", "indented", "noted", "tab", "a#b"}


@pytest.mark.slow
def test_nobody_else_imports_what_it_needs() -> None:
    code = (
        "import sys\nfrom dragoman.cli import main\n"
        "try: main(['serve', '--help'])\nexcept SystemExit: pass\n"
        "import dragoman.inference.commands, dragoman.inference.export\n"
        "assert not {'starlette', 'uvicorn', 'sentencex', 'prometheus_client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

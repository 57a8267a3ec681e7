"""The API over real connections; models translate to capitals, so that anyone can check."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.inference.translate import Translation
from dragoman.serve.requests import FIELDS
from served.serving import LIMITS, get, in_background, in_capitals, model, post, serving
from support import wait_until

FORM = "application/x-www-form-urlencoded"
ASKED = {"q": "hello", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(model("en", "de"), model("de", "en"), model("fr", "en")) as where:
        yield where


def metric(address: str, name: str, **labels: str) -> float:
    with urlopen(f"{address}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found)


def test_a_text_is_a_text_and_a_list_a_list(address: str) -> None:
    assert post(f"{address}/translate", ASKED) == (200, {"translatedText": "HELLO"})
    several = ASKED | {"q": ["one. two", "", "  \n", "three"]}
    expected = {"translatedText": ["ONE. TWO", "", "  \n", "THREE"]}
    assert post(f"{address}/translate", several) == (200, expected)
    assert post(f"{address}/translate", ASKED | {"q": []}) == (200, {"translatedText": []})


def test_a_form_is_as_good_as_json(address: str) -> None:
    body = urlencode(ASKED | {"q": "grüß dich & co.", "alternatives": 1}).encode()
    answer = {"translatedText": "GRÜSS DICH & CO.", "alternatives": ["GRÜSS DICH & CO.!"]}
    assert post(f"{address}/translate", body, f"{FORM}; charset=utf-8") == (200, answer)
    twice = urlencode([("q", "a"), ("q", "b"), ("source", "en"), ("target", "de")]).encode()
    assert post(f"{address}/translate", twice, FORM)[1] == {"translatedText": ["A", "B"]}


def test_documents_keep_their_shape(address: str) -> None:
    text = "# Title\n\n  First one. Second one!\r\n\n\t* item\n---\n" + "long " * 40
    assert post(f"{address}/translate", ASKED | {"q": text})[1]["translatedText"] == text.upper()
    page = "<p>It is <b>bold</b> &amp; new.</p>\n<pre>as is</pre>"
    _, answer = post(f"{address}/translate", ASKED | {"q": page, "format": "html"})
    assert answer["translatedText"] == "<p>IT IS <b>BOLD</b> &amp; NEW.</p>\n<pre>as is</pre>"


def test_alternatives_and_scores(address: str) -> None:
    asked = ASKED | {"q": ["Yes. No", "c"], "alternatives": 2, "scores": True}
    assert post(f"{address}/translate", asked)[1] == {
        "translatedText": ["YES. NO", "C"],
        "alternatives": [["YES.! NO!", "YES.!! NO!!"], ["C!", "C!!"]],
        "scores": [[-1.0, -2.0, -3.0]] * 2,
    }
    nothing = ASKED | {"q": "--", "alternatives": 2}
    assert post(f"{address}/translate", nothing)[1] == {"translatedText": "--", "alternatives": []}


def test_directions(address: str) -> None:
    auto = ASKED | {"source": "auto"}
    detected = {"language": "en", "confidence": 0}
    answer = {"translatedText": "HELLO", "detectedLanguage": detected}
    assert post(f"{address}/translate", auto) == (200, answer)
    status, answer = post(f"{address}/translate", auto | {"target": "en"})
    assert (status, answer["error"][-16:]) == (400, "name one of de, fr"[-16:])
    assert get(f"{address}/languages") == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": ["en"]},
    ]


def test_health_and_settings(address: str) -> None:
    assert get(f"{address}/health") == {"status": "ok"}
    settings = get(f"{address}/frontend/settings")
    assert settings["charLimit"] == LIMITS.characters
    assert settings["keyRequired"] is False
    assert settings["language"]["target"] == {"code": "de", "name": "German"}


BAD_REQUESTS = {
    "no q": ({"source": "en", "target": "de"}, 400, "missing q parameter"),
    "no source": ({"q": "a", "target": "de"}, 400, "missing source parameter"),
    "no target": ({"q": "a", "source": "en"}, 400, "missing target parameter"),
    "q is a number": (ASKED | {"q": 7}, 400, "q must be a text or a list"),
    "q holds a number": (ASKED | {"q": ["a", 7]}, 400, "q must be a text or a list"),
    "a language is a list": (ASKED | {"source": ["en"]}, 400, "source must be the code"),
    "no such language": (
        ASKED | {"target": "xx"},
        400,
        "en to xx is not supported; this server translates en to de, ",
    ),
    "auto to nowhere": (ASKED | {"source": "auto", "target": "xx"}, 400, "auto to xx is not"),
    "no such format": (ASKED | {"format": "pdf"}, 400, "pdf format is not supported"),
    "too many alternatives": (ASKED | {"alternatives": 11}, 400, "a whole number from 0 to 10"),
    "alternatives in words": (ASKED | {"alternatives": "two"}, 400, "a whole number from 0 to 10"),
    "alternatives below 0": (ASKED | {"alternatives": -1}, 400, "a whole number from 0 to 10"),
    "scores in words": (ASKED | {"scores": "maybe"}, 400, "scores must be true or false"),
    "too long": (ASKED | {"q": "x" * 2_001}, 400, "request (2001) exceeds text limit (2000)"),
    "long in sum": (ASKED | {"q": ["x" * 999] * 3}, 400, "request (2997) exceeds text limit"),
    **{
        f"half a pair in {name}": (
            ASKED | {name: "\ud800"},
            400,
            f"Invalid request: {name} contains an unpaired surrogate",
        )
        for name in FIELDS
    },
    "half a pair in a list": (ASKED | {"q": ["a", "\udfff"]}, 400, "q contains an unpaired"),
    "not JSON": (b'{"q": ', 400, "the body is not valid JSON"),
    "nested without end": (b"[" * 60_000, 400, "the body is not valid JSON"),
    "a list": ([ASKED], 400, "must be a JSON object"),
    "not UTF-8": (b'{"q": "\xff"}', 400, "the body is not UTF-8"),
    "nothing": (b"", 400, "the body is not valid JSON"),
    "too large": (b" " * 200_000, 413, "larger than 89536 bytes"),
}


@pytest.mark.parametrize("kind", BAD_REQUESTS)
def test_bad_requests_get_a_clear_error(address: str, kind: str) -> None:
    body, status, message = BAD_REQUESTS[kind]
    found, answer = post(f"{address}/translate", body)
    assert found == status
    assert answer.keys() == {"error"}
    assert message in answer["error"]


def test_other_mistakes_are_json_too(address: str) -> None:
    for path, body, content_type, status, message in (
        ("/translate", b"hello", "text/plain", 415, "Content-Type text/plain: send "),
        ("/translate", b"q=%ff&source=en&target=de", FORM, 400, "the body is not UTF-8"),
        ("/translate_file", b"", FORM, 404, "Not Found"),
        ("/languages", b"q=a", FORM, 405, "Method Not Allowed"),
        ("/detect", b"q=hello", FORM, 501, "does not detect languages"),
    ):
        found, answer = post(address + path, body, content_type)
        assert (found, message in answer["error"]) == (status, True), answer


def test_what_is_no_http_is_refused_and_the_server_goes_on(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    for rubbish in (b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5_000):
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(rubbish)
            assert b" 400 " in connection.recv(1_000).splitlines()[0]
    assert get(f"{address}/health") == {"status": "ok"}


def test_metrics(address: str) -> None:
    before = metric(address, "dragoman_batch_sentences_sum", direction="fr-en")
    post(f"{address}/translate", {"q": "Un. Deux. Trois", "source": "fr", "target": "en"})
    assert metric(address, "dragoman_batch_sentences_sum", direction="fr-en") == before + 3
    assert metric(address, "dragoman_characters_total", direction="fr-en") == 15
    assert metric(address, "dragoman_waiting_sentences") == 0
    ok = {"path": "/translate", "status": "200"}
    assert metric(address, "dragoman_requests_total", **ok) > 0
    post(f"{address}/{quote('käse')}", b"")
    assert metric(address, "dragoman_requests_total", path="other", status="404") > 0


def test_keys() -> None:
    limits = replace(LIMITS, keys=frozenset(["secret", "schlüssel"]))
    with serving(model("en", "de"), limits=limits) as address:
        assert get(f"{address}/frontend/settings")["keyRequired"] is True
        for key, status in (("secret", 200), ("schlüssel", 200), ("secre", 403), (7, 403)):
            assert post(f"{address}/translate", ASKED | {"api_key": key})[0] == status
        half = post(f"{address}/translate", ASKED | {"api_key": "\ud800"})
        assert (half[0], "api_key contains an unpaired" in half[1]["error"]) == (400, True)
        status, answer = post(f"{address}/translate", ASKED)
        assert (status, "contact the server operator" in answer["error"]) == (403, True)


def test_pages_of_other_origins_ask_only_where_they_are_allowed(address: str) -> None:
    ours, other = "https://ours.example", "https://other.example"
    limits = replace(LIMITS, origins=(ours,))
    with serving(model("en", "de"), limits=limits) as open_to_ours:
        for where, origin, expected in (
            (open_to_ours, ours, ours),
            (open_to_ours, other, None),
            (address, ours, None),
        ):
            before = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            for method, status in (("GET", 200), ("OPTIONS", 200 if expected else 400)):
                host, port = where.removeprefix("http://").split(":")
                connection = HTTPConnection(host, int(port), timeout=60)
                connection.request(method, "/languages", headers=before)
                answer = connection.getresponse()
                assert answer.status == status
                assert answer.getheader("Access-Control-Allow-Origin") == expected
                connection.close()


class Gate:
    """A model that does not answer before it is let."""

    def __init__(self) -> None:
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def __call__(self, lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        self.has_begun.set()
        self.may_go.wait(60)
        return in_capitals(lines, n_best)


def test_a_full_queue_says_so_and_what_was_accepted_is_finished() -> None:
    gate = Gate()
    with serving(model("en", "de", gate), limits=replace(LIMITS, waiting=1)) as address:
        first = in_background(lambda: post(f"{address}/translate", ASKED))
        assert gate.has_begun.wait(60)
        second = in_background(lambda: post(f"{address}/translate", ASKED | {"q": "two"}))
        wait_until(lambda: metric(address, "dragoman_waiting_sentences") == 1)
        status, answer = post(f"{address}/translate", ASKED | {"q": ["one", "two"]})
        expected = "The request has 2 different sentences, but at most 1 may wait: send it in parts"
        assert (status, answer["error"]) == (413, expected), "it would never find room"
        status, answer = post(f"{address}/translate", ASKED)
        assert (status, answer["error"]) == (429, "Too many sentences are waiting: try again later")
        gate.may_go.set()
        for (thread, answers), expected in ((first, "HELLO"), (second, "TWO")):
            thread.join()
            assert answers == [(200, {"translatedText": expected})]


def test_what_takes_too_long_is_given_up() -> None:
    gate = Gate()
    with serving(model("en", "de", gate), limits=replace(LIMITS, seconds=0.2)) as address:
        # On a busy machine a request may itself take so long to arrive.
        late = (504, {"error": "The translation took longer than 0.2 seconds"})
        wait_until(lambda: post(f"{address}/translate", ASKED) == late)
        gate.may_go.set()
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as slow:
            slow.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nq")
            answered = slow.makefile("rb").read()
        assert answered.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answered.split(b"\r\n\r\n")[1])["error"].startswith("The request did not")
        wait_until(lambda: post(f"{address}/translate", ASKED)[0] == 200)


def until_closed(address: str, *sent: bytes) -> bytes:
    """What a client gets that sends each after the answer to the one before, and then waits."""
    host, port = address.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), 60) as client:
        try:
            for data in sent[:-1]:
                client.sendall(data)
                received += client.recv(10_000)
            client.sendall(sent[-1])
            while data := client.recv(10_000):
                received += data
        except ConnectionError:  # Closed before all was sent.
            pass
    return received


HALF_A_HEADER = b"GET /health HTTP/1.1\r\nHost"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ([b""], b""),
        ([HALF_A_HEADER], b""),
        ([b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", HALF_A_HEADER], b"HTTP/1.1 200 "),
        (
            [b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"q"],
            b"HTTP/1.1 501 ",
        ),
    ],
    ids=["silent", "half a header", "half a second header", "half a body nobody reads"],
)
def test_who_sends_no_request_in_time_is_disconnected(sent: list[bytes], answer: bytes) -> None:
    with serving(model("en", "de"), header_seconds=0.2) as address:
        # On a busy machine even a whole header may come too late.
        wait_until(lambda: until_closed(address, *sent).startswith(answer))


def test_a_request_that_has_arrived_may_take_longer_than_its_header() -> None:
    gate = Gate()

    def ask() -> tuple[int, Any]:
        while True:
            try:
                return post(f"{address}/translate", ASKED)
            except OSError:  # On a busy machine the header may come too late.
                assert not gate.has_begun.is_set()

    with serving(model("en", "de", gate), header_seconds=0.2) as address:
        thread, answers = in_background(ask)
        assert gate.has_begun.wait(60)
        until_closed(address, b"")  # The time is over.
        gate.may_go.set()
        thread.join()
        assert answers == [(200, {"translatedText": "HELLO"})]


def test_nothing_is_translated_for_who_has_left() -> None:
    gate = Gate()
    with serving(model("en", "de", gate)) as address:
        host, port = address.removeprefix("http://").split(":")
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\n"
        body = "q=hello&source=en&target=de"
        with socket.create_connection((host, int(port)), 60) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert gate.has_begun.wait(60)
        wait_until(lambda: metric(address, "dragoman_requests_total", status="499") == 1)
        gate.may_go.set()
        assert post(f"{address}/translate", ASKED)[0] == 200


def test_a_fault_of_the_model_is_one_bad_answer() -> None:
    def fail_once(lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        if "poison" in lines:
            raise MemoryError
        return in_capitals(lines, n_best)

    with serving(model("en", "de", fail_once)) as address:
        status, answer = post(f"{address}/translate", ASKED | {"q": "poison"})
        assert (status, "out of memory" in answer["error"]) == (503, True)
        assert post(f"{address}/translate", ASKED)[0] == 200

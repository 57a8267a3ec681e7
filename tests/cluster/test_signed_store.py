"""Who can write a notice that counts."""

from datetime import timedelta
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from dragoman.cluster.control_store import ControlStore
from dragoman.cluster.failures import Failure, read_failure
from dragoman.cluster.signed_store import SignedStore

SECRET = b"secret"


@pytest.fixture
def store() -> Any:
    return HashStore()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def notices(store: Any, told: list[str]) -> SignedStore:
    return SignedStore(store, "run", SECRET, told.append)


@pytest.mark.parametrize("value", ["stop", 3, ["hostB", 1], {"number": 1}, True])
def test_who_knows_the_secret_is_heard(store: Any, notices: SignedStore, value: Any) -> None:
    SignedStore(store, "run", SECRET).post("name", value)
    assert notices.read("name") == value


@pytest.mark.parametrize(
    "content", ["", "1", "null", "[1, true]", "x" * 64 + "[1, true]", "\x1b[2J", "é" * 100]
)
def test_what_is_not_signed_is_not_there_and_told_once(
    store: Any, notices: SignedStore, told: list[str], content: str
) -> None:
    store.set("name", content)
    assert notices.read("name") is None
    assert notices.read("name") is None
    assert told == (["name"] if content else [])
    notices.post("name", "mine")
    assert SignedStore(store, "run", SECRET).read("name") == "mine"


@pytest.mark.parametrize(("run", "secret"), [("another", SECRET), ("run", b"guess")])
def test_another_run_or_secret_is_not_heard(
    store: Any, notices: SignedStore, run: str, secret: bytes
) -> None:
    SignedStore(store, run, secret).post("name", "value")
    assert notices.read("name") is None


def test_a_notice_is_worth_nothing_under_another_name(store: Any, notices: SignedStore) -> None:
    notices.post("a", "value")
    notices.under("attempt/1/").post("a", "of an attempt")
    store.set("b", store.get("a"))
    store.set("attempt/2/a", store.get("attempt/1/a"))
    assert notices.read("b") is None
    assert notices.under("attempt/2/").read("a") is None
    assert notices.under("attempt/1/").read("a") == "of an attempt"


def test_who_has_read_a_notice_does_not_believe_an_older_one(
    store: Any, notices: SignedStore, told: list[str]
) -> None:
    writer = SignedStore(store, "run", SECRET)
    writer.post("saved", 1)
    old = store.get("saved")
    writer.post("saved", 2)
    assert notices.read("saved") == 2
    store.set("saved", old)
    assert notices.read("saved") == 2
    assert not told, "it may only have been long on its way"
    notices.post("saved", 3)  # By a process that is not the first to write.
    assert writer.read("saved") == 3
    store.delete_key("saved")
    assert writer.read("saved") == 3


def test_the_first_notice_stands_but_not_a_forged_one(store: Any, notices: SignedStore) -> None:
    store.set("over", "forged")
    assert notices.post_first("over", "the cause")
    assert not SignedStore(store, "run", SECRET).post_first("over", "an echo")
    assert notices.read("over") == "the cause"


def test_waiting_ends_when_all_have_come_or_time_is_up(notices: SignedStore) -> None:
    notices.post("a", 1)
    assert notices.wait(["a", "b"], timedelta(milliseconds=10)) == {"a": 1}
    notices.post("b", 2)
    assert notices.wait(["a", "b"], timedelta(seconds=60)) == {"a": 1, "b": 2}


def test_failures_are_listed_in_order_whatever_strangers_write_between(store: Any) -> None:
    control = ControlStore(store, "run", SECRET)
    failures = [Failure(f"host{number}", None, None, "lost", 1.0) for number in range(3)]
    for number, failure in enumerate(failures, 1):
        store.set(f"dragoman/failure/{number}", '{"host": "evil"}')
        control.post_failure(failure)
    store.set("dragoman/failure/4", "{}")
    assert control.failures() == failures
    assert control.failures(after=2) == failures[2:]


@pytest.mark.parametrize(
    "value", [None, [], "text", {}, {"host": "a"}, {"host": 1, "reason": "b", "time": 1.0}]
)
def test_a_failure_in_words_of_another_version_is_no_traceback(value: object) -> None:
    assert "format this version cannot read" in str(read_failure(value))


def test_a_failure_with_more_or_less_than_this_version_knows_is_read() -> None:
    value = {"host": "a", "reason": "b", "time": 1, "progress": 7, "is_echo": 1, "colour": "red"}
    assert read_failure(value) == Failure("a", None, None, "b", 1.0)

"""Which signals ask for an orderly end, and how often."""

import os
import signal

import pytest

from dragoman.stop_signals import stop_signals_caught


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        (["SIGINT", "SIGINT"], ["SIGINT", "SIGINT"]),
        (["SIGTERM", "SIGINT"], ["SIGTERM", "SIGINT"]),
        (["SIGHUP", "SIGHUP"], ["SIGHUP"]),
        (["SIGINT", "SIGHUP"], ["SIGINT"]),
        (["SIGHUP", "SIGTERM"], ["SIGHUP", "SIGTERM"]),
    ],
)
def test_a_hangup_is_a_request_but_never_the_second(sent: list[str], heard: list[str]) -> None:
    names: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    with stop_signals_caught(lambda number: names.append(number.name)):
        for name in sent:
            os.kill(os.getpid(), signal.Signals[name])
    assert names == heard
    assert signal.getsignal(signal.SIGHUP) is before


def test_who_started_with_nohup_stays_when_the_terminal_closes() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals_caught(lambda _: pytest.fail("it was heard")):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

"""Which signals ask for an orderly end, and how often."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.stop_signals import imports_interruptible, stop_signals_caught
from support import PATIENCE


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


def test_ctrl_c_ends_an_import_that_would_swallow_it(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import time\nprint('here', flush=True)\nwhile True:\n"
        "    try:\n        time.sleep(60)\n    except KeyboardInterrupt:\n        pass\n"
    )
    # Tests that run in the background ignore Ctrl-C, and so would what they start.
    code = "import signal\nfrom dragoman.stop_signals import imports_interruptible as block\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\nwith block(): "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code} import stubborn"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[1] == "dragoman: interrupted\n"
    assert process.returncode == 130


def test_ctrl_c_while_the_first_modules_are_imported_leaves_no_traceback() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupts:
    def find_spec(self, name, *_):
        if name == "dragoman.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from dragoman.__main__ import main
main()
"""
    words = [sys.executable, "-c", code]
    result = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert (result.returncode, result.stderr) == (130, "dragoman: interrupted\n")


def test_ctrl_c_elsewhere_is_an_exception_as_ever() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), imports_interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)

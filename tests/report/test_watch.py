"""The live page: cheap, up to date, only available on this machine, and whole in a real browser."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.files import exclusive
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings.analysis import Findings, analyse
from dragoman.report.live import run_state
from dragoman.report.live.run_state import RunState
from dragoman.report.live.server import LivePage
from dragoman.report.live.tail import Tail
from dragoman.runs.folder import RunFolder
from dragoman.wording import in_time
from report.browser import Page, find_chromium
from report.run_folders import START, pair_run, write_lines
from report.run_folders import RunFolder as Written


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "SECONDS_BETWEEN_LOOKS", 0.0)


RIGHT_TO_LEFT = """
[...document.querySelectorAll('#samples *')].filter(
  element => getComputedStyle(element).direction === 'rtl'
).map(element => element.textContent)
"""

EIGHT_GPUS = """
for (const place of '01234567') state.machines[0].scalars[`gpu${place}/utilization`] = 97;
state.machines[0].host = 'node-17.cluster.example.org';
show()
"""
CUT_NUMBERS = """
[...document.querySelectorAll('svg text')].filter(text => {
  const svg = text.ownerSVGElement, seen = getComputedStyle(svg).overflow === 'visible';
  const box = text.getBoundingClientRect();
  const frame = (seen ? svg.closest('.panel') : svg).getBoundingClientRect();
  return box.left < frame.left || box.right > frame.right;
}).map(text => text.textContent)
"""


def _append(path: Path, *lines: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _running(path: Path, steps: int = 60) -> Written:
    """A run of two machines that goes on."""
    run = pair_run(path, steps=steps)
    run.lines.pop()
    for step in range(4, steps + 1, 4):
        run.evaluate(step, loss=3 / step + 2.0, bleu=30 - 100 / step)
        pairs = {"source": "One.", "reference": "Eins.", "translation": "Ein" + "s" * (step > 30)}
        run.samples.append({"step": step, "time": run.clock, **pairs})
    run.watch(8_000_000)
    return run


def _state_of(run: Written) -> RunState:
    run.write()
    return RunState(RunFolder(run.path), lambda: run.clock + 1)


def test_a_tail_reads_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_text('{"a": 1}\n{"a": 2}\nbroken\n{"a": 3')
    assert [line["a"] for line in tail.lines()] == [1, 2]
    with open(path, "a") as file:
        file.write("}\n")
    assert [line["a"] for line in tail.lines()] == [3]
    assert not tail.is_cut
    path.write_text("{}\n")
    assert tail.is_cut


def test_what_the_page_shows(tmp_path: Path) -> None:
    state = _state_of(_running(tmp_path)).look()
    assert state["state"] == {"tone": "good", "words": "running"}
    assert state["speed"]["step"] == 60
    assert "left" in state["speed"]
    assert {answer["id"] for answer in state["answers"]} >= {"fully_trained", "network_bottleneck"}
    assert [one["step"] for one in state["evaluations"]] == list(range(4, 61, 4))
    assert state["evaluations"][-1]["bleu"] == pytest.approx(30 - 100 / 60)
    assert set(state["outlook"]) == {"loss", "bleu"}
    machine, _ = state["machines"]
    assert machine["scalars"]["eth0/sent_megabits_per_second"] == pytest.approx(64)
    assert machine["sent_megabits_per_second"] == pytest.approx(64)
    assert [link["between"] for link in state["links"]] == ["alpha to beta"]
    (sample,) = state["samples"]
    assert [one["text"] for one in sample["tries"]] == ["Ein", "Eins"]
    json.dumps(state, allow_nan=False)


@pytest.mark.parametrize("is_read_at_once", [True, False])
def test_pauses_and_evaluations_are_not_part_of_the_speed(
    tmp_path: Path, is_read_at_once: bool
) -> None:
    run = pair_run(tmp_path, steps=20)
    run.lines.pop()
    run.evaluate(20, loss=3.0, bleu=20.0, seconds=500.0)
    state = _state_of(run)
    if not is_read_at_once:
        state.look()
    run.clock += 36_000
    run.begin("resume", 20)
    for step in range(21, 25):
        run.train(step, seconds=2.0, target_tokens=600)
    (tmp_path / "metrics.jsonl").unlink()
    run.write()
    speed = state.look()["speed"]
    steps = [line for line in run.lines if isinstance(line, dict) and line["kind"] == "train"]
    recent = steps if is_read_at_once else steps[-4:]
    seconds = sum(line["seconds"] for line in recent)
    rate = sum(line["target_tokens"] for line in recent) / seconds
    assert speed["seconds_per_step"] == in_time(seconds / len(recent))
    assert speed["tokens_per_second"] == f"{rate:,.0f}"


def test_the_hours_of_a_run_limit_the_time_left(tmp_path: Path) -> None:
    run = _running(tmp_path)
    assert run.settings is not None
    run.settings = re.sub(
        r"\[training\]\nsteps = \d+", "[training]\nsteps = 90000\nhours = 0.5", run.settings
    )
    assert "hours" in run.settings
    state = _state_of(run).look()
    begun = run.lines[0]["time"]
    assert state["speed"]["left"] == in_time(begun + 1800 - (run.clock + 1))


def test_the_network_is_the_interface_of_the_run(tmp_path: Path) -> None:
    run = _running(tmp_path)
    for second, sample in enumerate(run.monitor["alpha"]):
        for name, bytes_per_second in (("lo", 10**9), ("storage0", 10**8)):
            counters = {"received_bytes": 0, "sent_bytes": second * bytes_per_second}
            sample["interfaces"] = sample["interfaces"] | {name: counters}
    machine, _ = _state_of(run).look()["machines"]
    assert machine["scalars"]["storage0/sent_megabits_per_second"] == pytest.approx(800)
    assert machine["sent_megabits_per_second"] == pytest.approx(64)
    assert "lo/sent_megabits_per_second" not in machine["scalars"]


def test_it_grows_with_the_run_and_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _running(tmp_path)
    state = _state_of(run)
    before = state.look()
    monkeypatch.setattr(run_state, "load_evidence", None)  # Not for every line.
    train = [{"kind": "train", "time": run.clock, "step": 61, "loss": 1.5, "target_tokens": 9}]
    evaluation = {"kind": "eval", "time": run.clock, "step": 64, "set": "valid", "bleu": 29.0}
    _append(tmp_path / "metrics.jsonl", *train, evaluation)
    after = state.look()
    assert after["train"][-1] == [61, 1.5]
    assert after["evaluations"][-1]["bleu"] == 29.0
    assert after["answers"] == before["answers"]


def test_restarts_lost_machines_and_the_end_are_told_as_they_happen(tmp_path: Path) -> None:
    run = _running(tmp_path)
    state = _state_of(run)
    state.look()
    metrics, now = tmp_path / "metrics.jsonl", run.clock
    _append(
        metrics,
        {
            "kind": "restart",
            "time": now,
            "step": 40,
            "reason": "a machine died",
            "hosts": ["alpha"],
        },
        {"kind": "lost", "time": now, "step": 40, "host": "beta", "reason": "no heartbeat"},
    )
    told = state.look()
    assert [event["what"] for event in told["events"][:2]] == ["beta lost", "restarted"]
    assert told["events"][0]["why"] == "no heartbeat"
    assert {one["host"]: one["is_lost"] for one in told["machines"]} == {
        "alpha": False,
        "beta": True,
    }
    # What lay beyond the checkpoint is void.
    assert told["evaluations"][-1]["step"] == 40
    pair = {"source": "One.", "reference": "Eins.", "translation": "Einz"}
    _append(tmp_path / "samples.jsonl", {"step": 32, "time": now, **pair})
    assert state.look()["samples"][0]["tries"] == [
        {"step": 4, "text": "Ein"},
        {"step": 32, "text": "Einz"},
    ], "an evaluation that is repeated replaces the earlier one"
    assert told["train"][-1][0] <= 40
    _append(metrics, {"kind": "stop", "time": now, "step": 41, "reason": "steps"})
    assert state.look()["state"]["words"] == "finished: all steps done"
    # A run that ended, and is taken up again, is followed.
    _append(metrics, {"kind": "resume", "time": now, "step": 41, "hosts": ["alpha"]})
    assert state.look()["state"]["words"] == "running"


def test_a_machine_that_came_back_before_the_page_was_opened_is_not_lost(tmp_path: Path) -> None:
    run = _running(tmp_path)
    run.hosts = ("alpha",)
    run.begin("restart", 60, reason="beta was lost")
    run.line("lost", 60, host="beta", reason="no heartbeat", workers=1)
    run.train(61)
    lost = _state_of(run).look()
    assert [one["host"] for one in lost["machines"] if one["is_lost"]] == ["beta"]
    run.hosts = ("alpha", "beta")
    run.begin("restart", 61, reason="beta joined", joined=["beta"])
    run.train(62)
    state = _state_of(run).look()
    told = [event["what"] for event in state["events"]]
    assert told == ["beta joined", "restarted", "beta lost", "restarted", "started"]
    assert not any(one["is_lost"] for one in state["machines"])


def test_answers_are_made_anew_within_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = _state_of(_running(tmp_path))
    made: list[Evidence] = []

    def counted(evidence: Evidence) -> Findings:
        made.append(evidence)
        return analyse(evidence)

    monkeypatch.setattr(run_state, "analyse", counted)
    clock = iter(0.25 * step for step in range(4, 100_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    spent = iter(0.06 * step for step in range(100_000))  # So many seconds each time.
    monkeypatch.setattr(time, "process_time", lambda: next(spent))
    for _ in range(400):
        state.look()
    monkeypatch.undo()
    # 0.06 s are 0.6% of 10 s, and 100 s have passed.
    assert 9 <= len(made) <= 12


def test_a_history_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    run = _running(tmp_path)
    state = _state_of(run)
    state.look()
    write_lines(tmp_path / "metrics.jsonl", run.lines[:20])
    assert state.look()["speed"]["step"] < 60


def test_a_silent_run_and_one_that_has_not_begun(tmp_path: Path) -> None:
    run = _running(tmp_path / "run")
    run.write()
    silent = RunState(RunFolder(run.path), lambda: run.clock + 4000).look()
    assert silent["state"] == {"tone": "bad", "words": "no log output for 1 h 7 min"}
    assert silent["speed"]["step"] == 60
    assert "left" not in silent["speed"], "nobody knows when a silent run goes on"
    # Of a run on this machine alone the kernel knows whether anything still writes it.
    for line in run.lines:
        if "hosts" in line:
            line["hosts"] = [socket.gethostname()]
    run.hosts = [socket.gethostname()]
    with exclusive(run.write(), "training it"):
        held = RunState(RunFolder(run.path), lambda: run.clock + 40).look()
        assert held["state"]["words"] == "running"
        assert load_evidence(run.path, run.clock + 40).state == "running"
    let_go = RunState(RunFolder(run.path), lambda: run.clock + 40).look()
    assert let_go["state"] == {"tone": "bad", "words": "no log output for 40.0 s"}
    assert load_evidence(run.path, run.clock + 40).state == "crashed"
    assert load_evidence(run.path, run.clock + 20).state == "running"
    waiting = RunState(RunFolder(tmp_path / "later"), lambda: START)
    assert waiting.look()["state"]["words"] == "waiting for the run to start"


@contextmanager
def _served(run: Path) -> Iterator[LivePage]:
    page = LivePage(RunFolder(run), 0)
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    try:
        yield page
    finally:
        page.shutdown()
        thread.join()
        page.server_close()


def test_the_page_is_for_this_machine_alone(tmp_path: Path) -> None:
    run = _running(tmp_path)
    run.write()
    with _served(tmp_path) as page:
        assert page.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(page.address + "state.json") as answer:
            assert json.load(answer)["speed"]["step"] == 60
        # A name that someone made lead here.
        stolen = urllib.request.Request(page.address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(stolen)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(page.address + "../../etc/passwd")
        with pytest.raises(UserError, match="choose another"):
            LivePage(RunFolder(tmp_path), page.server_address[1])


@pytest.mark.slow
def test_ctrl_c_ends_it_as_it_should(tmp_path: Path) -> None:
    _running(tmp_path).write()
    command = [sys.executable, "-m", "dragoman", "watch", str(tmp_path), "--port", "0"]
    pipe = subprocess.PIPE
    # Under nohup the signal would be ignored.
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_ctrl_c
    ) as watch:
        assert watch.stdout
        assert watch.stdout.readline().startswith("watch ")
        watch.send_signal(signal.SIGINT)
        assert watch.communicate(timeout=60)[1] == ""
    assert watch.returncode == 0


def heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
def test_the_page_lives_in_a_browser(tmp_path: Path) -> None:
    run = _running(tmp_path / "run")
    run.samples[-1]["translation"] = "<img src=x onerror=alert(1)>"
    run.lines[-1]["loss"] = None  # As after a divergence.
    run.write()
    with _served(run.path) as served, Page(tmp_path / "profile") as page:
        page.open(served.address, width=1180)
        page.wait_for("document.querySelectorAll('.card').length > 5")
        assert page.evaluate("document.getElementById('samples').textContent").count("<img") == 1
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.evaluate("document.querySelectorAll('#loss polyline').length") >= 2
        page.evaluate("document.querySelector('.card button').click()")
        assert page.evaluate("document.querySelectorAll('.open p').length") == 3
        # It grows without being loaded again.
        line = {"kind": "lost", "time": time.time(), "step": 60, "host": "beta", "reason": "gone"}
        _append(run.path / "metrics.jsonl", line)
        page.wait_for("document.getElementById('events').textContent.includes('beta lost: gone')")
        addresses = {address for address in page.requests() if not address.startswith("data:")}
        assert all(address.startswith(served.address) for address in addresses)
        assert page.complaints() == []
        page.open(served.address, width=390)
        page.wait_for("document.querySelectorAll('.card').length > 5")
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(wide)


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
def test_a_selection_and_the_focus_survive_an_update(tmp_path: Path) -> None:
    run = _running(tmp_path / "run")
    run.write()
    focused = "document.activeElement.value"
    selected = "getSelection().toString()"
    looks = "Number(document.documentElement.dataset.looks)"
    with _served(run.path) as served, Page(tmp_path / "profile") as page:
        page.open(served.address, width=1180)
        page.wait_for("document.querySelectorAll('.card').length > 5")
        page.evaluate("document.querySelector('.card button').click()")
        page.evaluate("document.querySelector('.card button').focus()")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.open p'))")
        answer, chosen = page.evaluate(selected), page.evaluate(focused)
        assert len(answer) > 10
        page.wait_for(f"{looks} >= {page.evaluate(looks) + 2}")
        assert (page.evaluate(selected), page.evaluate(focused)) == (answer, chosen)
        # Others change, one comes in before it, and so do its own words.
        page.evaluate(
            """
            for (const answer of state.answers) answer.headline = "Changed";
            state.answers.unshift({...state.answers[1], id: "first"});
            show();
            """
        )
        first = "document.querySelector('.card button').value"
        assert page.evaluate(first) == "first"
        assert page.evaluate("document.querySelector('.open .says').textContent") == "Changed"
        assert (page.evaluate(selected), page.evaluate(focused)) == (answer, chosen)
        # The selection may be anywhere, while the run goes on.
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.reference'))")
        reference = page.evaluate(selected)
        assert "Eins." in reference
        line = {"kind": "lost", "time": time.time(), "step": 60, "host": "beta", "reason": "gone"}
        _append(run.path / "metrics.jsonl", line)
        page.wait_for("document.getElementById('events').textContent.includes('beta lost')")
        assert (page.evaluate(selected), page.evaluate(focused)) == (reference, chosen)
        assert page.evaluate(first) == chosen, "an answer that is gone is taken away"
        assert page.complaints() == []


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
def test_the_page_fits_into_any_window(tmp_path: Path) -> None:
    run = _running(tmp_path / "run", steps=100)
    run.samples = [
        {"step": 100, "source": "שלום.", "reference": "Hallo.", "translation": "ün" * 500}
    ]
    run.write()
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    with _served(run.path) as served, Page(tmp_path / "profile") as page:
        for width in (420, 900):
            page.open(served.address, width=width)
            page.wait_for("document.querySelectorAll('.try').length > 1")
            assert not page.evaluate(wide)
            assert not page.evaluate(f"{EIGHT_GPUS}; {wide}")
            assert page.evaluate(RIGHT_TO_LEFT) == ["שלום."]
            assert page.evaluate(CUT_NUMBERS) == []
        page.evaluate("draw('bleu', svg => chart(svg, [{points: [[0, 0], [100, 0]]}]))")
        assert page.evaluate("document.querySelector('#bleu text').textContent") == "0.0"

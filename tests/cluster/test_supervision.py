"""What a worker that fails makes of its failure, and of those before it."""

from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from dragoman.cluster.board import HEARTBEAT_VARIABLE, STORE_VARIABLE, Board
from dragoman.cluster.supervision import Supervision
from dragoman.errors import SystemFault, UserError


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """The board of a launcher, and the variables of its workers."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv(STORE_VARIABLE, f"127.0.0.1:{store.port}")
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "0")
    return Board(store)


def fail(worker: int, error: Exception) -> None:
    supervision = Supervision(worker)
    supervision.step = 8
    supervision.post_failure(error)
    supervision.end()


def test_only_what_comes_back_in_another_life_ends_the_run(board: Board) -> None:
    board.note_rendezvous()
    for worker in (0, 1):
        fail(worker, ValueError("the disk is on fire"))
    assert board.given_up() is None, "two workers failed alike, and there was no restart yet"
    board.note_rendezvous()
    fail(1, ValueError("the disk is still on fire"))
    assert board.given_up() is None
    fail(0, ValueError("the disk is on fire"))
    over = board.given_up()
    assert over
    assert over.worker == 0
    assert len(board.failures(board.failures_before_rendezvous())) == 2


def test_first_final_failure_stands_and_says_whose_it_is(board: Board) -> None:
    fail(1, UserError("no corpus"))
    fail(0, SystemFault("no space"))
    over = board.given_up()
    assert over
    assert over.is_mistake
    assert over.reason == "no corpus"

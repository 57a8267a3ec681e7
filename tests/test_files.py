"""Files that appear whole or not at all, and locks that touch nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.files import exclusive, write_whole


def test_a_lock_that_is_a_link_is_refused_and_what_it_names_is_untouched(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".lock").symlink_to(precious)
    refused = pytest.raises(UserError, match=r"\.lock is a symbolic link.*delete it")
    with refused, exclusive(folder, "writing"):
        pass
    assert precious.read_text() == "kept"
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="symbolic link"), exclusive(folder, "writing"):
        pass
    assert not (tmp_path / "new").exists()


def test_a_lock_is_held_by_one_and_let_go(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("not ours to empty")
    code = (
        "import sys\nfrom pathlib import Path\nfrom dragoman.files import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'reading'): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with exclusive(tmp_path, "writing"):
        other = subprocess.run(command, capture_output=True, text=True)
    assert "another process is reading; wait until it is done" in other.stderr
    assert subprocess.run(command).returncode == 0
    assert (tmp_path / ".lock").read_text() == "not ours to empty"


def test_an_error_under_a_lock_is_not_taken_for_a_held_one(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), exclusive(tmp_path, "writing"):
        raise BlockingIOError


def test_what_lies_where_a_file_is_written_aside_is_replaced_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / f".file.{os.uname().nodename}.7").symlink_to(precious)
    write_whole(tmp_path / "file", b"new")
    assert precious.read_text() == "kept"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()

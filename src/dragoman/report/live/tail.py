"""What was appended to a log since it was last read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.documents import decode_object

MOST_BYTES = 4 << 20  # Read at a time; a log that grew by more is behind for a moment only.


class Tail:
    """Follows a file of JSON lines that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    @classmethod
    def from_end(cls, path: Path, back: int = 0) -> "Tail":
        """Follow what is written from now on, and so many bytes before."""
        tail = cls(path)
        tail._at = max(0, tail._size() - back)
        return tail

    @property
    def is_cut(self) -> bool:
        """Whether the file is shorter than what was read of it: another one took its place."""
        return self._size() < self._at

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every whole line that is new; a line that is still being written waits."""
        if self._size() <= self._at:
            return
        with open(self.path, "rb") as file:
            file.seek(self._at)
            content = file.read(MOST_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            value = decode_object(line)
            if value is not None:
                yield value

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

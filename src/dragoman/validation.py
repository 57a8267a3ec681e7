"""JSON that anybody may have edited or damaged, read as values that are checked."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import UserError

LARGEST_COUNT = 2**63 - 1
LARGEST_DOCUMENT = 64 << 20  # Bytes; no file that is read as a whole comes near it.
FILE_NAME = re.compile(r"(?![.\s])[^/\\\x00-\x1f\x7f-\x9f]{1,200}")  # Leads nowhere else.
LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")  # Safe to print on a terminal.
HASH = re.compile(r"[0-9a-f]{64}")  # What `files.sha256` gives.
_LONGEST_SHOWN = 60

Choice = TypeVar("Choice", str, int)


class Fields:
    """An object or a list of a document; each value is read as what it must be, or refused.

    The items of a list have their places as keys: `[names.text(place) for place in names]`.
    """

    def __init__(self, value: Any, origin: str, fix: str, path: str = "") -> None:
        self._origin, self._fix, self._path = origin, fix, path
        if not isinstance(value, (dict, list)):
            raise self.refusal(f"{path or 'it'} must be an object, not {_shown(value)}")
        self._values: dict[Any, Any] = value if isinstance(value, dict) else dict(enumerate(value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def has(self, key: str | int) -> bool:
        """Whether there is a value other than null."""
        return self._values.get(key) is not None

    def text(
        self, key: str | int, pattern: re.Pattern[str] | None = None, wanted: str = "text"
    ) -> str:
        """Text that can be written as UTF-8, and that all of the pattern matches."""
        value = self._get(key)
        if not isinstance(value, str) or _has_surrogate(value):
            raise self.wrong(key, wanted)
        if pattern and not pattern.fullmatch(value):
            raise self.wrong(key, wanted)
        return value

    def line(self, key: str | int) -> str:
        """Text without line ends and other control characters, for names and labels."""
        return self.text(key, LINE, "text without control characters")

    def file_name(self, key: str | int) -> str:
        """The name of a file or folder, which leads to no other folder."""
        return self.text(key, FILE_NAME, "a file name without folders")

    def one_of(self, key: str | int, allowed: Sequence[Choice]) -> Choice:
        """One of a few known values."""
        value = self._get(key)
        for choice in allowed:
            if type(value) is type(choice) and value == choice:
                return choice
        raise self.wrong(key, " or ".join(map(_shown, allowed)))

    def flag(self, key: str | int) -> bool:
        """True or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def count(self, key: str | int, minimum: int = 0, maximum: int = LARGEST_COUNT) -> int:
        """A whole number within bounds."""
        value = self._get(key)
        if type(value) is not int or not minimum <= value <= maximum:
            bounds = f"to {maximum:,}" if maximum < LARGEST_COUNT else "on"
            raise self.wrong(key, f"a whole number from {minimum:,} {bounds}")
        return value

    def number(
        self, key: str | int, minimum: float = -math.inf, maximum: float = math.inf
    ) -> float:
        """A finite number within bounds."""
        value = self._get(key)
        is_number = type(value) is float or (type(value) is int and abs(value) <= LARGEST_COUNT)
        if not is_number or not math.isfinite(value) or not minimum <= value <= maximum:
            is_bounded = math.isfinite(minimum) or math.isfinite(maximum)
            bounds = f" from {minimum:g} to {maximum:g}" if is_bounded else ""
            raise self.wrong(key, f"a finite number{bounds}")
        return float(value)

    def fields(self, key: str | int) -> "Fields":
        """An object inside this one."""
        return self._inner(key, dict, "an object")

    def list(self, key: str | int) -> "Fields":
        """A list inside this object, with its places as keys."""
        return self._inner(key, list, "a list")

    def keys(self, pattern: re.Pattern[str], wanted: str) -> Sequence[str]:
        """The keys of an object that has no fixed ones."""
        for key in self._values:
            if not isinstance(key, str) or _has_surrogate(key) or not pattern.fullmatch(key):
                raise self.refusal(f"{self._name(key)} is no {wanted}")
        return list(self._values)

    def refuse_others(self, known: Sequence[str]) -> None:
        """Refuse keys that the format does not have."""
        for key in self._values:
            if key not in known:
                raise self.refusal(f"{self._name(key)} is unknown")

    def require_format(self, known: int) -> None:
        """Refuse what another Dragoman wrote in another format."""
        if (written := self.count("format")) != known:
            where = f"{self._path} of {self._origin}" if self._path else self._origin
            raise UserError(
                f"{where} has format {written}, this Dragoman reads {known}; {self._fix}"
            )

    def raw(self) -> Mapping[str, Any]:
        """The values as they stand, for what only compares or copies them."""
        return self._values

    def wrong(self, key: str | int, wanted: str) -> UserError:
        """The error that says what a value must be."""
        return self.refusal(
            f"{self._name(key)} must be {wanted}, not {_shown(self._values.get(key))}"
        )

    def refusal(self, problem: str) -> UserError:
        """The error that says where a problem is, and what to do about it."""
        return UserError(f"{self._origin} is damaged: {problem}; {self._fix}")

    def _get(self, key: str | int) -> Any:
        if key not in self._values:
            raise self.refusal(f"{self._name(key)} is missing")
        return self._values[key]

    def _inner(self, key: str | int, kind: type, wanted: str) -> "Fields":
        value = self._get(key)
        if not isinstance(value, kind):
            raise self.wrong(key, wanted)
        return Fields(value, self._origin, self._fix, self._name(key))

    def _name(self, key: str | int) -> str:
        if isinstance(key, int):
            return f"{self._path}[{key}]"
        shown = key if re.fullmatch(r"[\w.-]{1,60}", key) else _shown(key)
        return f"{self._path}.{shown}" if self._path else shown


def load_json(path: Path, fix: str) -> Fields:
    """Read a file that holds one object or list; `fix` says what to do if it is damaged."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file; {fix}")
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise UserError(f"{path} is damaged: larger than {LARGEST_DOCUMENT:,} bytes; {fix}")
    return parse_json(path.read_bytes(), str(path), fix)


def parse_json(document: bytes, origin: str, fix: str) -> Fields:
    """Read a document that came from `origin`."""
    try:
        value = json.loads(document.decode("utf-8"))
    except (ValueError, RecursionError):  # Python also refuses thousands of digits or brackets.
        raise UserError(f"{origin} is damaged: not JSON; {fix}") from None
    return Fields(value, origin, fix)


def _shown(value: Any) -> str:
    """A value as a message may show it: short, on one line, without control characters."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    shown = json.dumps(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)

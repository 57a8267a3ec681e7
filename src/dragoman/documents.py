"""JSON documents <-> frozen dataclasses: the dataclass is the format, for writer, reader and docs.

A field's annotation says what it holds. Fields with a default are left out where they have it.
"""

import json
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dragoman.errors import UserError

LARGEST_WHOLE_NUMBER = 2**63 - 1  # Of TOML, and of most that reads JSON.
LONGEST_SHOWN = 40  # Characters of a value that is not what it should be.
LINE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*"  # Safe to print on a terminal.
FILE_NAME = r"(?![.\s])[^/\\\x00-\x1f\x7f-\x9f]{1,200}"  # Leads to no other folder.
HASH = r"[0-9a-f]{64}"
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # JSON can spell it, UTF-8 cannot.

Record = TypeVar("Record")


class Mismatch(ValueError):
    """A value that is not what its place in a document asks for."""


def item(
    help: str,
    *,
    default: Any = MISSING,
    pattern: str = "",
    keys: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare one field of a document; `pattern` and `keys` are what all of a text must match."""
    metadata = {
        "help": help,
        "pattern": pattern,
        "keys": keys,
        "minimum": minimum,
        "maximum": maximum,
    }
    return field(default=default, metadata=metadata)


_ITEMS: dict[Any, tuple[tuple[Field[Any], Any], ...]] = {}  # Resolving types takes time.


def items_of(kind: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """Each field of a document, or of a section of the settings, with its resolved type."""
    if kind not in _ITEMS:
        hints = get_type_hints(kind)
        _ITEMS[kind] = tuple((one, hints[one.name]) for one in fields(kind))
    return _ITEMS[kind]


def decode(text: str | bytes) -> Any:
    """Read JSON as the standard has it; raise ValueError for anything else."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def decode_object(text: str | bytes) -> dict[str, Any] | None:
    """The object on a line of a log, or None if the line is damaged; forgiving, unlike `decode`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def encode(record: Any, *, with_defaults: bool = False) -> dict[str, Any]:
    """Give a record as plain values; JSON has no NaN, so what is not finite is null."""
    return {
        one.name: _plain(value, with_defaults)
        for one, _ in items_of(type(record))
        if (value := getattr(record, one.name)) != one.default
        or one.default is MISSING
        or with_defaults
    }


def read_document(path: Path, kind: type[Record], remedy: str) -> Record:
    """Read a whole file as a record, or say in one line what is wrong with it and what to do."""
    try:
        return parse(kind, decode(path.read_bytes()))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; {remedy}") from None


def parse(kind: type[Record], value: Any, where: str = "") -> Record:
    """Read a record and refuse what does not fit it; what it does not know is passed over."""
    if not isinstance(value, dict):
        raise Mismatch(f"{where or 'it'} is {_shown(value)}, not an object")
    found = {}
    for one, hint in items_of(kind):
        place = f"{where}.{one.name}" if where else one.name
        if one.name in value:
            found[one.name] = _convert(hint, value[one.name], place, one.metadata)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise Mismatch(f"{place} is missing")
    return kind(**found)


def parse_leniently(kind: type[Record], value: Any) -> Record:
    """Read what can be read of a record; blanks stand for the rest."""
    table = value if isinstance(value, dict) else {}
    return kind(
        **{
            one.name: _lenient(one, hint, table[one.name])
            if one.name in table
            else _default(one, hint)
            for one, hint in items_of(kind)
        }
    )


def number_or_none(value: Any) -> float | None:
    """A finite JSON number as a float; null, text and truth values are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if abs(value) > LARGEST_WHOLE_NUMBER and isinstance(value, int):
        return None
    return float(value) if math.isfinite(value) else None


def _convert(hint: Any, value: Any, where: str, metadata: Mapping[str, Any]) -> Any:
    """Return a value as its type asks for it, or raise Mismatch."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        return parse(hint, value, where)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (wanted,) = (one for one in arguments if one is not type(None))
        return _convert(wanted, value, where, metadata)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_each(arguments, list(value), where, metadata))
    if origin is Mapping and isinstance(value, dict):
        for key in value:
            if not _matches(metadata.get("keys", ""), key):
                raise Mismatch(f"{where} has the key {_shown(key)}")
        return {
            key: _convert(arguments[1], one, f"{where}.{key}", metadata)
            for key, one in value.items()
        }
    if origin is Literal and value in arguments and not isinstance(value, bool):
        return value
    number = number_or_none(value)
    if hint in (float, int) and number is not None and _is_within(number, metadata):
        if hint is float:
            return number
        if isinstance(value, int):
            return value
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str) and _matches(metadata.get("pattern", ""), value):
        return value
    raise Mismatch(f"{where} is {_shown(value)}, not {describe(hint)}{_bounds(metadata)}")


def _each(
    arguments: tuple[Any, ...], values: Sequence[Any], where: str, metadata: Mapping[str, Any]
) -> Iterator[Any]:
    is_open = arguments[-1] is Ellipsis
    if not is_open and len(values) != len(arguments):
        raise Mismatch(f"{where} has {len(values)} entries, not {len(arguments)}")
    for place, value in enumerate(values):
        hint = arguments[0] if is_open else arguments[place]
        yield _convert(hint, value, f"{where}[{place}]", metadata)


def _lenient(one: Field[Any], hint: Any, value: Any) -> Any:
    kind = get_args(hint)[-1 if get_origin(hint) is Mapping else 0] if get_args(hint) else None
    if is_dataclass(hint):
        return parse_leniently(hint, value)  # type: ignore[arg-type]
    if is_dataclass(kind) and get_origin(hint) is Mapping and isinstance(value, dict):
        return {key: parse_leniently(kind, each) for key, each in value.items()}  # type: ignore[arg-type]
    if is_dataclass(kind) and get_origin(hint) is tuple and isinstance(value, list):
        return tuple(parse_leniently(kind, each) for each in value)  # type: ignore[arg-type]
    try:
        return _convert(hint, value, one.name, one.metadata)
    except Mismatch:
        return _default(one, hint)


def _default(one: Field[Any], hint: Any) -> Any:
    return _blank(hint) if one.default is MISSING else one.default


def _blank(hint: Any) -> Any:
    """What stands for a value that cannot be read."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None
    if is_dataclass(hint):
        return parse_leniently(hint, {})  # type: ignore[arg-type]
    if origin is Literal:
        return get_args(hint)[0]
    if origin is tuple and Ellipsis not in get_args(hint):
        return tuple(_blank(one) for one in get_args(hint))
    if hint is float:
        return math.nan
    return {Mapping: dict, tuple: tuple}.get(origin, hint)()


def describe(hint: Any) -> str:
    """Say in words what a field holds."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(json.dumps(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        known = [describe(option) for option in arguments if option is not type(None)]
        return f"{' or '.join(known)} or null"
    if origin is tuple:
        return "a list"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a plain string"}
    return names.get(hint, "an object")


def _is_within(number: float, metadata: Mapping[str, Any]) -> bool:
    minimum, maximum = metadata.get("minimum"), metadata.get("maximum")
    return (minimum is None or number >= minimum) and (maximum is None or number <= maximum)


def _bounds(metadata: Mapping[str, Any]) -> str:
    minimum, maximum = metadata.get("minimum"), metadata.get("maximum")
    least = "" if minimum is None else f" of at least {minimum:,.15g}"
    return least if maximum is None else f"{least} and at most {maximum:,.15g}"


def _matches(pattern: str, value: str) -> bool:
    is_whole = _HALF_CHARACTER.search(value) is None
    return is_whole and (not pattern or re.fullmatch(pattern, value) is not None)


def _plain(value: Any, with_defaults: bool) -> Any:
    if is_dataclass(value):
        return encode(value, with_defaults=with_defaults)
    if isinstance(value, Mapping):
        return {key: _plain(one, with_defaults) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, with_defaults) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # Thousands of digits, or of brackets.
        return "a huge value"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")

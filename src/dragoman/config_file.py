"""TOML and `a.b=c` overrides <-> dataclasses: strict, and all problems reported at once."""

import difflib
import json
import math
import re
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from dragoman.config import Config, ParallelText
from dragoman.contradictions import contradictions, model_contradictions
from dragoman.documents import LARGEST_WHOLE_NUMBER, items_of
from dragoman.errors import UserError


@dataclass(frozen=True)
class Problem:
    """What is wrong with a config, in one line."""

    words: str
    setting: str = ""  # Whose value is invalid, if it is one by itself.


class ConfigError(UserError):
    """One or more problems of a config."""

    def __init__(self, origin: str, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{origin}: {problem.words}" for problem in problems))
        self.problems = tuple(problems)


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, apply the overrides, and check everything."""
    table = _read_toml(path)
    problems: list[Problem] = []
    for override in overrides:
        problems += map(Problem, _apply_override(table, override))
    config: Config = _Reader(path.resolve().parent, problems).section(Config, table, "")
    if not problems:
        # A run's own config spells out every default, and must be as good as the one it is from.
        plain = flatten(Config(**{section.name: kind() for section, kind in sections()}))
        given = {name for name, value in flatten(config).items() if value != plain[name]}
        problems += map(Problem, contradictions(config, given))
    if problems:
        raise ConfigError(str(path), problems)
    return config


def load_saved_config(path: Path) -> Config:
    """Read a config that `dump_config` wrote, where every setting is given."""
    problems: list[Problem] = []
    config: Config = _Reader(path.resolve().parent, problems).section(Config, _read_toml(path), "")
    if not problems:  # All other contradictions were found before training.
        problems += map(Problem, model_contradictions(config.model))
    if problems:
        raise ConfigError(str(path), problems)
    return config


def dump_config(config: Config, *, with_defaults: bool = True) -> str:
    """Write a config as TOML, every setting spelled out, or only those that differ."""
    lines = []
    for section, kind in sections():
        defaults, settings = asdict(kind()), asdict(getattr(config, section.name))
        lines.append(f"[{section.name}]")
        lines += [
            f"{key} = {_toml(value)}"
            for key, value in settings.items()
            if value is not None and (with_defaults or value != defaults[key])
        ]
        lines.append("")
    for stage in config.stages:
        lines += ["[[stages]]", *(f"{key} = {_toml(value)}" for key, value in vars(stage).items())]
        lines.append("")
    return "\n".join(lines)


def dump_text(text: ParallelText) -> str:
    """Write an entry of corpus.train as TOML."""
    given = {key: value for key, value in asdict(text).items() if value != ""}
    return f"{{ {', '.join(f'{key} = {_toml(value)}' for key, value in given.items())} }}"


def flatten(config: Config) -> dict[str, Any]:
    """Give every setting its dotted name, as overrides and comparisons use it."""
    by_name = {
        f"{section.name}.{key}": value
        for section, _ in sections()
        for key, value in asdict(getattr(config, section.name)).items()
    }
    return by_name | {"stages": [asdict(stage) for stage in config.stages]}


def sections() -> Iterator[tuple[Field[Any], Any]]:
    """Each table of a config that is there once."""
    return ((item, hint) for item, hint in items_of(Config) if is_dataclass(hint))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # Some editors put a mark first.
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a config file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text, so it cannot be a TOML config file") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Python refuses thousands of digits or brackets.
        hint = ""
        if re.search(r"=\s*\"[^\"\n]*\\", text):  # As in a path on Windows.
            hint = "; in double quotes \\ has a meaning of its own: write paths with / or in '...'"
        raise UserError(f"{path}: not valid TOML: {error}{hint}") from None


def _apply_override(table: dict[str, Any], override: str) -> list[str]:
    """Put one `a.b=c` into the table; a bare word on the right is a string."""
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)+", key.strip()):
        return [
            f"override {override!r}: write section.setting=value, for example "
            "training.steps=1000; [[stages]] can only be in the file"
        ]
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        if not re.fullmatch(r"[\w./+-]+", value):
            return [f"override {override!r}: {value!r} is not a TOML value"]
        parsed = value
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            return [f"override {override!r}: {parent} is not a table"]
    table[last] = parsed
    return []


class _Reader:
    """Turns tables into dataclasses, collecting problems instead of stopping at the first."""

    def __init__(self, base: Path, problems: list[Problem]) -> None:
        self.base = base
        self.problems = problems

    def section(self, kind: type, table: Any, name: str) -> Any:
        """Read one table as the dataclass `kind`."""
        if not isinstance(table, dict):
            self._wrong(name, table, "a table")
            table = {}
        known = {item.name: (item, hint) for item, hint in items_of(kind)}
        for key in table.keys() - known.keys():
            self.problems.append(Problem(_unknown(key, name, list(known)), _join(name, key)))
        values = {}
        for key, (item, hint) in known.items():
            if key in table:
                values[key] = self.value(hint, table[key], _join(name, key), item.metadata)
            elif item.default is MISSING and item.default_factory is MISSING:
                values[key] = self.section(hint, {}, _join(name, key))
        return kind(**values)

    def value(self, hint: Any, value: Any, name: str, metadata: Mapping[str, Any]) -> Any:
        """Check one value against its type and range."""
        if is_dataclass(hint):
            return self.section(hint, value, name)  # type: ignore[arg-type]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is tuple:
            if not isinstance(value, list):
                return self._wrong(name, value, "a list")
            return tuple(
                self.value(arguments[0], item, f"{name}[{index}]", metadata)
                for index, item in enumerate(value)
            )
        if origin is Mapping:
            if not isinstance(value, dict):
                return self._wrong(name, value, "a table")
            return {
                key: self.value(arguments[1], item, _join(name, key), metadata)
                for key, item in value.items()
            }
        checked = _scalar(hint, value)
        if checked is None:
            return self._wrong(name, value, describe_type(hint))
        self._check_range(name, checked, metadata)
        if metadata.get("is_run") and checked:
            return self._run(name, checked)
        return self._path(name, checked) if metadata.get("is_path") and checked else checked

    def _run(self, name: str, value: str) -> str:
        """Where a run lies: beside the config, or where the commands look for it."""
        beside, here = Path(self._path(name, value)), Path.cwd() / value
        places = (beside, here, Path.cwd() / "runs" / value)
        return str(next((place for place in places if place.is_dir()), beside))

    def _path(self, name: str, value: str) -> str:
        """Where a path leads that is relative to the config, or to somebody's home."""
        if "\0" in value:
            self._wrong(name, value, "a path without null characters")
        try:
            return str(self.base / Path(value).expanduser())
        except RuntimeError:
            self._invalid(name, f": no home folder for that user: {_toml(value)}")
            return value

    def _invalid(self, name: str, why: str) -> None:
        self.problems.append(Problem(name + why, name))

    def _wrong(self, name: str, value: Any, wanted: str) -> None:
        self._invalid(name, f" must be {wanted}, not {_shown(value)}")

    def _check_range(self, name: str, value: Any, metadata: Mapping[str, Any]) -> None:
        if not isinstance(value, (int, float)):
            return
        if isinstance(value, int) and abs(value) > LARGEST_WHOLE_NUMBER:
            self._invalid(name, f" must be at most {LARGEST_WHOLE_NUMBER:,}, not {value:,}")
            return
        if not math.isfinite(value):
            self._invalid(name, f" must be a finite number, not {value:g}")
            return
        minimum, maximum = metadata.get("minimum"), metadata.get("maximum")
        if minimum is not None and not value >= minimum:
            self._invalid(name, f" must be at least {minimum:,.15g}, not {value:,.15g}")
        if maximum is not None and not value <= maximum:
            self._invalid(name, f" must be at most {maximum:,.15g}, not {value:,.15g}")


def describe_type(hint: Any) -> str:
    """Say in words what a setting accepts."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        choices = ", ".join(json.dumps(choice) for choice in arguments)
        return choices if len(arguments) == 1 else f"one of {choices}"
    if origin in (Union, types.UnionType):
        known = [describe_type(option) for option in arguments if option is not type(None)]
        return " or ".join(known)
    if origin is tuple:
        return f"a list, each {describe_type(arguments[0])}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return names.get(hint, "a table")


def _scalar(hint: Any, value: Any) -> Any:
    """Return the value as the type asks for it, or None if it does not fit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value if value in arguments and not isinstance(value, bool) else None
    if origin in (Union, types.UnionType):
        fitting = (_scalar(option, value) for option in arguments if option is not type(None))
        return next((fit for fit in fitting if fit is not None), None)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= sys.float_info.max else math.inf
    return value if type(value) is hint else None


def _unknown(key: str, section: str, known: list[str]) -> str:
    what = "setting" if section else "section"
    close = difflib.get_close_matches(key, known, n=1)
    hint = (
        f"; did you mean {_join(section, close[0])}?" if close else f"; known: {', '.join(known)}"
    )
    return f"{_join(section, key)}: unknown {what}{hint}"


def _join(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _shown(value: Any) -> str:
    """A value in a message, where what is nested could be nested without end."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if any(isinstance(item, (dict, list)) for item in items):
        return "a table" if isinstance(value, dict) else "a list"
    return _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        # TOML's basic strings take JSON's escapes, but DEL must be escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)

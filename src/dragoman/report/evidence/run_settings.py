"""The settings of a run as its config.toml has them, without those that are invalid."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dragoman.config import Config
from dragoman.config_file import ConfigError, Problem, load_saved_config
from dragoman.documents import items_of
from dragoman.errors import UserError
from dragoman.report.evidence.json_lines import table_of

# Of one of their settings alone, the default would be taken for what the run had.
_READ_AS_A_WHOLE = ("model", "schedule")
_SECTION_AND_NAME = re.compile(r"(\w+)(?:\.(\w+))?")  # Of what may be deeper inside.
_LONGEST_PROBLEM = 160  # Characters: a number may have hundreds of digits.


def read_settings(path: Path, missing: list[str]) -> dict[str, Any]:
    """The settings as they stand, even of another version of Dragoman, but only valid ones."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        load_saved_config(path)
        return settings
    except ConfigError as error:
        missing += _drop_invalid(settings, error.problems)
        return settings
    except FileNotFoundError:
        missing.append("config.toml is missing: the settings are unknown")
    except (OSError, UserError, ValueError, RecursionError) as error:
        missing.append(f"config.toml cannot be read: {error}")
    return {}


def _drop_invalid(settings: dict[str, Any], problems: Sequence[Problem]) -> Iterator[str]:
    """Take out each setting that has a problem, and say so; unknown ones do no harm."""
    known = {section.name: hint for section, hint in items_of(Config)}
    for problem in problems:
        is_long = len(problem.words) > _LONGEST_PROBLEM
        words = f"config.toml: {problem.words[:_LONGEST_PROBLEM]}{'…' if is_long else ''}"
        if not problem.setting:
            yield words
            continue
        named = _SECTION_AND_NAME.match(problem.setting)
        section, name = named.groups() if named else ("", None)
        if section not in known:
            continue
        if name and name not in {one.name for one, _ in items_of(known[section])}:
            continue
        if not name or section in _READ_AS_A_WHOLE:
            yield f"{words}; this report leaves out all of [{section}]"
            settings.pop(section, None)
        else:
            yield f"{words}; this report leaves it out"
            table_of(settings.get(section)).pop(name, None)

"""Damage as disks, editors and enemies do it, at random but the same for the same seed."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NASTY: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 1.5, 10**400, -(10**400), 2**63, 1e308),
    *(float("inf"), float("-inf"), float("nan")),
    *("", "text", "../../../evil", "/etc/passwd", "O", "\ud800", "a\nb", "\x1b[31m", "\0", "no"),
    *([], {}, [[]], {"": None}, [None] * 9, "x" * 9_999),
)
DEEP = "[" * 100_000


def mutated_bytes(chance: random.Random, content: bytes) -> bytes:
    """Flip a bit, cut, drop, double or overwrite a part; or put something else in its place."""
    changed = bytearray(content)
    place = chance.randrange(len(changed)) if changed else 0
    length = chance.choice([1, 4, 100, 10_000])
    match chance.randrange(8):
        case 0 | 1 | 2 if changed:
            changed[place] ^= 1 << chance.randrange(8)
        case 3:
            del changed[place:]
        case 4:
            del changed[place : place + length]
        case 5:
            changed[place:place] = changed[place : place + length]
        case 6:
            changed[place : place + length] = chance.randbytes(length)
        case _:
            return chance.choice([b"", b"\0" * len(content), DEEP.encode(), chance.randbytes(99)])
    return bytes(changed)


def mutated_json(chance: random.Random, content: bytes) -> bytes:
    """Change, drop, rename or add one value somewhere in a document."""
    document = json.loads(content)
    inner, key = chance.choice(list(_places(document)))
    match chance.randrange(5):
        case 0:
            del inner[key]
        case 1 if isinstance(inner, dict):
            inner[chance.choice(["other", "", "../up", "\ud800"])] = inner.pop(key)
        case 2 if isinstance(inner, dict):
            inner["other"] = chance.choice(NASTY)
        case _:
            inner[key] = chance.choice(NASTY)
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def mutate(chance: random.Random, path: Path) -> None:
    """Damage one file; documents mostly in one value, others in their bytes."""
    content = path.read_bytes()
    is_document = path.suffix == ".json" and chance.random() < 0.75
    path.write_bytes((mutated_json if is_document else mutated_bytes)(chance, content))

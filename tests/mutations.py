"""Seeded damage to files, as disks, editors and strangers do it."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    -1e-308,
    "",
    "text",
    "../../../elsewhere",
    "\x1b[31m\x00<script>",
    "\ud800",
    [],
    {},
    [[]],
    {"a": None},
)
STRANGE_TEXTS = ("NaN", "Infinity", "-Infinity", "1e999", "[" * 100_000, '{"a":' * 5_000, "")


def mutate(path: Path, generator: random.Random) -> str:
    """Damage one file in one way, and say how."""
    content = path.read_bytes()
    kinds = ["flip", "cut", "insert", "empty"]
    if path.suffix in (".json", ".jsonl"):
        kinds += ["value", "text", "key"] * 3
    if path.suffix == ".toml":
        kinds += ["setting"] * 4
    kind = generator.choice(kinds)
    place = generator.randrange(len(content)) if content else 0
    match kind:
        case "flip" if content:
            damaged = bytearray(content)
            damaged[place] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
        case "cut":
            path.write_bytes(content[:place])
        case "insert":
            path.write_bytes(content[:place] + generator.randbytes(20) + content[place:])
        case "value" | "text" | "key":
            _mutate_json(path, content, kind, generator)
        case "setting":
            _mutate_setting(path, content, generator)
        case _:
            path.write_bytes(b"")
    return f"{path.name}: {kind} at {place}"


def _mutate_json(path: Path, content: bytes, kind: str, generator: random.Random) -> None:
    """Change a value or a key of one document, or of one line of a log."""
    is_log = path.suffix == ".jsonl"
    lines = content.splitlines(keepends=True) if is_log else [content]
    if not lines:
        return
    chosen = generator.randrange(len(lines))
    document = json.loads(lines[chosen])
    if not document:
        document = [document]  # Nothing in it could be changed.
    owner, key = generator.choice(list(_places(document)))
    strange = generator.choice(STRANGE)
    mark = "@here@"
    if kind == "key" and isinstance(owner, dict):
        del owner[key]
    else:
        owner[key] = mark if kind == "text" else strange
    text = json.dumps(document)
    if kind == "text":
        text = text.replace(json.dumps(mark), generator.choice(STRANGE_TEXTS))
    lines[chosen] = text.encode() + (b"\n" if is_log else b"")
    path.write_bytes(b"".join(lines))


def _mutate_setting(path: Path, content: bytes, generator: random.Random) -> None:
    """Give one setting of a config another value."""
    lines = content.decode().splitlines()
    places = [place for place, line in enumerate(lines) if " = " in line]
    if not places:
        return
    place = generator.choice(places)
    values = [json.dumps(generator.choice(STRANGE)), "nan", "inf", "3", "0.5"]
    lines[place] = f"{lines[place].split(' = ')[0]} = {generator.choice(values)}"
    path.write_text("\n".join(lines))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside a document: what holds it, and its key or index there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(inside):
        yield value, key
        if isinstance(one, (dict, list)):
            yield from _places(one)

"""What clients ask for: LibreTranslate's fields, from JSON or a form, checked one by one."""

import hmac
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

MOST_ALTERNATIVES = 10
# A character takes at most twelve bytes: as %F0%9F%98%80 in a form, as \ud83d\ude00 in JSON.
BYTES_PER_CHARACTER, OTHER_BYTES = 12, 1 << 16
FIELDS = ("q", "source", "target", "format", "alternatives", "scores", "api_key")


@dataclass(frozen=True)
class TranslateRequest:
    """One POST /translate."""

    texts: tuple[str, ...]
    is_list: bool
    source: str
    target: str
    is_html: bool
    alternatives: int
    with_scores: bool


def refuse(status: int, message: str, **headers: str) -> HTTPException:
    """The error to raise for a request that cannot be answered."""
    return HTTPException(status, message, headers or None)


def read_fields(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a body, as JSON or a form have them."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            fields = json.loads(body.decode())
            if not isinstance(fields, dict):
                raise refuse(400, "Invalid request: the body must be a JSON object")
            _refuse_surrogates(fields)
            return fields
        if kind == "application/x-www-form-urlencoded":
            values = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
            return {name: found if len(found) > 1 else found[0] for name, found in values.items()}
    except UnicodeDecodeError:
        raise refuse(400, "Invalid request: the body is not UTF-8") from None
    except (ValueError, RecursionError):
        form = "JSON" if kind == "application/json" else "URL-encoded"
        raise refuse(400, f"Invalid request: the body is not valid {form}") from None
    raise refuse(
        415,
        f"Content-Type {kind or 'missing'}: send application/json or "
        "application/x-www-form-urlencoded",
    )


def _refuse_surrogates(fields: Mapping[str, Any]) -> None:
    """JSON can write half a character, which can be neither translated nor answered with."""
    for name in FIELDS:
        value = fields.get(name)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise refuse(
                    400,
                    f"Invalid request: {name} contains an unpaired surrogate, which is not valid "
                    "text",
                )


def check_key(fields: Mapping[str, Any], keys: Collection[str]) -> None:
    """Refuse who has no key, where keys are asked for."""
    given = fields.get("api_key", "")
    if not keys or any(hmac.compare_digest(str(given).encode(), key.encode()) for key in keys):
        return
    if given:
        raise refuse(403, "Invalid API key")
    raise refuse(403, "Please contact the server operator to get an API key")


def parse_translate(fields: Mapping[str, Any], most_characters: int) -> TranslateRequest:
    """Check what is asked for; whether there is such a model is seen later."""
    for name in ("q", "source", "target"):
        if name not in fields:
            raise refuse(400, f"Invalid request: missing {name} parameter")
    question = fields["q"]
    texts = question if isinstance(question, list) else [question]
    if not all(isinstance(text, str) for text in texts):
        raise refuse(400, "Invalid request: q must be a text or a list of texts")
    for name in ("source", "target"):
        if not isinstance(fields[name], str):
            raise refuse(400, f"Invalid request: {name} must be the code of a language")
    characters = sum(map(len, texts))
    if characters > most_characters:
        raise refuse(
            400, f"Invalid request: request ({characters}) exceeds text limit ({most_characters})"
        )
    text_format = fields.get("format") or "text"
    if text_format not in ("text", "html"):
        raise refuse(400, f"{text_format} format is not supported: use text or html")
    return TranslateRequest(
        tuple(texts),
        isinstance(question, list),
        fields["source"],
        fields["target"],
        text_format == "html",
        _count(fields.get("alternatives") or 0),
        _flag(fields.get("scores") or False),
    )


def _count(value: Any) -> int:
    text = str(value)
    if isinstance(value, (int, str)) and text.isascii() and text.isdigit() and len(text) < 10:
        count = int(text)
        if count <= MOST_ALTERNATIVES:
            return count
    raise refuse(
        400, f"Invalid request: alternatives must be a whole number from 0 to {MOST_ALTERNATIVES}"
    )


def _flag(value: Any) -> bool:
    flags = {"true": True, "1": True, "false": False, "0": False}
    found = flags.get(str(value).lower())
    if found is None:
        raise refuse(400, "Invalid request: scores must be true or false")
    return found

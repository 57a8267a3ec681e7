"""What languages are called, by their codes."""

from babel import Locale, UnknownLocaleError


def language_name(code: str) -> str:
    """What a language is called in English; its code, if that is none that anybody knows."""
    try:
        name = Locale.parse(code.replace("_", "-"), sep="-").get_display_name("en")
    except (UnknownLocaleError, ValueError):
        return code
    return name or code

"""Numbers formatted for people."""

import html
import math
import re


def in_time(seconds: float) -> str:
    """A duration in the two units that matter: 22 h 43 min, 0.818 s, 35.0 ms."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{in_time(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.1:
        return f"{_digits(seconds * 1e3)} ms"
    if seconds < 0.9995:
        return f"{seconds:.3f} s"
    if seconds < 99.95:
        return f"{_digits(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        rest = round(seconds) % 60
        return f"{round(seconds) // 60} min {rest} s" if rest else f"{round(seconds) // 60} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} days {hours % 24} h"


def in_time_range(least: float, most: float) -> str:
    """From one duration to another, or the one that they both are."""
    low, high = in_time(least), in_time(most)
    return low if low == high else f"{low} to {high}"


def in_bytes(size: float) -> str:
    """Bytes in decimal units, as disks and networks count them."""
    for unit, divisor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= 0.9995 * divisor:
            return f"{_digits(size / divisor)} {unit}"
    return f"{size:.0f} bytes" if math.isfinite(size) else "unknown"


def in_bits_per_second(bytes_per_second: float) -> str:
    """A rate in bits, as links are sold."""
    bits = 8 * bytes_per_second
    if not math.isfinite(bits):
        return "infinite"
    for unit, divisor in (("Tb/s", 1e12), ("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if abs(bits) >= 0.9995 * divisor:
            return f"{_digits(bits / divisor)} {unit}"
    return f"{bits:.0f} b/s"


def in_percent(share: float) -> str:
    """A share of one as per cent."""
    if not math.isfinite(share):
        return "unknown"
    percent = 100 * share
    if 0 < percent < 0.05:
        return "<0.1%"
    if 99.5 <= percent < 99.9999:  # Not what rounding alone keeps from being all.
        return f"{percent:.1f}%" if percent < 99.95 else ">99.9%"
    return f"{percent:.0f}%" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f}%"


def in_count(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}" if math.isfinite(value) else "unknown"


def plural(count: int, noun: str) -> str:
    """1 machine, 2 machines."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line)


def _digits(value: float) -> str:
    """Three digits, never in powers of ten."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"

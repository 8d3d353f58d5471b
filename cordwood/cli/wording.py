"""Times, sizes and attributes as people read them."""

from __future__ import annotations

import datetime

Json = dict[str, object]


def utc_words(time_us: int) -> str:
    """A time as people write it, in UTC, to the second."""
    when = datetime.datetime.fromtimestamp(time_us // 1_000_000, datetime.UTC)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def duration_words(seconds: float) -> str:
    """`42 s`, `3 min`, `5 h`, `2 d`: as precise as a status needs."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def attribute_words(name: str, value: object) -> str:
    """A log's attribute as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{scope}:{count}" for scope, count in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    if name in ("write_token", "read_token"):
        return "asked for" if value else "none"
    if not value:
        return {"nodeset_size": "all nodes", "synced_copies": "all"}.get(name, "no bound")
    if name == "backlog_s" and isinstance(value, float):
        return duration_words(value)
    if name == "backlog_bytes" and isinstance(value, int):
        return bytes_words(value)
    return str(value)


def bytes_words(count: float) -> str:
    """`512 B`, `3.1 KiB`, `128 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

"""Records and gaps, for people and for programs.

A payload is bytes. As text it is written as it is; in JSON, bytes that are not UTF-8
go as base64 under another name, so that nothing is changed on the way.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence

from cordwood.block import Gap, GapKind, Record
from cordwood.lsn import format_lsn

Json = dict[str, object]

_WHY = {
    GapKind.BRIDGE: "an epoch ended here, and nothing is missing",
    GapKind.HOLE: "nothing was ever acknowledged here",
    GapKind.TRIM: "deleted on purpose",
    GapKind.DATA_LOSS: "LOST: acknowledged once, and no intact copy is left",
    GapKind.ACCESS: "this reader may not see them",
    GapKind.NOT_IN_CONFIG: "the log is not there (any more)",
    GapKind.FILTERED: "there are records, and none that was asked for",
}


def gap_words(gap: Gap) -> str:
    """A gap as a sentence."""
    where = format_lsn(gap.first)
    if gap.last != gap.first:
        where += f" to {format_lsn(gap.last)}"
    return f"gap {where}: {_WHY[gap.kind]}"


def gap_json(gap: Gap) -> Json:
    """A gap as one JSON object."""
    return {"gap": gap.kind.value, "first": format_lsn(gap.first), "last": format_lsn(gap.last)}


def record_json(record: Record) -> Json:
    """A record as one JSON object; times in µs since 1970 UTC."""
    headers: Sequence[tuple[str, bytes | None]] = record.headers
    return {
        "lsn": format_lsn(record.lsn),
        **_bytes_json("key", record.key),
        **_bytes_json("value", record.value),
        "timestamp_us": record.timestamp_us,
        "append_time_us": record.append_time_us,
        "headers": [{"name": name, **_bytes_json("value", value)} for name, value in headers],
    }


def _bytes_json(name: str, value: bytes | None) -> Json:
    if value is None:
        return {name: None}
    try:
        return {name: str(value, "utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


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

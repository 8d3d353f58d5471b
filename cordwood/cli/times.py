"""Reads times as people type them: an instant in ISO 8601, or a duration before now."""

from __future__ import annotations

import datetime
import re
import time

from cordwood.errors import BadSetting

_AGO = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(s|min|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration_s(text: str) -> float:
    """A duration such as `90min` or `2h`, in seconds.

    Raises:
        BadSetting: the text is not a duration.
    """
    found = _AGO.fullmatch(text)
    if not found:
        raise BadSetting(f"{text!r} is no length of time: write 90s, 30min, 2h, 7d")
    return float(found[1]) * _SECONDS[found[2]]


def time_of(text: str) -> int | None:
    """A time in µs since 1970 UTC; None if the text is not a time at all, such as `oldest`.

    `2026-01-31T12:00:00+01:00`, `2026-01-31` (UTC unless it says otherwise); `90min`, `2h`,
    `7d` ago.

    Raises:
        BadSetting: the text begins like a date, but is no valid date.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return round((time.time() - float(ago[1]) * _SECONDS[ago[2]]) * 1e6)
    if not re.match(r"\d{4}-", text):
        return None
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise BadSetting(
            f"{text!r} is no time ({error}): write 2026-01-31T12:00Z, or 90min for so long ago"
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return (found - _ERA) // datetime.timedelta(microseconds=1)


_ERA = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

"""A user's options: names and values, checked one by one.

Shared by the source and the sink, so that both report errors in the same words. A value is quoted
in an error only if its name does not sound like a secret's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from cordwood.errors import BadSetting

SECRET = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)
"""Names whose values are never shown: Spark's `spark.redaction.regex` and one word more."""

_SIZE = re.compile(r"(\d{1,15})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class RawOptions:
    """The user's options, all with known names; case does not matter."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in given.items()}

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None if it was not given."""
        found = self._values.get(name.lower())
        return None if found is None else found.strip()

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in ("true", "false"):
            raise BadSetting(f"{name} is {shown(name, found)}; it is true or false")
        return found.lower() == "true"

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of a few words; case does not matter."""
        found = self.text(name)
        if found is None:
            return default
        by_lower = {choice.lower(): choice for choice in choices}
        if found.lower() not in by_lower:
            raise BadSetting(
                f"{name} is {shown(name, found)}; it is one of {', '.join(by_lower.values())}"
            )
        return by_lower[found.lower()]

    def count(self, name: str, default: int) -> int:
        """A whole number from 1 on, if it was given."""
        found = self.text(name)
        if found is None:
            return default
        if not re.fullmatch(r"\d{1,18}", found, re.ASCII) or int(found) < 1:
            raise BadSetting(f"{name} is {shown(name, found)}; it is a whole number from 1 on")
        return int(found)

    def size(self, name: str, default: int) -> int:
        """Bytes, with Spark's units: `64m`, `1gb`, `1048576`."""
        found = self.text(name)
        if found is None:
            return default
        match = _SIZE.fullmatch(found)
        if match is None or int(match[1]) < 1:
            raise BadSetting(
                f"{name} is {shown(name, found)}; it is a number of bytes, as 64m or 1g"
            )
        return int(match[1]) * _UNITS[(match[2] or "").lower()]

    def duration_s(self, name: str, default: float) -> float:
        """Seconds, given with a unit as Spark has them: `500ms`, `90s`, `15m`, `2h`."""
        found = self.text(name)
        if found is None:
            return default
        match = _DURATION.fullmatch(found)
        if match is None or int(match[1]) < 1:
            raise BadSetting(
                f"{name} is {shown(name, found)}; it is a time with its unit, as 90s or 15m"
            )
        return int(match[1]) * _SECONDS[match[2].lower()]


def shown(name: str, value: str) -> str:
    """A value for an error, unless it may be a secret."""
    return "(not shown)" if SECRET.search(name) else repr(value)


def refuse_unknown(
    given: Iterable[str], options: Iterable[str], not_yet: Mapping[str, str]
) -> None:
    """Refuse names that are not among `options`.

    Args:
        not_yet: planned names, with what each waits for.
    Raises:
        BadSetting: there is one; the text lists all that there are.
    """
    known = {name.lower(): name for name in options}
    later = {name.lower(): name for name in not_yet}
    told = []
    for name in given:
        lower = name.lower()
        if lower in later:
            told.append(f"{later[lower]} is not built yet: {not_yet[later[lower]]}")
        elif lower not in known:
            told.append(f"there is no {name}{_nearest(lower, known)}")
    if told:
        raise BadSetting(f"{'; '.join(told)}. The options are: {', '.join(known.values())}")


def _nearest(name: str, known: Mapping[str, str]) -> str:
    """The known name that the user may have meant."""
    wanted = name.replace("kafka.", "cordwood.")
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.75)
    return f" (did you mean {known[near[0]]}?)" if near else ""

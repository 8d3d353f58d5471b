"""Where reading starts and ends: `earliest`, `latest`, `cursor`, or an LSN for each log.

Kafka's values for `startingOffsets` and `endingOffsets`, with logs for partitions and
LSNs for offsets: `{"/orders": "e7n123", "17": "latest"}`. A key of digits only is a
log's number; anything else is its name, the leading slash being optional. An end is
exclusive, as in Kafka: `e7n123` is the first LSN not to read.

Source: docs/sources/spark.md §6, §8.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cordwood.errors import BadSetting
from cordwood.lsn import LSN_MAX, Lsn, parse_lsn

_LISTED = 10
"""Logs that an error names."""

_TIME_DIGITS_MAX = 15
"""The most digits of a time in milliseconds: some thirty thousand years, and in µs it still fits
into 64 bits."""


class Edge(enum.Enum):
    """The end of a log at the time of the query's question."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Cursor(enum.Enum):
    """The position of the consumer that `groupId` names."""

    CURSOR = "cursor"


@dataclass(frozen=True, slots=True)
class At:
    """The first record that was appended at this time or later, in µs since 1970 UTC.

    Append times come from the sequencer and never fall along a log, so the place is unique; a
    record's own timestamp may be anything.
    """

    time_us: int


Place = Edge | Lsn | At | Cursor
"""An end of the log, the LSN itself, a time, or a consumer's cursor."""

_WORDS: dict[str, Edge | Cursor] = {each.value: each for each in (*Edge, *Cursor)}


@dataclass(frozen=True, slots=True)
class Places:
    """A place for every log.

    Attributes:
        default: for logs that are not named.
        by_log: for named logs, by name (with its slash) or by number in digits.
    """

    default: Edge | At | Cursor
    by_log: Mapping[str, Place] = field(default_factory=dict)

    def of(self, log_id: int, name: str) -> Place:
        """The place of one log."""
        found = self.by_log.get(name)
        return found if found is not None else self.by_log.get(str(log_id), self.default)

    @property
    def all(self) -> tuple[Place, ...]:
        """Every place that there is, the default first."""
        return (self.default, *self.by_log.values())

    def strangers(self, logs: Mapping[int, str]) -> list[str]:
        """Named logs that are not among `logs` (names by number), in the given order."""
        known = {*logs.values(), *map(str, logs)}
        return [name for name in self.by_log if name not in known]

    def without_strangers(self, logs: Mapping[int, str]) -> Places:
        """The places of `logs` (names by number) alone."""
        strangers = self.strangers(logs)
        kept = {name: place for name, place in self.by_log.items() if name not in strangers}
        return Places(self.default, kept)


def check_strangers(option: str, places: Places, logs: Mapping[int, str]) -> None:
    """Refuse places of logs that are not selected: a typing error would pass silently.

    Args:
        logs: the selected logs, names by number.
    Raises:
        BadSetting: a place is of a log that is not selected.
    """
    strangers = places.strangers(logs)
    if strangers:
        raise BadSetting(
            f"{option} names {', '.join(strangers)}, which is not selected; {listed(logs.values())}"
        )


def listed(names: Iterable[str]) -> str:
    """Some logs, for an error."""
    ordered = sorted(names)
    if not ordered:
        return "there is none"
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return f"there are {', '.join(ordered[:_LISTED])}{more}"


def parse_places(option: str, text: str, default: Edge) -> Places:
    """Read the value of `startingOffsets` or `endingOffsets`.

    Args:
        option: its name, for errors.
        default: of the logs that a JSON object does not name.
    Raises:
        BadSetting: the text has none of the forms in the module's docstring.
    """
    told = text.strip()
    if told.lower() in _WORDS:
        return Places(_WORDS[told.lower()])
    if not told.startswith("{"):
        raise _wrong(option, text)
    try:
        entries = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise _wrong(option, text, f"; {error}") from None
    assert isinstance(entries, dict), "JSON that begins with a brace is an object"
    return Places(default, {log_key(log): _place(option, log, at) for log, at in entries.items()})


def parse_times(option: str, text: str, default: Edge) -> Places:
    """Read one time for all logs, or JSON with a time for each, in ms since 1970 UTC.

    Args:
        option: its name, for errors.
        default: of the logs that a JSON object does not name.
    Raises:
        BadSetting: it is neither.
    """
    told = text.strip()
    wrong = BadSetting(
        f"{option} is {text!r}; it takes milliseconds since 1970 UTC"
        + (', by log as JSON: {"/orders": 1700000000000}' if "By" in option else "")
    )
    if "By" not in option:
        if not (told.isascii() and told.isdigit() and len(told) <= _TIME_DIGITS_MAX):
            raise wrong
        return Places(At(int(told) * 1000))
    try:
        entries = json.loads(told)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(entries, dict):
        raise wrong
    times: dict[str, Place] = {}
    for log, at in entries.items():
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < 10**_TIME_DIGITS_MAX:
            raise wrong
        times[log_key(log)] = At(at * 1000)
    return Places(default, times)


def log_key(log: str) -> str:
    """A log's number unchanged; a name with its optional slash."""
    log = log.strip()
    return log if is_number(log) or log.startswith("/") else f"/{log}"


def is_number(log: str) -> bool:
    """Whether a log is named by its number."""
    return log.isascii() and log.isdigit()


def _place(option: str, log: str, at: object) -> Place:
    if isinstance(at, dict):
        raise BadSetting(
            f'{option}: a log has no partitions, so {log!r} takes one place: {{"{log}": "e7n123"}}'
        )
    if isinstance(at, int) and not isinstance(at, bool) and 0 <= at <= LSN_MAX:
        return Lsn(at)
    if isinstance(at, str):
        if at in _WORDS:
            return _WORDS[at]
        try:
            return parse_lsn(at)
        except BadSetting:
            pass
    raise BadSetting(
        f"{option}: {log!r} is at {json.dumps(at)}; it takes earliest, latest, cursor or an LSN, "
        "say e7n123"
    )


def _wrong(option: str, text: str, more: str = "") -> BadSetting:
    return BadSetting(
        f"{option} is {text!r}; it takes earliest, latest, cursor, or JSON by log: "
        f'{{"/orders": "e7n123", "/clicks": "latest"}}{more}'
    )

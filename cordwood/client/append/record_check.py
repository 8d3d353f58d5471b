"""Check a record before it joins the records of other callers in a block.

A record that cannot be encoded would fail its whole block, and with it the correct records of other
callers. So each record's types, time and size are checked on the way in.

Source: docs/design.md §2 ("only clients cut blocks"); `layout.body` for what a body holds.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cordwood.block import Buffer
from cordwood.errors import BadSetting

Headers = Sequence[tuple[str, bytes | None]]

Timestamp = datetime.datetime | int
"""A record's own time: a datetime with a time zone, or µs since 1970 UTC."""

ERA = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

HEADER_BYTES = 9
"""The bytes of a header in a body beside its name and value: two offsets and a bit."""

TIME_US_MIN, TIME_US_MAX = -(1 << 63), (1 << 63) - 1


def record_bytes(
    value: Buffer,
    key: bytes | None = None,
    time_us: int | None = None,
    headers: Headers | None = None,
) -> int:
    """A record's share of a block's bytes: value, key and headers.

    Raises:
        BadSetting: the record cannot be encoded: wrong type, time outside int64, header name not
            UTF-8.
    """
    if type(value) is bytes and key is None and time_us is None and headers is None:
        return len(value)
    size = _buffer_bytes("value", value)
    if key is not None:
        size += _buffer_bytes("key", key)
    if time_us is not None:
        check_time_us(time_us)
    return size if headers is None else size + _headers_bytes(headers)


def as_bytes(value: Buffer, what: str = "value") -> bytes:
    """A value that no caller can change or release any more.

    Records are held until their block is cut. The usual `readinto` loop refills its buffer before
    that.

    Raises:
        BadSetting: it is no bytes; `bytes` itself would make some of a list of numbers.
    """
    if type(value) is bytes:
        return value
    _buffer_bytes(what, value)
    return bytes(value)


def own_values(values: Sequence[Buffer]) -> Sequence[Buffer]:
    """As `as_bytes`, for each value of a column. The result is a new list: a program that gathers
    records clears its own list for the next records."""
    return list(values) if set(map(type, values)) <= {bytes} else list(map(as_bytes, values))


def own_keys(keys: Sequence[bytes | None] | None) -> Sequence[bytes | None] | None:
    """As `own_values`, of the keys of many records."""
    if keys is None:
        return None
    if set(map(type, keys)) <= {bytes, type(None)}:
        return list(keys)
    return [None if key is None else as_bytes(key, "key") for key in keys]


def own_headers(headers: Headers | None) -> Headers:
    """As `as_bytes`, of a record's headers."""
    if not headers:
        return ()
    _headers_bytes(headers)
    return [(name, None if value is None else as_bytes(value, "header")) for name, value in headers]


def own_header_lists(headers: Sequence[Headers] | None) -> Sequence[Headers] | None:
    """As `own_headers`, of many records."""
    return None if headers is None else list(map(own_headers, headers))


def own_times(
    timestamps: Sequence[Timestamp] | Timestamp | None,
) -> Sequence[Timestamp] | Timestamp | None:
    """Copy timestamps into a list of our own."""
    if timestamps is None or isinstance(timestamps, (int, datetime.datetime)):
        return timestamps
    return list(timestamps)


def check_log_name(log: object) -> None:
    """Refuse a record that no node could read: the node would close the connection, and fail all
    appends in flight.

    Raises:
        BadSetting: it is no text, or has half of a character in it.
    """
    if not isinstance(log, str):
        raise BadSetting(f"a log's name is text, not {type(log).__name__}")
    try:
        log.encode()
    except UnicodeEncodeError as error:
        raise BadSetting(f"a log's name is not UTF-8: {error}") from error


def to_us(timestamp: Timestamp) -> int:
    """A timestamp as µs since 1970 UTC.

    Raises:
        BadSetting: neither a datetime nor an integer of 64 bits, or a datetime without a
            time zone, which could be any of 38 instants.
    """
    if isinstance(timestamp, datetime.datetime):
        if timestamp.tzinfo is None:
            raise BadSetting(f"{timestamp} has no time zone: give one, say tzinfo=datetime.UTC")
        return (timestamp - ERA) // datetime.timedelta(microseconds=1)
    check_time_us(timestamp)
    return int(timestamp)  # True is an integer too, and no node takes it for one


def check_columns(
    records: int, keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None
) -> None:
    """Refuse columns of another length than the values.

    Raises:
        BadSetting: with both lengths.
    """
    for name, column in (("keys", keys), ("headers", headers)):
        if column is not None and len(column) != records:
            raise BadSetting(f"{records} values, but {len(column)} {name}")


def times_of(
    records: int, timestamps: Sequence[Timestamp] | Timestamp | None
) -> list[int] | int | None:
    """Timestamps of many records, one for all or one for each, as µs since 1970 UTC.

    Raises:
        BadSetting: as `to_us`, or another number than of values.
    """
    if timestamps is None:
        return None
    if isinstance(timestamps, (int, datetime.datetime)):
        return to_us(timestamps)
    if len(timestamps) != records:
        raise BadSetting(f"{records} values, but {len(timestamps)} timestamps")
    return [to_us(each) for each in timestamps]


def check_time_us(time_us: object) -> None:
    """Refuse a value that is not a time in µs.

    Raises:
        BadSetting: not an integer, or more than 64 bits.
    """
    if not isinstance(time_us, int) or not TIME_US_MIN <= time_us <= TIME_US_MAX:
        raise BadSetting(f"a timestamp is a datetime or 64 bits of µs since 1970, not {time_us!r}")


def _buffer_bytes(what: str, buffer: object) -> int:
    if isinstance(buffer, memoryview):
        if buffer.c_contiguous and buffer.nbytes == len(buffer):
            return buffer.nbytes
        raise BadSetting(f"a record's {what} is a view of something else than plain bytes")
    if isinstance(buffer, (bytes, bytearray)):
        return len(buffer)
    raise BadSetting(f"a record's {what} is bytes, not {type(buffer).__name__}")


def _headers_bytes(headers: object) -> int:
    if not isinstance(headers, Sequence):
        raise BadSetting(f"headers are a list of (name, value), not {type(headers).__name__}")
    size = 0
    for header in headers:
        if not (isinstance(header, (tuple, list)) and len(header) == 2):
            raise BadSetting(f"a header is (name, value), not {header!r}")
        name, value = header
        if not isinstance(name, str):
            raise BadSetting(f"a header's name is text, not {type(name).__name__}")
        try:
            size += HEADER_BYTES + len(name.encode())
        except UnicodeEncodeError as error:
            raise BadSetting(f"a header's name is not UTF-8: {error}") from error
        size += 0 if value is None else _buffer_bytes("header", value)
    return size

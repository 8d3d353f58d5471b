"""Ids of records with payloads of an application.

The simulator's own payloads identify themselves (`sim.payload`). An application's payloads do not,
so its records carry their id in a header. The recording client adds the header to appended records
and removes it from records that are read (`cordwood.testing`).

Source: docs/sources/reliability.md §3 (S3: every record can be told from every other).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import crc32c

from cordwood.block import Buffer
from cordwood.sim.history import PayloadMark
from cordwood.sim.payload import identify

ID_HEADER = "cordwood-record-id"
"""Name of the header; its value is the id as text, `client/sequence`."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


def id_header(record_id: str) -> tuple[str, bytes]:
    """The header that gives a record its id."""
    return ID_HEADER, record_id.encode()


def mark_record(value: Buffer, headers: Headers) -> PayloadMark:
    """Take the mark of a record: its id from its header, or from its payload if there is no
    header."""
    for name, text in headers:
        if name == ID_HEADER and text is not None:
            return PayloadMark(text.decode(errors="replace"), crc32c.crc32c(value), len(value))
    return PayloadMark(identify(value), crc32c.crc32c(value), len(value))


def without_id(headers: Headers) -> Headers:
    """The headers as the application gave them."""
    return tuple(header for header in headers if header[0] != ID_HEADER)

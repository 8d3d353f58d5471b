"""Checks of an entry's payload, and of its id if the caller chooses the id.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

from cordwood.block import Buffer
from cordwood.errors import BadSetting, RecordTooLarge
from cordwood.layout.ledger_entry import ENTRY_BYTES_MAX
from cordwood.ledger import ENTRY_MAX


def payload_bytes(payload: Buffer) -> int:
    """Bytes of a payload. A view's `len` may count items of several bytes."""
    return len(payload) if isinstance(payload, bytes) else memoryview(payload).nbytes


def check_payload(payload: Buffer) -> None:
    """Check that an entry can hold the payload.

    Raises:
        RecordTooLarge: it cannot.
    """
    if payload_bytes(payload) > ENTRY_BYTES_MAX:
        raise RecordTooLarge(f"an entry has at most {ENTRY_BYTES_MAX} bytes")


def check_id(entry: object) -> None:
    """Check that an entry can have this id.

    Raises:
        BadSetting: it cannot; the entry would wait for ever.
    """
    if not isinstance(entry, int) or not 0 <= entry <= ENTRY_MAX:
        raise BadSetting(f"entry {entry!r}: ids go from 0 to {ENTRY_MAX}")

"""Checks of an entry's payload, of its id if the caller chooses the id, and of a writer's bounds.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

from cordwood.block import Buffer
from cordwood.errors import BadSetting, RecordTooLarge
from cordwood.layout.ledger_entry import ENTRY_BYTES_MAX
from cordwood.ledger import ENTRY_MAX
from cordwood.protocol.ledger_writer import WriterLimits


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


def check_limits(limits: WriterLimits) -> None:
    """Check a writer's bounds, before its ledger is made.

    Trap: the writer compares them in a task of the client's. An error there ends the client, with
    all that it does for others.

    Raises:
        BadSetting: one of them is none.
    """
    if not isinstance(limits, WriterLimits):
        raise BadSetting(f"limits of a writer are WriterLimits, and not {limits!r}")
    is_right = {
        "entries_max": _is_count(limits.entries_max, 1),
        "bytes_max": _is_count(limits.bytes_max, 1),
        "changes_max": limits.changes_max is None or _is_count(limits.changes_max, 0),
        "quorum_timeout_s": limits.quorum_timeout_s is None or _is_time(limits.quorum_timeout_s),
        "delays_change": isinstance(limits.delays_change, bool),
        "defers_sync": isinstance(limits.defers_sync, bool),
    }
    for name, right in is_right.items():
        if not right:
            raise BadSetting(f"{name} of a writer cannot be {getattr(limits, name)!r}")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _is_time(value: object) -> bool:
    # Not a number is above nothing, so it is refused.
    return isinstance(value, int | float) and value > 0

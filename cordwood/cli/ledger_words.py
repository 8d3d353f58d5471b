"""A ledger as people read it, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordwood.ledger import LedgerMetadata


def ledger_state(found: LedgerMetadata) -> str:
    """A ledger's state, as people say it."""
    return "in main storage" if found.is_tiered else found.state.value.replace("_", " ")


def striping_words(found: LedgerMetadata) -> str:
    """E/Qw/Qa."""
    striping = found.striping
    return f"{striping.ensemble}/{striping.write}/{striping.ack}"


def ledger_document(found: LedgerMetadata) -> dict[str, Any]:
    """What --json prints of a ledger."""
    is_closed = found.state == "closed"
    return {
        "ledger": found.ledger,
        "state": found.state.value,
        "ensemble": found.striping.ensemble,
        "write": found.striping.write,
        "ack": found.striping.ack,
        "digest": found.digest.name.lower(),
        "last": found.last if is_closed else None,
        "length": found.length if is_closed else None,
        "created_us": found.created_us,
        "tier": found.wants_tier,
        "tiered_us": found.tier.since_us if found.tier is not None and found.is_tiered else None,
        "custom": {name: payload_document(value) for name, value in found.custom.items()},
        "fragments": [{"first": each.first, "nodes": [*each.nodes]} for each in found.fragments],
    }


def payload_document(payload: bytes) -> dict[str, str]:
    """Bytes as JSON: text where they are UTF-8, else base64."""
    try:
        return {"value": payload.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"value_base64": b64encode(payload).decode()}

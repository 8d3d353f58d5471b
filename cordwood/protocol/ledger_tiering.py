"""When a closed ledger goes to main storage by itself, and when nodes let go of it.

Metadata in, a verdict out. Both follow from a ledger's metadata alone, as the metadata store has
it: nothing is concluded from what the object store lists.

Source: docs/protocol/ledgers.md (Main storage).
"""

from __future__ import annotations

from cordwood.ledger import LedgerMetadata, LedgerState


def wants_upload(metadata: LedgerMetadata) -> bool:
    """Whether nodes are to upload it now, as its maker asked."""
    is_closed = metadata.state is LedgerState.CLOSED
    return metadata.wants_tier and is_closed and not metadata.is_tiered


def is_settled(metadata: LedgerMetadata) -> bool:
    """Whether nodes will never have to upload it: it is uploaded already, or need not be."""
    return metadata.is_tiered or not metadata.wants_tier


def may_let_go(metadata: LedgerMetadata, now_us: int, keep_s: float) -> bool:
    """Whether a node may let go of its entries.

    Args:
        keep_s: how long nodes keep a ledger that main storage has.
    """
    tier = metadata.tier
    if tier is None or not tier.is_committed:
        return False
    return now_us - tier.since_us >= keep_s * 1e6

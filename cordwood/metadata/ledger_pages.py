"""Pages of the ids of ledgers that have an entry of some kind in the metadata store.

Short ids have keys of ten digits in three steps, and long ids have keys of nineteen digits in five
(`layout.ledger_metadata`). Each kind has a prefix of its own, and all short ids are below all long
ids.

Source: docs/sources/bookkeeper.md (a), hierarchical ledger managers; docs/protocol/ledgers.md.
"""

from __future__ import annotations

from cordwood.layout.ledger_metadata import SHORT_IDS, ledger_key, read_ledger_key
from cordwood.metadata.store import MetadataStore


async def ledger_page(
    store: MetadataStore, short: str, long: str, after: int, limit: int
) -> list[int]:
    """Ids above `after` that have an entry, rising, at most `limit` of them.

    Args:
        short, long: the prefixes of entries with short and with long ids.
    Raises:
        Retryable: the metadata store does not answer.
    """
    found: list[int] = []
    if after < SHORT_IDS:
        start = short + ledger_key(after) if after >= 0 else ""
        keys = await store.keys_after(short, start, limit)
        found = [read_ledger_key(key.removeprefix(short)) for key in keys]
    if len(found) < limit:
        # A page may hold the last short ids and the first long ids.
        start = long + ledger_key(after) if after >= SHORT_IDS else ""
        keys = await store.keys_after(long, start, limit - len(found))
        found += [read_ledger_key(key.removeprefix(long)) for key in keys]
    return found

"""A lease on work at one log: it keeps two nodes from doing the same, and is a hint only.

Safety rests on the manifest alone: a turn ends earlier turns, and a commit is a compare-and-set.

Source: docs/protocol/main-storage.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cordwood.errors import CordwoodError
from cordwood.metadata.store import MetadataStore

LEASE_S = 60.0
LEASE_RENEW_S = 20.0
"""A lease outlasts two renewals that fail. If its holder dies, others wait for a minute at most."""


@asynccontextmanager
async def leased(metadata: MetadataStore, key: str, holder: str) -> AsyncIterator[bool]:
    """Hold a lease, unless another process holds it; yields whether it is held."""
    value = holder.encode()
    if not await metadata.take_lease(key, value, LEASE_S):
        yield False
        return
    renewing = asyncio.get_running_loop().create_task(_renew(metadata, key, value))
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(CordwoodError):
            await metadata.drop_lease(key)


async def _renew(metadata: MetadataStore, key: str, value: bytes) -> None:
    while True:
        await asyncio.sleep(LEASE_RENEW_S)
        with contextlib.suppress(CordwoodError):  # it is a hint, and turns decide
            await metadata.take_lease(key, value, LEASE_S)

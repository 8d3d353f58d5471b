"""The node that sequences a log of a real cluster, as its nodes report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from cordwood.client.store import connected
from cordwood.errors import CordwoodError, Unreachable
from cordwood.host.seams import Host
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings

TIMEOUT_S, ASKED_EVERY_S = 30.0, 0.05
"""Longest wait for a sequencer. Appends find one in a second or two, and may stand still for this
long."""


async def current_sequencer(addresses: Sequence[str], host: Host, log: int | None) -> NodeId | None:
    """The node that sequences a log in its highest epoch, or any for None; None if none says so."""
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            connected(addresses, host, ClientSettings()) as store,
        ):
            answers = await store.status()
    except (CordwoodError, TimeoutError):
        return None
    sequencing = [
        (state.epoch, node)
        for node, answer in answers.items()
        if not isinstance(answer, CordwoodError)
        for state in answer.logs
        if state.sequencing and log in (None, state.log)
    ]
    return max(sequencing)[1] if sequencing else None


async def wait_sequencer(ask: Callable[[], Awaitable[NodeId | None]]) -> NodeId:
    """Wait for a node that sequences the log: after a death there may be none for a while.

    Raises:
        Unreachable: no node did for TIMEOUT_S.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while (node := await ask()) is None:
        if time.monotonic() > deadline:
            raise Unreachable(f"for {TIMEOUT_S:g} s no node says that it sequences")
        await asyncio.sleep(ASKED_EVERY_S)
    return node

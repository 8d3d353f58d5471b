"""Waits for the first of a ledger's nodes that reports a higher LAC.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (a).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from cordwood.layout.message_ledgers import Found, LacReply

logger = logging.getLogger(__name__)

FENCED_S = 0.2
"""How long to wait for other nodes after a node has reported that it is fenced."""


def is_known(reply: LacReply | None) -> bool:
    """Whether a node answered, and has lost no entry of the ledger."""
    return reply is not None and reply.found is not Found.UNKNOWN


async def wait_for_news(
    asked: Iterable[Coroutine[Any, Any, LacReply | None]],
    is_news: Callable[[LacReply | None], bool],
    *,
    timeout_s: float,
) -> None:
    """Wait until an answer is news, until all nodes have answered, or at most this long.

    Args:
        asked: a call to each node; None is no answer.
        is_news: takes an answer, and returns whether the caller waits for it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    polls = [asyncio.ensure_future(each) for each in asked]
    try:
        async with asyncio.timeout_at(deadline) as patience:
            for each in asyncio.as_completed(polls):
                reply = await each
                if is_news(reply):
                    break
                if reply is not None and reply.is_fenced:
                    # A fenced node gets no higher LAC. Other nodes may have one; after them comes
                    # the end.
                    patience.reschedule(min(deadline, loop.time() + FENCED_S))
    except TimeoutError:
        logger.debug("no node of a ledger said whether it goes on")
    finally:
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

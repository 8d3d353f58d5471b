"""Refuses calls from another event loop than the client's own.

The client's loop resolves the future that a call waits for, and does not wake a task of another
loop: an append was stored, and its call waited without end.
"""

from __future__ import annotations

import asyncio

from cordwood.errors import Rejected


def check_loop(own: asyncio.AbstractEventLoop) -> None:
    """Pass in the client's own loop, before anything is begun.

    Raises:
        Rejected: this is another event loop, or none.
    """
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not own:
        raise Rejected(
            "this client is of another event loop: use it in the loop that connected it, or take "
            "the blocking one (`cordwood.connect`) for several threads"
        )


def check_loop_at_end(own: asyncio.AbstractEventLoop) -> None:
    """As `check_loop`, for an end that waits for nothing: fine where the client's loop does not
    run, as between two calls of `run_until_complete`.

    Raises:
        Rejected: the client's loop runs, and this is another one, or none.
    """
    if own.is_running():
        check_loop(own)

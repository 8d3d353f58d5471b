"""The log that rows go to which name none: the option `log`, by its number.

Trap: a client remembers where a name led, and each process of a query has a client. After a rename
the tasks' clients may hold the old log for some seconds when the driver's has found the new log. So
the driver looks the name up, and tasks go by the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.errors import UnknownLog

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_store import BlockingStore


def known_number(store: BlockingStore, log: str | int) -> int | None:
    """The number of the log that has this name or number now; None if there is no such log."""
    try:
        return int(store.log(log).log_id)
    except UnknownLog:
        return None


def number_to_append(store: BlockingStore, log: str) -> int:
    """As `known_number`; a log that is not there is made, if appends may make logs here.

    Raises:
        UnknownLog: it is not there, and appends make no logs.
    """
    number = known_number(store, log)
    if number is None:
        # The look-up had the client forget the name, so this asks too.
        store.append_many(log, [])
        number = int(store.log(log).log_id)
    return number

"""The logs of a cluster for people: one that cannot be read hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.cli.ending import tell_error

if TYPE_CHECKING:
    from cordwood.blocking import BlockingStore
    from cordwood.client.cluster import LogInfo


def readable_logs(store: BlockingStore, path: str = "/") -> list[LogInfo]:
    """The logs below a path; standard error tells of those that cannot be read."""
    unread: list[str] = []
    logs = store.logs(path, unread=unread)
    for why in unread:
        tell_error(why)
    return logs

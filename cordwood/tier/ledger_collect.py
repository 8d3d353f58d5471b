"""Collects the objects of ledgers that nothing names any more: those of deleted ledgers and of
attempts that were given up.

The objects are listed first, and the ledger's metadata is read afterwards. So the attempt of each
listed object had begun before the metadata was read. If another attempt is in force now, the
object's attempt can never be committed (`ledger.may_follow`). The attempt in force is never
touched, and neither is a committed attempt. An attempt with a manifest has all its objects. It
stays until another attempt is committed, because the metadata may be an older copy that was put
back: then the attempt was committed, and has the only copies. Names have the attempt's number, so a
late deletion removes nothing new. A ledger that was never deleted, and is not in the metadata
store, is a stranger.

Source: docs/objects.md, "Ledgers".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from cordwood.errors import Malformed
from cordwood.layout.object_names import LEDGERS, ledger_manifests, parse_ledger_name
from cordwood.tier.collect import Collected
from cordwood.tier.object_store import LIST_MAX, ObjectStore

CALL_S = 60.0
"""One call to the store, with all its tries."""


class Fate(NamedTuple):
    """The state of a ledger in the metadata store.

    Attributes:
        is_deleted: the ledger existed and was deleted.
        attempt: the attempt in force of an existing ledger; 0 for none, -1 if the metadata store
            does not know the ledger.
        since_us: when a deleted ledger was found to be deleted.
        is_committed: the attempt in force is committed.
    """

    is_deleted: bool
    attempt: int
    since_us: int = 0
    is_committed: bool = False


async def collect_ledgers(
    store: ObjectStore,
    fate_of: Callable[[int], Awaitable[Fate]],
    after: str,
    now_us: int,
    grace_s: float,
    limit: int = LIST_MAX,
) -> tuple[Collected, str]:
    """Look at one page of the objects of ledgers, and delete the dead ones past their grace.

    Args:
        fate_of: reads the metadata store anew.
        after: where the last page ended, "" to begin.
    Returns:
        The counts of the page, and where it ended; "" after the last page.
    Raises:
        CordwoodError: the metadata store or main storage does not answer; nothing is lost by that.
    """
    done = Collected()
    page = await store.list_page(LEDGERS, after=after, limit=limit, timeout_s=CALL_S)
    fates: dict[int, Fate] = {}
    finished: dict[tuple[int, int], bool] = {}
    names: list[str] = []
    for info in page:
        done.seen += 1
        try:
            ledger, attempt = parse_ledger_name(info.name)
        except Malformed:
            done.strangers += 1
            continue
        if ledger not in fates:
            fates[ledger] = await fate_of(ledger)
        fate = fates[ledger]
        if not is_dead(fate, attempt):
            done.strangers += fate.attempt < 0 and not fate.is_deleted
            continue
        if not (fate.is_deleted or fate.is_committed):
            at = ledger, attempt
            if at not in finished:
                finished[at] = await _has_manifest(store, *at)
            if finished[at]:
                continue
        if now_us - max(info.modified_us, fate.since_us) < grace_s * 1e6:
            done.waiting += 1
            continue
        names.append(info.name)
        done.deleted += 1
        done.deleted_bytes += info.size
    if names:
        await store.delete(names, timeout_s=CALL_S)
    return done, page[-1].name if len(page) == limit else ""


async def _has_manifest(store: ObjectStore, ledger: int, attempt: int) -> bool:
    prefix, before = ledger_manifests(ledger, attempt)
    return bool(await store.list_page(prefix, after=before, limit=1, timeout_s=CALL_S))


def is_dead(fate: Fate, attempt: int) -> bool:
    """Whether the objects of an attempt are not used now, and never can be, if the metadata is no
    older copy."""
    if fate.is_deleted:
        return True
    # A ledger without an attempt has no objects. If there are some, they are not this cluster's to
    # delete.
    return fate.attempt > 0 and fate.attempt != attempt

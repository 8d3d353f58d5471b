"""Read leases: objects that a running query reads, noted in the store. Collection keeps them.

A program that reads objects by their names alone, as Spark's own Parquet reader does, cannot find
the newer object when a merge or a trim removed an object. So the query first notes the names of its
objects, until some time. Before that time no collection deletes them, whatever manifests say.

A lease is an object `leases/<until>-<random>`. Its name says until when it holds, so a collection
needs to read only those that hold. A lease that holds and cannot be read keeps every object, as a
note of a table does. A holder that dies leaves a lease that ends by itself. No lease holds longer
than LEASE_S_MAX after it was stored, whatever its name says: a name from a wrong clock, or from
another program, would stop all collection for ever.

Source: docs/objects.md, "Read leases".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from cordwood.errors import BadSetting, Malformed, NoObject
from cordwood.host.seams import Host
from cordwood.layout.manifest import pack_lease, unpack_lease
from cordwood.layout.object_names import LEASES, lease_name, lease_until_us
from cordwood.tier.object_store import DELETE_MAX, LIST_MAX, ObjectStore

CALL_S = 60.0
"""One call to the store, with all its tries."""

READ_AT_ONCE = 16
"""Leases that are read at the same time. A query takes one lease for each log and holds it for six
hours. With one query a minute, there are 360 leases for each log. A store answers in tens of
milliseconds."""

LEASE_S_MAX = 7 * 86_400.0
"""The longest lease. A query over years of a log takes hours, and a lease of a program that died
keeps objects until it ends."""

CLOCKS_S = 86_400.0
"""How far the holder's clock may be from the store's: a day is more than a wrong time zone."""

LEASE_NAMES_MAX = 20_000
"""Names in one lease: 2 MB. A query of more objects holds several leases."""


async def hold_objects(
    store: ObjectStore,
    host: Host,
    holder: str,
    names: Collection[str],
    lease_s: float,
    leases: list[str],
) -> None:
    """Keep objects from being deleted for some time.

    Race: a collection that began before may delete an object that was let go of before. So the
    caller reads the manifest again after this call. A collection that began before the call and
    goes on after it keeps the objects that were let go of later, for their grace.

    Args:
        holder: of the lease, for people.
        lease_s: seconds from now on, by this machine's clock, up to LEASE_S_MAX.
        leases: gets the names of the leases, for `end_leases`, also before an error: a put without
            an answer may have happened.
    Raises:
        BadSetting: `lease_s` is too long.
        OutcomeUnknown, Retryable: the store does not answer.
        CordwoodError: the store takes no writes.
    """
    if lease_s > LEASE_S_MAX:
        raise BadSetting(f"a lease of {lease_s:g} s: it ends after {LEASE_S_MAX:g} s at the latest")
    until_us = host.clock.now_us() + round(lease_s * 1e6)
    ordered = sorted(names)
    for at in range(0, len(ordered), LEASE_NAMES_MAX):
        lease = lease_name(until_us, host.random.getrandbits(64))
        content = pack_lease(holder, ordered[at : at + LEASE_NAMES_MAX])
        leases.append(lease)
        await store.put(lease, [content], timeout_s=CALL_S)


async def end_leases(store: ObjectStore, leases: Sequence[str]) -> None:
    """End leases before their time; a lease that has ended stays ended."""
    for at in range(0, len(leases), DELETE_MAX):
        await store.delete(leases[at : at + DELETE_MAX], timeout_s=CALL_S)


async def load_leased(store: ObjectStore, now_us: int) -> set[str]:
    """The names of all objects that a lease keeps.

    Raises:
        Corrupt: a lease that holds cannot be read.
        Retryable: the store does not answer.
    """
    leased: set[str] = set()
    held = [name for name, until_us in await _leases(store) if until_us >= now_us]
    for at in range(0, len(held), READ_AT_ONCE):
        some = held[at : at + READ_AT_ONCE]
        # All are waited for, also if one fails: nothing is left running.
        found = await asyncio.gather(
            *(_leased_by(store, name) for name in some), return_exceptions=True
        )
        for names in found:
            if isinstance(names, BaseException):
                raise names
            leased.update(names)
    return leased


async def _leased_by(store: ObjectStore, lease: str) -> list[str]:
    try:
        data, _ = await store.read(lease, timeout_s=CALL_S)
    except NoObject:
        return []  # its holder has just ended it
    return unpack_lease(lease, data)


async def drop_ended_leases(store: ObjectStore, now_us: int) -> int:
    """Delete the leases whose time is over. Returns their number."""
    ended = [name for name, until_us in await _leases(store) if until_us < now_us]
    await end_leases(store, ended)
    return len(ended)


async def _leases(store: ObjectStore) -> list[tuple[str, int]]:
    """The name and the end time of each lease. Foreign names are left alone."""
    found: list[tuple[str, int]] = []
    after = ""
    while True:
        page = await store.list_page(LEASES, after=after, timeout_s=CALL_S)
        for info in page:
            try:
                until_us = lease_until_us(info.name)
            except Malformed:
                continue
            latest_us = info.modified_us + round((LEASE_S_MAX + CLOCKS_S) * 1e6)
            found.append((info.name, min(until_us, latest_us)))
        if len(page) < LIST_MAX:
            return found
        after = page[-1].name

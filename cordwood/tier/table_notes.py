"""Notes in the store of the objects that tables name. Collection leaves these objects alone.

`load_tabled` also gives the objects of read leases (`read_leases`).

A table of Iceberg names objects as they are. Manifests let go of an object after a merge replaced
it. Readers of the table still need it until the table is brought up to date. So `cordwood tier
iceberg` notes the objects that a table names: before the table names them, and after it no longer
does. The grace of an object begins when it leaves the table, for queries that read an older
snapshot.

A note that cannot be read keeps every object.

Source: docs/objects.md, "As an Iceberg table".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cordwood.errors import BadSetting, NoObject
from cordwood.host.seams import Host
from cordwood.layout.manifest import TableNote, pack_table_note, unpack_table_note
from cordwood.layout.object_names import TABLES, table_note_name
from cordwood.tier.object_store import LIST_MAX, WHOLE_BYTES_MAX, Etag, ObjectStore
from cordwood.tier.read_leases import load_leased

CALL_S = 60.0
"""One call to the store, with all its tries."""

LEFT_KEPT_S = 30 * 86_400
"""How long it is noted that an object left a table: longer than a user's grace."""


@dataclass(frozen=True, slots=True)
class Tabled:
    """The notes of all tables of a store.

    Attributes:
        named: objects that a table names, or that a query reads under a lease.
        left: objects that left a table, with the last time of that.
    """

    named: set[str] = field(default_factory=set)
    left: dict[str, int] = field(default_factory=dict)


async def load_tabled(store: ObjectStore, now_us: int) -> Tabled:
    """Read all notes, and all leases that hold.

    Args:
        now_us: µs since 1970 UTC.
    Raises:
        Corrupt: one cannot be read.
        Retryable: the store does not answer.
    """
    found = Tabled(named=await load_leased(store, now_us))
    for name in await _notes(store):
        try:
            data, _ = await store.read(name, timeout_s=CALL_S)
        except NoObject:
            continue  # its table was just forgotten
        note = unpack_table_note(name, data)
        found.named.update(note.named)
        for each, at_us in note.left:
            found.left[each] = max(at_us, found.left.get(each, 0))
    return found


async def note_table(
    store: ObjectStore, host: Host, uuid: str, table: str, named: Collection[str]
) -> None:
    """Note the objects that a table is about to name, and keep those already noted.

    Args:
        uuid: the table's, which outlives its name.
    Raises:
        ObjectChanged: another process notes the same table: run it again.
        BadSetting: there are too many.
    """
    before, etag = await _note(store, table_note_name(uuid))
    kept = {*named, *before.named}
    await _put_note(store, host, uuid, TableNote(table, sorted(kept), before.left), before, etag)


async def note_present(
    store: ObjectStore, host: Host, uuid: str, table: str, present: Callable[[], Collection[str]]
) -> None:
    """Note the objects that a table names now, and that the others have left it.

    Race: another run brings the table up to date meanwhile. The table then names other objects than
    this run gave it. So the table is asked after the old note was read.

    Args:
        present: asks the table.
    Raises:
        ObjectChanged, BadSetting: as `note_table`.
    """
    before, etag = await _note(store, table_note_name(uuid))
    note = TableNote(table, sorted(present()), before.left)
    await _put_note(store, host, uuid, note, before, etag)


async def _put_note(
    store: ObjectStore,
    host: Host,
    uuid: str,
    note: TableNote,
    before: TableNote,
    etag: Etag | None,
) -> None:
    now_us, kept = host.clock.now_us(), set(note.named)
    left = {each: at_us for each, at_us in before.left if now_us - at_us < LEFT_KEPT_S * 1e6}
    left |= dict.fromkeys(set(before.named) - kept, now_us)
    content = pack_table_note(
        TableNote(
            note.table, note.named, sorted((n, at) for n, at in left.items() if n not in kept)
        )
    )
    if len(content) > WHOLE_BYTES_MAX:
        raise BadSetting(
            f"the table {note.table} names {len(kept)} objects, more than a note holds: merge them "
            "(`cordwood spark compact`)"
        )
    await store.put_if(table_note_name(uuid), content, etag, timeout_s=CALL_S)


async def forget_table(store: ObjectStore, table: str) -> int:
    """Drop the note of a table that no longer exists. Returns the number of notes.

    Args:
        table: its name or its UUID.
    Raises:
        BadSetting: several tables have this name. Tables of several catalogs may name one store's
            objects.
    """
    names = await _notes(store)
    found = [name for name in names if name == table_note_name(table)]
    if not found:
        found = [name for name in names if (await _note(store, name))[0].table == table]
    if len(found) > 1:
        uuids = ", ".join(name.removeprefix(TABLES) for name in found)
        raise BadSetting(
            f"{len(found)} tables are called {table}, as those of several catalogs: give the UUID "
            f"of the table that is gone in place of the name ({uuids})"
        )
    await store.delete(found, timeout_s=CALL_S)
    return len(found)


async def _note(store: ObjectStore, name: str) -> tuple[TableNote, Etag | None]:
    try:
        data, etag = await store.read(name, timeout_s=CALL_S)
    except NoObject:
        return TableNote("", [], []), None
    return unpack_table_note(name, data), etag


async def _notes(store: ObjectStore) -> list[str]:
    names: list[str] = []
    while True:
        after = names[-1] if names else ""
        page = await store.list_page(TABLES, after=after, timeout_s=CALL_S)
        names += [info.name for info in page]
        if len(page) < LIST_MAX:
            return names

"""Finds all objects of ledgers in a store, reads them, and compares every checksum.

The store alone tells which attempts exist. The ledger's metadata tells which of them counts. An
attempt puts its manifest last, so an attempt with a manifest is whole, or was. An attempt without a
manifest is under way, or was given up, or lost its manifest; its objects are counted, not judged.

Source: docs/objects.md, "Ledgers" and "The command line".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from cordwood.errors import Corrupt, Malformed, NoObject, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.ledger_object import read_ledger_footer, read_ledger_group
from cordwood.layout.manifest import LedgerManifest, LedgerPart, unpack_ledger_manifest
from cordwood.layout.object_names import (
    LEDGERS,
    ledger_object_name,
    manifest_crc,
    parse_ledger_name,
)
from cordwood.tier.collect import list_all
from cordwood.tier.object_store import ObjectStore

CALL_S = 120.0
"""One call to the store, with all its tries."""

CHECK_S = 120.0
"""Reading a row group, 4 MiB of bodies, in a thread."""


@dataclass(slots=True)
class LedgerAttempt:
    """The objects of one attempt at a ledger, as a store lists them.

    Attributes:
        manifests: names of its manifests; an attempt puts one.
        objects, stored: its objects, and their bytes.
    """

    ledger: int
    attempt: int
    manifests: list[str] = field(default_factory=list)
    objects: int = 0
    stored: int = 0


@dataclass(slots=True)
class VerifiedLedger:
    """The result of reading an attempt.

    Attributes:
        objects, entries, bytes: intact objects, their entries, and the bytes of these as nodes kept
            them.
        faults: damaged or missing objects, with the damage of each.
        is_gone: it was deleted while it was read.
    """

    objects: int = 0
    entries: int = 0
    bytes: int = 0
    faults: list[tuple[str, str]] = field(default_factory=list)
    is_gone: bool = False


async def find_ledgers(
    store: ObjectStore, ledgers: Collection[int] = ()
) -> AsyncIterator[LedgerAttempt]:
    """Every attempt that has objects in a store, by ledger.

    Args:
        ledgers: only of these; all without one.
    """
    found: LedgerAttempt | None = None
    prefixes = [f"{LEDGERS}{each:016x}/" for each in sorted(set(ledgers))] or [LEDGERS]
    for prefix in prefixes:
        async for info in list_all(store, prefix):
            try:
                at = parse_ledger_name(info.name)
            except Malformed:
                continue  # not an object of Cordwood: the collection counts it
            if found is not None and (found.ledger, found.attempt) != at:
                yield found
                found = None
            found = found or LedgerAttempt(*at)
            if manifest_crc(info.name) is not None:
                found.manifests.append(info.name)
            else:
                found.objects += 1
                found.stored += info.size
    if found is not None:
        yield found


async def read_manifest(store: ObjectStore, name: str) -> LedgerManifest:
    """A manifest that a listing named.

    Raises:
        NoObject: it is gone.
        Corrupt: it is not the manifest that was written.
    """
    data, _ = await store.read(name, timeout_s=CALL_S)
    crc = manifest_crc(name)
    assert crc is not None, "a manifest's name has its checksum"
    found = unpack_ledger_manifest(name, data, crc)
    if (found.ledger, found.attempt) != parse_ledger_name(name):
        raise Malformed(f"{name} is the manifest of another ledger")
    return found


async def verify_ledger(store: ObjectStore, host: Host, name: str) -> VerifiedLedger:
    """Read every entry that a manifest names. Damage is noted, and the other entries are read too.

    Args:
        name: the manifest's.
    Raises:
        Retryable: the store does not answer.
    """
    done = VerifiedLedger()
    try:
        manifest = await read_manifest(store, name)
    except NoObject:
        done.is_gone = True
        return done
    except Corrupt as error:
        done.faults.append((name, str(error)))
        return done
    for part in manifest.parts:
        at = ledger_object_name(
            manifest.ledger, manifest.attempt, part.first, part.last, part.footer_crc
        )
        try:
            size = await _read_part(store, host, at, manifest, part)
        except (Corrupt, NoObject) as error:
            if isinstance(error, NoObject) and await store.head(name, timeout_s=CALL_S) is None:
                done.is_gone = True  # the ledger was deleted meanwhile, manifest and all
                return done
            done.faults.append((at, str(error)))
            continue
        done.objects += 1
        done.entries += part.last - part.first + 1
        done.bytes += size
    return done


async def _read_part(
    store: ObjectStore, host: Host, name: str, manifest: LedgerManifest, part: LedgerPart
) -> int:
    """Read an object, one row group at a time. Returns the bytes of its entries.

    Raises:
        Corrupt, NoObject: it is not what was put, or is gone.
    """
    start = part.size - part.footer_bytes
    tail = await store.get(name, start, part.size, timeout_s=CALL_S)
    footer = read_ledger_footer(tail, part.footer_crc, part.size)
    index = footer.index
    said = (index.ledger, index.attempt, index.first, index.last)
    if said != (manifest.ledger, manifest.attempt, part.first, part.last):
        raise Malformed(f"{name} has other entries than its manifest says")
    size = 0
    for number, group in enumerate(index.groups):
        content = await store.get(name, group.start, group.stop, timeout_s=CALL_S)

        def read(number: int = number, content: bytes = content) -> int:
            return sum(len(item.body) for item in read_ledger_group(footer, number, content))

        try:
            size += await host.run_blocking(read, timeout_s=CHECK_S)
        except TimeoutError as error:
            raise Unreachable(f"a row group was not read in {CHECK_S} s") from error
    return size

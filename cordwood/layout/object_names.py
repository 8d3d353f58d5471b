"""Names in an object store, and the values in them.

::

    cluster                                          the cluster that owns the store
    logs/0000000000000007/head                       the log's pointer
    logs/0000000000000007/origin                     when the log was made
    logs/0000000000000007/pages/…                    pages of its manifest
    logs/0000000000000007/objects/<first>-<last>-<fence>-9f0a11c2.parquet
    shared/20261124/0f3a…e1-9f0a11c2.parquet         records of several logs
    tables/9b2d…07                                   the objects that an Iceberg table names
    leases/000658…-0f3a…                             the objects that a query reads, and until when
    ledgers/0000000000000011/<attempt>/manifest-5c03e7aa.json       a ledger, by one attempt
    ledgers/0000000000000011/<attempt>/<first>-<last>-9f0a11c2.parquet

Numbers have 16 hexadecimal digits: a log's, an object's first and last LSN, the fence of the turn
that uploaded it, by which no name is used twice. The last eight are the CRC32C of the object's
footer, which nothing inside a Parquet file could hold. A log's own object can so be found, checked
and put into a manifest with nothing but the store.

A ledger's metadata names the attempt that counts and the CRC32C of its manifest, so a ledger has no
pointer here. Of its numbers, `first` and `last` are entries.

Source: docs/objects.md, "Names".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cordwood.errors import Malformed
from cordwood.ledger import ENTRY_MAX, LEDGER_MAX
from cordwood.lsn import LSN_MAX

LEASES = "leases/"
LEDGERS = "ledgers/"
LOGS = "logs/"
OWNER = "cluster"
SHARED = "shared/"
TABLES = "tables/"
SUFFIX = ".parquet"

_OWN = re.compile(
    r"logs/([0-9a-f]{16})/objects/([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{8})"
    r"\.parquet"
)
_LEDGER = re.compile(
    r"ledgers/([0-9a-f]{16})/([0-9a-f]{16})/"
    r"(?:manifest-([0-9a-f]{8})\.json|([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{8}\.parquet)"
)
_LEASE = re.compile(r"leases/([0-9a-f]{16})-[0-9a-f]{16}")
_SHARED = re.compile(r"shared/(\d{8})/([0-9a-f]{32})-([0-9a-f]{8})\.parquet")


@dataclass(frozen=True, slots=True)
class ObjectName:
    """What an object's name says.

    Attributes:
        log: the log of its records; 0 for several logs.
        first, last: LSNs that it covers; 0 for several logs.
        fence: of the turn that uploaded it; 0 for several logs.
        footer_crc: CRC32C of its footer.
    """

    log: int
    first: int
    last: int
    fence: int
    footer_crc: int


def log_prefix(log: int) -> str:
    """The prefix of all of one log's objects."""
    return f"{LOGS}{log:016x}/"


def head_name(log: int) -> str:
    """A log's pointer."""
    return f"{log_prefix(log)}head"


def origin_name(log: int) -> str:
    """The name of the object that notes when a log was made. It distinguishes the log from another
    cluster's log with the same number."""
    return f"{log_prefix(log)}origin"


def objects_prefix(log: int) -> str:
    """The prefix of the names of a log's own objects."""
    return f"{log_prefix(log)}objects/"


def pages_prefix(log: int) -> str:
    """The prefix of the names of the pages of a log's manifest."""
    return f"{log_prefix(log)}pages/"


def own_name(log: int, first: int, last: int, fence: int, footer_crc: int) -> str:
    """An object of one log."""
    return f"{objects_prefix(log)}{first:016x}-{last:016x}-{fence:016x}-{footer_crc:08x}{SUFFIX}"


def shared_name(day: str, number: int, footer_crc: int) -> str:
    """An object of several logs.

    Args:
        day: as `20261124`, so that a listing can skip old objects.
        number: 128 random bits.
    """
    return f"{SHARED}{day}/{number:032x}-{footer_crc:08x}{SUFFIX}"


def table_note_name(uuid: str) -> str:
    """The name of the note of the objects that a table names."""
    return f"{TABLES}{uuid}"


def lease_name(until_us: int, number: int) -> str:
    """The name of a read lease.

    Args:
        until_us: when it ends, µs since 1970 UTC.
        number: 64 random bits.
    """
    return f"{LEASES}{until_us:016x}-{number:016x}"


def lease_until_us(name: str) -> int:
    """When a lease ends, by its name.

    Raises:
        Malformed: it is no name of a lease.
    """
    match = _LEASE.fullmatch(name)
    if match is None:
        raise Malformed(f"{name} is not the name of a read lease")
    return int(match[1], 16)


def ledger_manifest_name(ledger: int, attempt: int, crc: int) -> str:
    """The name of the manifest that one attempt wrote for a ledger."""
    return f"{LEDGERS}{ledger:016x}/{attempt:016x}/manifest-{crc:08x}.json"


def ledger_manifests(ledger: int, attempt: int) -> tuple[str, str]:
    """For a listing of an attempt's manifest: the prefix of its names, and a name after its objects
    and before the manifest."""
    prefix = f"{LEDGERS}{ledger:016x}/{attempt:016x}/"
    return prefix, f"{prefix}g"


def ledger_object_name(ledger: int, attempt: int, first: int, last: int, footer_crc: int) -> str:
    """An object with entries of a ledger, from one attempt."""
    return (
        f"{LEDGERS}{ledger:016x}/{attempt:016x}/{first:016x}-{last:016x}-{footer_crc:08x}{SUFFIX}"
    )


def parse_ledger_name(name: str) -> tuple[int, int]:
    """The ledger and the attempt of a ledger's object or manifest.

    Raises:
        Malformed: the name is not of this form.
    """
    match = _LEDGER.fullmatch(name)
    if match is not None:
        ledger, attempt = int(match[1], 16), int(match[2], 16)
        first, last = (int(match[at] or "0", 16) for at in (4, 5))
        if ledger <= LEDGER_MAX and 0 < attempt <= LEDGER_MAX and first <= last <= ENTRY_MAX:
            return ledger, attempt
    raise Malformed(f"{name!r} is no name of a ledger's object")


def manifest_crc(name: str) -> int | None:
    """The CRC32C in the name of a ledger's manifest; None for other names."""
    match = _LEDGER.fullmatch(name)
    return int(match[3], 16) if match is not None and match[3] is not None else None


def parse_object_name(name: str) -> ObjectName:
    """What an object's name says.

    Raises:
        Malformed: it is no object's name.
    """
    own = _OWN.fullmatch(name)
    if own is not None:
        log, first, last, fence, crc = (int(each, 16) for each in own.groups())
        if 0 < log < 1 << 62 and first <= last <= LSN_MAX:
            return ObjectName(log, first, last, fence, crc)
    shared = _SHARED.fullmatch(name)
    if shared is not None:
        return ObjectName(0, 0, 0, 0, int(shared[3], 16))
    raise Malformed(f"{name!r} is no name of an object of ours")

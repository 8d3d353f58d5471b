"""Keeps logs of two clusters apart that have the same number in the same object store.

Numbers count from 1 in every cluster, and an upload continues where the manifest ends. With the
manifest of another cluster's log it would leave out all records below that end, and put the rest
after that log's records. So the store records the creation time of the log that it has a history
of.

The origin is put after the first head, so that every log with an origin has a manifest, and before
the first object. A log that was uploaded before there were origins gets its own at the next upload.

Source: docs/objects.md, "Uploading".
"""

from __future__ import annotations

from cordwood.errors import BadSetting, NoObject, ObjectChanged
from cordwood.layout.manifest import pack_origin, unpack_origin
from cordwood.layout.object_names import origin_name
from cordwood.tier.object_store import ObjectStore

CALL_S = 60.0
"""One call to the store, with all its tries."""


async def check_origin(store: ObjectStore, log: int, created_us: int) -> bool:
    """Whether the store says of which log its history is.

    Args:
        created_us: creation time of the log to upload.
    Raises:
        BadSetting: the history is another log's.
        Corrupt: the stored mark cannot be read.
    """
    try:
        data, _ = await store.read(origin_name(log), timeout_s=CALL_S)
    except NoObject:
        return False
    if unpack_origin(log, data) != created_us:
        raise BadSetting(
            f"this store holds the history of another log {log}, with another creation time, maybe "
            "of another cluster: give every cluster a store, or a prefix, of its own"
        )
    return True


async def keep_origin(store: ObjectStore, log: int, created_us: int) -> None:
    """Note in the store to which log its history belongs.

    Raises:
        BadSetting, Corrupt: see `check_origin`.
        OutcomeUnknown, Retryable: the store does not answer; it may be asked again.
    """
    if await check_origin(store, log, created_us):
        return
    content = pack_origin(log, created_us)
    try:
        await store.put_if(origin_name(log), content, None, timeout_s=CALL_S)
    except ObjectChanged:
        await check_origin(store, log, created_us)

"""Copies a log's objects into a directory, and checks all of each object before.

Source: docs/objects.md, "The command line".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from cordwood.errors import BadSetting, Corrupt
from cordwood.host.seams import Host
from cordwood.layout.object_file import ObjectRun, check_object
from cordwood.tier.collect import list_all
from cordwood.tier.local_store import open_local_store
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import load_footer
from cordwood.tier.object_store import ObjectInfo, ObjectStore
from cordwood.tier.verify import GET_S, all_entries
from cordwood.tiered import is_lost

CHECK_S = 120.0
"""The longest time to check an object in a thread."""

_NAME = re.compile(r"[0-9a-f-]+-([0-9a-f]{8})\.parquet")
"""The last part of an object's name; it ends with the footer's CRC."""


@dataclass(slots=True)
class Exported:
    """The result of an export: copied files, their records of the log, and ranges missing from all
    objects."""

    files: int = 0
    rows: int = 0
    lost: int = 0


async def export_log(
    store: ObjectStore, manifest: LogManifest, host: Host, log: int, directory: str
) -> Exported:
    """Copy the objects of a log; existing files are written anew.

    An object of several logs is copied whole: choose rows by `log_id`.

    Raises:
        Corrupt: an object differs from the uploaded one.
        BadSetting: the directory cannot be written to, or has objects of the log that are merged
            by now: a reader of all its files would have their records twice.
    """
    target = await open_local_store(host, directory)
    await _check_apart(target, manifest, log)
    done = Exported()
    async for entry in all_entries(manifest):
        if is_lost(entry):
            done.lost += 1
            continue
        content = await store.get(entry.name, 0, entry.size, timeout_s=GET_S)
        crc = entry.footer_crc

        def check(content: bytes = content, crc: int = crc) -> bool:
            return check_object(content, crc).index.run(log) is not None

        if not await host.run_blocking(check, timeout_s=CHECK_S):
            raise BadSetting(f"{entry.name} holds nothing of log {log}")
        await target.put(PurePosixPath(entry.name).name, [content], timeout_s=GET_S)
        done.files += 1
        done.rows += entry.rows
    return done


async def _check_apart(target: ObjectStore, manifest: LogManifest, log: int) -> None:
    """Check that no record will be in two files of a directory.

    Raises:
        BadSetting: an earlier export left a file with records that are in another object by now.
    """
    there = [info async for info in list_all(target, "") if _NAME.fullmatch(info.name)]
    if not there:
        return
    wanted = [entry async for entry in all_entries(manifest)]
    names = {PurePosixPath(entry.name).name for entry in wanted}
    for info in there:
        if info.name in names:
            continue  # it is written anew
        run = await _run_in(target, info, log)
        if run is None:
            continue
        for entry in wanted:
            if run.first <= entry.last and entry.first <= run.last and not is_lost(entry):
                raise BadSetting(
                    f"{info.name} is there from an earlier export, and {entry.name} holds records "
                    f"of it too, because objects of log {log} were merged or repaired since: give "
                    "another directory"
                )


async def _run_in(target: ObjectStore, info: ObjectInfo, log: int) -> ObjectRun | None:
    """A log's records in a file; None if it has none, or is not an object of Cordwood."""
    found = _NAME.fullmatch(info.name)
    assert found is not None, "it was looked at"
    try:
        crc = int(found[1], 16)
        footer = await load_footer(target, info.name, info.size, crc, timeout_s=GET_S)
    except Corrupt:
        return None
    return footer.index.run(log)

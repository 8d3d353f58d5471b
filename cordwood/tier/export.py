"""Copies a log's objects into a directory, after all of each was checked.

Source: docs/objects.md, "The command line".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.layout.object_file import check_object
from cordwood.tier.local_store import open_local_store
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.repair import is_lost
from cordwood.tier.verify import GET_S, all_entries

CHECK_S = 120.0


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
        BadSetting: the directory cannot be written to.
    """
    target = await open_local_store(host, directory)
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

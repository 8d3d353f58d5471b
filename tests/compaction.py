"""A store in a directory with logs that share their objects, and what is read of it."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from made_objects import NOW_US, Made

from cordwood.block import Gap
from cordwood.host.real import real_host
from cordwood.layout.body import encode_body
from cordwood.tier.addresses import open_object_store
from cordwood.tier.collect import collect_log, collect_shared
from cordwood.tier.history import HistoryReader
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.shared_upload import LogItems, upload_shared
from cordwood.tier.verify import verify_log

LOGS = (3, 7)
ROUNDS = 4


def with_store(directory: Path, act):
    async def main():
        async with real_host() as host:
            store = await open_object_store(host, str(directory))
            try:
                return await act(store, host)
            finally:
                await store.close()

    return asyncio.run(main())


def made_store(directory: Path) -> None:
    """Two logs in four objects that they share, with a megabyte each, so that they part."""

    async def act(store, host) -> None:
        logs = {log: Made(log) for log in LOGS}
        for number in range(ROUNDS):
            shares = []
            for log, made in logs.items():
                at = len(made.items)
                values = [b"%d-%d " % (number, each) * 2000 for each in range(40)]
                made.block(encode_body(values, timestamps_us=NOW_US + number))
                manifest = LogManifest(store, log, host, "node")
                head = await manifest.load()
                first = head.end if head is not None else made.first
                shares.append(LogItems(log, f"/{log}", 0, manifest, first, made.items[at:]))
            await upload_shared(store, host, shares)

    with_store(directory, act)


def digest(directory: Path) -> str:
    """Of all records of all logs, with their places."""

    async def act(store, host) -> str:
        summed = hashlib.sha256()
        for log in LOGS:
            manifest = LogManifest(store, log, host, "reader")
            await manifest.load()
            async with HistoryReader(store, manifest, host, log, 1) as reader:
                async for item in reader:
                    body = b"" if isinstance(item, Gap) else bytes(item.raw)
                    summed.update(b"%d %d %d " % (log, item.first, item.last) + body)
        return summed.hexdigest()

    return with_store(directory, act)


def objects(directory: Path) -> int:
    return sum(1 for _ in directory.rglob("*.parquet"))


def collect_all(directory: Path) -> None:
    async def act(store, host) -> None:
        def manifest_of(log: int) -> LogManifest:
            return LogManifest(store, log, host, "collect")

        later_us = host.clock.now_us() + 10_000_000
        for log in LOGS:
            await collect_log(store, manifest_of(log), log, later_us, 1)
            verified = await verify_log(store, manifest_of(log), host, log)
            assert (verified.faults, verified.lost) == ([], [])
        await collect_shared(store, manifest_of, later_us, 1)

    with_store(directory, act)

"""A store that kills itself in a flush: `killed_at_step.py DIR FIRST STEP WHEN NTH`.

It says what it finds in its log, appends, trims, and says what was acknowledged, until the
step comes after its first records. With `found` as its step it only says what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.embedded import embedded_store
from cordwood.errors import LogExists
from cordwood.settings import MIB, ClientSettings, StorageSettings
from cordwood.storage.logs_db.rocks_logs import RocksTables
from cordwood.storage.wal.delta_wal import Wal

LOG = "killed"
DURING_S = 0.000_5
"""From a call's begin to the kill that is to come while RocksDB is at it."""

STORAGE = StorageSettings(
    wal_bytes=2 * MIB,
    cache_bytes=MIB,
    flush_bytes=32 << 10,
    flush_quiet_s=0,
    flush_age_s=0.05,
    partition_files=1,
)
UNHARMED = 32
"""Records before the step is waited for, so that a life is as long on a slow disk as on a fast."""

NEVER_S = 30.0
"""The step did not come: that is the test's to say."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_soon() -> None:
    time.sleep(DURING_S)
    kill()


def arm(step: str, when: str, nth: int) -> None:
    """See that the process dies before, during or after the `nth` call of a step."""
    calls = 0

    def wrapped(original: Any, name_of: Callable[..., str]) -> Any:
        async def call(self: Any, *more: Any, **named: Any) -> Any:
            nonlocal calls
            is_it = name_of(*more) == step
            calls += is_it
            if is_it and calls == nth:
                if when == "before":
                    kill()
                if when == "during":
                    threading.Thread(target=kill_soon).start()
            result = await original(self, *more, **named)
            if is_it and calls == nth:
                kill()
            return result

        return call

    for method in ("create", "write", "flush", "drop"):
        original = getattr(RocksTables, method)
        setattr(RocksTables, method, wrapped(original, _table_step(method)))
    Wal.trim = wrapped(Wal.trim, lambda *_: "trim the WAL")  # type: ignore[method-assign]


def _table_step(method: str) -> Callable[..., str]:
    def name_of(table: str, *_: Any) -> str:
        return f"{method} {'a partition' if table.startswith('p') else 'metadata'}"

    return name_of


async def live(directory: str, first: int, step: str, when: str, nth: int) -> None:
    """Go on from what is found, and from `first` where all that was before it is trimmed."""
    async with embedded_store(directory, ClientSettings(), storage=STORAGE) as store:
        with contextlib.suppress(LogExists):
            await store.create_log(LOG)
        found = [
            int(each.value.split(b" ")[0])
            async for each in await store.read(LOG)
            if isinstance(each, Record)
        ]
        say("found", *found)
        if step == "found":
            return
        first = max(first, found[-1] + 1 if found else 0)
        async with asyncio.timeout(NEVER_S):
            await append(store, first, first + UNHARMED)
            arm(step, when, nth)
            await append(store, first + UNHARMED, None)


async def append(store: Store, number: int, stop: int | None) -> None:
    """Records of a few KiB, all of which are trimmed now and then."""
    while stop is None or number < stop:
        numbers = range(number, number + 4)
        lsns = await store.append_many(LOG, [b"%d " % each + bytes(3000) for each in numbers])
        say("acked", *numbers)
        number = numbers.stop
        if number % 64 == 0:
            say("trimmed", numbers[-1])
            await store.trim(LOG, lsns[-1])


def say(word: str, *numbers: int) -> None:
    sys.stdout.write(f"{word} {' '.join(map(str, numbers))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, directory, first, step, when, nth = sys.argv
    asyncio.run(live(directory, int(first), step, when, int(nth)))

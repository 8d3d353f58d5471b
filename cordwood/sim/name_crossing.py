"""Simulated administrators with calls that cross: they rename, delete and make logs of few names.

They call at the same moments, give up on some calls half-way, and make them again. If a call
reported a log as made, and no call deleted it, the log must be found in the end (S32).

Source: docs/protocol/metadata-and-epochs.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection

from cordwood.client.store import Store, connected
from cordwood.errors import CordwoodError, LogExists, UnknownLog
from cordwood.host.seams import Host
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.store import MetadataStore
from cordwood.sim.events import EpochTaken
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.name_events import LogMade, LogSought
from cordwood.sim.workload import RECONNECT_S, Clients

CROSSED = ("/sim/crossed/1", "/sim/crossed/2", "/sim/crossed/3")
"""The names that the administrators give to logs and take from them."""

KINDS = ("rename", "rename", "create", "delete")
"""The calls of the administrators; a kind that stands twice is drawn twice as often."""

MEET_S = 0.5
"""The administrators begin at whole multiples of this."""

CALLS_MAX = 3
"""Calls of one administrator each time, one after the other."""

GIVE_UP_S = 0.05
"""Longest wait for a call on which its caller gives up: the time of several of its steps."""


async def cross_names(name: str, clients: Clients, host: Host) -> None:
    """Change names at the same moments as the others, until told to stop."""
    _, chance = clients.next_life(name)
    loop = asyncio.get_running_loop()
    while not clients.stopping:
        try:
            async with connected(clients.addresses, host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await clients.pause(MEET_S - loop.time() % MEET_S)
                    for _ in range(chance.randint(1, CALLS_MAX)):
                        await _call(name, store, clients.recorder, chance)
        except CordwoodError as error:
            clients.told(name, "cross", error)
            await asyncio.sleep(RECONNECT_S)


async def _call(
    client: str, store: Store, recorder: HistoryRecorder, chance: random.Random
) -> None:
    kind, (name, new_name) = chance.choice(KINDS), chance.sample(CROSSED, 2)
    with contextlib.suppress(LogExists, UnknownLog):
        if chance.random() < 0.3:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GIVE_UP_S * chance.random()):
                    await _once(client, store, recorder, kind, name, new_name)
        await _once(client, store, recorder, kind, name, new_name)


async def _once(
    client: str, store: Store, recorder: HistoryRecorder, kind: str, name: str, new_name: str
) -> None:
    match kind:
        case "rename":
            await store.log_tree.rename(name, new_name)
        case "create":
            made = await store.create_log(name)
            recorder.add(LogMade(recorder.now_us, client, made.log_id))
        case _:
            await store.log_tree.delete(name)


async def seek_logs(metadata: MetadataStore, recorder: HistoryRecorder) -> None:
    """Look for every log that was made, after the last change of a name."""
    made = sorted({each.log for each in recorder.events if isinstance(each, LogMade)})
    if not made:
        return
    tree = LogTree(metadata)
    listed = {int(info.log_id) for info in await tree.list()}
    for log in made:
        recorder.add(await _sought(tree, log, listed, recorder))
    # A client that was killed during a creation does not know its log, and another client may have
    # deleted the log.
    begun = {each.log for each in recorder.events if isinstance(each, EpochTaken)}
    for log in sorted(begun.difference(made)):
        if await tree.is_deleted(log):
            recorder.add(await _sought(tree, log, listed, recorder))


async def _sought(
    tree: LogTree, log: int, listed: Collection[int], recorder: HistoryRecorder
) -> LogSought:
    info = await tree.by_id(log)
    named = None if info is None else await tree.get(info.name)
    is_named = named is not None and named.log_id == log
    is_deleted = await tree.is_deleted(log)
    return LogSought(recorder.now_us, log, is_deleted, info is not None, is_named, log in listed)

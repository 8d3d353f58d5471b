"""Where main storage says that records begin and end, while trims go on."""

from __future__ import annotations

from typing import Any, cast

import pytest
from made_objects import Made
from scenarios import as_scenario
from test_uploader import LOG, history, on_quiet_store, source, uploader_of

from cordwood.block import BlockHeader, Gap
from cordwood.client.admin.tier_positions import TierPositions
from cordwood.client.find.log_info import LogInfo
from cordwood.client.tier_store import TierStore
from cordwood.host.seams import Host
from cordwood.lsn import LogId
from cordwood.nodes import Replication
from cordwood.tier.history import HistoryReader
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore

INFO = LogInfo(LogId(LOG), "/x", Replication(1), 0)


class TierAtHand:
    """A log's history, with a manifest that is read anew for each."""

    def __init__(self, store: ObjectStore, host: Host) -> None:
        self._store = store
        self._host = host

    async def objects(self) -> ObjectStore:
        return self._store

    async def history(self, info: LogInfo, start: int, until: int) -> HistoryReader:
        manifest = LogManifest(self._store, LOG, self._host, "reader")
        await manifest.load()
        return HistoryReader(self._store, manifest, self._host, LOG, start, until)


def blocks_of(made: Made) -> list[BlockHeader]:
    return [item[0] for item in made.items if not isinstance(item, Gap)]


async def positions(store: ObjectStore, host: Host, up_to: int) -> TierPositions:
    manifest = LogManifest(store, LOG, host, "asker")
    await manifest.load()
    tier = cast(TierStore, cast(Any, TierAtHand(store, host)))
    return TierPositions(tier, manifest, INFO, up_to)


@pytest.mark.parametrize("at", [5, 12, 20])
@as_scenario(on_quiet_store)
async def test_a_trim_amid_the_question_leaves_no_record_without_a_time(
    store: ObjectStore, host: Host, *, at: int
) -> None:
    """Tier seed 9600154: the record at the trim point's end was gone by the time its block was
    read, and the log's first record was told to be of 1970."""
    made = history()
    first = made.first
    await uploader_of(store, host).run(source(made, first), first)
    blocks = blocks_of(made)
    inside = next(each for each in blocks[at:] if each.count > 2)
    asked = await positions(store, host, made.next - 1)
    trim = int(inside.first)  # the rest of the block is there
    assert await asked.first(trim) == (trim + 1, inside.append_time_us)
    await LogManifest(store, LOG, host, "trimmer").trim(int(inside.last) + 1)
    later = next(each for each in blocks if each.first > inside.last)
    assert await asked.first(trim) == (later.first, later.append_time_us)


@as_scenario(on_quiet_store)
async def test_the_last_record_below_a_tier_point_in_the_middle_has_its_time(
    store: ObjectStore, host: Host
) -> None:
    made = history()
    await uploader_of(store, host).run(source(made, made.first), made.first)
    inside = next(each for each in blocks_of(made)[12:] if each.count > 2)
    asked = await positions(store, host, int(inside.first))
    assert await asked.last(0) == (inside.first, inside.append_time_us)

"""Logs without a saved position that fall to a member which begins them at their tail."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until

from cordwood.client.read.consumer import BEGIN_AGAIN_S, MEMBER_TTL_S, Consumer
from cordwood.errors import Unreachable
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_consumers import AskConsumers, JoinConsumer, SaveCursors
from cordwood.sim.planted import find_bug, planted


async def drained(consumer: Consumer, timeout_s: float) -> dict[str, list[int]]:
    """All that comes, by log."""
    found: dict[str, list[int]] = {}
    while portion := await consumer.read(timeout_s=timeout_s):
        found.setdefault(portion.log, []).extend(int(each.value) for each in portion.records)
    return found


async def a_log_falls_to_a_member_that_cannot_save(cluster: ClusterAtHand) -> None:
    """A member joined and died before it began its log. The log fell to a running member while no
    save was answered. It counted as begun; after a crash before the next save, the next member
    began at a later tail, and passed over records."""
    async with cluster.client() as store, cluster.client() as other:
        await store.append("log", b"1")
        first = await store.consumer("group", "log", member="m1", start="tail")
        right = first._ask
        seen: Any = await right(AskConsumers("group"))
        known = seen.groups[0].generation
        await right(JoinConsumer("group", "m0", ["/log"], round(MEMBER_TTL_S * 1000), known))
        await first.start()
        assert first.logs == ()

        async def unsaved(call: Call) -> Reply:
            if isinstance(call, SaveCursors):
                raise Unreachable("no node answered")
            return await right(call)

        first._ask = unsaved
        await until(lambda: first._group is not None and first._group.owners.get("/log") == "m1")
        assert not await first.read(timeout_s=1)
        await store.append_many("log", [b"2", b"3"])
        assert await drained(first, 2 * BEGIN_AGAIN_S) == {}, "records whose begin was not saved"
        assert first.unhealthy == {"/log": "no node answered"}

        first._ask = right
        given = await first.read(timeout_s=2 * BEGIN_AGAIN_S)
        assert [each.value for each in given.records] == [b"2", b"3"]
        assert first.unhealthy == {}
        assert first._beating is not None
        first._beating.cancel()  # it crashes before it saves them
        second = await other.consumer("group", "log", member="m2", start="tail")
        await second.start()
        assert await drained(second, 2 * MEMBER_TTL_S) == {"/log": [2, 3]}
        await second.close()


def test_a_log_is_begun_once_its_begin_is_saved() -> None:
    simulate(a_log_falls_to_a_member_that_cannot_save)


def test_the_scene_catches_one_that_begins_before() -> None:
    with planted(find_bug("begins-unsaved")), pytest.raises(AssertionError, match="not saved"):
        simulate(a_log_falls_to_a_member_that_cannot_save)

"""Callers of ledgers that are not as they should be: each is told so, and stores nothing."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood import aio
from cordwood.embedded import connect_blocking
from cordwood.errors import BadSetting, Closed, LedgerFenced, OutcomeUnknown, Rejected
from cordwood.protocol.ledger_writer import WriterLimits


def test_what_is_no_payload_is_refused_and_not_made_one(tmp_path: Path) -> None:
    """`append_soon(5)` stored five zeros, and was told that they are stored."""
    with connect_blocking(str(tmp_path)) as store:
        made = store.ledgers.create(ensemble=1, write=1, ack=1)
        for call in (made.append_soon, made.append):
            for payload in (5, "text", None, [1]):
                with pytest.raises(TypeError):
                    call(payload)  # type: ignore[operator]
        buffer = bytearray(b"one")
        stored = made.append_soon(buffer)
        buffer[:] = b"two"
        assert stored.result(10) == 0
        made.close()
        opened = store.ledgers.open(made.ledger_id)
        assert [each.payload for each in opened] == [b"one"]


def in_another_loop(call: Callable[[], Awaitable[Any]]) -> Exception | None:
    """What a call raises in a loop of another thread."""
    told: list[Exception] = []

    async def work() -> None:
        async with asyncio.timeout(10):
            await call()

    def run() -> None:
        try:
            asyncio.run(work())
        except (Rejected, RuntimeError, TimeoutError) as error:
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    return told[0] if told else None


def test_calls_of_another_loop_are_refused_and_do_nothing(tmp_path: Path) -> None:
    """A close did its work beside the loop, and a follower waited a second for nothing."""

    async def scenario() -> None:
        async with aio.connect(str(tmp_path)) as store:
            made = await store.ledgers.create(ensemble=1, write=1, ack=1)
            await made.append(b"one")
            opened = await store.ledgers.open(made.ledger_id)
            calls: list[Callable[[], Awaitable[Any]]] = [
                made.close,
                lambda: anext(opened.follow()),
                lambda: anext(opened.arrow()),
                lambda: opened.wait_confirmed(0, timeout_s=1),
                opened.try_read_last_add_confirmed,
            ]
            for call in calls:
                error = await asyncio.to_thread(in_another_loop, call)
                assert isinstance(error, Rejected), error
            assert await made.append(b"two") == 1
            await made.close()

    asyncio.run(scenario())


@as_scenario(simulate)
async def test_a_writer_is_told_why_it_takes_nothing_any_more(cluster: ClusterAtHand) -> None:
    """It was told of a recovery, whatever had happened."""
    async with cluster.client() as store:
        given_up, deleted, shut_out = [
            await store.ledgers.create(ensemble=3, write=3, ack=3) for _ in range(3)
        ]
        given_up.abandon()
        await store.ledgers.delete(deleted.ledger_id)
        with pytest.raises(LedgerFenced):
            await deleted.close()
        await store.ledgers.recover(shut_out.ledger_id)
        with pytest.raises(OutcomeUnknown):
            await shut_out.append(b"on its way")
        for made, why in (
            (given_up, "this writer was given up"),
            (deleted, "it was deleted"),
            (shut_out, "a recovery has shut this writer out"),
        ):
            with pytest.raises(LedgerFenced, match=f"^ledger {made.ledger_id}: {why}$"):
                await made.append(b"late")
        opened = await store.ledgers.open(shut_out.ledger_id)
        following = opened.follow()
    for late in (lambda: anext(following), lambda: opened.wait_confirmed(-1, timeout_s=1)):
        with pytest.raises(Closed, match="this client was closed"):
            await late()


@pytest.mark.parametrize(
    "limits",
    [
        {"quorum_timeout_s": "5"},
        {"quorum_timeout_s": math.nan},
        {"quorum_timeout_s": 0},
        {"entries_max": "10"},
        {"entries_max": 0},
        {"bytes_max": 1.5},
        {"changes_max": -1},
        {"delays_change": "no"},
        {"defers_sync": None},
    ],
    ids=str,
)
def test_bounds_that_are_none_are_refused_before_the_ledger_is_made(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    """A time limit in text ended the client with all its writers, once an entry had to wait."""
    with connect_blocking(str(tmp_path)) as store:
        with pytest.raises(BadSetting, match=next(iter(limits))):
            store.ledgers.create(ensemble=1, write=1, ack=1, limits=WriterLimits(**limits))
        with pytest.raises(BadSetting, match="WriterLimits"):
            store.ledgers.create(ensemble=1, write=1, ack=1, limits=limits)  # type: ignore[arg-type]
        assert [*store.ledgers.list()] == []

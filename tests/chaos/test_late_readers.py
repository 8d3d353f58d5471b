"""What is said of readers that are not at their end, and when one is called stuck."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from swaps import swap, swap_value

from cordwood.chaos import chaos_clients, late_readers
from cordwood.chaos.chaos_clients import ChaosClients, Ending
from cordwood.chaos.late_readers import LateReader, processor_s, why_late
from cordwood.client.address import SCHEME
from cordwood.client.store import connected
from cordwood.embedded import embedded_store
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.workload import Clients


async def _asked(directory: str) -> list[str]:
    """A reader at the tail of a log, of which somebody thinks that there is more."""
    async with (
        embedded_store(directory, ClientSettings()) as own,
        real_host(1) as host,
    ):
        await own.create_log("/late")
        last = await own.append("/late", b"one")
        url = await own.serve()
        addresses = tuple(url.removeprefix(SCHEME).split(","))
        async with connected(addresses, host, ClientSettings()) as store:
            stream = await store.read("/late", until=None)
            while stream.next_lsn <= last:
                await stream.next_items()
            late = [
                LateReader("late-1", "/late", last + 5, stream),
                LateReader("late-2", "/late", 0, None),
            ]
            told = await why_late(late, addresses, host, {NodeId(1): os.getpid()})
            stream.close()
            return [*told, *await why_late(late[:1], addresses, host, {})]


def test_a_reader_that_waits_is_told_with_all_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: late_readers.SAMPLE_S, 0.05)
    lines = asyncio.run(_asked(str(tmp_path / "store")))
    told = "\n".join(lines)
    first = lines[0]
    assert first.startswith("late-1 at e1n2 of /late (did not move in 0.")
    assert "due e1n6" in first
    assert "window " in first
    assert "node 1: connected, said all below e1n2, sent 1 blocks" in told
    assert "late-2 reads nothing of /late now" in told
    assert "the clients ran " in told
    assert ", node 1 ran " in told
    assert "epoch 1 by node 1, recovered up to 0; tail e1n1" in told
    assert "sequences epoch 1" in told
    assert "sends to a client from e1n2 on" in told
    assert "late-1 ended its read of /late at e1n2 meanwhile" in told


def test_a_cluster_that_is_not_there_is_said_to_be_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap_value(monkeypatch, lambda: late_readers.SAMPLE_S, 0.0)
    swap_value(monkeypatch, lambda: late_readers.ASK_S, 0.5)

    async def ask() -> list[str]:
        async with real_host(1) as host:
            return await why_late([LateReader("r", "/l", 7, None)], ("127.0.0.1:1",), host, {})

    assert "the cluster does not say how it is" in asyncio.run(ask())[-1]


def test_a_process_that_is_gone_has_no_processor_time() -> None:
    ran = processor_s(os.getpid())
    assert ran is None or (ran[0] > 0 and ran[1] >= 0)
    assert processor_s(-1) is None


class _Stream:
    """A reader's stream that comes on by so much each time one looks."""

    def __init__(self, step: int) -> None:
        self._at, self._step = 0, step

    @property
    def next_lsn(self) -> int:
        self._at += self._step
        return self._at


async def _end(monkeypatch: pytest.MonkeyPatch, step: int, takes_s: float) -> tuple[Ending, bool]:
    """How clients end of which one reader comes on by so much, and is done after a time."""

    async def no_tails(name: str, clients: Clients, host: Host) -> None:
        """Nobody is asked."""

    async def why(
        late: Sequence[LateReader], addresses: Sequence[str], host: Host,
        processes: Mapping[NodeId, int],
    ) -> list[str]:  # fmt: skip
        return [f"why {late[0].name}"]

    swap(monkeypatch, chaos_clients.final_tails, no_tails, within=chaos_clients)
    swap(monkeypatch, chaos_clients.why_late, why, within=chaos_clients)
    swap_value(monkeypatch, lambda: chaos_clients.LOOK_EVERY_S, 0.01)
    async with real_host(1) as host, asyncio.TaskGroup() as tasks:
        clients = ChaosClients(
            ("127.0.0.1:1",), HistoryRecorder(lambda: 0, copies=3, racks=2, seed=1), 1, host
        )
        reading = tasks.create_task(asyncio.sleep(takes_s), name="reader-1")
        clients._reading[reading] = "/chaos/a"
        clients._main.open_reads["reader-1"] = _Stream(step)  # type: ignore[assignment]
        ending = await clients.finish({})
        reading.cancel()
        return ending, clients._main.giving_up


@pytest.mark.parametrize(
    ("step", "takes_s", "problem", "missed"),
    [
        (0, 0.0, "", ""),
        (0, 60.0, "stuck, 0 s after the healing: reader-1\n  why reader-1", ""),
        (1, 0.6, "", "the readers came to their end 1 s after the healing; after 0.1 s:\n  why"),
        (1, 60.0, "not at their end, 1 s after the healing: reader-1\n  why reader-1", ""),
    ],
)  # fmt: skip
def test_who_comes_on_slowly_misses_a_bound_and_who_does_not_is_stuck(
    step: int, takes_s: float, problem: str, missed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: chaos_clients.DRAIN_S, 0.1)
    swap_value(monkeypatch, lambda: chaos_clients.STILL_S, 0.3)
    swap_value(monkeypatch, lambda: chaos_clients.READING_S_MAX, 1.0)
    ending, gave_up = asyncio.run(_end(monkeypatch, step, takes_s))
    assert gave_up
    assert len(ending.problems) == bool(problem)
    assert len(ending.missed) == bool(missed)
    assert all(each.startswith(problem) for each in ending.problems)
    assert all(each.startswith(missed) for each in ending.missed)

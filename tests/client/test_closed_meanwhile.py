"""Calls whose client is closed after a node got them, and before the client saw their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from swaps import swap

from cordwood.client.store import Store
from cordwood.embedded import connect_blocking
from cordwood.errors import Closed, CordwoodError, OutcomeUnknown
from cordwood.layout.changes import CHANGES
from cordwood.layout.message import Call, Reply
from cordwood.log_attributes import LogAttributes
from cordwood.metadata.log_tree import LogTree
from cordwood.rebuilding import PARTS, Transfer
from cordwood.sim.planted import find_bug, planted

Give = Callable[[Store], Awaitable[object]]

CLOSE_S = 0.5
"""`close` waits for nothing that a node does."""

GIVEN: dict[str, tuple[Give, str]] = {
    "create": (lambda store: store.create_log("/new"), "logs/new"),
    "delete": (lambda store: store.log_tree.delete("/a"), "logs/a"),
    "rename": (lambda store: store.log_tree.rename("/a", "/b"), "log_ids/1"),
    "attributes": (
        lambda store: store.log_tree.set_attributes("/a", LogAttributes(backlog_s=9.0)),
        "log_ids/1",
    ),
    "claim": (lambda store: store.cursors.save("c", {"/a": 5}, {"/a": 0}), "consumers/c"),
    "read-only": (lambda store: store.set_storage(3, read_only=True), "nodes/0000000003"),
    "drain": (lambda store: store.say_rebuild(3, "drain"), "rebuilding/set"),
    "rebalance": (lambda store: store.rebalance((Transfer(3, 4, PARTS // 2),)), "rebuilding/set"),
    "autorecovery": (
        lambda store: store.ledgers.switch_autorecovery(on=False),
        "ledger-autorecovery",
    ),
    "maintenance": (
        lambda store: store.apply_maintenance([3], reason="a disk", user="me"),
        "maintenance",
    ),
    "ledger": (lambda store: store.ledgers.create(ledger=7), "ledgers/00/0000/L0007"),
    "no ledger": (lambda store: store.ledgers.delete(7), "deleted-ledgers/00/0000/L0000"),
}
"""Calls that change something, and the entry of the metadata store that tells so."""

READS = ("Ask", "Find", "List", "Read", "Ping")
"""How the names of calls begin that change nothing, or what the next look-up finds."""

OF_NODES = {
    "Seal", "Clean", "Yield", "TellNodesets", "TellProducers", "TellLac", "OpenMainStorage",
}  # fmt: skip
GO_BY_THEMSELVES = {"JoinConsumer", "BeatConsumer", "LeaveConsumer", "AllotLedgerId"}
WITH_RULES_OF_THEIR_OWN = {
    "StageBlock", "PinStaged", "Unstage", "PlaceStaged", "BeginPublish", "CommitPublish",
    "FinishPublish", "AddEntries", "ForceEntries",
}  # fmt: skip


def bug(name: str) -> AbstractContextManager[object]:
    return planted(find_bug(name)) if name else nullcontext()


def wrong(name: str) -> AbstractContextManager[object]:
    return pytest.raises(AssertionError) if name else nullcontext()


def now() -> float:
    return asyncio.get_running_loop().time()


def test_each_call_is_a_change_or_is_told_why_it_is_none() -> None:
    names = {each.__name__ for each in get_args(Call)}
    changes = {each.__name__ for each in CHANGES}
    reads = {name for name in names if name.startswith(READS)}
    others = OF_NODES | GO_BY_THEMSELVES | WITH_RULES_OF_THEIR_OWN
    assert not changes & (reads | others)
    assert changes | reads | others == names


def count_tries(store: Store) -> list[Call]:
    """Calls of this client to any node, from now on."""
    tries: list[Call] = []
    right = store._cluster.ask_any

    def ask_any(message: Call, **options: Any) -> Awaitable[Reply]:
        tries.append(message)
        return right(message, **options)

    store._cluster.ask_any = ask_any  # type: ignore[method-assign]
    return tries


async def closed_once(store: Store, is_done: Callable[[], bool], given: Give) -> CordwoodError:
    """How a call ends whose client is closed as soon as it is done."""
    call = asyncio.ensure_future(given(store))
    while not is_done():
        await asyncio.sleep(0.0001)
        assert not call.done()
    tries = count_tries(store)
    began = now()
    await store.close()
    with pytest.raises(CordwoodError) as ended:
        await call
    assert now() - began < CLOSE_S
    assert not tries, "it was made again"
    return ended.value


@pytest.mark.parametrize(
    ("name", "bug_name"),
    [
        *((name, "") for name in GIVEN),
        ("delete", "closed-amid-a-call"),
        ("claim", "closed-amid-a-call"),
    ],
)
def test_a_change_whose_client_is_closed_before_its_answer_has_an_unknown_outcome(
    name: str, bug_name: str
) -> None:
    """It was told `Closed`: nothing was done. The log was gone, or nobody had the records."""
    given, entry = GIVEN[name]

    async def scenario(cluster: ClusterAtHand) -> None:
        values = cluster.metadata.data.values

        def present() -> bytes | None:
            return values[entry].value if entry in values else None

        async with cluster.client() as operator, cluster.client(timeout_s=5) as store:
            await operator.append("/a", b"1")
            await asyncio.sleep(2)
            before = present()
            error = await closed_once(store, lambda: present() != before, given)
            assert isinstance(error, OutcomeUnknown), error
            assert error.is_outcome_unknown

    with bug(bug_name), wrong(bug_name):
        simulate(scenario, nodes=5)


@pytest.mark.parametrize("bug_name", ["", "closed-between-nodes"])
def test_so_has_a_change_whose_client_is_closed_before_it_asks_another_node(bug_name: str) -> None:
    """The node had done it and died. The client was closed while it waited for another node."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as store:
            await store.append("/a", b"1")
            await asyncio.sleep(2)
            call = asyncio.ensure_future(store.log_tree.delete("/a"))
            while "logs/a" in cluster.metadata.data.values:  # noqa: ASYNC110 - an entry has no event
                await asyncio.sleep(0.0001)
            cluster.kill(1)
            while store._cluster.peers.up:  # noqa: ASYNC110 - nor has a lost connection
                await asyncio.sleep(0.001)
            await store.close()
            with pytest.raises(CordwoodError) as ended:
                await call
            assert isinstance(ended.value, OutcomeUnknown), ended.value

    with bug(bug_name), wrong(bug_name):
        simulate(scenario, nodes=1, copies=1)


def test_a_question_and_a_change_that_was_not_sent_end_as_closed() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("/a", b"1")
            for number in cluster.running:
                cluster.machine(number).pause()
            asks = asyncio.ensure_future(store.logs())
            await asyncio.sleep(0.1)
            await store.close()
            for call in (asks, store.log_tree.delete("/a"), store.create_log("/b")):
                with pytest.raises(Closed) as ended:
                    await call
                assert not ended.value.is_outcome_unknown

    simulate(scenario)


@pytest.mark.parametrize("bug_name", ["", "closed-amid-a-call"])
def test_a_blocking_change_whose_client_is_closed_has_an_unknown_outcome_too(
    bug_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_done = threading.Event()
    right = LogTree.delete

    async def done_and_no_answer(*args: object) -> object:
        await right(*args)  # type: ignore[arg-type]
        is_done.set()
        await asyncio.sleep(60)
        return None

    with bug(bug_name), wrong(bug_name):
        store = connect_blocking(tmp_path / "store")
        store.append("/a", b"1")
        swap(monkeypatch, LogTree.delete, done_and_no_answer)
        ends: list[CordwoodError] = []

        def delete() -> None:
            try:
                store.log_tree.delete("/a")
            except CordwoodError as error:
                ends.append(error)

        thread = threading.Thread(target=delete)
        thread.start()
        assert is_done.wait(10)
        store.close()
        thread.join(10)
        assert [type(each) for each in ends] == [OutcomeUnknown]

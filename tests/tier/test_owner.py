"""A store names the cluster that owns it. An ordinary look asks for nothing else, and an empty
store is marked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from test_uploader import on_quiet_store

from cordwood.errors import AccessDenied, BadSetting, OutcomeUnknown, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.object_names import OWNER
from cordwood.metadata.main_storage import MainStorageNotes
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import NodeId
from cordwood.sim.object_store import Bucket
from cordwood.sim.streams import stream
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.owner import OwnerMark, check_owner, mark_owner

OURS, THEIRS = "aa" * 16, "bb" * 16


@dataclass
class Cluster:
    """A cluster without logs, which counts how often they are read."""

    name: str = OURS
    metadata: MemoryMetadata = field(default_factory=lambda: MemoryMetadata(Random(1)))
    reads: int = 0

    def notes(self, node: int = 1) -> MainStorageNotes:
        return MainStorageNotes(self.metadata, NodeId(node), "/mnt/history")

    def started(self, node: int = 1) -> OwnerMark:
        """The mark as a node keeps it that has just started."""
        return OwnerMark(self.notes(node), NodeId(node), self._read_name, self._read_made)

    async def _read_name(self) -> str:
        return self.name

    async def _read_made(self) -> dict[int, int]:
        self.reads += 1
        return {}


async def act(store: ObjectStore, host: Host) -> None:
    cluster = Cluster()
    mark = cluster.started()
    assert await mark.keep(store, False)
    assert cluster.reads == 1, "the store named nobody"
    cluster.metadata.is_out = True
    for _ in range(3):
        assert await mark.keep(store, True), "each look would read the metadata"
    assert cluster.reads == 1, "each look would read all logs of the cluster"
    with pytest.raises(BadSetting, match="belongs to cluster aa"):
        await Cluster(THEIRS).started().keep(store, False)


async def act_emptied(store: ObjectStore, host: Host) -> None:
    with pytest.raises(BadSetting, match="is it unmounted"):
        await Cluster().started().keep(store, True)
    assert await Cluster().started().keep(store, False), "empty, and never named this cluster"


async def act_restarted(store: ObjectStore, host: Host) -> None:
    cluster = Cluster()
    assert await cluster.started(1).keep(store, False)
    await store.delete([OWNER], timeout_s=60)
    for node in (1, 2):
        with pytest.raises(BadSetting, match=r"Node 1 saw it marked at /mnt/history"):
            await cluster.started(node).keep(store, False)
    assert await mark_owner(store, OURS), "`cordwood tier mark`"
    assert await cluster.started(2).keep(store, False)


async def act_older(store: ObjectStore, host: Host) -> None:
    """The mark is there, and the metadata say nothing of it."""
    assert await mark_owner(store, OURS)
    cluster = Cluster()
    assert await cluster.started(2).keep(store, False)
    note = await cluster.notes().read()
    assert note is not None
    assert note.is_marked


async def act_two_at_once(store: ObjectStore, host: Host) -> None:
    """Node 1 began, and died before it put the mark: nobody else does, and it goes on later."""
    cluster = Cluster()
    await cluster.notes(1).begin()
    with pytest.raises(Unreachable, match="node 1 marks main storage"):
        await cluster.started(2).keep(store, False)
    assert not await check_owner(store, OURS)
    assert await cluster.started(1).keep(store, False)
    assert await cluster.started(2).keep(store, False)


async def act_refused(store: ObjectStore, host: Host) -> None:
    """A node without the right to write the mark is in no other node's way."""
    cluster = Cluster()

    async def refuse(*arguments: object, **options: object) -> None:
        raise AccessDenied("the store refuses it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put_if", refuse)
        with pytest.raises(AccessDenied):
            await cluster.started(1).keep(store, False)
    assert await cluster.started(2).keep(store, False)


async def act_unanswered(store: ObjectStore, host: Host) -> None:
    """Node 1's mark is there, and its answer is lost. Node 2 has the store unmounted."""
    cluster = Cluster()
    put_if = store.put_if

    async def put_unanswered(*arguments: Any, **options: Any) -> None:
        await put_if(*arguments, **options)
        raise OutcomeUnknown("no answer within 60 s")

    first = cluster.started()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put_if", put_unanswered)
        with pytest.raises(OutcomeUnknown):
            await first.keep(store, False)
    note = await cluster.notes().read()
    assert note is not None
    assert not note.is_marked
    with pytest.raises(Unreachable, match="node 1 marks main storage"):
        await cluster.started(2).keep(Bucket(stream(1, "empty")).store(), False)
    assert await first.keep(store, False)
    assert await cluster.started(2).keep(store, False)


def test_all_logs_are_read_only_for_a_store_that_names_nobody() -> None:
    on_quiet_store(act)


def test_an_emptied_store_is_not_named_again() -> None:
    on_quiet_store(act_emptied)


def test_nor_by_a_node_that_started_since() -> None:
    on_quiet_store(act_restarted)


def test_a_mark_from_before_there_were_notes_is_noted() -> None:
    on_quiet_store(act_older)


def test_one_of_two_nodes_marks_it() -> None:
    on_quiet_store(act_two_at_once)


def test_a_mark_whose_answer_is_lost_keeps_its_note() -> None:
    on_quiet_store(act_unanswered)


def test_a_node_that_cannot_mark_it_leaves_it_to_another() -> None:
    on_quiet_store(act_refused)

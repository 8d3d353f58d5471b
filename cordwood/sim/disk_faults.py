"""Faults of disks that a node meets when it starts: errors, and files changed from outside.

Source: docs/sources/reliability.md §5.1 (latent sector errors, truncate, zero-fill); BookKeeper's
and NATS's losses to files that were shorter than they had been (§2).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.host.seams import DISK_BLOCK_BYTES
from cordwood.nodes import NodeId
from cordwood.sim.damage import WAL_PATH, zero_wal
from cordwood.sim.disk import DISK_BYTES
from cordwood.sim.network_faults import Undo
from cordwood.sim.stored_tree import StoredTree

if TYPE_CHECKING:
    from cordwood.sim.fault_kinds import Stage

ERRORS_MAX = 3
"""Operations in a row that fail. The first failure ends the start, the others end later starts."""

OLDER_AFTER_S = (0.3, 1.2)
"""Time from a disk's copy to the start on that copy. In between the node starts and stores some
records."""


def read_error(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Sectors that cannot be read while a node starts: it must not regard them as empty."""
    for node in nodes:
        disk = stage.cluster.machine(node).disk
        _restart(stage, node)
        disk.fail("read", errno.EIO, times=chance.randint(1, ERRORS_MAX))
    return lambda: _quiet(stage, nodes)


def file_error(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Small files (the identity, a table's) that cannot be read or written when a node starts."""
    for node in nodes:
        disk = stage.cluster.machine(node).disk
        _restart(stage, node)
        code = chance.choice((errno.EIO, errno.ENOSPC))
        disk.fail("file", code, times=chance.randint(1, ERRORS_MAX))
    return lambda: _quiet(stage, nodes)


def full_disk(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Foreign files leave almost no free space: nodes take no new records."""
    disks = [stage.cluster.machine(node).disk for node in nodes]
    for disk in disks:
        disk.free_bytes = chance.choice((0, 100 << 20))

    def free() -> None:
        for disk in disks:
            disk.free_bytes = DISK_BYTES // 2

    return free


def truncated_wal(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """A node is started on a WAL that lost its end. It must not run, and gets its own WAL back."""
    cluster = stage.cluster
    own = {
        node: stage.own_disks.setdefault(node, cluster.machine(node).disk.tree) for node in nodes
    }
    for node, tree in own.items():
        cut = tree.copy()
        try:
            file = cut.file(WAL_PATH)
        except OSError:
            continue  # the node never ran long enough to have one
        file.size = DISK_BLOCK_BYTES * chance.randrange(file.size // DISK_BLOCK_BYTES)
        cluster.give_disk(node, cut, own=False)
        cluster.start(node)

    def give_back() -> None:
        for node, tree in own.items():
            cluster.give_disk(node, tree, own=True)
            cluster.start(node)

    return give_back


def older_disk(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """A node is started on a copy of its disk from before its last start, as from a restored

    snapshot. It must not run on the copy, and gets its own disk back.
    """
    cluster = stage.cluster
    own = {
        node: stage.own_disks.setdefault(node, cluster.machine(node).disk.tree) for node in nodes
    }
    copies: dict[NodeId, StoredTree] = {}
    for node in nodes:
        if cluster.machine(node).disk.tree is own[node]:
            cluster.kill(node)
            copies[node] = own[node].copy()
            cluster.start(node)
    given: list[NodeId] = []

    def give_copies() -> None:
        for node, copy in copies.items():
            # The copy is older than the directory only if a later start came as far as running.
            if node in cluster.running and cluster.machine(node).disk.tree is own[node]:
                cluster.give_disk(node, copy, own=False)
                cluster.start(node)
                given.append(node)

    timer = stage.simulation.loop.call_later(chance.uniform(*OLDER_AFTER_S), give_copies)

    def give_back() -> None:
        timer.cancel()
        for node in given:
            cluster.give_disk(node, own[node], own=True)
            cluster.start(node)

    return give_back


def zeroed_wal(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Blocks of a stopped node's WAL read as zeros, where its records were durable."""
    for node in nodes:
        stage.cluster.kill(node)
    for disk in stage.own_disks_of(nodes):
        zero_wal(disk, chance)
    return lambda: _start_down(stage, nodes)


def _restart(stage: Stage, node: NodeId) -> None:
    stage.cluster.kill(node)
    stage.cluster.start(node)


def _quiet(stage: Stage, nodes: Sequence[NodeId]) -> None:
    """Take back faults that have not struck, and restart nodes that gave up."""
    for node in nodes:
        stage.cluster.machine(node).disk.forgive("read")
        stage.cluster.machine(node).disk.forgive("file")
    stage.cluster.restart_failed(nodes)


def _start_down(stage: Stage, nodes: Sequence[NodeId]) -> None:
    for node in nodes:
        if not stage.cluster.machine(node).is_up:
            stage.cluster.start(node)

"""Retention goes by the blocks of a part that count, whatever recoveries left there."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from made_blocks import LOG, Made, at, block, made_host, run, turns

from cordwood.block import BlockKind
from cordwood.layout.logs_db import LogState
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import ESN_MAX
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.logs_db.index_search import last_counted
from cordwood.storage.space.retention import Retention


class Tree:
    """A log tree of one log."""

    def __init__(self, **attributes: Any) -> None:
        self._info = SimpleNamespace(log_id=LOG, attributes=LogAttributes(**attributes))

    async def changes(self) -> int:
        return 1

    async def list(self, *, only_readable: bool) -> list[Any]:
        return [self._info]


class Plenty:
    """The whole log has more than any bound, above every LSN."""

    async def above(self, log: int, lsns: Sequence[int]) -> list[int]:
        return [1 << 60 for _ in lsns]


async def trimmed(seal: int) -> int:
    """Where a node trims that has an old bridge of epoch 2 by the recovery `seal`, and was told
    that epoch 4 recovered epoch 2, with records up to e2n57 that others hold."""
    made = await Made.new()
    bridge = block(at(1, 2), kind=BlockKind.BRIDGE, seal=seal)
    state = LogState(released=at(3, 4))
    await made.engine.logs.flush([bridge], {LOG: state}, 1, 1)
    for epoch in (1, 2, 3):
        await made.engine.purge(LOG, epoch, 4, at(57 if epoch == 2 else 0, epoch))
    made.engine.release(LOG, at(3, 4))
    await turns()
    clock = made_host(made.disk).clock
    tree = cast(Any, Tree(backlog_s=15.0))
    await Retention(made.engine, tree, clock, StorageSettings(), lambda: 3, Plenty()).look()
    return made.engine.trim_of(LOG)


def test_a_bridge_that_does_not_count_trims_no_younger_record() -> None:
    """Seed 22001367. A recovery that was overtaken left its bridge on one node, dated as the
    epoch before; the one that came after it kept 57 young records in its place. They were trimmed
    by the age of that bridge, seconds after they were appended."""
    assert run(lambda: trimmed(3)) == 0
    with planted(find_bug("trims-by-what-is-dead")):
        assert run(lambda: trimmed(3)) == at(ESN_MAX, 2)
    assert run(lambda: trimmed(4)) == at(ESN_MAX, 2), "one that counts is old indeed"


def test_nor_where_a_log_has_too_many_bytes() -> None:
    young = 1 << 60
    newer = [block(at(n, 4), bytes(5_000), time_us=young) for n in (1, 2)]
    by_size = Tree(backlog_bytes=1, replicate_across={"node": 3})

    async def scenario(seal: int) -> int:
        made = await Made.new(storage=StorageSettings(partition_age_s=1.0))
        logs = made.engine.logs
        state = {LOG: LogState(released=at(2, 4))}
        await logs.flush([block(at(1, 2), kind=BlockKind.BRIDGE, seal=seal)], state, 1, 1)
        await logs.flush(newer, state, 2, 60_000_000)
        assert len(logs.partitions) == 2
        for epoch in (1, 2, 3):
            await made.engine.purge(LOG, epoch, 4, at(57 if epoch == 2 else 0, epoch))
        made.engine.release(LOG, at(2, 4))
        clock = made_host(made.disk).clock
        tree = cast(Any, by_size)
        await Retention(made.engine, tree, clock, StorageSettings(), lambda: 3, Plenty()).look()
        return made.engine.trim_of(LOG)

    assert run(lambda: scenario(3)) == 0
    assert run(lambda: scenario(4)) == at(ESN_MAX, 2)


COPIES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=30, unique=True
)
"""The LSNs of blocks within an epoch, and which recovery wrote each; 0 for its sequencer."""


@given(copies=COPIES, counting=st.sets(st.integers(0, 3)))
@settings(max_examples=100, deadline=None)
def test_the_last_that_counts_is_found_behind_any_that_do_not(
    copies: list[tuple[int, int]], counting: set[int]
) -> None:
    async def scenario() -> int:
        made = await Made.new()
        blocks = [block(at(esn), b"body", seal=seal) for esn, seal in copies]
        await made.engine.logs.flush(blocks, {LOG: LogState()}, 1, 1)
        ((partition, entry),) = await made.engine.logs.directory(LOG)
        return await last_counted(
            made.engine.logs.tables, partition, LOG, entry, lambda _, seal, wave: seal in counting
        )

    wanted = max((at(esn) for esn, seal in copies if seal in counting), default=0)
    assert run(scenario) == wanted

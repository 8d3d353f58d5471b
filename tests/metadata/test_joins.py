"""What a node notes as it joins, in the metadata store."""

from __future__ import annotations

import pytest
from metadata_play import run_patiently
from scenarios import as_scenario

from cordwood.errors import Malformed
from cordwood.metadata.joins import Joins
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import NodeId
from cordwood.protocol.event_log import replay
from cordwood.rebuilding import NeedsRebuild, RebuildingSet

LOST = replay([(10, NeedsRebuild(3, (1, 2, 3)))])


@as_scenario("pair")
async def test_the_first_note_of_a_node_that_knows_an_entry_stays(one, other) -> None:
    joins = Joins(one)
    await joins.note(NodeId(4), RebuildingSet(through=7))
    assert await joins.read() == {}
    await joins.note(NodeId(4), LOST)
    await joins.note(NodeId(4), replay([(30, NeedsRebuild(2, (1, 2, 3)))]))
    await joins.note(NodeId(12), LOST)
    assert await Joins(other).read() == {4: 10, 12: 10}


def test_what_a_later_version_noted_counts_and_noise_does_not(memory: MemoryMetadata) -> None:
    async def main() -> None:
        joins = Joins(memory)
        version = await memory.compare_and_set("joined/4", b'{"through":9,"more":1}', 0)
        assert await joins.read() == {4: 9}
        for value in (b"", b"[]", b'{"through":-1}', b"{}"):
            version = await memory.compare_and_set("joined/4", value, version)
            with pytest.raises(Malformed):
                await joins.read()

    run_patiently(main())

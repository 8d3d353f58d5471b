"""Settings: relations between numbers are checked when they are made."""

from __future__ import annotations

import msgspec
import pytest

from cordwood.errors import BadSetting
from cordwood.local_cluster import ClusterShape
from cordwood.nodes import NodeId
from cordwood.settings import (
    MIB,
    ClientSettings,
    NodeSettings,
    SequencerSettings,
    StorageSettings,
)


def node(**changes: object) -> NodeSettings:
    return NodeSettings(NodeId(1), "data", "metadata", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("record_bytes_max", [400_000, 2 * MIB, 33 * MIB])
def test_a_run_and_a_block_fit_a_wal_record_together(record_bytes_max: int) -> None:
    """In a WAL of 8 MiB a mended tail did not, and the nodes that refused it were dead."""
    fitted = SequencerSettings().fitted_to(record_bytes_max)
    assert fitted.run_bytes + fitted.block_bytes_max <= record_bytes_max * 7 // 8
    roomy = SequencerSettings().fitted_to(64 * MIB)
    assert roomy == SequencerSettings()


@pytest.mark.parametrize(
    "make",
    [
        lambda: node(refresh_s=0),
        lambda: node(weight=-1),
        lambda: NodeSettings(NodeId(0), "", ""),
        lambda: NodeSettings(NodeId(2**32), "", ""),
        lambda: StorageSettings(MIB - 1),
        lambda: StorageSettings(wal_budget="gp2"),
        lambda: StorageSettings(wal_budget="3000"),
        lambda: StorageSettings(wal_budget="0,125"),
        lambda: SequencerSettings(esns=0),
        lambda: SequencerSettings(block_bytes_max=6 * MIB + 1),
        lambda: SequencerSettings(store_timeout_s=9, store_timeout_max_s=8),
        lambda: ClientSettings(timeout_s=0),
        lambda: ClientSettings(codec="gzip"),
        lambda: ClientSettings(block_records=65_537),
        lambda: ClientSettings(block_bytes=0),
        lambda: ClusterShape(nodes=0),
        lambda: ClusterShape(nodes=3, racks=4),
        lambda: ClusterShape(nodes=2, racks=2),
        lambda: ClusterShape(nodes=3, racks=1),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_name(make) -> None:
    with pytest.raises(BadSetting, match=r"\w"):
        make()


def test_the_defaults_agree_with_one_another() -> None:
    node()
    ClientSettings()
    ClusterShape()


@pytest.mark.parametrize(
    ("nodes", "racks", "copies", "copy_racks", "expected"),
    [
        (5, 3, 3, 2, True),  # two are lost: three nodes in two racks are left
        (6, 3, 3, 2, True),
        (4, 3, 3, 2, False),  # two are lost: two nodes cannot have three copies
        (5, 2, 3, 2, False),  # the two nodes of rack 2 are lost: one rack is left
        (6, 2, 3, 2, True),
        (4, 4, 3, 3, False),
        (5, 5, 3, 3, True),
        (3, 3, 2, 2, True),
        (3, 2, 2, 2, False),  # the only node of rack 2
        (2, 2, 2, 2, False),
        (9, 3, 1, 1, False),  # with one copy a lost node takes events along
    ],
)
def test_a_new_cluster_can_keep_its_event_log_with_all_but_one_copy_lost(
    nodes: int, racks: int, copies: int, copy_racks: int, *, expected: bool
) -> None:
    shape = ClusterShape(nodes, racks, copies, copy_racks)
    assert shape.keeps_event_log() is expected
    assert shape.replicated_events is None, "a shape leaves it to the maker of the cluster"


def test_a_node_by_itself_moves_no_events() -> None:
    assert not node().replicated_events


def test_a_budget_that_is_none_is_refused_with_what_is_one() -> None:
    with pytest.raises(BadSetting, match=r"storage\.wal_budget: .*'fast'.* gp3, or IOPS,MIB_PER_S"):
        StorageSettings(wal_budget="fast")


def test_a_node_s_budget_travels_with_its_settings() -> None:
    told = node(storage=StorageSettings(wal_budget="500,60.5"))
    assert msgspec.json.decode(msgspec.json.encode(told), type=NodeSettings) == told

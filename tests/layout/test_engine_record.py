"""What a node writes into its WAL: golden bytes, round trips, and what is none of ours."""

from __future__ import annotations

import pytest

from cordwood.block import BlockHeader, Envelope, Produced, ProducedBlock
from cordwood.errors import Malformed
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.engine_record import (
    AMEND_KIND,
    STORE_KIND,
    AmendRecord,
    CleanRecord,
    NodesetsRecord,
    ProducedRecord,
    SealRecord,
    TierRecord,
    TrimRecord,
    pack_clean,
    pack_nodes,
    pack_produced_record,
    pack_seal,
    pack_tier,
    pack_trim,
    read_engine_record,
)
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.nodesets import pack_nodesets
from cordwood.layout.produced import pack_produced
from cordwood.layout.waves import store_head

SEAL = SealRecord(log=0x0102, epoch=7)
NODES = NodesetsRecord(0x0102, 7, pack_nodesets([EpochNodes(1, [1, 2, 3], 3, 2)]))
PRODUCED = ProducedRecord(
    0x0102, 7, 55, pack_produced([Produced(9, 2, (ProducedBlock(3, 4, (7 << 32) + 1, 5),))])
)
CLEAN = CleanRecord(log=0x0102, epoch=6, seal=7, lng=(6 << 32) | 0x99, attempt=3)


def test_golden_bytes() -> None:
    assert pack_seal(SEAL).hex() == "02020100000000000007000000"
    assert pack_clean(CLEAN).hex() == "0302010000000000000600000007000000990000000600000003000000"


def test_marks_come_back() -> None:
    assert read_engine_record(memoryview(pack_seal(SEAL))) == SEAL
    assert read_engine_record(memoryview(pack_clean(CLEAN))) == CLEAN
    assert read_engine_record(memoryview(pack_nodes(NODES))) == NODES
    assert read_engine_record(memoryview(pack_produced_record(PRODUCED))) == PRODUCED


def test_nodesets_are_read_as_they_were_kept() -> None:
    with pytest.raises(Malformed, match="nodesets cannot be read"):
        read_engine_record(memoryview(pack_nodes(NODES)[:-1]))


def test_producers_are_read_as_they_were_told() -> None:
    with pytest.raises(Malformed, match="list of producers"):
        read_engine_record(memoryview(pack_produced_record(PRODUCED)[:-1]))


def test_amends_have_a_kind_of_their_own() -> None:
    header = BlockHeader(5, (3 << 32) + 1, 1, 0, stored_bytes=9)
    head = pack_header(header) + pack_envelope(Envelope((1, 2)))
    record = read_engine_record(memoryview(AMEND_KIND + store_head(1, 4, amends=True) + head))
    assert isinstance(record, AmendRecord)
    assert (record.seal_epoch, [bytes(b.wire) for b in record.blocks]) == (4, [head])
    assert AMEND_KIND == b"\x09"
    for kind, amends in ((AMEND_KIND, False), (STORE_KIND, True)):
        with pytest.raises(Malformed, match="field out of its range"):
            read_engine_record(memoryview(kind + store_head(1, 4, amends=amends) + head))


def test_a_store_is_checked_as_its_frame_was() -> None:
    with pytest.raises(Malformed, match="field out of its range"):
        read_engine_record(memoryview(STORE_KIND + store_head(0, seal_epoch=3)))
    with pytest.raises(Malformed, match="too short"):
        read_engine_record(memoryview(STORE_KIND))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\0", b"\4" + bytes(12), pack_nodes(NODES)[:13], pack_produced_record(PRODUCED)[:20],
        pack_seal(SEAL)[:-1], pack_seal(SEAL) + b"\0", pack_clean(CLEAN)[:-1],
    ],
)  # fmt: skip
def test_what_is_none_of_ours_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"kind \d+ with \d+ bytes"):
        read_engine_record(memoryview(body))


def test_a_trim_comes_back() -> None:
    record = TrimRecord(7, (3 << 32) + 9, (3 << 32) + 12)
    assert read_engine_record(memoryview(pack_trim(record))) == record
    tiered = TierRecord(*record)
    assert read_engine_record(memoryview(pack_tier(tiered))) == tiered

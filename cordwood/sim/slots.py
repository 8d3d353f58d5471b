"""The marks of payloads, and of the blocks that hold them, in a history."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from cordwood.sim.event import Crc, EpochValue, LsnValue


class PayloadMark(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The mark of a payload in a history.

    Attributes:
        id: `client/sequence`, None if the bytes did not identify.
        crc: CRC32C of all its bytes.
        length: its bytes.
    """

    id: str | None
    crc: Crc
    length: Annotated[int, msgspec.Meta(ge=0)]


class SlotKind(enum.Enum):
    """The kind of a block that a node holds."""

    DATA = "data"
    HOLE = "hole"
    BRIDGE = "bridge"


class DumpedSlots(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One block on a node's disk.

    Attributes:
        first, last: its LSNs, both ends included.
        kind: data, hole or bridge.
        payloads: one mark for each record of a data block, () if the body was not decoded.
        crc: CRC32C of the uncompressed body, 0 for plugs.
        intact: whether every check of this copy passed.
        seal_epoch: epoch of the recovery that wrote it, 0 if a sequencer did.
        wave: 1 for the first try to store it.
        copyset: the nodes that its envelope names; () if no checker uses it.
        set_aside: whether the copy does not count, because other nodes have all the copies that
            there should be.
    """

    first: LsnValue
    last: LsnValue
    kind: SlotKind
    payloads: tuple[PayloadMark, ...] = ()
    crc: Crc = 0
    intact: bool = True
    seal_epoch: EpochValue = 0
    wave: int = 1
    copyset: tuple[int, ...] = ()
    set_aside: bool = False

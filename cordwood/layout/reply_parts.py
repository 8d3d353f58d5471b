"""Replies as MessagePack, in parts: a run of a ledger's entries stays where it lies in memory.

Source: MessagePack's specification ("bin 32"); docs/protocol/ledgers.md.
"""

from __future__ import annotations

import struct

from cordwood.block import Buffer
from cordwood.layout.message import Reply, pack
from cordwood.layout.message_ledgers import RunReply, SentRun

_NOTHING = memoryview(b"")
_NO_BYTES = b"\xc4\x00"
_BIN_32 = 0xC6
_BINARY = struct.Struct(">BI")


def pack_reply(reply: Reply) -> tuple[Buffer, ...]:
    """A reply in parts. Joined, they are equal to the bytes that `pack` returns."""
    if not isinstance(reply, SentRun):
        return (pack(reply),)
    # The last field is binary data: its length, then the bytes.
    head = pack(RunReply(reply.count, reply.lac, _NOTHING))[: -len(_NO_BYTES)]
    size = sum(map(len, reply.parts))
    return head + _BINARY.pack(_BIN_32, size), *reply.parts

"""A log's metadata log as storage nodes keep it: the nodes that may hold each epoch's records.

MessagePack of a list of `message.EpochNodes`, oldest first, as the sequencer of some epoch
told it: complete for every epoch up to that epoch. Entries wholly below the trim point are
left out; then the first entry stands for all entries that were before it.

Source: docs/sources/logdevice.md 2.8 (an entry covers until the next one's epoch less one, requests
below the first get the first); docs/design.md §6.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cordwood.errors import Malformed
from cordwood.layout.message_logs import EpochNodes

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[EpochNodes])


def pack_nodesets(history: Sequence[EpochNodes]) -> bytes:
    """Encode a node's history."""
    return _encoder.encode(list(history))


def read_nodesets(packed: bytes) -> list[EpochNodes]:
    """Decode a node's history; empty for no bytes.

    Raises:
        Malformed: it is not Cordwood's, nested too deep, or a name in it is not UTF-8.
    """
    if not packed:
        return []
    try:
        return _decoder.decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"a log's nodesets cannot be read: {error}") from error


def untrimmed(history: Sequence[EpochNodes], trim: int) -> list[EpochNodes]:
    """The entries that cover an LSN above `trim`."""
    lasts = [each.since - 1 for each in history[1:]]
    gone = sum(last < trim >> 32 for last in lasts)
    return list(history[gone:])

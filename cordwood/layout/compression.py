"""Compressing a body as a whole, and inflating it without trusting it.

Only clients compress and inflate; servers pass bodies on as they are. The stored bytes come from
the network or a disk, so their claimed size is checked against the block header before any
allocation:

- zstd: one frame with its content size in it, no dictionary, nothing after it. The library
  allocates the claimed size even if it is above a given maximum, so `inflate` reads and compares
  the claimed size first.
- lz4: one bare block, without the size prefix that python-lz4 writes by default. The size is the
  header's `raw_bytes`, so there is no second size that could differ.

Source: docs/design.md §2 ("a decoder bounds what it will inflate").
"""

from __future__ import annotations

import lz4.block
import zstandard

from cordwood.block import Buffer, Codec
from cordwood.errors import Malformed
from cordwood.layout.limits import BODY_BYTES_MAX

ZSTD_LEVEL = 1
"""546 MB/s on log text against 389 at level 3, for nearly the same ratio (docs/sources/hotpath.md
§4)."""


def compress(raw: bytes, codec: Codec) -> bytes:
    """Compress a body. The result may be larger than `raw`; the caller decides which of the two it
    keeps.

    A zstd context takes 9 µs to make, so it does not pay to compress bodies of less than some KiB.
    """
    if codec is Codec.ZSTD:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw)
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(raw, store_size=False)
        return packed
    return raw


def inflate(stored: Buffer, codec: Codec, raw_bytes: int) -> Buffer:
    """Undo `compress`, allocating `raw_bytes` at most.

    Returns:
        Exactly `raw_bytes` bytes; `stored` itself if it is not compressed.
    Raises:
        Malformed: `raw_bytes` is over BODY_BYTES_MAX, the stream is bad, or it holds
            more or less than `raw_bytes`.
    """
    if not 0 <= raw_bytes <= BODY_BYTES_MAX:
        raise Malformed(f"a body of {raw_bytes} bytes is not from 0 to {BODY_BYTES_MAX}")
    if codec is Codec.ZSTD:
        raw: Buffer = _inflate_zstd(stored, raw_bytes)
    elif codec is Codec.LZ4:
        raw = _inflate_lz4(stored, raw_bytes)
    else:
        raw = stored
    if len(raw) != raw_bytes:
        raise Malformed(f"a {codec.name} body holds {len(raw)} bytes, its header says {raw_bytes}")
    return raw


def _inflate_zstd(stored: Buffer, raw_bytes: int) -> bytes:
    try:
        frame = zstandard.get_frame_parameters(stored)
        if frame.content_size != raw_bytes or frame.dict_id:
            raise Malformed(f"a zstd frame that is not for a body of {raw_bytes} bytes")
        return zstandard.ZstdDecompressor(max_window_size=BODY_BYTES_MAX).decompress(
            stored, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise Malformed(f"a bad zstd frame: {error}") from error


def _inflate_lz4(stored: Buffer, raw_bytes: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(stored, uncompressed_size=raw_bytes)
    except lz4.block.LZ4BlockError as error:
        raise Malformed(f"a bad lz4 block: {error}") from error
    return raw

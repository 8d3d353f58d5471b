"""Damage for decoders: every truncation, every bit, splices of valid bytes, and noise.

A decoder may read what is damaged as something else where no checksum covers it, but
whatever it raises is one of ours: anything else would take down more than a connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from cordwood.errors import CordwoodError

Decoder = Callable[[memoryview], Any]


def truncations(data: bytes) -> Iterator[bytes]:
    """Every proper prefix."""
    for size in range(len(data)):
        yield data[:size]


def bit_flips(data: bytes) -> Iterator[bytes]:
    """Every single bit, flipped."""
    for bit in range(8 * len(data)):
        yield flipped(data, bit)


def flipped(data: bytes, bit: int) -> bytes:
    """`data` with one bit flipped."""
    damaged = bytearray(data)
    damaged[bit >> 3] ^= 1 << (bit & 7)
    return bytes(damaged)


@st.composite
def damaged(draw: st.DrawFn, valid: tuple[bytes, ...]) -> bytes:
    """Noise, or valid bytes cut, flipped, overwritten or spliced a few times."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=300))
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        stop = draw(st.integers(at, min(len(data), at + 16)))
        data[at:stop] = draw(st.binary(max_size=16))
    return bytes(data)


def only_ours(decode: Decoder, data: bytes) -> None:
    """Decode; what is raised is ours or the test fails with what was raised."""
    with contextlib.suppress(CordwoodError):
        decode(memoryview(data))

"""Single copies: each byte leaves a disk once and is sent once; all copies: three times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cordwood.bench.read_once import OnceProfile, disk_bytes, read_both_ways
from cordwood.errors import Unreachable

ONCE = 1.05
"""The promise; heads, index entries and envelopes are in it."""


@pytest.mark.slow
def test_each_byte_is_read_and_sent_once_or_by_every_copy(tmp_path: Path) -> None:
    try:
        disk_bytes()
    except Unreachable as error:
        pytest.skip(str(error))
    single, every = asyncio.run(read_both_ways(OnceProfile(blocks=200), str(tmp_path)))
    assert 1.0 <= single.sent <= ONCE
    assert 3.0 <= every.sent <= 3 * ONCE
    if not every.from_disk:
        pytest.skip(f"{tmp_path} lies in memory: nothing is read from a disk")
    assert 1.0 <= single.from_disk <= ONCE
    assert 3.0 <= every.from_disk <= 3 * ONCE

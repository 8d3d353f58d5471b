"""The length of a record's way is counted over client and nodes, and alike each time."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from record_way import measure, room_of


def test_an_append_passes_client_sequencer_and_storage_and_counts_alike_twice():
    first, again = measure(), measure()
    rooms = {room_of(code) for code in first["append"].codes}
    assert {"client", "sequencer", "storage", "wire", "layout"} <= rooms
    assert "sim" not in rooms
    for trip in ("append", "read"):
        assert list(first[trip].figures(trip)) == list(again[trip].figures(trip))
        assert first[trip].files < len(first[trip].codes) < first[trip].calls


def test_a_row_of_spark_passes_spark_and_client():
    rooms = {room_of(code) for code in measure()["row"].codes}
    assert {"spark", "client"} <= rooms

"""The buffered writer of the blocking client, on the embedded store."""

from __future__ import annotations

import datetime
import threading
import time
from pathlib import Path

import pytest

import cordwood
from cordwood.client.append.buffered_writer import WriteMode, WriterOptions
from cordwood.errors import BadSetting, Closed, RecordTooLarge


def test_records_of_many_threads_are_gathered_and_stored(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path) as store:
        options = WriterOptions(mode=WriteMode.STREAM, size_trigger_bytes=1000)
        with store.buffered_writer(options) as writer:
            futures = {}

            def write(name: int) -> None:
                for at in range(50):
                    futures[name, at] = writer.submit("log", b"%d %d" % (name, at), key=b"k")

            threads = [threading.Thread(target=write, args=(name,)) for name in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            writer.flush()
            assert all(future.done() for future in futures.values())
            last = writer.append("log", b"last")
        found = {record.lsn: record.value for record in store.read("log")}
        assert found.pop(last) == b"last"
        assert found == {f.result(): b"%d %d" % which for which, f in futures.items()}
        for name in range(3):
            lsns = [futures[name, at].result() for at in range(50)]
            assert lsns == sorted(lsns)


def test_memory_is_bounded_by_waiting(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path) as store:
        options = WriterOptions(time_trigger_s=0.01, size_trigger_bytes=1000, memory_bytes_max=3000)
        with store.buffered_writer(options) as writer:
            futures = [writer.submit("log", bytes(500)) for _ in range(100)]
        assert len({future.result() for future in futures}) == 100


def test_errors_come_by_the_future_or_at_once(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path) as store:
        writer = store.buffered_writer()
        with pytest.raises(RecordTooLarge):
            writer.append("log", bytes(5 << 20))
        writer.close()
        with pytest.raises(Closed):
            writer.append("log", b"late")


class _LateName(str):
    """A name of a caller's own class, which fails the second time: on the client's thread."""

    __slots__ = ("asked",)

    def encode(self, *_: object) -> bytes:
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 1:
            raise MemoryError
        return b"log"


def test_an_error_that_is_not_ours_reaches_the_future_and_stops_no_record(tmp_path: Path) -> None:
    """The record had left the queue: its future never ended, and records behind it waited for the
    next one."""
    with cordwood.connect(tmp_path) as store, store.buffered_writer() as writer:
        # The loop takes what is handed over meanwhile together.
        store._thread.soon(lambda: time.sleep(0.2))
        failed = writer.submit(_LateName("log"), b"failed")
        behind = writer.submit("log", b"behind")
        with pytest.raises(MemoryError):
            failed.result(5)
        assert behind.result(5)
        assert writer.failed == 1


class _Broken(datetime.tzinfo):
    """A time zone of the caller's own, which fails."""

    def utcoffset(self, _: datetime.datetime | None) -> datetime.timedelta:
        raise ZeroDivisionError


def test_a_time_zone_that_fails_stops_no_record_and_holds_no_room(tmp_path: Path) -> None:
    """It failed on the client's thread: `append` waited for ever, as did records behind it."""
    with cordwood.connect(tmp_path) as store:
        writer = store.buffered_writer()
        when = datetime.datetime(2020, 1, 1, tzinfo=_Broken())
        # The loop takes what is handed over meanwhile together.
        store._thread.soon(lambda: time.sleep(0.2))
        with pytest.raises(ZeroDivisionError):
            writer.submit("log", b"broken", timestamp=when).result(5)
        assert writer.submit("log", b"behind").result(5)
        with pytest.raises(BadSetting, match="a timestamp is"):
            writer.submit("log", b"no time", timestamp="noon")  # type: ignore[arg-type]
        assert writer._memory.bytes == 0

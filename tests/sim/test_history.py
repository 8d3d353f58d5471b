"""The history format: round trips, strictness, and payloads that identify themselves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swaps import swap_value

from cordwood.block import GapKind
from cordwood.errors import (
    BadSetting,
    Fenced,
    Malformed,
    NoSequencer,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
)
from cordwood.lsn import LSN_MAX, make_lsn
from cordwood.sim import (
    end_events,
    events,
    history,
    ledger_events,
    name_events,
    node_events,
    operator_events,
    position_events,
    token_events,
)
from cordwood.sim.history import (
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    DumpedSlots,
    EndReason,
    GapDelivered,
    HistoryRecorder,
    PayloadMark,
    RecordDelivered,
    RunStarted,
    SlotKind,
    from_jsonl,
    identify,
    make_payload,
    mark_payload,
    to_jsonl,
)

CLIENTS = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


class Ticks:
    """A clock that goes on by one microsecond a look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def record_one_of_each() -> HistoryRecorder:
    recorder = HistoryRecorder(Ticks(), copies=2, racks=2, seed=7)
    payload = make_payload("w1", 1, 64, random.Random(1))
    recorder.epoch_taken(1, 1, node=3)
    recorder.node_starting(3, "rack1")
    recorder.node_started(3, incarnation=2)
    first = recorder.append_invoked("w1", 1, [payload, b"\xff\x00"], session=4, timeout_s=2.5)
    second = recorder.append_invoked("w1", 1, [payload])
    third = recorder.append_invoked("w1", 1, [payload], token=5, keys=["k"])
    recorder.append_ok(first, [make_lsn(1, 1), make_lsn(1, 2)])
    recorder.append_raised(second, NoSequencer("nobody"))
    recorder.add(events.AppendAgain(recorder.now_us, third, "Fenced", 3))
    recorder.append_raised(third, OutcomeUnknown("lost"))
    recorder.released(1, make_lsn(1, 2), by="e1@3")
    recorder.tail_answered("w1", 1, make_lsn(1, 2), invoked_us=5)
    recorder.disk_given(3, own=False)
    recorder.block_stored(3, 1, make_lsn(1, 1), make_lsn(1, 2))
    recorder.idled(3, 2.5, 100)
    recorder.node_scrubbed(1, 7, 2, [(5, 9)], [(5, 5)])
    recorder.group_changed("g", 2, {"/log": ("m1", 1)}, {"/log": make_lsn(1, 2)})
    recorder.positions_saved("g", "m1", {"/log": make_lsn(1, 2)}, invoked_us=0)
    recorder.add(events.PositionsReset(recorder.now_us, "g", {"/log": make_lsn(1, 2)}, 3))
    recorder.add(position_events.TrimAsked(recorder.now_us, "w1", 1, make_lsn(1, 1)))
    recorder.add(position_events.TrimAnswered(recorder.now_us, "w1", 1, make_lsn(1, 1), (1, 3)))
    recorder.add(
        position_events.RetentionTrims(recorder.now_us, 3, 1, make_lsn(1, 1), "time", 5, 6)
    )
    found = (7, make_lsn(1, 2), make_lsn(1, 3), True)
    recorder.add(position_events.TimeFound(recorder.now_us, "w1", 1, *found))
    key_found = ("k", 0, make_lsn(1, 2), make_lsn(1, 3), True)
    recorder.add(position_events.KeyFound(recorder.now_us, "w1", 1, *key_found))
    extent = (1, 2, 7, 3, 8, 4, True, False, 5)
    recorder.add(position_events.ExtentTold(recorder.now_us, "w1", 1, *extent))
    recorder.add(position_events.NodeTrimmed(recorder.now_us, 3, 1, make_lsn(1, 1)))
    recorder.add(position_events.ReleasedTold(recorder.now_us, "w1", 1, make_lsn(1, 1)))
    entry = node_events.EpochsNodes(1, (1, 2, 3), 2)
    recorder.add(node_events.NodesetsKnown(recorder.now_us, 3, 1, 1, (entry,)))
    recorder.add(node_events.Gauged(recorder.now_us, 3, "wal_bytes", 5, 6))
    recorder.add(end_events.NodesLost(recorder.now_us, (1, 2)))
    recorder.add(end_events.EventSetsDiffer(recorder.now_us, (1, 2)))
    recorder.add(end_events.DiskLost(recorder.now_us, 3))
    recorder.add(end_events.DisksReplaced(recorder.now_us, 1, (3,)))
    recorder.add(end_events.RebalanceOver(recorder.now_us, (3,)))
    recorder.add(end_events.StaleServed(recorder.now_us, 3))
    recorder.add(end_events.WordsLeft(recorder.now_us, (3,)))
    recorder.add(end_events.UploadsLeft(recorder.now_us, (2,), (7,)))
    recorder.add(end_events.LedgersLacking(recorder.now_us, True, (7,)))
    recorder.add(end_events.OlderFragmentsLacking(recorder.now_us, (7,), (8,), (8,)))
    recorder.add(end_events.CopiesMended(recorder.now_us, (2,)))
    recorder.add(end_events.NodesBack(recorder.now_us, (1, 2)))
    recorder.add(end_events.PaceBegan(recorder.now_us, "w1", True))
    recorder.add(end_events.PaceEnded(recorder.now_us, "w1"))
    recorder.add(token_events.FenceAsked(recorder.now_us, "w1", 1, 5))
    recorder.add(name_events.NameLeads(recorder.now_us, 3, 0))
    recorder.add(name_events.NamedRead(recorder.now_us, "c", 0, 3, 3, "", [(3, 0)], True))
    recorder.add(name_events.NamedAppend(recorder.now_us, "c", 0, make_lsn(1, 1), found=True))
    recorder.add(name_events.LogMade(recorder.now_us, "c", 3))
    recorder.add(name_events.LogSought(recorder.now_us, 3, False, True, True, is_listed=True))
    recorder.add(ledger_events.LedgerMade(recorder.now_us, "w1", 7))
    mark = mark_payload(payload)
    recorder.add(ledger_events.EntryAdded(recorder.now_us, "w1", 7, 0, mark))
    recorder.add(ledger_events.EntryAcked(recorder.now_us, "w1", 7, 0, 0))
    recorder.add(ledger_events.EntryRefused(recorder.now_us, "w1", 7, 1, "Closed"))
    recorder.add(ledger_events.EntryRead(recorder.now_us, "r1", 7, 0, mark))
    recorder.add(ledger_events.LedgerEnds(recorder.now_us, "w1", 7, -1, 0))
    recorder.add(ledger_events.LedgerAudited(recorder.now_us, "r1", 7, "no time"))
    recorder.add(ledger_events.LedgerChecked(recorder.now_us, "r1", 7, 2, 1, 0))
    recorder.add(token_events.FenceAnswered(recorder.now_us, "w1", 1, 5, 2))
    recorder.add(operator_events.StorageAsked(recorder.now_us, "w1", 3, True))
    recorder.add(operator_events.StorageTold(recorder.now_us, "w1", 3, True))
    recorder.add(operator_events.StorageKnown(recorder.now_us, 3, True, 40))
    kept = operator_events.BlockKept(recorder.now_us, 3, 1, make_lsn(1, 1), make_lsn(1, 2), 39)
    recorder.add(kept)
    slots = (DumpedSlots(make_lsn(1, 1), make_lsn(1, 1), SlotKind.DATA, (), 7),)
    scanned = operator_events.NodeScanned(recorder.now_us, 3, 1, make_lsn(1, 9), slots, False)
    recorder.add(scanned)
    recorder.add(operator_events.LossAccepted(recorder.now_us, 3))
    recorder.add(operator_events.OrderAsked(recorder.now_us, "w1", "autorecovery", "off"))
    recorder.add(operator_events.OrderTold(recorder.now_us, "w1", "autorecovery", "off"))
    recorder.add(operator_events.OrderSeen(recorder.now_us, "w1", "autorecovery", "off"))
    recorder.add(operator_events.RebuildingKnown(recorder.now_us, 3, (2,), 40))
    place = (make_lsn(1, 1), make_lsn(1, 2))
    recorder.add(operator_events.BlockNames(recorder.now_us, 3, 1, *place, (2,), 39))
    recorder.call_failed("w1", "tail", NoSequencer("nobody"))
    recorder.read_started("r1", 1, make_lsn(1, 1), until=make_lsn(1, 9))
    recorder.record_delivered("r1", make_lsn(1, 1), payload)
    recorder.gap_delivered("r1", make_lsn(1, 3), make_lsn(2, 0), GapKind.BRIDGE)
    recorder.read_ended("r1", EndReason.ERROR, OSError("gone"))
    recorder.read_started("r1", 1, LSN_MAX, keys=["k"], heads=True)
    recorder.fault_struck("crash", [3], "SIGKILL")
    recorder.fault_eased("crash", [3])
    recorder.faults_healed()
    recorder.clean_epoch_set(1, 1, tail=make_lsn(1, 2))
    data = DumpedSlots(make_lsn(1, 1), make_lsn(1, 1), SlotKind.DATA, (mark_payload(payload),))
    bridge = DumpedSlots(
        make_lsn(1, 3), make_lsn(1, 3), SlotKind.BRIDGE, seal_epoch=2, intact=False
    )
    recorder.node_dumped(3, "rack1", 1, [data, bridge], tier=make_lsn(1, 1))
    span = make_lsn(1, 1), make_lsn(1, 2)
    recorder.add(events.TierDumped(recorder.now_us, 1, *span, (data,)))
    return recorder


def test_every_kind_of_event_survives_the_file() -> None:
    events = record_one_of_each().events
    assert {type(event) for event in events} == set(history.Event.__args__)
    assert from_jsonl(to_jsonl(events)) == events


def test_a_line_is_one_event_that_a_person_can_read() -> None:
    events = (RunStarted(0), RecordDelivered(5, "r1", make_lsn(1, 2), PayloadMark("w1/3", 9, 64)))
    assert to_jsonl(events).splitlines() == [
        b'{"event":"run-started","time_us":0}',
        b'{"event":"record","time_us":5,"reader":"r1","lsn":4294967298,"payload":["w1/3",9,64]}',
    ]


GOOD = b'{"event":"run-started","time_us":0}\n'


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b'{"event":"healed","time_us":1}\n', 1),
        (b'{"event":"run-started","time_us":0,"format":2}\n', 1),
        (GOOD + b"\n", 2),
        (GOOD + b"{}\n", 2),
        (GOOD + b'{"event":"healed","time_us":1}', 2),
        (GOOD + b'{"event":"healed","time_us":1}\n{"event":"healed","time_us":1.5}\n', 3),
        (GOOD + b'{"event":"healed","time_us":-1}\n', 2),
        (GOOD + b'{"event":"healed","time_us":1,"more":1}\n', 2),
        (GOOD + b'{"event":"unheard-of","time_us":1}\n', 2),
        (GOOD + b'{"event":"append-ok","time_us":1,"op":1,"lsns":[-1]}\n', 2),
        (GOOD + b'{"event":"append-ok","time_us":1,"op":1,"lsns":[9223372036854775808]}\n', 2),
        (GOOD + b'{"event":"append-failed","time_us":1,"op":1,"error":"\xff"}\n', 2),
        (GOOD + b'{"event":"gap","time_us":1,"reader":"r","first":1,"last":2,"kind":"hol"}\n', 2),
        (
            GOOD + b'{"event":"append-invoked","time_us":1,"op":1,"client":"c","log":1,'
            b'"payloads":[]}\n',
            2,
        ),
    ],
)
def test_a_malformed_line_is_named(data: bytes, line: int) -> None:
    with pytest.raises(Malformed, match=rf"^line {line}: "):
        from_jsonl(data)


@given(st.data())
def test_a_history_cut_anywhere_but_after_a_line_is_refused(data: st.DataObject) -> None:
    whole = to_jsonl(record_one_of_each())
    cut = data.draw(st.integers(0, len(whole) - 1))
    if cut and whole[cut - 1] == ord("\n"):
        assert len(from_jsonl(whole[:cut])) == whole[:cut].count(b"\n")
    else:
        with pytest.raises(Malformed):
            from_jsonl(whole[:cut])


def test_errors_end_an_append_by_what_they_say_about_the_record() -> None:
    recorder = HistoryRecorder(Ticks())
    errors = [
        NoSequencer("x"),
        RecordTooLarge("x"),
        OutcomeUnknown("x"),
        Fenced("x"),
        TimeoutError(),
    ]
    for error in errors:
        recorder.append_raised(recorder.append_invoked("c", 1, [b"x"]), error)
    ends = [event for event in recorder if isinstance(event, AppendFailed | AppendUnknown)]
    assert [(type(end).__name__, end.error) for end in ends] == [
        ("AppendFailed", "NoSequencer"),
        ("AppendFailed", "RecordTooLarge"),
        ("AppendUnknown", "OutcomeUnknown"),
        ("AppendUnknown", "Fenced"),
        ("AppendUnknown", "TimeoutError"),
    ]


def test_the_recorder_numbers_calls_and_takes_the_time() -> None:
    recorder = HistoryRecorder(Ticks())
    assert [recorder.append_invoked("c", 1, [b"x"]) for _ in range(3)] == [1, 2, 3]
    recorder.append_ok(2, [make_lsn(1, 1)])
    recorder.gap_delivered("r", make_lsn(1, 1), make_lsn(1, 1), GapKind.HOLE)
    assert [event.time_us for event in recorder] == [1, 2, 3, 4, 5, 6]
    assert recorder.events[1] == AppendInvoked(2, 1, "c", 1, (mark_payload(b"x"),))
    assert recorder.events[4] == AppendOk(5, 2, (make_lsn(1, 1),))
    assert isinstance(recorder.events[5], GapDelivered)
    assert len(recorder) == 6


def test_a_full_recorder_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: history.EVENTS_MAX, 2)
    recorder = HistoryRecorder(Ticks())
    recorder.faults_healed()
    with pytest.raises(Overloaded):
        recorder.faults_healed()


@given(CLIENTS, st.integers(0, 10**19 - 1), st.integers(0, 300), st.integers())
def test_a_payload_identifies_itself(client: str, sequence: int, extra: int, seed: int) -> None:
    size = len(client) + len(str(sequence)) + 11 + extra
    payload = make_payload(client, sequence, size, random.Random(seed))
    assert len(payload) == size
    assert identify(payload) == f"{client}/{sequence}"
    assert identify(memoryview(payload)) == f"{client}/{sequence}"


@given(st.integers(0, 79), st.integers(0, 7))
def test_a_flipped_bit_takes_the_identity(place: int, bit: int) -> None:
    payload = bytearray(make_payload("writer-1", 42, 80, random.Random(place)))
    payload[place] ^= 1 << bit
    assert identify(payload) is None


@given(st.integers(0, 79))
def test_a_cut_or_joined_payload_has_no_identity(length: int) -> None:
    payload = make_payload("writer-1", 42, 80, random.Random(length))
    assert identify(payload[:length]) is None
    assert identify(payload + payload[:1]) is None


@pytest.mark.parametrize(
    ("client", "sequence", "size"),
    [("", 1, 64), ("a b", 1, 64), ("é", 1, 64), ("a" * 65, 1, 200), ("a", -1, 64), ("a", 1, 12)],
)
def test_an_impossible_payload_is_refused(client: str, sequence: int, size: int) -> None:
    with pytest.raises(BadSetting):
        make_payload(client, sequence, size, random.Random(1))

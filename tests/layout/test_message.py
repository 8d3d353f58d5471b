"""Control messages: golden bytes, every message there and back, hostile MessagePack refused."""

from __future__ import annotations

import tracemalloc
import typing

import msgspec
import pytest
from hypothesis import given, settings
from layout_damage import bit_flips, damaged, only_ours, truncations

from cordwood import errors
from cordwood.errors import (
    CordwoodError,
    Fenced,
    Malformed,
    Misplaced,
    NoSequencer,
    OutOfSequence,
    Overloaded,
    RecordTooLarge,
)
from cordwood.layout import message
from cordwood.layout.ledger_metadata import pack_ledger
from cordwood.layout.log_questions import (
    AskCopies,
    AskExtent,
    AskIfLost,
    AskKept,
    AskSize,
    AskTime,
    CopiesReply,
    CopyWord,
    ExtentReply,
    IfLostReply,
    KeptReply,
    SizeReply,
    TimeReply,
    Trim,
    TrimReply,
)
from cordwood.layout.message import (
    AppendFault,
    AskEpoch,
    AskNodesets,
    AskReleased,
    AskStatus,
    AskStreams,
    AskTail,
    Call,
    Clean,
    DoneReply,
    EpochReply,
    Fault,
    LogState,
    NodesetsReply,
    Ping,
    ReleasedReply,
    Reply,
    Seal,
    SealReply,
    StatusReply,
    StreamsReply,
    StreamState,
    TailReply,
    TellNodesets,
    Yield,
    pack,
    read_append_faults,
    read_call,
    read_fault,
    read_reply,
    to_error,
    to_fault,
)
from cordwood.layout.message_consumers import (
    AskConsumers,
    BeatConsumer,
    ConsumerReply,
    ConsumersReply,
    JoinConsumer,
    LeaveConsumer,
    SaveCursors,
)
from cordwood.layout.message_impact import (
    AskFitness,
    AskImpact,
    FitnessReply,
    ImpactFinding,
    ImpactLog,
    ImpactReply,
)
from cordwood.layout.message_ledgers import (
    AddEntries,
    AddRefusal,
    AddReply,
    AllotLedgerId,
    AskAutorecovery,
    AskLac,
    AskLedger,
    AutorecoveryReply,
    CreateLedger,
    DeleteLedger,
    EntriesReply,
    EntryAnswer,
    EntryItem,
    ForceEntries,
    Found,
    LackingLedger,
    LacReply,
    LedgerIdReply,
    LedgerReply,
    LedgersReply,
    ListLedgers,
    OpenMainStorage,
    ReadEntries,
    ReadRun,
    RunReply,
    SetLedger,
    SwitchAutorecovery,
    TellLac,
    pack_items,
)
from cordwood.layout.message_logs import (
    AskDirectory,
    AskEpochs,
    CreateLog,
    DirectoryReply,
    EpochNodes,
    EpochsReply,
    FindLog,
    ListLogs,
    LogReply,
    LogsReply,
)
from cordwood.layout.message_maintenance import (
    ApplyMaintenance,
    AskMaintenance,
    MaintenanceReply,
    MaintenanceRequest,
    RemoveMaintenance,
)
from cordwood.layout.message_nodes import (
    AskMembers,
    MemberInfo,
    MembersReply,
    SetAuthority,
    SetStorage,
)
from cordwood.layout.message_rebuilding import (
    AskEvents,
    AskHeld,
    AskRebuilding,
    DonorState,
    EventsReply,
    HeldGroup,
    HeldReply,
    RebuildingReply,
    RebuildOrder,
    SayRebalance,
    SayRebuild,
    TellProducers,
)
from cordwood.layout.message_rights import (
    AskVersion,
    DeleteLog,
    RaiseToken,
    RenameLog,
    SetAttributes,
    VersionReply,
)
from cordwood.layout.message_staging import (
    AskPublication,
    AskStaged,
    BeginPublish,
    BlockPlace,
    CommitPublish,
    FindStaged,
    FinishPublish,
    LogBlocks,
    PinStaged,
    PlaceStaged,
    PublicationReply,
    StageBlock,
    StagedPlaces,
    StagedReply,
    StagePlace,
    Unstage,
)
from cordwood.ledger import Fragment, LedgerMetadata, Striping
from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Authority


def lsn(epoch: int, esn: int) -> int:
    """A plain integer: what is on its way into a message is one, never an `Lsn`."""
    return epoch << 32 | esn


MEMBER = MemberInfo(3, "127.0.0.1:4442", "rack1", 7, 1.0)
LOG = LogReply(
    9, "/orders/eu", 3, 2, 1_700_000_000_000_000, [EpochNodes(1, [1, 2, 3], 3, 2)], [MEMBER]
)
GROUP = ConsumerReply(
    "billing", 3, {"m1": ["/orders"]}, {"/orders": "m1"}, {"/orders": lsn(4, 17)},
    {"/orders": 2}, {"/orders": "m2"},
)  # fmt: skip
STAGE = bytes(range(16))
SHARE = LogBlocks(9, "/orders", [BlockPlace(STAGE, [1, 2, 3], 2, 4)])
KEY = bytes(range(20))
LEDGER = pack_ledger(LedgerMetadata(7, Striping(3, 2, 2), (Fragment(0, (1, 2, 3)),)))
ENTRY = EntryItem(0, -1, 4, b"body")
CALLS: list[Call] = [
    Trim(9, lsn(3, 1), lsn(3, 2)),
    AskTime(9, -1, lsn(3, 2), True),
    AskExtent(9, lsn(3, 2)),
    AskSize(9, -(1 << 62), 1 << 62),
    AskKept(9, (1, 1 << 40)),
    AskIfLost((3, 2**32 - 1), 9, lsn(4, 17)),
    AskCopies(9, ((lsn(4, 17), lsn(4, 20)),)),
    SayRebuild(3, RebuildOrder.START, forced=True),
    SayRebuild(3, RebuildOrder.DRAIN, unless_empty=True, if_version=lsn(4, 17)),
    SayRebuild(3, RebuildOrder.UNDRAIN, if_version=lsn(4, 17), if_mark=lsn(4, 19)),
    SayRebalance(((1, 2, 500_000),)), AskHeld(9, lsn(4, 17)),
    AskRebuilding(), AskEvents(), AskImpact((1, 2), ("eu.rack1",)), AskFitness(),
    ApplyMaintenance((1,), ("eu.rack1",), "DRAINED", "a new disk", "ann", 60), AskMaintenance(),
    RemoveMaintenance(7),
    AskMembers(3),
    AskMembers(), FindLog("/orders", True), CreateLog("orders", 0, 0), ListLogs("/"), AskStatus(),
    AskTail(9, False), AskReleased([9, 10]), Ping(), Seal(9, 5, 3), Clean(9, 4, 5, lsn(4, 17)),
    AskEpoch(9, 4), Yield(9, 5, 2), AskStreams(), AskConsumers("billing"),
    JoinConsumer("billing", "m1", ["/orders"], 15_000), BeatConsumer("billing", "m1", 3, 15_000),
    LeaveConsumer("billing", "m1", 3),
    SaveCursors(
        "billing", "m1", 3, {"/orders": lsn(4, 17)}, {"/orders": lsn(4, 16)}, True, ["/orders"]
    ),
    AskDirectory("/"), AskEpochs("/orders"), DeleteLog("/orders"),
    RenameLog("/orders", "/o"), RaiseToken("/orders", 5, "worker"),
    AskVersion("/orders", 5), RenameLog("/orders", "/o", 5, 17),
    SetAttributes("/", LogAttributes(nodeset_size=4), ["backlog_s"]),
    TellNodesets(9, 5, [EpochNodes(1, [1, 2, 3], 3, 2)]), AskNodesets(9),
    TellNodesets(9, 1, [EpochNodes(1, [1, 2, 3], 3, 2)], begins=True),
    TellProducers(9, 4, b"packed", 5, lsn(4, 17), 2),
    TellProducers(9, 5, b"packed", append_time_us=55),
    SetAuthority(3, Authority.UNDER_REPLICATED, Authority.UNAVAILABLE),
    SetStorage(3, True),
    SetAuthority(3, Authority.UNDER_REPLICATED, Authority.UNAVAILABLE, 9), SetStorage(3, True, 9),
    RenameLog("/orders", "/o"), SetAttributes("/", LogAttributes(nodeset_size=4), ["backlog_s"]),
    StageBlock(STAGE, 9, 60_000, 2, 1, 30, 5, 6, b"body"), PinStaged("query", 2, [STAGE]),
    StageBlock(STAGE, 9, 60_000, 2, 1, 30, 5, 6, b"body", [1, 2, 3], 1, "query", 2),
    PinStaged("query", 2, [STAGE], [1]), FindStaged([STAGE]),
    PlaceStaged(StagePlace(STAGE, [1, 2, 3], 1)),
    Unstage("query", 2, [STAGE]), AskStaged(STAGE), AskPublication("query"),
    BeginPublish("query", 7), CommitPublish("query", 7, 2, [SHARE]),
    FinishPublish("query", 3, {"/orders": (lsn(4, 1), lsn(4, 2))}),
    AddEntries(7, KEY, 2, pack_items([ENTRY, EntryItem(1, 0, 8, b"")]), True),
    AddEntries(7, KEY, 1, pack_items([ENTRY]), deferred=True),
    ForceEntries(7, KEY),
    ReadEntries(7, KEY, [0, 2**63 - 1], True), AskLac(7, KEY, False, 3, 20_000),
    ReadRun(7, KEY, 2**63 - 1, 2048, 1), ReadRun(7, KEY, 3, 2, 9, 255),
    TellLac(7, KEY, 3), AskLedger(2**63 - 1), AllotLedgerId(), CreateLedger(-1, LEDGER),
    SetLedger(7, 9, LEDGER), DeleteLedger(7), ListLedgers(-1, 1000), AskAutorecovery(-1, 1000),
    SwitchAutorecovery(False), SwitchAutorecovery(True, 0), OpenMainStorage(),
]  # fmt: skip
REPLIES: list[Reply] = [
    MembersReply(bytes(range(16)), [MEMBER]), LOG, LogsReply([LOG]), TailReply(5, LSN_MAX, 3),
    SealReply({4: lsn(4, 16), 5: lsn(5, 0)}, 1_700_000_000_000_000), DoneReply(),
    SealReply({}, 0, begun=2**32 - 1),
    EpochReply(True, 5, lsn(4, 16)), ReleasedReply([lsn(4, 16), 0]), GROUP, ConsumersReply([GROUP]),
    StreamsReply([StreamState(9, "a client", lsn(4, 17), LSN_MAX, lsn(4, 99), 7, True, [2], "")]),
    DirectoryReply("/", LogAttributes(backlog_s=1.5), DEFAULTS), VersionReply(7),
    StagedReply(9, 2, 1, 30, 5, 6, b"body"), StagedPlaces([StagePlace(STAGE, [1, 2], 3)]),
    PublicationReply(
        2**62, 2, 7, 3, 2, False, [SHARE], {"/orders": (lsn(4, 1), lsn(4, 2))}, 64 << 20
    ),
    TrimReply(lsn(3, 2)),
    TimeReply(lsn(1, 1), lsn(3, 1), lsn(3, 2)),
    ExtentReply(lsn(1, 1), lsn(1, 2), 5, lsn(3, 2), 7),
    SizeReply(1 << 40),
    KeptReply((0, 1 << 40)),
    IfLostReply(1, 1 << 40, 2, 3, 4, 5, 9, lsn(4, 17)),
    CopiesReply(
        (
            CopyWord(1, 2, 3, True, (4, 5, 6)),
            CopyWord(2),
            CopyWord(1, 2, 0, False, (4, 5), is_letting_go=True),
        )
    ),
    HeldReply((HeldGroup((1, 2, 3), 3, 1 << 40),), 9, lsn(4, 17)),
    EventsReply(b"set", lsn(4, 17), True),
    RebuildingReply(b"set", DonorState(7, 1, 2, 3, 4, 5.5, "nothing", True)),
    MaintenanceReply([
        MaintenanceRequest(1, (2, 3), "DRAINED", "DRAINING", "a new disk", "ann", 5, 6, ""),
    ], 1),
    ImpactReply((1,), (2,), 3, 4, [
        ImpactFinding("writes", "wait", True, (1, 2), {"node": 2}, 3, [ImpactLog(9, "/a", 1, 0)]),
    ], 5),
    FitnessReply("it lost records", "its disk is full", waits=True),
    NodesetsReply(5, [EpochNodes(1, [1, 2, 3], 3, 2)], [MEMBER]),
    EpochsReply(9, 5, 3, lsn(3, 2), 1, 0, [EpochNodes(1, [1, 2, 3], 3, 2)]),
    AddReply(AddRefusal.FENCED),
    EntriesReply([EntryAnswer(0, Found.YES, -1, 4, b"body"), EntryAnswer(1, Found.UNKNOWN)], 0),
    RunReply(1, 2, memoryview(b"packed")), RunReply(0, -1, memoryview(b"")),
    LacReply(Found.YES, 3, 5, True), LedgerReply(9, LEDGER, True),
    LedgerIdReply(2**63 - 1), LedgersReply([0, 7]),
    AutorecoveryReply(True, "node 2", [LackingLedger(7, (1, 3), 5)]),
    AutorecoveryReply(False, "", [], 9),
    StatusReply(
        1, bytes(16), "0.1", 2.5, 10, 20, 30, 4, 5, 6, "", [MEMBER],
        [LogState(9, True, 5, lsn(5, 1), lsn(5, 1), 4, 400, 5)],
    ),
]  # fmt: skip
FAULT = Fault("Fenced", "epoch 7 rules", 7)
APPEND_FAULTS = [AppendFault(2**63, FAULT, 4), AppendFault(1, Fault("Overloaded", "full"))]

GOLDEN_SEAL = bytes.fromhex(
    "84" "a474797065" "a47365616c" "a36c6f67" "09" "a565706f6368" "05" "a5636c65616e" "03"
)  # fmt: skip


def nested(opening: bytes, depth: int) -> bytes:
    """A ping with a field nobody knows, in which containers lie in one another."""
    return b"\x82\xa4type\xa4ping\xa1x" + opening * depth + b"\xc0"


def test_golden_bytes() -> None:
    assert pack(Seal(9, 5, 3)) == GOLDEN_SEAL
    assert read_call(GOLDEN_SEAL) == Seal(9, 5, 3)


def test_the_lists_above_are_complete() -> None:
    assert {type(call) for call in CALLS} == set(typing.get_args(message.Call))
    assert {type(reply) for reply in REPLIES} == set(typing.get_args(message.Reply))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_every_call_comes_back_and_is_no_reply(call: Call) -> None:
    assert read_call(memoryview(pack(call))) == call
    with pytest.raises(Malformed):
        read_reply(pack(call))


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_every_reply_comes_back_and_is_no_call(reply: Reply) -> None:
    assert read_reply(memoryview(pack(reply))) == reply
    with pytest.raises(Malformed):
        read_call(pack(reply))


def test_faults_come_back() -> None:
    assert read_fault(memoryview(pack(FAULT))) == FAULT
    assert read_append_faults(memoryview(pack(APPEND_FAULTS))) == APPEND_FAULTS


def test_a_field_that_a_newer_version_adds_is_passed_over() -> None:
    newer = b"\x85" + GOLDEN_SEAL[1:] + b"\xa5extra\x93\x01\xa1x\xc4\x02ab"
    assert read_call(newer) == Seal(9, 5, 3)


DECODERS = [
    (read_call, tuple(map(pack, CALLS))),
    (read_reply, tuple(map(pack, REPLIES))),
    (read_fault, (pack(FAULT),)),
    (read_append_faults, (pack(APPEND_FAULTS),)),
]
ALL = tuple(data for _, valid in DECODERS for data in valid)


@pytest.mark.parametrize(("decode", "valid"), DECODERS)
def test_every_truncation_and_every_extension_is_refused(decode, valid) -> None:
    for data in valid:
        for part in (*truncations(data), data + b"\xc0"):
            with pytest.raises(Malformed):
                decode(part)


@pytest.mark.parametrize(("decode", "valid"), DECODERS)
def test_a_flipped_bit_raises_what_is_ours(decode, valid) -> None:
    """The frame's checksum is what refuses it; here it must only not break anything."""
    for data in valid:
        for flipped in bit_flips(data):
            only_ours(decode, flipped)


@settings(max_examples=500)
@given(damaged(ALL))
def test_damage_raises_what_is_ours(data: bytes) -> None:
    for decode, _ in DECODERS:
        only_ours(decode, data)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdd\x00\x00\x00\x01"])
@pytest.mark.parametrize("depth", [900, 1_000_000])
def test_containers_nested_deep_do_not_end_the_stack(opening: bytes, depth: int) -> None:
    """A million arrays in one another raised RecursionError, past everyone who catches ours."""
    only_ours(read_call, nested(opening, depth))
    with pytest.raises(Malformed):
        read_call(nested(opening, 1_000_000))


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (read_append_faults, b"\xdd\xff\xff\xff\xff"),
        (read_reply, b"\x82\xa4type\xa4logs\xa4logs\xdd\xff\xff\xff\xff"),
        (read_reply, b"\x83\xa4type\xa7members\xa7cluster\xc6\xff\xff\xff\xff"),
        (read_reply, b"\x83\xa4type\xa6sealed\xa4lngs\xdf\xff\xff\xff\xff"),
        (read_call, b"\x82\xa4type\xa8find_log\xa4name\xdb\xff\xff\xff\xff"),
        (read_call, b"\xdf\xff\xff\xff\xff"),
    ],
)
def test_a_claim_of_four_billion_is_no_allocation(decode, data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "seal", "log": 0, "epoch": 1, "clean": 0},
        {"type": "seal", "log": 2**62, "epoch": 1, "clean": 0},
        {"type": "seal", "log": 1, "epoch": 2**32, "clean": 0},
        {"type": "seal", "log": 1, "epoch": -1, "clean": 0},
        {"type": "seal", "log": 1, "epoch": 1.0, "clean": 0},
        {"type": "seal", "log": 1, "epoch": 1},
        {"type": "clean", "log": 1, "epoch": 1, "seal": 2, "tail": 2**63},
        {"type": "find_log", "name": "x" * 256, "create": True},
        {"type": "find_log", "name": b"x", "create": True},
        {"type": "find_log", "name": "x", "create": 1},
        {"type": "no such call"},
        {"log": 1},
        [],
        "ping",
    ],
)
def test_a_call_of_another_shape_is_refused(wrong) -> None:
    with pytest.raises(Malformed, match="does not know"):
        read_call(msgspec.msgpack.encode(wrong))


PUBLIC_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CordwoodError)
]


class TestErrors:
    @pytest.mark.parametrize("kind", PUBLIC_ERRORS, ids=lambda kind: kind.__name__)
    def test_every_error_comes_out_as_it_went_in(self, kind: type[CordwoodError]) -> None:
        error = to_error(read_fault(pack(to_fault(kind("why it is so")))))
        assert type(error) is kind
        assert str(error) == "why it is so"

    def test_the_epoch_that_rules_is_told(self) -> None:
        error = to_error(read_fault(pack(to_fault(Fenced("no", 7)))))
        assert isinstance(error, Fenced)
        assert error.epoch == 7

    @pytest.mark.parametrize("kind", [*Misplaced, None])
    def test_out_of_sequence_says_why_and_what_comes_next(self, kind):
        for expected in (None, 0, 2**64 - 1):
            error = to_error(read_fault(pack(to_fault(OutOfSequence("no", kind, expected)))))
            assert isinstance(error, OutOfSequence)
            assert (str(error), error.kind, error.expected) == ("no", kind, expected)

    def test_a_reason_of_a_newer_version_is_none_that_is_known(self):
        error = to_error(Fault("OutOfSequence", "no", kind="of-tomorrow", expected=3))
        assert isinstance(error, OutOfSequence)
        assert (error.kind, error.expected) == (None, 3)

    def test_who_should_be_asked_instead_is_told(self) -> None:
        error = to_error(read_fault(pack(to_fault(NoSequencer("there", 7)))))
        assert isinstance(error, NoSequencer)
        assert error.node == 7

    def test_a_class_of_a_room_s_own_goes_as_its_public_parent(self) -> None:
        class WalVeryFull(Overloaded):
            pass

        assert type(to_error(to_fault(WalVeryFull("full")))) is Overloaded

    @pytest.mark.parametrize("name", ["KeyError", "Exception", "CordwoodErro", "errors", "", "_"])
    def test_a_name_that_is_none_of_ours_is_a_plain_error(self, name: str) -> None:
        assert type(to_error(Fault(name, "?"))) is CordwoodError

    def test_a_long_text_is_cut_so_that_it_can_be_read(self) -> None:
        fault = read_fault(pack(to_fault(NoSequencer("x" * 10_000))))
        assert len(fault.text) == 4096
        assert isinstance(to_error(fault), NoSequencer)

    def test_a_text_longer_than_any_we_write_is_refused(self) -> None:
        with pytest.raises(Malformed):
            read_fault(pack(Fault("Overloaded", "x" * 4097)))
        assert isinstance(to_error(to_fault(RecordTooLarge(""))), RecordTooLarge)

"""Which reply each call is answered with: all others end the connection."""

from __future__ import annotations

import pytest

from cordwood.errors import Malformed
from cordwood.layout.answers import check_answer
from cordwood.layout.ledger_metadata import pack_ledger
from cordwood.layout.message import AskReleased, DoneReply, Ping, ReleasedReply, TailReply
from cordwood.layout.message_consumers import (
    AskConsumers,
    ConsumerReply,
    ConsumersReply,
    SaveCursors,
)
from cordwood.layout.message_ledgers import (
    AskAutorecovery,
    AskLedger,
    AutorecoveryReply,
    CreateLedger,
    LackingLedger,
    LedgerReply,
    LedgersReply,
    ListLedgers,
    SetLedger,
)
from cordwood.layout.message_logs import EpochNodes, FindLog, LogReply
from cordwood.ledger import Fragment, LedgerMetadata, Striping


def test_an_answer_of_its_kind_passes() -> None:
    check_answer(Ping(), DoneReply())
    check_answer(AskReleased([1, 2]), ReleasedReply([0, 0]))


def test_one_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(Malformed, match="Ping was answered with TailReply"):
        check_answer(Ping(), TailReply(1, 1, 1))


def test_another_number_of_answers_is_refused() -> None:
    with pytest.raises(Malformed, match="2 logs were answered with 1 numbers"):
        check_answer(AskReleased([1, 2]), ReleasedReply([0]))


def log_seven(name: str = "/orders") -> LogReply:
    return LogReply(7, name, 1, 1, 0, [EpochNodes(1, [1], 1, 1)], [])


def test_a_log_passes_that_has_the_name_or_the_number_that_was_asked_for() -> None:
    check_answer(FindLog("orders", False), log_seven())
    check_answer(FindLog("", False, 7), log_seven())
    check_answer(FindLog("", False, 7), log_seven("/renamed"))


def test_another_log_is_refused_by_name_and_by_number() -> None:
    with pytest.raises(Malformed, match="orders was asked for, and /others came"):
        check_answer(FindLog("orders", False), log_seven("/others"))
    with pytest.raises(Malformed, match="log 8 was asked for, and log 7 came"):
        check_answer(FindLog("", False, 8), log_seven())


def test_another_consumer_is_refused() -> None:
    """A member that took its positions would skip records, or get them twice."""
    other = ConsumerReply("other", 1, {}, {}, {"1": 7})
    report = ConsumerReply("report", 1, {}, {}, {"1": 5})
    check_answer(SaveCursors("report", "", 0, {}, {}, False), report)
    check_answer(AskConsumers("report"), ConsumersReply([report]))
    check_answer(AskConsumers(""), ConsumersReply([other, report]))
    for call, reply in (
        (SaveCursors("report", "", 0, {}, {}, False), other),
        (AskConsumers("report"), ConsumersReply([other])),
        (AskConsumers("report"), ConsumersReply([])),
        (AskConsumers("report"), ConsumersReply([report, other])),
    ):
        with pytest.raises(Malformed, match="consumer report was asked for, and others came"):
            check_answer(call, reply)


def test_a_page_of_ledgers_rises_from_where_it_was_asked_for() -> None:
    """A node that told the first page again and again kept its client listing for ever."""
    check_answer(ListLedgers(4, 3), LedgersReply([5, 7, 9]))
    check_answer(ListLedgers(-1, 3), LedgersReply([]))
    for told in ([4], [3, 5], [5, 5], [7, 6], [5, 6, 7, 8]):
        with pytest.raises(Malformed, match="no page of 3 after ledger 4"):
            check_answer(ListLedgers(4, 3), LedgersReply(told))
        lacking = [LackingLedger(each, (1,), 0) for each in told]
        with pytest.raises(Malformed, match="no page of 3 after ledger 4"):
            check_answer(AskAutorecovery(4, 3), AutorecoveryReply(True, "", lacking))


def ledger_seven() -> bytes:
    return pack_ledger(LedgerMetadata(7, Striping(1, 1, 1), (Fragment(0, (1,)),)))


def test_another_ledger_is_refused() -> None:
    """A client that opened ledger 8 read the entries of ledger 7."""
    value = ledger_seven()
    for call in (AskLedger(7), CreateLedger(7, value), CreateLedger(-1, value)):
        check_answer(call, LedgerReply(1, value))
    check_answer(AskLedger(8), LedgerReply(0, b""))
    check_answer(AskLedger(8), LedgerReply(1, b"what nobody can read"))
    for call in (AskLedger(8), CreateLedger(8, value), SetLedger(8, 1, value)):
        with pytest.raises(Malformed, match="ledger 8 was asked for, and ledger 7 came"):
            check_answer(call, LedgerReply(1, value))

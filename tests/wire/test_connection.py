"""One connection: the greeting, damage that stays its own, calls, corking."""

from __future__ import annotations

import asyncio
import logging

import pytest
from scenarios import as_scenario, now
from swaps import swap_value
from wire_ends import (
    ADDRESS,
    CLIENT,
    CLUSTER,
    NODE_1,
    Ends,
    Keeping,
    KeptTransport,
    dial_in,
    memory_ends,
    raw_dial,
    raw_listen,
    run,
    simulated_ends,
)

from cordwood.errors import (
    ChecksumMismatch,
    Closed,
    CordwoodError,
    Malformed,
    NoSequencer,
    NotOurCluster,
    Overloaded,
    Unreachable,
)
from cordwood.layout.frame import CONTROL_BYTES_MAX, HELLO_BYTES_MAX, Kind, frame, frame_header
from cordwood.layout.hello import ANY_CLUSTER, REFUSAL_BYTES_MAX, VERSION, Hello, pack_hello
from cordwood.layout.message import (
    AskMembers,
    AskTail,
    Call,
    DeleteLog,
    DoneReply,
    Fault,
    Ping,
    TailReply,
    pack,
    read_call,
)
from cordwood.layout.message_ledgers import KEY_BYTES, AskLac, Found, LacReply
from cordwood.sim.planted import find_bug, planted
from cordwood.wire import connection as connection_module
from cordwood.wire.connection import CALLS_MAX, Connection, dial


@pytest.fixture(params=[memory_ends, simulated_ends])
def make_ends(request: pytest.FixtureRequest):
    return request.param


async def listen(ends: Ends, ours: Hello = NODE_1) -> list[Connection]:
    """Accept connections as `ours`; the list grows as they come."""
    accepted: list[Connection] = []

    def accept() -> Connection:
        accepted.append(Connection(ours, Keeping(), dialled=False))
        return accepted[-1]

    await ends.server.listen(ADDRESS, accept)
    return accepted


def kept(connection: Connection) -> Keeping:
    handler = connection._handler
    assert isinstance(handler, Keeping)
    return handler


async def settle() -> None:
    """Longer than anything takes that waits for no deadline."""
    await asyncio.sleep(0.5)


async def pair(ends: Ends) -> tuple[Connection, Connection]:
    accepted = await listen(ends)
    ours = await dial_in(ends.client)
    return ours, accepted[-1]


class TestGreeting:
    @as_scenario(run)
    async def test_each_side_knows_the_other(self, *, make_ends) -> None:
        ours, theirs = await pair(make_ends())
        assert (ours.peer, theirs.peer) == (NODE_1, CLIENT)
        assert (str(ours), str(theirs)) == ("node 1", "a client")
        ours.send(Kind.STORE, 5, (b"two ", b"parts"))
        theirs.send(Kind.STORED, 6, (b"",))
        await settle()
        assert kept(theirs).frames == [(Kind.STORE, 5, b"two parts")]
        assert kept(ours).frames == [(Kind.STORED, 6, b"")]

    @pytest.mark.parametrize(
        ("caller", "why"),
        [
            (Hello(0, bytes(15) + b"x"), "is cluster 0.*78, this one 000102.*check the address"),
            (Hello(0, CLUSTER, wanted=2), "node 2 was wanted, this is node 1"),
            (Hello(0, CLUSTER, low=VERSION + 1, high=VERSION + 1), "upgrade the older one"),
        ],
    )
    def test_a_caller_that_means_another_is_refused_and_told_why(
        self, make_ends, caller: Hello, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            ends = make_ends()
            accepted = await listen(ends)
            with pytest.raises(NotOurCluster, match=why):
                await dial_in(ends.client, caller)
            await settle()
            assert accepted[0].peer is None
            assert not accepted[0].is_open
            assert kept(accepted[0]).lost == [], "who was never greeted is never lost"

        run(scenario)
        assert "refused a caller" in caplog.text

    @as_scenario(run)
    async def test_a_node_that_is_not_the_one_wanted_is_not_greeted(self) -> None:
        """The listener finds nothing wrong (it knows no cluster yet), the caller does."""
        ends = memory_ends()
        await listen(ends, Hello(0, ANY_CLUSTER))
        with pytest.raises(NotOurCluster, match="node 3 was wanted, node 0 answered"):
            await dial_in(ends.client, Hello(0, CLUSTER, wanted=3))

    @as_scenario(run)
    async def test_a_refusal_is_cut_and_may_hold_anything(self) -> None:
        ends = memory_ends()
        accepted = await raw_listen(ends.server)
        calling = asyncio.create_task(dial_in(ends.client))
        await settle()
        accepted[0].say_frame(Kind.REFUSAL, 0, b"\xff" + b"x" * 1000)
        with pytest.raises(NotOurCluster) as refused:
            await calling
        assert str(refused.value) == "�" + "x" * (REFUSAL_BYTES_MAX - 1)

    @pytest.mark.parametrize(
        "said",
        [
            frame(Kind.CALL, 1, pack(Ping())),
            frame(Kind.STORE, 1, b"x"),
            frame(Kind.WELCOME, 0, pack_hello(CLIENT)),
            frame(Kind.REFUSAL, 0, b"no"),
            frame(Kind.HELLO, 0, pack_hello(CLIENT)[:-1]),
            (b"GET / HTTP/1.1\r\nHost: cordwood\r\n\r\n",),
            (frame_header(Kind.HELLO, 0, HELLO_BYTES_MAX + 1, 0),),
            (bytes(20),),
        ],
    )
    def test_nothing_but_a_hello_is_read_before_the_greeting(
        self, make_ends, said, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            ends = make_ends()
            accepted = await listen(ends)
            caller = await raw_dial(ends.client)
            caller.say(*said)
            await settle()
            assert caller.is_lost
            assert not accepted[0].is_open
            assert kept(accepted[0]).frames == []
            assert bytes(caller.heard) == b""

        with caplog.at_level(logging.WARNING):
            run(scenario)
        assert "closing the connection to a peer not greeted yet" in caplog.text

    @as_scenario(run)
    async def test_what_follows_the_hello_in_one_chunk_is_read_once_it_was_taken(self) -> None:
        ends = memory_ends()
        accepted = await listen(ends)
        caller = await raw_dial(ends.client)
        caller.say(
            *frame(Kind.HELLO, 0, pack_hello(CLIENT)),
            *frame(Kind.STORE, 1, b"a"),
            *frame(Kind.STORE, 2, b"b"),
        )
        await settle()
        assert kept(accepted[0]).frames == [(Kind.STORE, 1, b"a"), (Kind.STORE, 2, b"b")]

    def test_four_gib_behind_the_hello_close_the_connection_at_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            ends = memory_ends()
            accepted = await listen(ends)
            caller = await raw_dial(ends.client)
            caller.say(
                *frame(Kind.HELLO, 0, pack_hello(CLIENT)),
                frame_header(Kind.STORE, 1, 2**32 - 1, 0),
            )
            await settle()
            assert caller.is_lost
            (error,) = kept(accepted[0]).lost
            assert isinstance(error, Malformed)

        run(scenario)
        assert "claims 4294967295 bytes; the limit is" in caplog.text

    @as_scenario(run)
    async def test_who_does_not_greet_back_is_unreachable_within_the_deadline(self) -> None:
        ends = memory_ends()
        accepted = await raw_listen(ends.server)
        with pytest.raises(Unreachable, match=r"did not greet within 1\.5 s"):
            await dial_in(ends.client, timeout_s=1.5)
        assert now() == 1.5
        await settle()
        assert accepted[0].is_lost

    @as_scenario(run)
    async def test_a_dial_that_is_cancelled_leaves_nothing_open(self) -> None:
        ends = memory_ends()
        accepted = await raw_listen(ends.server)
        calling = asyncio.create_task(dial_in(ends.client))
        await asyncio.sleep(0.1)
        calling.cancel()
        await asyncio.wait([calling])
        await settle()
        assert accepted[0].is_lost

    @as_scenario(run)
    async def test_who_hangs_up_instead_of_greeting_is_unreachable(self) -> None:
        ends = memory_ends()
        accepted = await raw_listen(ends.server)
        calling = asyncio.create_task(dial_in(ends.client))
        await asyncio.sleep(0.1)
        accepted[0].transport.close()
        with pytest.raises(Unreachable, match="was lost"):
            await calling


class TestDamage:
    @pytest.mark.parametrize(
        ("said", "error"),
        [
            ((b"\x00" * 20,), Malformed),
            ((frame_header(Kind.CALL, 1, CONTROL_BYTES_MAX + 1, 0),), Malformed),
            ((frame_header(Kind.CALL, 1, 3, 0), b"abc"), ChecksumMismatch),
            (frame(Kind.STOP, 1, b""), Malformed),  # what the handler refuses
            (frame(Kind.REPLY, 1, b"\xc1"), None),  # an answer that nobody waits for
        ],
    )
    def test_it_closes_its_own_connection_with_a_logged_reason_and_no_other(
        self, make_ends, said, error, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            ends = make_ends()
            accepted = await listen(ends)
            good = await dial_in(ends.client)
            bad = await raw_dial(ends.client)
            bad.greet()
            await settle()
            bad.say(*said)
            await settle()
            assert bad.is_lost == (error is not None)
            assert [type(each) for each in kept(accepted[1]).lost] == ([error] if error else [])
            good.send(Kind.STORE, 1, (b"still here",))
            await settle()
            assert kept(accepted[0]).frames == [(Kind.STORE, 1, b"still here")]

        with caplog.at_level(logging.WARNING):
            run(scenario)
        assert ("closing the connection to a client:" in caplog.text) == (error is not None)

    @as_scenario(run)
    async def test_frames_before_the_damage_count_and_none_after_it(self) -> None:
        ends = memory_ends()
        accepted = await listen(ends)
        bad = await raw_dial(ends.client)
        bad.greet()
        bad.say(*frame(Kind.STORE, 1, b"a"), *frame(Kind.STOP, 2, b""))
        bad.say(*frame(Kind.STORE, 3, b"c"))
        await settle()
        assert [request for _, request, _ in kept(accepted[0]).frames] == [1]

    @pytest.mark.parametrize("kind", [Kind.REPLY, Kind.FAULT])
    @as_scenario(run)
    async def test_an_answer_that_cannot_be_read_is_a_lost_connection_to_its_caller(
        self, *, kind: Kind
    ) -> None:
        ends = memory_ends()
        accepted = await listen(ends)
        ours = await dial_in(ends.client)
        asking = asyncio.create_task(ours.call(Ping(), timeout_s=9))
        await asyncio.sleep(0.1)
        accepted[0].send(kind, 1, (b"\xc1",))
        with pytest.raises(Unreachable, match="connection to node 1 was lost: "):
            await asking
        assert now() < 1
        with pytest.raises(Unreachable, match="connection to node 1 was lost: "):
            await ours.call(Ping(), timeout_s=1)


ASK = AskTail(1, False)


class TestCalls:
    @as_scenario(run)
    async def test_answers_find_their_calls_in_any_order(self, *, make_ends) -> None:
        ours, theirs = await pair(make_ends())
        calls = [asyncio.create_task(ours.call(ASK, timeout_s=5)) for _ in range(3)]
        await settle()
        asked = [(request, read_call(body)) for _, request, body in kept(theirs).frames]
        assert asked == [(number, ASK) for number in (1, 2, 3)]
        theirs.send(Kind.REPLY, 3, (pack(TailReply(1, 3, 1)),))
        theirs.send(Kind.FAULT, 2, (pack(Fault("NoSequencer", "not here")),))
        theirs.send(Kind.REPLY, 1, (pack(TailReply(1, 1, 1)),))
        assert await calls[0] == TailReply(1, 1, 1)
        assert await calls[2] == TailReply(1, 3, 1)
        with pytest.raises(NoSequencer, match="not here"):
            await calls[1]

    @as_scenario(run)
    async def test_a_reply_of_another_kind_is_a_lost_connection(self) -> None:
        """Callers took it for what they had asked for, and ended with an AssertionError."""
        ours, theirs = await pair(memory_ends())
        asking = asyncio.create_task(ours.call(ASK, timeout_s=5))
        await settle()
        theirs.send(Kind.REPLY, 1, (pack(DoneReply()),))
        with pytest.raises(Unreachable, match="AskTail was answered with DoneReply"):
            await asking
        assert not ours.is_open

    @as_scenario(run)
    async def test_a_call_ends_at_its_deadline_and_its_late_answer_is_nobody_s(self) -> None:
        ours, theirs = await pair(memory_ends())
        start = now()
        with pytest.raises(Unreachable, match=r"node 1 did not answer Ping within 2\.5 s"):
            await ours.call(Ping(), timeout_s=2.5)
        assert now() - start == 2.5
        theirs.send(Kind.REPLY, 1, (pack(DoneReply()),))
        await settle()
        assert ours.is_open
        assert kept(ours).frames == []

    @pytest.mark.parametrize("how", ["closed there", "closed here", "failed here"])
    @as_scenario(run)
    async def test_calls_fail_when_the_connection_goes_and_each_side_hears_it_once(
        self, *, make_ends, how: str
    ) -> None:
        ours, theirs = await pair(make_ends())
        calls = [asyncio.create_task(ours.call(Ping(), timeout_s=60)) for _ in range(2)]
        await settle()
        if how == "closed there":
            theirs.close()
        elif how == "closed here":
            ours.close()
        else:
            ours.fail(NoSequencer("because of this"))
        for call in calls:
            with pytest.raises(CordwoodError) as failed:
                await call
        assert now() < 2
        expected = {
            "closed there": Unreachable,
            "closed here": Closed,
            "failed here": NoSequencer,
        }
        assert type(failed.value) is expected[how]
        await settle()
        assert [type(each) for each in kept(ours).lost] == [expected[how]]
        assert len(kept(theirs).lost) == 1
        with pytest.raises(expected[how]):
            await ours.call(Ping(), timeout_s=1)

    @as_scenario(run)
    async def test_calls_in_flight_are_bounded(self) -> None:
        ours, _ = await pair(memory_ends())
        waiting = [asyncio.create_task(ours.call(Ping(), timeout_s=5)) for _ in range(CALLS_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Unreachable, match="4096 calls to node 1 are unanswered"):
            await ours.call(Ping(), timeout_s=5)
        ours.close()
        await asyncio.gather(*waiting, return_exceptions=True)


def asks(number: int) -> DeleteLog:
    return DeleteLog(f"log{number}")


async def polls_leave_a_turn() -> None:
    ours, theirs = await pair(memory_ends())
    polls = [AskLac(ledger, bytes(KEY_BYTES), wait_ms=1000) for ledger in range(3)]
    calls = [asyncio.create_task(ours.call(each, timeout_s=60)) for each in polls]
    await settle()
    calls.append(asyncio.create_task(ours.call(asks(1), timeout_s=60)))
    await settle()
    asked = [read_call(body) for _, _, body in kept(theirs).frames]
    assert asked == [polls[0], asks(1)]
    lac = LacReply(Found.NO_LEDGER, -1, -1, is_fenced=False)
    for request, reply in ((2, DoneReply()), (1, lac), (3, lac), (4, lac)):
        theirs.send(Kind.REPLY, request, (pack(reply),))
        await settle()
    assert await asyncio.gather(*calls) == [lac, lac, lac, DoneReply()]


class TestTurns:
    """A client's calls, held back here so that no node has to refuse them."""

    @pytest.fixture(autouse=True)
    def two_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: connection_module.CLIENT_CALLS_AT_ONCE, 2)

    @as_scenario(run)
    async def test_the_rest_wait_and_are_sent_in_the_order_they_came(self, *, make_ends) -> None:
        ours, theirs = await pair(make_ends())
        calls = [asyncio.create_task(ours.call(asks(n), timeout_s=60)) for n in range(5)]
        for answered in range(5):
            await settle()
            asked = [read_call(body) for _, _, body in kept(theirs).frames]
            assert asked == [asks(n) for n in range(min(5, answered + 2))]
            assert ours.calls == 5 - answered
            theirs.send(Kind.REPLY, answered + 1, (pack(DoneReply()),))
        assert await asyncio.gather(*calls) == [DoneReply()] * 5

    def test_polls_leave_a_turn_to_other_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Followers of ledgers took all turns, for a second each, and entries waited."""
        swap_value(monkeypatch, lambda: connection_module.POLLS_AT_ONCE, 1)
        run(polls_leave_a_turn)

    def test_the_scene_catches_polls_that_take_all(self) -> None:
        with planted(find_bug("polls-take-all")), pytest.raises(AssertionError):
            run(polls_leave_a_turn)

    @as_scenario(run)
    async def test_one_that_gives_up_leaves_its_turn_to_the_next(self) -> None:
        ours, theirs = await pair(memory_ends())
        sent = [asyncio.create_task(ours.call(asks(n), timeout_s=60)) for n in (1, 2)]
        await asyncio.sleep(0)
        start = now()
        with pytest.raises(Unreachable, match=r"within 0\.5 s"):
            await ours.call(asks(3), timeout_s=0.5)
        assert now() - start == 0.5
        cancelled = asyncio.create_task(ours.call(asks(4), timeout_s=60))
        last = asyncio.create_task(ours.call(asks(5), timeout_s=60))
        await settle()
        cancelled.cancel()
        sent[0].cancel()
        await settle()
        asked = [read_call(body) for _, _, body in kept(theirs).frames]
        assert asked == [asks(1), asks(2), asks(5)]
        for request in (2, 3):
            theirs.send(Kind.REPLY, request, (pack(DoneReply()),))
        assert await last == await sent[1] == DoneReply()

    @as_scenario(run)
    async def test_an_answer_is_late_only_from_when_it_was_asked_for(self) -> None:
        ours, theirs = await pair(memory_ends())
        calls = [
            asyncio.create_task(ours.call(asks(n), timeout_s=60, answer_s=2)) for n in range(3)
        ]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {Unreachable}
        assert now() == pytest.approx(4, abs=0.1), "the third was asked once the first gave up"
        assert len(kept(theirs).frames) == 3

    @as_scenario(run)
    async def test_all_fail_when_the_connection_goes(self, *, make_ends) -> None:
        ours, theirs = await pair(make_ends())
        calls = [asyncio.create_task(ours.call(asks(n), timeout_s=60)) for n in range(9)]
        await settle()
        theirs.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {Unreachable}
        assert now() < 2
        assert ours.calls == 0

    @as_scenario(run)
    async def test_whether_a_node_lives_is_asked_at_once(self) -> None:
        ours, theirs = await pair(memory_ends())
        waiting: list[Call] = [asks(1), asks(2), asks(3), AskMembers(), Ping()]
        calls = [asyncio.create_task(ours.call(each, timeout_s=60)) for each in waiting]
        await settle()
        asked = [read_call(body) for _, _, body in kept(theirs).frames]
        assert asked == [asks(1), asks(2), AskMembers(), Ping()]
        ours.close()
        await asyncio.gather(*calls, return_exceptions=True)

    @as_scenario(run)
    async def test_a_node_s_own_wait_for_none(self) -> None:
        ends = memory_ends()
        accepted = await listen(ends)
        ours = await dial_in(ends.client, Hello(2, CLUSTER, 5))
        calls = [asyncio.create_task(ours.call(asks(n), timeout_s=60)) for n in range(9)]
        await settle()
        assert len(kept(accepted[-1]).frames) == 9
        ours.close()
        await asyncio.gather(*calls, return_exceptions=True)

    def test_those_who_wait_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: connection_module.CLIENT_CALLS_WAITING_MAX, 3)

        async def scenario() -> None:
            ours, _ = await pair(memory_ends())
            calls = [asyncio.create_task(ours.call(asks(n), timeout_s=60)) for n in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="3 calls to node 1 wait for their turn"):
                await ours.call(asks(6), timeout_s=60)
            ours.close()
            await asyncio.gather(*calls, return_exceptions=True)

        run(scenario)


class TestSending:
    """On a transport of the test's own, which keeps each write apart."""

    @staticmethod
    def made() -> tuple[Connection, KeptTransport]:
        connection = Connection(CLIENT, Keeping(), dialled=True)
        transport = KeptTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    @as_scenario(run)
    async def test_what_one_tick_sends_leaves_in_one_write_at_its_end(self) -> None:
        connection, transport = self.made()
        await asyncio.sleep(0)
        assert len(transport.writes) == 1, "the hello"
        for number in range(100):
            connection.send(Kind.STORE, number, (b"header", b"body"))
        assert len(transport.writes) == 1, "nothing leaves before the tick ends"
        assert connection.backlog_bytes == 1000
        await asyncio.sleep(0)
        assert len(transport.writes) == 2
        assert len(transport.writes[1]) == 300
        assert connection.backlog_bytes == 0
        connection.send(Kind.STORE, 100, (b"",))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(transport.writes) == 3

    @as_scenario(run)
    async def test_closing_sends_what_was_corked_and_failing_drops_it(self) -> None:
        for how, writes in (("close", 1), ("abort", 0)):
            connection, transport = self.made()
            connection.send(Kind.STORE, 1, (b"last words",))
            if how == "close":
                connection.close()
            else:
                connection.fail(Unreachable("gone"))
            connection.send(Kind.STORE, 2, (b"too late",))
            connection.close()
            await asyncio.sleep(0)
            assert transport.closed == how
            assert len(transport.writes) == writes
            assert all(b"too late" not in write for write in transport.writes)

    def test_a_peer_that_does_not_read_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: connection_module.BACKLOG_BYTES_MAX, 1000)

        async def scenario() -> None:
            connection, transport = self.made()
            transport.waiting_bytes = 1001
            connection.send(Kind.STORE, 1, (b"more",))
            await asyncio.sleep(0)
            assert transport.closed == "abort"
            connection.connection_lost(None)
            with pytest.raises(Unreachable, match="does not read"):
                await connection.call(Ping(), timeout_s=1)

        run(scenario)

    @as_scenario(run)
    async def test_a_full_machine_is_waited_for(self) -> None:
        connection, _ = self.made()
        told: list[Connection] = []
        connection.on_writable = told.append
        connection.pause_writing()
        waiting = asyncio.create_task(connection.wait_writable())
        await asyncio.sleep(1)
        assert not connection.is_writable
        assert not waiting.done()
        assert told == []
        connection.resume_writing()
        await waiting
        assert (connection.is_writable, told) == (True, [connection])
        connection.pause_writing()
        connection.connection_lost(None)
        await connection.wait_writable()

    @as_scenario(run)
    async def test_a_connection_that_failed_before_it_was_made_is_not_left_open(self) -> None:
        """asyncio calls `connection_made` a turn after it asked for the handler; a server
        that failed the handler in between kept a socket that nobody ever closed."""
        connection = Connection(NODE_1, Keeping(), dialled=False)
        connection.fail(Unreachable("too many"))
        transport = KeptTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        assert transport.closed == "abort"


@as_scenario(run)
async def test_a_dial_to_nobody_is_unreachable(*, make_ends) -> None:
    with pytest.raises(Unreachable):
        await dial(make_ends().client, ADDRESS, CLIENT, Keeping(), timeout_s=1)

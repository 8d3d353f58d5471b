"""The storage role: frames in, engine and read streams underneath, answers out.

STORED answers are cumulative and leave once a tick for each connection, however
many waves became durable in it.

Source: docs/design.md §4, §5.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from cordwood.errors import AccessDenied, Malformed, Rejected, Retryable, Unreachable
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.log_questions import (
    AskExtent,
    AskIfLost,
    AskKept,
    AskSize,
    AskTime,
    ExtentReply,
    IfLostReply,
    KeptReply,
    SizeReply,
    TimeReply,
    Trim,
    TrimReply,
)
from cordwood.layout.message import (
    AskEpoch,
    Clean,
    DoneReply,
    EpochReply,
    Seal,
    SealReply,
    TellNodesets,
)
from cordwood.layout.message_rebuilding import TellProducers
from cordwood.layout.produced import read_produced
from cordwood.layout.reading import (
    ReadRequest,
    ReadStatus,
    pack_reading,
    read_read,
    read_stop,
    read_window,
)
from cordwood.layout.waves import StoreRefusal, pack_stored, read_pairs
from cordwood.lsn import EVENT_LOG, format_lsn
from cordwood.storage.claims import Claims, can_be_known_good
from cordwood.storage.copy_survey import CopySurvey
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import EpochEnd
from cordwood.storage.log_search import LogSearch
from cordwood.storage.push.read_gate import ReadGate
from cordwood.storage.push.read_rights import ReadRights
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.space.kept_bytes import kept_here
from cordwood.wire.connection import Connection
from cordwood.wire.for_nodes import is_node

Marks = Seal | Clean | Trim | TellNodesets | TellProducers
"""Calls that change a log here for good."""


class _Session:
    """Unanswered waves of one connection, in order."""

    __slots__ = ("answer_due", "last", "open", "refusals", "settled")

    def __init__(self) -> None:
        self.last = 0
        self.open: deque[list[bool]] = deque()
        self.settled = 0
        self.refusals: list[StoreRefusal] = []
        self.answer_due = False


class StorageRole:
    """See the module."""

    def __init__(
        self,
        engine: StorageEngine,
        streams: ReadStreams,
        rights: ReadRights | None = None,
        claims: Claims | None = None,
        survey: CopySurvey | None = None,
    ) -> None:
        """
        Args:
            rights: decides which client may read which log; None admits every client.
            claims: checks seals, trims and releases; None believes all.
            survey: counts the copies that this node would have to give if nodes were lost; None if
                the role does not answer that.
        """
        self._claims = claims
        self._survey = survey
        self._engine = engine
        self._rights = rights
        self._gate = ReadGate(streams, rights)
        self._search = LogSearch(engine)
        self._sessions: dict[Connection, _Session] = {}

    @property
    def engine(self) -> StorageEngine:
        """The store underneath."""
        return self._engine

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """A STORE, RELEASE, READ, WINDOW or STOP frame.

        Raises:
            Malformed: it is damaged, out of order, or of another kind.
        """
        kind = frame.kind
        if kind == Kind.STORE:
            self._on_store(connection, frame)
        elif kind == Kind.RELEASE:
            release = self._engine.release if self._claims is None else self._claims.release
            for log, lsn in read_pairs(frame.payload):
                release(log, lsn)
        elif kind == Kind.READ:
            self._on_read(connection, read_read(frame.payload))
        elif kind == Kind.WINDOW:
            self._gate.move_window(connection, *read_window(frame.payload))
        elif kind == Kind.STOP:
            self._gate.stop(connection, read_stop(frame.payload))
        else:
            raise Malformed(f"a storage node takes no frame of kind {kind}")

    def tell_space(self) -> None:
        """Tell every connection that stores here that there is free space again."""
        for connection, session in self._sessions.items():
            self._answer_soon(connection, session)

    def on_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._sessions.pop(connection, None)
        self._gate.drop_connection(connection)

    async def mark(self, connection: Connection, call: Marks) -> SealReply | DoneReply | TrimReply:
        """Carry out a call that changes a log here for good, after a check that its claim is true.

        Raises:
            Rejected: the epoch was never handed out, or the call contradicts itself.
            AccessDenied: a client trims a log that it may not append to.
            Unreachable: a client names a release that no sequencer confirms.
            Retryable: the metadata store does not say.
        """
        match call:
            case Seal():
                return await self.seal(call)
            case Clean():
                return await self.clean(call)
            case Trim():
                by_node = is_node(connection)
                if call.log == EVENT_LOG and not by_node:
                    raise AccessDenied("only nodes trim the event log")
                if self._rights is not None and not by_node:
                    await self._rights.check_writer(call.log, connection.tokens)
                return await self.trim(call, by_node=by_node)
            case TellNodesets():
                # A log's first epoch is handed out with its first nodeset.
                if call.epoch > 1:
                    await self._check_epoch(call.log, call.epoch)
                if call.begins:
                    self._engine.check_unrecorded(call.log, call.epoch)
                await self._engine.tell_nodesets(call.log, call.epoch, call.history)
                return DoneReply()
            case TellProducers():
                return await self.tell_producers(call)

    async def seal(self, call: Seal) -> SealReply:
        """See `StorageEngine.seal` and `mark`."""
        if self._claims is not None:
            await self._claims.check_seal(call.log, call.epoch)
        return await self._engine.seal(call.log, call.epoch, call.clean)

    async def clean(self, call: Clean) -> DoneReply:
        """See `StorageEngine.clean` and `mark`."""
        end = await self._checked_end(call)
        await self._engine.clean(call.log, call.epoch, end)
        return DoneReply()

    async def tell_producers(self, call: TellProducers) -> DoneReply:
        """See `TellProducers` and `mark`."""
        if call.seal:
            end = await self._checked_end(call)
            await self._engine.tell_end(call.log, call.epoch, end)
            return DoneReply()
        told = read_produced(call.produced)
        if any(place.first >> 32 != call.epoch for each in told for place in each.places):
            raise Rejected(
                f"log {call.log}: the LSNs told for epoch {call.epoch} are of another epoch"
            )
        await self._check_epoch(call.log, call.epoch)
        await self._engine.tell_produced(call.log, call.epoch, told, call.append_time_us)
        return DoneReply()

    async def _checked_end(self, call: Clean | TellProducers) -> EpochEnd:
        read_produced(call.produced)
        is_past = call.lng >> 32 > call.epoch or not can_be_known_good(call.lng)
        if call.epoch >= call.seal or is_past:
            raise Rejected(
                f"log {call.log}: epoch {call.epoch} cannot end at {format_lsn(call.lng)} by "
                f"what epoch {call.seal} found"
            )
        await self._check_epoch(call.log, call.seal)
        return EpochEnd(call.seal, call.lng, call.produced, call.attempt)

    async def trim(self, call: Trim, *, by_node: bool = False) -> TrimReply:
        """See `StorageEngine.trim` and `mark`."""
        await self._check_epoch(call.log, call.until >> 32)
        if self._claims is not None and not by_node:
            await self._claims.check_released(call.log, call.until)
        if not can_be_known_good(call.until):
            raise Rejected(f"log {call.log}: no sequencer releases {format_lsn(call.until)}")
        return TrimReply(await self._engine.trim(call.log, call.lsn, call.until))

    async def _check_epoch(self, log: int, epoch: int) -> None:
        if self._claims is not None:
            await self._claims.check_epoch(log, epoch)

    async def look(
        self,
        call: AskTime | AskExtent | AskSize | AskKept | AskEpoch | AskIfLost,
        *,
        by_node: bool = False,
    ) -> TimeReply | ExtentReply | SizeReply | KeptReply | EpochReply | IfLostReply:
        """Answer from this node's part of a log, or of all logs; see `LogSearch`.

        Args:
            by_node: a member of the cluster asks, which needs no token.
        Raises:
            AccessDenied: the log wants a read token that the call does not bring.
            Unreachable: it took longer than the caller waits, so the answer is useless.
        """
        if isinstance(call, AskEpoch):
            return self.epoch_end(call)
        if isinstance(call, AskIfLost):
            assert self._survey is not None, "a node has one"
            return await self._survey.look(call)
        if isinstance(call, AskKept):  # of a node, which needs no token
            return KeptReply(await kept_here(self._engine, call.log, call.lsns))
        if self._rights is not None and not by_node:
            await self._rights.check(call.log, call.token)
        try:
            async with asyncio.timeout(call.timeout_ms / 1000 if call.timeout_ms else None):
                return await self._search_for(call)
        except TimeoutError:
            raise Unreachable(
                f"{type(call).__name__} took longer than {call.timeout_ms} ms here"
            ) from None

    async def _search_for(
        self, call: AskTime | AskExtent | AskSize
    ) -> TimeReply | ExtentReply | SizeReply:
        match call:
            case AskTime():
                return await self._search.find_time(call)
            case AskExtent():
                return await self._search.extent(call)
            case AskSize():
                return await self._search.size(call)

    def epoch_end(self, call: AskEpoch) -> EpochReply:
        """The end of an epoch, if this node was told it.

        Raises:
            Retryable: it does not know, and lost records: it may have been told.
        """
        held = self._engine.cache.get(call.log)
        end = held.ends.get(call.epoch) if held is not None else None
        if end is None and self._engine.damage:
            raise Retryable(f"it lost records: {self._engine.damage}")
        return EpochReply(False, 0, 0) if end is None else EpochReply(True, *end)

    def _on_read(self, connection: Connection, request: ReadRequest) -> None:
        if request.digest and not is_node(connection):
            # A digest has unreleased records, which may never be released.
            raise Malformed("a digest is for nodes, not for clients")
        status = ReadStatus.DAMAGED if self._engine.damage else ReadStatus.OK
        if request.digest and self._engine.sealed(request.log) <= request.until >> 32:
            status = ReadStatus.NOT_SEALED
        if request.digest and status != ReadStatus.OK:
            answer = pack_reading(request.stream, status, 0, request.version)
            connection.send(Kind.READING, 0, (answer,))
        else:
            self._gate.start(connection, request, status)

    def _on_store(self, connection: Connection, frame: Frame) -> None:
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = _Session()
        if frame.request != session.last + 1:
            raise Malformed(f"wave {frame.request} came after wave {session.last}")
        session.last = frame.request
        wave = [False]
        session.open.append(wave)
        self._engine.store(
            frame.request, frame.payload, partial(self.on_store_settled, connection, session, wave)
        )

    def on_store_settled(
        self,
        connection: Connection,
        session: _Session,
        wave: list[bool],
        refusals: Sequence[StoreRefusal],
    ) -> None:
        wave[0] = True
        session.refusals += refusals
        while session.open and session.open[0][0]:
            session.open.popleft()
            session.settled += 1
        self._answer_soon(connection, session)

    def _answer_soon(self, connection: Connection, session: _Session) -> None:
        if not session.answer_due:
            session.answer_due = True
            asyncio.get_running_loop().call_soon(self._answer, connection, session)

    def _answer(self, connection: Connection, session: _Session) -> None:
        session.answer_due = False
        ready = [each for each in session.refusals if each.wave <= session.settled]
        session.refusals = [each for each in session.refusals if each.wave > session.settled]
        room = self._engine.free_bytes
        connection.send(Kind.STORED, 0, (pack_stored(session.settled, ready, room),))

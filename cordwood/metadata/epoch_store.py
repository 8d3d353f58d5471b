"""The epoch store: the next epoch of each log, the clean epochs, and the nodes that may hold
records.

One record a log, changed by compare-and-set only. Taking an epoch is a read and a conditional
write: two round trips without a race. Every epoch is won by one write that its taker saw succeed,
so no epoch has two takers. After a write of unknown outcome the node takes a higher epoch. If the
write happened, its epoch has no sequencer, and recovery finds it empty. (A nonce in the record
could save such an epoch, but would add a second way to win one. Epochs are plentiful.)

A nodeset changes only with an epoch, and none is forgotten before all that it may have stored
is trimmed (`recovery.trim_nodesets`). Storage nodes keep that history too, for readers: see
`recovery.tell_nodesets`.

Source: docs/sources/logdevice.md 2.1; docs/design.md §3, §6.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from cordwood.errors import BadSetting, Fenced, Malformed, Rejected, TokenFenced, UnknownLog
from cordwood.layout.json_text import read_json
from cordwood.layout.message_logs import EpochNodes
from cordwood.log_attributes import NODESET_NODES_MAX
from cordwood.lsn import EPOCH_MAX, LSN_MAX, format_lsn
from cordwood.metadata.change import UNKNOWN_MAX, Decide, Known, change_repeatably
from cordwood.metadata.pages import pages
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import (
    COPIES_MAX,
    LOCATION_CHARS_MAX,
    Member,
    NodeId,
    Nodeset,
    Replication,
)

HISTORY_MAX = 512
"""Nodesets that one log can have at a time: one a day for more than a year of records."""

HISTORY_CHARS_MAX = 900_000
"""The most characters of the nodesets and locations of a history, as JSON. With this bound a record
fits into the metadata store."""

BEGUN_MAX = 64
"""The most begin times of epochs that are kept while lower epochs are not recovered."""

JUMP_MAX = 4096
"""Epochs without a taker that are skipped at once; each has to be recovered."""

UNSURE_MAX = 1024
"""Logs with writes that may have taken an epoch unawares. If one of them is forgotten, its next
sequencer does not ask the one before to finish: appends in flight there end as unknown."""

NODE_MAX = (1 << 32) - 1

TOKEN_MAX = (1 << 63) - 1
"""The highest fencing token: counters, times in ns and ZooKeeper versions stay below it."""

_EPOCHS = "epochs/"


class Configuration(NamedTuple):
    """The nodes, replication and locations that an epoch is to have.

    Attributes:
        locations: of each node; none at all where no node has one.
    """

    nodes: tuple[NodeId, ...]
    replication: Replication
    locations: tuple[str, ...] = ()

    @classmethod
    def of(cls, nodeset: Nodeset, replication: Replication) -> Configuration:
        """The configuration of a nodeset, with the present locations of its members."""
        return cls(nodeset.nodes, replication, nodeset.locations)


Wanted = Callable[["EpochRecord"], Configuration | None]
"""From a log's record to the configuration that its next epoch should have; None leaves it."""

Configure = Callable[[], Awaitable[Wanted]]
"""Asks for the facts that decide the configuration, while the record is read. Returns the
decision."""

_Node = Annotated[int, msgspec.Meta(ge=1, le=NODE_MAX)]
_Location = Annotated[str, msgspec.Meta(max_length=LOCATION_CHARS_MAX)]
_Copies = Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)]


class NodesetSince(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From epoch `since` on, `nodes` may hold records: `copies` of each, over `racks` racks, and
    over the number of domains that `wider` has for each scope.

    Attributes:
        locations: the location of each node when these epochs chose their copysets. Every later
            judgement of these epochs uses it. Empty if no node had a location.
    """

    since: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
    nodes: Annotated[tuple[_Node, ...], msgspec.Meta(min_length=1, max_length=NODESET_NODES_MAX)]
    copies: _Copies
    racks: _Copies
    wider: dict[str, _Copies] = {}
    locations: tuple[_Location, ...] = ()

    def __post_init__(self) -> None:
        if self.locations and len(self.locations) != len(self.nodes):
            raise ValueError("a nodeset has another number of locations than of nodes")

    def nodeset(self, members: Mapping[NodeId, Member]) -> Nodeset:
        """The nodeset, with the failure domains of its epochs; see `Nodeset.recorded`."""
        return Nodeset.recorded(self.nodes, self.locations, members)

    @property
    def told(self) -> EpochNodes:
        """The form in which it is sent, and kept by storage nodes."""
        return EpochNodes(
            self.since, list(self.nodes), self.copies, self.racks, self.wider,
            list(self.locations),
        )  # fmt: skip

    @property
    def replication(self) -> Replication:
        """The replication property.

        Raises:
            BadSetting: the property does not exist.
        """
        return Replication.across({**self.wider, "node": self.copies, "rack": self.racks})


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The begin time of an epoch: the epoch has no record older than `time_us`, and no lower epoch
    has an acknowledged record that is younger."""

    epoch: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
    time_us: Annotated[int, msgspec.Meta(ge=0)]


class EpochRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The epoch store's entry of one log.

    An unknown field is refused: a version that does not know it would drop it.

    Attributes:
        next_epoch: the next epoch to hand out; EPOCH_MAX + 1 when all are used up.
        clean_epoch: all epochs up to this epoch are recovered; 0 for none.
        clean_tail: LSN of the last record up to there; 0 for none.
        clean_time_us: no record up to there is younger. A recovery of later epochs asks only the
            nodes of those epochs, and they may have none of these records.
        owner: node that took the newest epoch, 0 if unknown. A hint.
        owner_before: node that took the epoch before that, 0 if unknown. It may still sequence, and
            is asked to finish before it is sealed.
        history: nodesets, by the epoch from which on they hold, ascending. The first entry holds
            from epoch 1 on, or the history before it is trimmed.
        deleted: the log is gone; it gets no epochs any more.
        token: the log's fencing token: appends with a lower token are refused from the newest epoch
            on.
        holder: the holder's name, in words.
        clean_seal, clean_attempt: the recovery that ended `clean_epoch`; 0 if unknown.
        begun: begin times, by epoch, of epochs above unrecovered ones; times rise.
        sealed: the highest epoch with a begin time: all epochs below were sealed by then.
    """

    next_epoch: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX + 1)]
    clean_epoch: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
    clean_tail: Annotated[int, msgspec.Meta(ge=0, le=LSN_MAX)]
    history: Annotated[tuple[NodesetSince, ...], msgspec.Meta(min_length=1, max_length=HISTORY_MAX)]
    owner: Annotated[int, msgspec.Meta(ge=0, le=NODE_MAX)] = 0
    owner_before: Annotated[int, msgspec.Meta(ge=0, le=NODE_MAX)] = 0
    clean_time_us: Annotated[int, msgspec.Meta(ge=0)] = 0
    deleted: bool = False
    token: Annotated[int, msgspec.Meta(ge=0, le=TOKEN_MAX)] = 0
    holder: Annotated[str, msgspec.Meta(max_length=255)] = ""
    clean_seal: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)] = 0
    clean_attempt: Annotated[int, msgspec.Meta(ge=0)] = 0
    begun: Annotated[tuple[Begun, ...], msgspec.Meta(max_length=BEGUN_MAX)] = ()
    sealed: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)] = 0

    def configuration(self, epoch: int) -> tuple[tuple[NodeId, ...], Replication]:
        """The nodeset and replication property of an epoch that was handed out.

        Raises:
            BadSetting: it was not, or all of it is trimmed.
        """
        found = self.entry(epoch)
        return tuple(NodeId(node) for node in found.nodes), found.replication

    def entry(self, epoch: int) -> NodesetSince:
        """The entry of the history that covers an epoch.

        Raises:
            BadSetting: as `configuration`.
        """
        if not 1 <= epoch < self.next_epoch:
            raise BadSetting(f"epoch {epoch} was not handed out; the next is {self.next_epoch}")
        if epoch < self.history[0].since:
            raise BadSetting(f"epoch {epoch} is trimmed, and its sequencer is not known any more")
        return next(entry for entry in reversed(self.history) if entry.since <= epoch)

    @property
    def shown(self) -> int:
        """An epoch of which the record shows that it began: it recovered others; 0 for none.

        It may be an epoch that the record still has to hand out. Then an older copy of the metadata
        store was put back while that epoch's sequencer ran, and its recovery ended afterwards.
        """
        return self.clean_seal

    def latest_us(self, epoch: int) -> int | None:
        """A time: no acknowledged record of `epoch` is younger. It follows from the begin times of
        higher epochs; None if none of these is known."""
        return min((each.time_us for each in self.begun if each.epoch > epoch), default=None)

    @property
    def has_room(self) -> bool:
        """Whether its history takes another nodeset."""
        chars = sum(_chars(each) for each in self.history)
        return len(self.history) < HISTORY_MAX and chars < HISTORY_CHARS_MAX


class EpochStore:
    """The epoch records of all logs in one metadata store.

    Every call may also raise Unreachable and Overloaded (ask again; it is harmless to repeat a call
    that did change something) and Malformed (the record cannot be read, or a newer version wrote
    it).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # By log: what a call may have written that took an epoch, and ended without an answer.
        self._unsure: dict[int, list[EpochRecord]] = {}

    async def read(self, log_id: int) -> EpochRecord | None:
        """A log's record, None if it has none. One round trip."""
        found = await self._store.get(_key(log_id))
        return None if found is None else _decode(log_id, found.value)

    async def newest(self) -> dict[int, int]:
        """The newest epoch that was handed out, by log; logs that had none are left out."""
        return {log: each.next_epoch - 1 async for log, each in self._all() if each.next_epoch > 1}

    async def records(self) -> dict[int, EpochRecord]:
        """The records of all logs, by log."""
        return {log: each async for log, each in self._all()}

    async def _all(self) -> AsyncIterator[tuple[int, EpochRecord]]:
        """Each log's record; in pages, because those of deleted logs stay."""
        async for page in pages(self._store, _EPOCHS):
            for key, found in page:
                if log := _log_of(key):
                    yield log, _decode(log, found.value)

    async def newest_of(self, log_id: int) -> int:
        """The newest epoch of one log that was handed out, 0 for none."""
        record = await self.read(log_id)
        return 0 if record is None else record.next_epoch - 1

    async def create(
        self,
        log_id: int,
        nodes: Sequence[NodeId],
        replication: Replication,
        locations: Sequence[str] = (),
    ) -> EpochRecord:
        """Give a log its first nodeset; the first caller's nodeset counts, also for later callers.

        Args:
            locations: the location of each of the nodes; empty if no node has one.
        Returns:
            The record as stored.
        Raises:
            BadSetting: the nodes cannot be a nodeset of this replication.
        """
        first = EpochRecord(1, 0, 0, (_nodeset_since(1, nodes, replication, locations),))

        def decide(found: bytes | None) -> bytes | None:
            return msgspec.json.encode(first) if found is None else None

        return await self._change(log_id, decide)

    async def take_epoch(
        self,
        log_id: int,
        *,
        owner: int = 0,
        above: int = 0,
        nodes: Sequence[NodeId] | None = None,
        replication: Replication | None = None,
        configure: Configure | None = None,
    ) -> tuple[int, EpochRecord]:
        """Take the next epoch. No other node ever gets it. Two round trips without a race.

        Args:
            owner: this node, for readers of the entry.
            above: an epoch by which nodes are sealed. Epochs up to it are useless. nodes,
            replication: in force from this epoch on; None leaves them.
            configure: is awaited while the record is read, and decides both in their place.
        Returns:
            The epoch, and the record as stored then (its `next_epoch` is one more).
        Raises:
            UnknownLog: the log has no record, or was deleted.
            BadSetting: the nodes cannot be a nodeset of this replication.
            Rejected: all epochs up to EPOCH_MAX are used up, or the log has too many nodesets, or
                `above` is JUMP_MAX above the newest one.
        """
        found, wanted = await asyncio.gather(
            self._store.get(_key(log_id)), (configure or _as_told(nodes, replication))()
        )

        tried = self._unsure.pop(log_id, [])

        def decide(found: bytes | None) -> bytes | None:
            known = _known(log_id, found)
            # Trap: if the epoch below is clean already, no seal asks nodes for records of this one.
            record = _jumped(log_id, known, max(above, known.shown))
            _check_epochs_left(log_id, record)
            after = msgspec.structs.replace(
                record,
                next_epoch=record.next_epoch + 1,
                owner=owner,
                # An epoch that this call, or a call before it, took without knowing it, because
                # an answer was lost, has no sequencer.
                owner_before=record.owner_before if known in tried else record.owner,
                history=_extended(log_id, record, wanted(record)),
            )
            # Race: the answer of a write may be lost. The next try finds that write, and must not
            # take this node for the owner before.
            tried.append(after)
            return msgspec.json.encode(after)

        try:
            record = await self._change(log_id, decide, (found,))
        except BaseException:
            if tried:
                self._unsure[log_id] = tried[-UNKNOWN_MAX:]
                if len(self._unsure) > UNSURE_MAX:
                    # The oldest: another node may have its log by now, and this one never asks.
                    del self._unsure[next(iter(self._unsure))]
            raise
        return record.next_epoch - 1, record

    async def raise_token(self, log_id: int, token: int, holder: str) -> EpochRecord:
        """Give a log a higher fencing token, and with it an epoch without a sequencer.

        Sequencers of that epoch and below do not know of it: it holds once one of a higher epoch
        has begun. The same token for the same holder again changes nothing.

        Returns:
            The record as stored.
        Raises:
            UnknownLog: the log has no record, or was deleted.
            TokenFenced: the token is not higher than the log's; names the holder.
            BadSetting: it is out of its range.
        """
        if not 1 <= token <= TOKEN_MAX or len(holder) > 255:
            raise BadSetting(f"fencing token {token}: it goes from 1 to {TOKEN_MAX}")

        def decide(found: bytes | None) -> bytes | None:
            record = _known(log_id, found)
            # A sequencer needs an epoch above this epoch, or the log has no sequencer.
            _check_epochs_left(log_id, record, 2)
            if (token, holder) == (record.token, record.holder):
                return None
            if token <= record.token:
                raise TokenFenced(fenced_words(log_id, token, record.token, record.holder))
            return msgspec.json.encode(
                msgspec.structs.replace(
                    record,
                    token=token,
                    holder=holder,
                    next_epoch=record.next_epoch + 1,
                    owner=0,
                    owner_before=record.owner,
                )
            )

        return await self._change(log_id, decide)

    async def delete(self, log_id: int) -> None:
        """Hand out no epoch of this log any more; safe to call twice.

        The record stays: storage nodes may still ask how an epoch ended.

        Raises:
            UnknownLog: the log has no record.
        """

        def decide(found: bytes | None) -> bytes | None:
            record = _known(log_id, found)
            if record.deleted:
                return None
            return msgspec.json.encode(msgspec.structs.replace(record, deleted=True))

        await self._change(log_id, decide)

    async def set_clean(
        self,
        log_id: int,
        epoch: int,
        tail: int,
        time_us: int = 0,
        by: tuple[int, int] = (0, 0),
    ) -> EpochRecord:
        """Record that every epoch up to `epoch` is recovered. Never goes back.

        Args:
            tail: LSN of the last record up to there, or `(E, 0)` with E up to `epoch`.
            time_us: no record up to there is younger, as far as this recovery has found.
            by: this recovery's seal, and its attempt.
        Returns:
            The record as stored: the present one, if it is as clean already.
        Raises:
            UnknownLog: the log has no record.
            BadSetting: the epoch was not handed out, the tail lies above it, or below the
                tail of an epoch before it.
        """

        def decide(found: bytes | None) -> bytes | None:
            record = _known(log_id, found)
            # Another recovery was first, and its outcome counts: two outcomes would give two ends.
            if epoch <= record.clean_epoch:
                return None
            _check_clean(log_id, record, epoch, tail)
            # An Lsn is an int to Python and not to msgspec, which encodes no subclasses.
            return msgspec.json.encode(
                msgspec.structs.replace(
                    record,
                    clean_epoch=epoch,
                    clean_tail=int(tail),
                    # This recovery asked only the nodes of its epoch, and they may have no record
                    # of earlier epochs.
                    clean_time_us=max(record.clean_time_us, time_us),
                    clean_seal=by[0],
                    clean_attempt=by[1],
                    # The begin time of the epoch right above bounds only epochs up to this epoch.
                    begun=tuple(each for each in record.begun if each.epoch > epoch + 1),
                )
            )

        return await self._change(log_id, decide)

    async def note_begun(self, log_id: int, epoch: int, time_us: int | None) -> EpochRecord:
        """Record that all epochs below `epoch` are sealed, and the time at which `epoch` begins,
        before it has a record.

        A recovery of a lower epoch drops younger records there: otherwise append time would fall
        along the log.

        Args:
            time_us: None if lower epochs may have younger records.
        Returns:
            The record as stored.
        Raises:
            UnknownLog: the log has no record.
            BadSetting: the epoch was not handed out.
            Fenced: a higher epoch has sealed. A recovery uses the bound recorded at its time; by a
                later bound the next recovery would drop records that this recovery kept.
        """

        def decide(found: bytes | None) -> bytes | None:
            record = _known(log_id, found)
            if epoch >= record.next_epoch:
                raise BadSetting(f"log {log_id}: epoch {epoch} was not handed out")
            # The recovery of a higher epoch uses the bounds that it read. A bound noted after that
            # would drop records that it kept.
            if epoch < record.sealed:
                raise Fenced(f"log {log_id} is sealed by epoch {record.sealed}", record.sealed)
            begun = record.begun if time_us is None else with_begun(record, epoch, time_us)
            if (epoch, begun) == (record.sealed, record.begun):
                return None
            return msgspec.json.encode(msgspec.structs.replace(record, begun=begun, sealed=epoch))

        return await self._change(log_id, decide)

    async def trim_history(self, log_id: int, since: int) -> EpochRecord:
        """Forget the nodesets of epochs below `since`, which one of the log's entries begins with.

        Returns:
            The record as stored.
        Raises:
            UnknownLog: the log has no record.
            BadSetting: no nodeset begins with `since`, or the last clean epoch is below it.
        """

        def decide(found: bytes | None) -> bytes | None:
            record = _known(log_id, found)
            if since < record.history[0].since:
                return None  # another caller trimmed more
            left = tuple(each for each in record.history if each.since >= since)
            # The last clean epoch keeps its nodeset: recoveries ask its nodes how it ended.
            if not left or left[0].since != since or since > max(record.clean_epoch, 1):
                raise BadSetting(
                    f"log {log_id}: its nodesets cannot be trimmed up to epoch {since}, its last "
                    f"clean one is {record.clean_epoch}"
                )
            if left == record.history:
                return None
            return msgspec.json.encode(msgspec.structs.replace(record, history=left))

        return await self._change(log_id, decide)

    async def _change(self, log_id: int, decide: Decide, known: Known | None = None) -> EpochRecord:
        stored = await change_repeatably(self._store, _key(log_id), decide, known)
        return _known(log_id, stored)


def fenced_words(log_id: int, token: int, ruling: int, holder: str) -> str:
    """The error text for a fencing token that is too low."""
    by = f", which {holder} holds" if holder else ""
    return f"log {log_id}: fencing token {token} is overtaken by {ruling}{by}; nothing was stored"


def _as_told(nodes: Sequence[NodeId] | None, replication: Replication | None) -> Configure:
    """A `Configure` for fixed values, each of which may be None."""

    async def configure() -> Wanted:
        def wanted(record: EpochRecord) -> Configuration:
            newest = record.history[-1]
            kept = replication or newest.replication
            if nodes is not None:
                return Configuration(tuple(nodes), kept)
            return Configuration(tuple(map(NodeId, newest.nodes)), kept, newest.locations)

        return wanted

    return configure


def _key(log_id: int) -> str:
    return f"{_EPOCHS}{log_id}"


def _log_of(key: str) -> int:
    digits = key.removeprefix(_EPOCHS)
    if not (digits.isascii() and digits.isdigit()):
        raise Malformed(f"{key} in the metadata store is no log's epoch record")
    return int(digits)


def _decode(log_id: int, value: bytes) -> EpochRecord:
    return read_json(value, EpochRecord, f"the epoch record of log {log_id}")


def _known(log_id: int, found: bytes | None) -> EpochRecord:
    if found is None:
        raise UnknownLog(f"the epoch store knows no log {log_id}")
    return _decode(log_id, found)


def _nodeset_since(
    since: int, nodes: Sequence[NodeId], replication: Replication, locations: Sequence[str]
) -> NodesetSince:
    ordered = tuple(sorted(set(nodes)))
    if len(ordered) != len(nodes) or not all(1 <= node <= NODE_MAX for node in ordered):
        raise BadSetting(f"nodes {list(nodes)} are no nodeset: distinct numbers from 1 on")
    if not replication.copies <= len(ordered) <= NODESET_NODES_MAX:
        raise BadSetting(
            f"{replication} needs {replication.copies} to {NODESET_NODES_MAX} nodes, "
            f"and there are {len(ordered)}"
        )
    if locations and len(locations) != len(nodes):
        raise BadSetting(f"nodes {list(nodes)} are not as many as the locations {list(locations)}")
    wider = dict(replication.wider)
    at = dict(zip(nodes, locations, strict=True)) if any(locations) else {}
    places = tuple(at[node] for node in ordered) if at else ()
    return NodesetSince(since, ordered, replication.copies, replication.racks, wider, places)


def _chars(entry: NodesetSince) -> int:
    """About the number of characters of an entry as JSON, and never fewer."""
    return (
        130
        + 20 * len(entry.wider)
        + 11 * len(entry.nodes)
        + sum(len(each) + 3 for each in entry.locations)
    )


def _extended(
    log_id: int, record: EpochRecord, wanted: Configuration | None
) -> tuple[NodesetSince, ...]:
    """The history, with a new entry from `next_epoch` on if something changed."""
    if wanted is None:
        return record.history
    *before, newest = record.history
    entry = _nodeset_since(record.next_epoch, *wanted)
    if msgspec.structs.replace(entry, since=newest.since) == newest:
        return record.history
    # No epoch was begun with the newest entry, so it says nothing of a record.
    if newest.since == entry.since:
        return (*before, entry)
    if not record.has_room:
        raise Rejected(
            f"log {log_id} has had {len(record.history)} nodesets since its oldest record; it "
            "cannot have another: trim it"
        )
    return (*record.history, entry)


def with_begun(record: EpochRecord, epoch: int, time_us: int) -> tuple[Begun, ...]:
    """The begin times that still bound records: those of epochs above an unclean epoch, with rising
    times."""
    if epoch <= record.clean_epoch + 1:
        return record.begun
    below = [each for each in record.begun if each.epoch < epoch and each.time_us < time_us]
    # Past the bound the second newest goes: the newest bounds the same epochs, less tightly.
    return (*below[: BEGUN_MAX - 1], Begun(int(epoch), int(time_us)))


def _jumped(log_id: int, record: EpochRecord, above: int) -> EpochRecord:
    """The record with all epochs up to `above` passed over; each of them will be recovered."""
    if above - record.next_epoch > JUMP_MAX:
        raise Rejected(
            f"log {log_id} is sealed by epoch {above}, and the newest that was handed out is "
            f"{record.next_epoch - 1}: bring back the metadata store that knows it, or make a "
            "new log"
        )
    return msgspec.structs.replace(record, next_epoch=max(record.next_epoch, above + 1))


def _check_epochs_left(log_id: int, record: EpochRecord, count: int = 1) -> None:
    if record.deleted:
        raise UnknownLog(f"log {log_id} was deleted")
    if record.next_epoch + count - 1 > EPOCH_MAX:
        raise Rejected(f"log {log_id} has used up all {EPOCH_MAX} epochs: make a new log")


def _check_clean(log_id: int, record: EpochRecord, epoch: int, tail: int) -> None:
    if epoch >= record.next_epoch:
        raise BadSetting(f"log {log_id}: epoch {epoch} was not handed out, so it is not clean")
    if not (record.clean_tail <= tail and tail >> 32 <= epoch):
        raise BadSetting(
            f"log {log_id}: epoch {epoch} cannot end at {format_lsn(tail)}, "
            f"after {format_lsn(record.clean_tail)}"
        )

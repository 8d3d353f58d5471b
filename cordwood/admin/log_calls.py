"""What clients ask of the log tree and the epoch store, answered by any node.

Source: docs/design.md §6, §7; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from cordwood.admin.log_replies import epoch_nodes, log_reply, member_infos
from cordwood.errors import LogExists, Malformed, Rejected, TooFewNodes, UnknownLog
from cordwood.host.seams import Clock
from cordwood.layout.log_names import normalise_directory
from cordwood.layout.message import Call, DoneReply, Reply
from cordwood.layout.message_fields import shown
from cordwood.layout.message_logs import (
    AskDirectory,
    AskEpochs,
    CreateLog,
    DirectoryReply,
    EpochsReply,
    FindLog,
    ListLogs,
    LogReply,
    LogsReply,
)
from cordwood.layout.message_rights import (
    AskVersion,
    DeleteLog,
    RaiseToken,
    RenameLog,
    SetAttributes,
    VersionReply,
)
from cordwood.log_attributes import DEFAULTS, LogAttributes, replicate_across
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.metadata.log_entries import numbers_of
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_rights import who_has
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Member, NodeId, Replication
from cordwood.quorum.nodeset_selection import choose_nodeset


class LogCalls:
    """See the module.

    Args:
        members: the cluster's, as this node knows them; `refresh_members` reads them anew.
        create_logs: whether a look-up creates a missing log, if the caller asks for it.
    """

    def __init__(
        self,
        logs: LogTree,
        epochs: EpochStore,
        clock: Clock,
        members: Callable[[], Mapping[NodeId, Member]],
        refresh_members: Callable[[], Awaitable[None]],
        *,
        create_logs: bool,
    ) -> None:
        self._logs = logs
        self._epochs = epochs
        self._clock = clock
        self._members = members
        self._refresh_members = refresh_members
        self._create_logs = create_logs

    async def answer(self, call: Call) -> Reply:
        """Answer one call.

        Raises:
            Rejected: it cannot be done, or is no call of these.
            Retryable, OutcomeUnknown: the metadata store does not answer.
        """
        match call:
            case FindLog():
                return await self._find(call)
            case CreateLog():
                return await self._describe(await self._create(call))
            case ListLogs():
                return await self._list(call.prefix)
            case SetAttributes():
                if call.attributes.replicate_across:
                    await self._check_placement(call)
                check = who_has(call.tokens)
                await self._logs.set_attributes(
                    call.path, call.attributes, tuple(call.unset), check, call.log, call.version
                )
                return DoneReply()
            case AskVersion():
                return VersionReply(await self._logs.version(call.log))
            case AskDirectory():
                return await self._directory(call)
            case RenameLog():
                check = who_has(call.tokens)
                info = await self._logs.rename(
                    call.name, call.new_name, check, call.log, call.version
                )
                return await self._describe(info)
            case DeleteLog():
                gone = await self._logs.delete(call.name, who_has(call.tokens), call.log)
                if gone is not None:
                    await self._epochs.delete(gone.log_id)
                return DoneReply()
            case AskEpochs():
                return await self._ask_epochs(call.name)
            case RaiseToken():
                return await self._raise_token(call)
        raise Rejected(f"a node does not answer {type(call).__name__}")

    async def _list(self, prefix: str) -> LogsReply:
        """The logs below a path; an entry that cannot be read hides no other log."""
        errors: dict[str, Malformed] = {}
        logs = [log_reply(info) for info in await self._logs.list(prefix, unread=errors)]
        unread = [shown(f"{key}: {error}") for key, error in sorted(errors.items())]
        return LogsReply(logs, unread, sorted(numbers_of(errors)))

    async def _find(self, call: FindLog) -> LogReply:
        if call.log is not None:
            found = await self._logs.by_id(call.log)
            if found is None:
                raise UnknownLog(f"log number {call.log} was deleted, or never was")
            return await self._describe(found)
        info = await self._logs.get(call.name)
        if info is None:
            if not (call.create and self._create_logs):
                raise _unknown(call.name)
            info = await self._ensure(call.name)
        return await self._describe(info)

    async def _create(self, call: CreateLog) -> LogInfo:
        attributes = call.attributes
        if call.copies or call.racks:
            inherited = (await self._logs.planned(call.name)).replication
            copies = call.copies or inherited.copies
            racks = call.racks or min(copies, inherited.racks)
            wider = {scope: min(copies, count) for scope, count in inherited.wider}
            replication = Replication.across({**wider, "node": copies, "rack": racks})
            scopes = LogAttributes(replicate_across=replicate_across(replication))
            attributes = scopes.over(attributes)
        try:
            return await self._make(call.name, attributes, call.mark)
        except LogExists:
            # Its answer was lost: an earlier try of this call, at this node or another, made it.
            made = await self._logs.get(call.name)
            if made is None or not call.mark or made.mark != call.mark:
                raise
            return made

    async def _make(self, name: str, own: LogAttributes, mark: str = "") -> LogInfo:
        # Before the name is taken: a log that cannot be written would be in the way.
        await self._refresh_members()
        planned = await self._logs.planned(name, own)
        self._nodeset(name, 0, planned)
        info = await self._logs.create(name, own, created_us=self._clock.now_us(), mark=mark)
        await self._begin(info)
        return info

    async def _begin(self, info: LogInfo) -> EpochRecord:
        nodes = self._nodeset(info.name, info.log_id, info.attributes)
        members = self._members()
        places = [members[node].location for node in nodes]
        return await self._epochs.create(info.log_id, nodes, info.replication, places)

    async def _check_placement(self, call: SetAttributes) -> None:
        """Refuse a replication that this cluster cannot keep, as making a log does.

        Without this the log went on under its old replication and was shown with the new one.
        """
        await self._refresh_members()
        self._nodeset(call.path, 0, call.attributes.over(DEFAULTS))

    def _nodeset(self, name: str, log: int, attributes: LogAttributes) -> tuple[NodeId, ...]:
        members = self._members().values()
        replication = attributes.replication
        nodes = choose_nodeset(log, members, replication, attributes.nodeset_size or 0)
        if nodes is None:
            scopes = ["rack", *(scope for scope, _ in replication.wider)]
            domains = [f"{len({m.domain(s) for m in members})} {s}s" for s in scopes]
            raise TooFewNodes(
                f"{name} wants {replication}; this cluster has {len(members)} nodes in "
                + " and ".join(domains)
            )
        return nodes

    async def _ensure(self, name: str) -> LogInfo:
        """Make a log unless another caller does so at the same time."""
        try:
            return await self._make(name, LogAttributes())
        except Rejected:
            info = await self._logs.get(name)
            if info is None:
                raise
            return info

    async def _describe(self, info: LogInfo) -> LogReply:
        record = await self._epochs.read(info.log_id)
        if record is None:
            # Its maker stopped between name and epoch record; finish for it.
            record = await self._begin(info)
        return log_reply(info, record, member_infos(self._members()))

    async def _directory(self, call: AskDirectory) -> DirectoryReply:
        path = normalise_directory(call.path)
        own = (await self._logs.directories()).get(path, LogAttributes())
        return DirectoryReply(path, own, await self._logs.inherited(path))

    async def _raise_token(self, call: RaiseToken) -> EpochsReply:
        info = await self._logs.get(call.name)
        if info is None or call.log not in (None, info.log_id):
            raise _unknown(call.name)
        who_has(call.tokens)(info.name, info.attributes, None)
        # Race: by its name the answer could be another log's by now.
        record = await self._epochs.raise_token(info.log_id, call.token, call.holder)
        return _epochs_reply(info.log_id, record)

    async def _ask_epochs(self, name: str) -> EpochsReply:
        info = await self._logs.get(name)
        record = await self._epochs.read(info.log_id) if info is not None else None
        if info is None or record is None:
            raise _unknown(name)
        return _epochs_reply(info.log_id, record)


def _unknown(name: str) -> UnknownLog:
    return UnknownLog(f"there is no log {name!r}: make it with `cordwood logs create`")


def _epochs_reply(log: int, record: EpochRecord) -> EpochsReply:
    return EpochsReply(
        log,
        record.next_epoch,
        record.clean_epoch,
        record.clean_tail,
        record.owner,
        record.owner_before,
        epoch_nodes(record),
        record.token,
        record.holder,
    )

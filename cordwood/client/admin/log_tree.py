"""The log tree as a client sees it: attributes, directories, names, and a log's epochs.

Source: docs/design.md §7; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from cordwood.client.admin.changes_again import Change
from cordwood.client.cluster import Cluster, LogInfo, log_info
from cordwood.client.find.log_info import take_unread
from cordwood.errors import (
    AccessDenied,
    Fenced,
    OutcomeUnknown,
    Retryable,
    UnknownLog,
    Unreachable,
)
from cordwood.host.delivery import if_undelivered
from cordwood.layout.log_names import normalise_name
from cordwood.layout.message import Reply
from cordwood.layout.message_logs import (
    AskDirectory,
    AskEpochs,
    CreateLog,
    DirectoryReply,
    EpochsReply,
    ListLogs,
    LogReply,
    LogsReply,
)
from cordwood.layout.message_rights import (
    TOKENS_MAX,
    AskVersion,
    DeleteLog,
    RaiseToken,
    RenameLog,
    SetAttributes,
    VersionReply,
)
from cordwood.log_attributes import LogAttributes, check_attributes, token_digest
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection


def check_write_token(info: LogInfo | LogReply, tokens: Sequence[str]) -> None:
    """Refuse an append if the log has a write token that this client does not have.

    The client checks this by itself, as in LogDevice: it guards against mistakes, not against
    attackers.

    Raises:
        AccessDenied: it does not have it.
    """
    wanted = info.attributes.write_token
    if wanted and wanted not in map(token_digest, tokens):
        raise AccessDenied(
            f"{info.name} wants a write token: give it as ClientSettings(write_tokens=…), on the "
            "command line as CORDWOOD_WRITE_TOKENS"
        )


def read_token(info: LogInfo, tokens: Sequence[str]) -> str | None:
    """The token, out of a client's tokens, that a log asks its readers for: "" if it asks for none,
    None if the client does not have it."""
    wanted = info.attributes.read_token
    if not wanted:
        return ""
    return next((token for token in tokens if token_digest(token) == wanted), None)


def check_read_token(info: LogInfo, tokens: Sequence[str]) -> str:
    """The token for questions about a log, "" where it asks for none.

    Raises:
        AccessDenied: this client does not have it.
    """
    token = read_token(info, tokens)
    if token is None:
        raise AccessDenied(
            f"{info.name} wants a read token: give it as ClientSettings(read_tokens=…), on the "
            "command line as CORDWOOD_READ_TOKENS"
        )
    return token


class LogTree:
    """See the module. Every call may also raise Unreachable and OutcomeUnknown: it may then
    be made again. A deletion or a rename may be done by then, and another log may have the
    name. Made again in the same store it means the same log; elsewhere, give it `log_id`."""

    def __init__(self, cluster: Cluster, settings: ClientSettings) -> None:
        self._cluster = cluster
        self._timeout_s = settings.timeout_s
        self._tokens = dict.fromkeys((*settings.write_tokens, *settings.read_tokens))

    async def _meant(self, path: str) -> tuple[int | None, list[str]]:
        """The number of the log that has a path now, and those of this client's tokens that the
        log, or the logs below a directory, ask for.

        The number is 0 where no log has the path: then a rename or a deletion stopped half-way,
        and is made again.
        """
        log: int | None = None
        if path.endswith("/"):
            if not self._tokens:
                return None, []
            reply = await self._cluster.call_any(ListLogs(path), timeout_s=self._timeout_s)
            assert isinstance(reply, LogsReply), "ListLogs is answered with logs"
            asked = [each.attributes for each in reply.logs]
            asked.append((await self.directory(path)).attributes)
        else:
            try:
                info = await self._cluster.find_log(
                    path, create=False, timeout_s=self._timeout_s, fresh=True
                )
            except UnknownLog:
                return 0, []
            log, asked = info.log_id, [info.attributes]
        wanted = {digest for each in asked for digest in (each.write_token, each.read_token)}
        return log, [token for token in self._tokens if token_digest(token) in wanted][:TOKENS_MAX]

    @contextlib.asynccontextmanager
    async def _still_meant(
        self, change: Change, log_id: int | None
    ) -> AsyncIterator[tuple[int | None, list[str]]]:
        """As `_meant`, for a caller that means a log by its number, or by an equal change that had
        no answer. If this one has none either, its repeat means the same log.

        A call with a number needs no memory, and leaves alone what other callers' repeats mean.

        Raises:
            UnknownLog: another log has the name.
            Fenced: this call had no answer, and the store could not remember what it meant.
        """
        verb, name, *_ = change
        unanswered = self._cluster.unanswered
        again = unanswered.take(change) if log_id is None else None
        number = wanted = again if log_id is None else log_id
        is_kept = False
        try:
            found, tokens = await self._meant(name)
            if wanted is None:
                number = found
            elif found not in (0, wanted):
                why = f"{name} is not log {wanted} any more: nothing was {verb}"
                if log_id is None:
                    why += ". An equal call without an answer meant that log; give the number of"
                    why += f" the log that has the name now, {found}, to change that one"
                raise UnknownLog(why)
            # If no log has the name, an earlier try may be done. The node finds it by number.
            yield number, tokens
        except (Retryable, OutcomeUnknown) as error:
            is_kept = again is not None
            if number and log_id is None and not is_kept:
                if not unanswered.has_room():
                    raise Fenced(
                        f"{name} may be {verb}: {error}. {len(unanswered)} changes of this store "
                        "had no answer, and no more are remembered. Give the number of the log, "
                        f"{number}, to make this one again"
                    ) from error
                unanswered.put(change, number)
                is_kept = True
            raise
        except asyncio.CancelledError:
            # Its caller cannot be told, so it is remembered however many there are.
            is_kept = True
            if number and log_id is None and again is None:
                unanswered.put(change, number)
            raise
        finally:
            # Not before: calls of other tasks come meanwhile, and may be the repeat.
            if again is not None:
                end = unanswered.put_back if is_kept else unanswered.answered
                end(change, again)
            if number and log_id is None and not is_kept:
                if_undelivered(partial(unanswered.put, change, number))

    async def names(self, prefix: str = "/", *, unread: list[str] | None = None) -> dict[int, str]:
        """The names of all logs below a path, by number: `Store.logs` at a third of its cost.

        Args:
            unread: as of `Store.logs`.
        Raises:
            Malformed: as `Store.logs`.
        """
        reply = await self._cluster.call_any(ListLogs(prefix), timeout_s=self._timeout_s)
        assert isinstance(reply, LogsReply), "ListLogs is answered with logs"
        take_unread(unread, reply.unread)
        return {each.log: each.name for each in reply.logs}

    async def create(self, log: str, copies: int, racks: int, attributes: LogAttributes) -> LogInfo:
        """Create a log. A number of 0 is inherited from the log's directory or from the cluster.

        Raises:
            LogExists: it is there.
            BadSetting: the name, the replication or an attribute is wrong.
        """
        call = CreateLog(log, copies, racks, attributes, self._cluster.new_mark())
        reply = await self._cluster.call_any(call, timeout_s=self._timeout_s)
        assert isinstance(reply, LogReply), "CreateLog is answered with a log"
        self._cluster.forget_log(log)  # the log that had the name before
        return log_info(reply)

    async def set_attributes(
        self, path: str, attributes: LogAttributes, unset: Sequence[str] = ()
    ) -> None:
        """Set attributes of a log, or of a directory: a path that ends with a slash.

        Nodes hear of it within a second. Replication and nodeset take a new epoch.

        Args:
            unset: names of attributes to inherit again.
        Raises:
            UnknownLog: the log does not exist.
            AccessDenied: it takes a token that this client does not have.
            BadSetting: the path or an attribute is wrong, or a log below could not have these
                attributes.
        """
        check_attributes(attributes)
        number, tokens = await self._meant(path)
        await self._change_seen(
            path,
            number,
            lambda version: SetAttributes(
                path, attributes, [*unset], number, version, tokens=tokens
            ),
        )
        self._cluster.forget_log(path)

    async def _change_seen(
        self, path: str, number: int | None, change: Callable[[int], SetAttributes | RenameLog]
    ) -> Reply:
        """Make a change by compare-and-set. If another change came first, try again.

        Args:
            change: the call that changes the entry's version, as the client saw it.
        Raises:
            Fenced: another change came, and the log may have been renamed by this call before.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            left = max(0.0, deadline - loop.time())
            seen = await self._cluster.call_any(AskVersion(path, number), timeout_s=left)
            assert isinstance(seen, VersionReply), "AskVersion is answered with a version"
            call, left = change(seen.version), max(0.0, deadline - loop.time())
            asked: list[Connection] = []
            try:
                return await self._cluster.ask_any(call, timeout_s=left, asked=asked)
            except Fenced as error:
                if isinstance(call, RenameLog) and self._may_be_done(asked):
                    # Race: another caller, who was told of it, renamed the log back.
                    raise Fenced(
                        f"{path} was changed meanwhile: it may have been renamed, and renamed back."
                        " Look at the names before you rename it again"
                    ) from error
                # Attributes that an earlier try of this call has set are set again.
                if loop.time() >= deadline:
                    raise Unreachable(f"{path} is changed all the time: {error}") from error

    @staticmethod
    def _may_be_done(asked: Sequence[Connection]) -> bool:
        """Whether a call that was refused may be done all the same: by a node that was asked before
        the one that refused it."""
        return len(asked) > 1

    async def directory(self, path: str) -> DirectoryReply:
        """The attributes that are set on a directory, and those that logs below it inherit.

        Raises:
            BadSetting: the path does not end with a slash, or is none.
        """
        reply = await self._cluster.call_any(AskDirectory(path), timeout_s=self._timeout_s)
        assert isinstance(reply, DirectoryReply), "AskDirectory is answered with a directory"
        return reply

    async def delete(self, log: str, log_id: int | None = None) -> None:
        """Delete a log: its name is free again, its records are gone.

        Args:
            log_id: the number of the log that the caller means; None for the log that has the name
                by now, or that an equal call of this store without an answer meant.
        Raises:
            Fenced: the call had no answer, and too many calls of this store without a number had
                none: make it again with the number of the log, which the error names.
            UnknownLog: the log does not exist, or the name has moved away from it.
            AccessDenied: it has a write token that this client does not have.
        """
        change = "deleted", normalise_name(log)
        async with self._still_meant(change, log_id) as (number, tokens):
            call = DeleteLog(log, number, tokens=tokens)
            await self._cluster.call_any(call, timeout_s=self._timeout_s)
        self._cluster.forget_log(log)

    async def rename(self, log: str, new_name: str, log_id: int | None = None) -> LogInfo:
        """Give a log another name.

        Args:
            log_id: as of `delete`.
        Raises:
            UnknownLog: the log does not exist, or the name has moved away from it.
            LogExists: the new name is taken.
            Fenced: as of `delete`; or the log was changed meanwhile. It may have been renamed, and
                renamed back: look again.
            AccessDenied: it takes a token that this client does not have.
            BadSetting: a name is wrong, or the log could not have its attributes there.
        """
        change = "renamed", normalise_name(log), normalise_name(new_name)
        async with self._still_meant(change, log_id) as (number, tokens):
            reply = await self._change_seen(
                log,
                number,
                lambda version: RenameLog(log, new_name, number, version, tokens=tokens),
            )
        assert isinstance(reply, LogReply), "RenameLog is answered with a log"
        self._cluster.forget_log(log)
        self._cluster.forget_log(new_name)  # the log that had it before
        return log_info(reply)

    async def raise_token(self, log: str, token: int, holder: str) -> EpochsReply:
        """Give a log a higher fencing token. `Store.fence` also makes sure that the token is in
        effect.

        Raises:
            UnknownLog: the log does not exist.
            TokenFenced: the log's token is as high or higher; the error names its holder.
        """
        number, tokens = await self._meant(log)
        call = RaiseToken(log, token, holder, number, tokens=tokens)
        reply = await self._cluster.call_any(call, timeout_s=self._timeout_s)
        assert isinstance(reply, EpochsReply), "RaiseToken is answered with epochs"
        return reply

    async def epochs(self, log: str) -> EpochsReply:
        """The epoch store's entry of a log.

        Raises:
            UnknownLog: the log does not exist.
        """
        reply = await self._cluster.call_any(AskEpochs(log), timeout_s=self._timeout_s)
        assert isinstance(reply, EpochsReply), "AskEpochs is answered with epochs"
        return reply

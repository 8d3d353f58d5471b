"""The calls of a store that stage, publish and fence; `store.Store` has them too.

Source: docs/design.md §3 (fencing tokens), §9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cordwood.block import Buffer
from cordwood.client.append.append_calls import AppendCalls
from cordwood.client.append.appends import Appends
from cordwood.client.append.record_check import Headers, Timestamp
from cordwood.client.cluster import LogInfo
from cordwood.client.find.log_info import AnyLog
from cordwood.client.find.tail_calls import TailCalls
from cordwood.client.publish.publishing import Published, Publisher
from cordwood.client.publish.staging import TTL_DEFAULT_S, StagedRef, Stager
from cordwood.errors import BadSetting

HOLDER_CHARS_MAX = 255

LOOK_EVERY_S = 1.0
"""The longest time for which a log's number is used for staging without a look-up. It costs one
small call a second. A log that was made again under the same name is found a second later at
most."""


def _check_token(token: int, least: int) -> None:
    if not least <= token < 1 << 63:
        raise BadSetting(f"fencing token {token}: it goes from {least} to 2**63 - 1")


class Stages(TailCalls):
    """See the module."""

    _appends: Appends
    _append_calls: AppendCalls
    _stager: Stager
    _publisher: Publisher
    _stage_looks: dict[AnyLog, float]
    """When a log was looked up to stage for it, on the loop's clock."""

    async def _find_to_stage(self, log: AnyLog) -> LogInfo:
        """A log that this client may stage for. It is looked up again after LOOK_EVERY_S.

        An append to a deleted number is refused, and the append looks the name up again. Staged
        blocks go to storage nodes, which keep them under any number.
        """
        now = self._appends.loop.time()
        if now - self._stage_looks.get(log, -LOOK_EVERY_S) >= LOOK_EVERY_S:
            self._cluster.forget_log(log)
            self._stage_looks[log] = now
        return await self._find_to_append(log)

    async def stage(
        self,
        log: AnyLog,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        ttl_s: float = TTL_DEFAULT_S,
    ) -> StagedRef:
        """Keep records durably, as `append_many` would, without giving them LSNs yet.

        No reader gets them before `publish`, which any client may call. After `ttl_s` without
        `publish`, by the nodes' clocks, they are deleted.

        Args:
            log: its name; or its number, which stays the same log even if the name moves.
        Raises:
            Retryable: too few nodes took them in time. Copies on other nodes are never published.
            BadSetting, RecordTooLarge, UnknownLog, AccessDenied: as `append_many`.
        """
        columns = self._append_calls.columns(values, keys, timestamps, headers)
        return await self._stager.stage(await self._find_to_stage(log), columns, ttl_s)

    async def publish(
        self,
        query: str,
        batch: int,
        refs: Sequence[StagedRef | Mapping[str, Any]],
        fingerprint: str = "",
        *,
        whole: bool = True,
    ) -> Published:
        """Append staged records to their logs: once, all of them and in this order, or none.

        The batch is one atomic group in each log (see `whole`), but not across logs. A query's
        batches come in order, each once; gaps in their numbers are fine. After an error, any
        process may repeat the call. A committed batch keeps the records of its commit. An earlier
        batch that its publisher left half done is finished first.

        Args:
            query: the publisher's name, up to 255 characters; one publisher at a time.
            batch: its number, 0 and up.
            refs: the results of `stage`, or of their `to_json`; an empty batch is allowed.
            fingerprint: identifies the batch's records in up to 64 characters, such as a digest of
                its plan. With a fingerprint, a published number counts as a repeat only if the
                fingerprints are equal.
            whole: refuse a batch that exceeds one atomic group in any log. Otherwise it comes in
                several groups, in order. A reader may see the first groups a while before the
                others, and each record is stored once, as in any committed batch.
        Raises:
            Rejected: a batch of this number was published with another fingerprint, or a later
                batch was published.
            StageExpired: a staged block is gone; nothing is published. Stage the records again.
            RecordTooLarge: a log's share exceeds one atomic group, or the batch has too many
                blocks; nothing is published.
            UnknownLog: a log was deleted since its records were staged; nothing is published.
            AccessDenied: a log wants a write token that this client does not have; nothing is
                published.
            Fenced: another publisher of this query has overtaken this one.
            Retryable, OutcomeUnknown: it is not known to be done; call again.
        """
        self._cluster.check_open()
        return await self._publisher.publish(query, batch, refs, fingerprint, whole=whole)

    async def published(self, query: str) -> Published | None:
        """The last published batch of a query; None before the first, and while a committed batch
        is not in its logs yet.

        Raises:
            Retryable: no node answered.
        """
        return await self._publisher.published(query)

    async def unstage(self, refs: Sequence[StagedRef | Mapping[str, Any]]) -> None:
        """Delete staged blocks that will not be published, before they expire.

        Blocks that a publish has pinned stay. Nodes that do not answer delete theirs at expiry.
        """
        read = [ref if isinstance(ref, StagedRef) else StagedRef.from_json(ref) for ref in refs]
        await self._stager.unstage([block for ref in read for block in ref.blocks])

    async def fence(self, log: str, token: int, *, holder: str = "") -> int:
        """Take a log under a fencing token, higher than any before. From now on, appends with a
        lower token or none are refused with an error that names the holder.

        When this returns, no append with a lower token or none is acknowledged any more. This
        client's appends to the log carry the token. The same call may be made again.

        Args:
            token: 1 and up, from the service that grants leases or elects leaders.
            holder: the new holder, named in refusals; up to 255 characters.
        Returns:
            The epoch from which on it holds.
        Raises:
            TokenFenced: the log's token is as high, and another's.
            Retryable: the token may be set, but it is not known to be in effect: call again.
            UnknownLog, BadSetting: the log does not exist, or the token is out of range.
        """
        _check_token(token, 1)
        if len(holder) > HOLDER_CHARS_MAX:
            raise BadSetting(f"a holder is named in up to {HOLDER_CHARS_MAX} characters")
        self._cluster.forget_log(log)
        await self._find_to_append(log)
        raised = await self.log_tree.raise_token(log, token, holder)
        # Race: the name may lead to another log by now. The token belongs to the log that got it.
        self._appends.fencing[raised.log] = token
        # The answer comes from the current sequencer, so from an epoch after the token's epoch; all
        # lower epochs are sealed by then.
        tail = await self.tail(raised.log)
        assert tail.epoch >= raised.next_epoch - 1, "the node that tells the tail is the sequencer"
        return tail.epoch

    async def use_fencing_token(self, log: str, token: int) -> None:
        """Append to a log under a token that `fence` took, in this client or another one.

        Raises:
            UnknownLog: the log does not exist.
            BadSetting: the token is out of range.
        """
        _check_token(token, 0)
        self._cluster.forget_log(log)  # it may have been renamed a moment ago
        info = await self._find_to_append(log)
        self._appends.fencing[info.log_id] = token

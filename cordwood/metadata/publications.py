"""Queries that publish, in the metadata store: one entry each, changed by compare-and-set.

The rules are `protocol.publishing`. A write of unknown outcome is decided again from the present
entry: an attempt taken twice is a higher attempt, and a commit or end found there counts.

Entries are `publish/<hash of the query's name>`, since a name may be any text.

Source: docs/design.md §9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import assert_never

import msgspec

from cordwood.errors import BadSetting, Malformed
from cordwood.layout.json_text import read_json
from cordwood.layout.message_staging import (
    STAGES_MAX,
    AskPublication,
    BeginPublish,
    BlockPlace,
    CommitPublish,
    FinishPublish,
    LogBlocks,
    PublicationReply,
    PublishCall,
)
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.protocol.producers import QUERY_PRODUCERS
from cordwood.protocol.publishing import (
    LogShare,
    Publication,
    StagedBlock,
    begin,
    commit,
    fence,
    finish,
)

_PREFIX = "publish/"


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`publish/<hash>`; an unknown field is refused: a version without it would drop it."""

    query: str
    producer: int
    attempt: int
    batch: int
    commits: int
    committed_by: int
    is_done: bool
    shares: list[LogBlocks]
    spans: dict[str, tuple[int, int]]
    fingerprint: str = ""


class Publications:
    """The queries of one metadata store.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed (the entry
    cannot be read, or a newer version wrote it).
    """

    def __init__(
        self, store: MetadataStore, draw: Callable[[int], int], group_bytes_max: Callable[[], int]
    ) -> None:
        """
        Args:
            draw: gives that number of random bits.
            group_bytes_max: bound of an atomic group on this node.
        """
        self._store = store
        self._draw = draw
        self._group_bytes_max = group_bytes_max

    async def answer(self, call: PublishCall) -> PublicationReply:
        """Do a client's call.

        Raises:
            Fenced, Retryable, BadSetting: see `protocol.publishing`.
        """
        if isinstance(call, AskPublication):
            return self._reply(await self.get(call.query))
        return self._reply(await self._change(call.query, self._decide(call)))

    async def get(self, query: str) -> Publication:
        """A query; a query that never published is empty. One round trip."""
        found = await self._store.get(_key(query))
        return _decode(query, found.value if found else None)

    async def settled(self) -> dict[int, int]:
        """By the query's producer, the last commit of the query that is in all its logs. One round
        trip."""
        found: dict[int, int] = {}
        for key, stored in await self._store.list(_PREFIX):
            entry = _read_entry(stored.value, f"the query at {key}")
            found[entry.producer] = entry.commits if entry.is_done else entry.commits - 1
        return found

    async def fence(self, query: str, attempt: int) -> Publication:
        """See `protocol.publishing.fence`."""
        return await self._change(query, lambda known: fence(known, attempt))

    def _decide(
        self, call: BeginPublish | CommitPublish | FinishPublish
    ) -> Callable[[Publication], Publication]:
        if isinstance(call, BeginPublish):
            producer = QUERY_PRODUCERS | self._draw(62)
            return lambda known: begin(known, call.batch, producer)
        if isinstance(call, CommitPublish):
            shares = _shares(call.shares)
            return lambda known: commit(known, call.batch, call.attempt, shares, call.fingerprint)
        if isinstance(call, FinishPublish):
            return lambda known: finish(known, call.commits, call.spans)
        assert_never(call)

    async def _change(
        self, query: str, decide: Callable[[Publication], Publication]
    ) -> Publication:
        def decide_entry(found: bytes | None) -> bytes | None:
            known = _decode(query, found)
            wanted = decide(known)
            return None if wanted == known else _encode(query, wanted)

        return _decode(query, await change_repeatably(self._store, _key(query), decide_entry))

    def _reply(self, known: Publication) -> PublicationReply:
        return PublicationReply(
            known.producer,
            known.attempt,
            known.batch,
            known.commits,
            known.committed_by,
            known.is_done,
            _packed(known.shares),
            dict(known.spans),
            self._group_bytes_max(),
            known.fingerprint,
        )


def _key(query: str) -> str:
    if not query:
        raise BadSetting("a query that publishes has a name")
    return f"{_PREFIX}{hashlib.blake2b(query.encode(), digest_size=16).hexdigest()}"


def _shares(shares: list[LogBlocks]) -> tuple[LogShare, ...]:
    if sum(len(share.blocks) for share in shares) > STAGES_MAX:
        raise BadSetting(f"a batch has at most {STAGES_MAX} staged blocks")
    return tuple(
        LogShare(
            share.log,
            share.name,
            tuple(
                StagedBlock(block.stage, tuple(block.nodes), block.records, block.stored_bytes)
                for block in share.blocks
            ),
        )
        for share in shares
    )


def _packed(shares: tuple[LogShare, ...]) -> list[LogBlocks]:
    return [
        LogBlocks(
            share.log,
            share.name,
            [
                BlockPlace(block.stage, list(block.nodes), block.records, block.stored_bytes)
                for block in share.blocks
            ],
        )
        for share in shares
    ]


def _encode(query: str, known: Publication) -> bytes:
    return msgspec.json.encode(
        _Entry(
            query,
            known.producer,
            known.attempt,
            known.batch,
            known.commits,
            known.committed_by,
            known.is_done,
            _packed(known.shares),
            dict(known.spans),
            known.fingerprint,
        )
    )


def _read_entry(value: bytes, what: str) -> _Entry:
    return read_json(value, _Entry, what)


def _decode(query: str, value: bytes | None) -> Publication:
    if value is None:
        return Publication()
    entry = _read_entry(value, f"the query {query!r}")
    if entry.query != query:
        raise Malformed(f"the queries {query!r} and {entry.query!r} have one entry")
    return Publication(
        entry.producer,
        entry.attempt,
        entry.batch,
        entry.commits,
        entry.committed_by,
        entry.is_done,
        _shares(entry.shares),
        entry.spans,
        entry.fingerprint,
    )

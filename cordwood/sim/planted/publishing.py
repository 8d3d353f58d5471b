"""Bugs of staging and publishing.

Source: docs/sources/spark.md §8 (what a replayed batch must not do); docs/design.md §9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec

from cordwood.client.append.pending_block import PendingBlock
from cordwood.client.append.producer import QueryProducer
from cordwood.client.publish import publishing
from cordwood.client.publish.publishing import Publisher
from cordwood.errors import OutOfSequence, StageExpired, TailMoved
from cordwood.layout.message_staging import (
    AskPublication,
    BeginPublish,
    BlockPlace,
    CommitPublish,
    FinishPublish,
    LogBlocks,
    PinStaged,
    PublicationReply,
)
from cordwood.metadata import publications
from cordwood.protocol.producers import QUERY_PRODUCERS
from cordwood.protocol.publishing import Publication, begin, commit, group_end
from cordwood.recovery.recover_log import Begins
from cordwood.sequencer.producer_checks import ProducerChecks
from cordwood.sequencer.role import SequencerRole
from cordwood.sequencer.run_contents import Waiting
from cordwood.sequencer.sequencer_table import TableRow
from cordwood.sequencer.settled_queries import SettledQueries
from cordwood.sim.planted import appending_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together
from cordwood.storage.staging.staging import Staging


def _as_nobody() -> Any:
    numbers = count(1)

    def producer(right: Any, known: int, epoch: int, *places: Any) -> Any:
        return right(QUERY_PRODUCERS | next(numbers), epoch, *places)

    return producer


def _never_waits(right: Any, known: Publication, *rest: Any, **named: Any) -> Any:
    """`begin` and `commit` that do not check whether the batch before is open."""
    return right(replace(known, is_done=True), *rest, **named)


async def _leaves_the_last(
    right: Any, self: Publisher, query: str, known: PublicationReply, own: Any = None
) -> Any:
    return await right(self, query, known, own) if notes_of(self).get("own") else known


async def _sees_to_its_own(
    right: Any,
    self: Publisher,
    query: str,
    batch: int,
    known: PublicationReply,
    own: Any = None,
    **how: Any,
) -> Any:
    notes_of(self)["own"] = True
    try:
        return await right(self, query, batch, known, own, **how)
    finally:
        notes_of(self)["own"] = False


async def _pins_what_expired(right: Any, self: Staging, call: PinStaged) -> None:
    try:
        await right(self, call)
    except StageExpired:
        return


async def _one_log(
    right: Any,
    self: Publisher,
    query: str,
    known: PublicationReply,
    share: LogBlocks,
    late_at: float = 0.0,
) -> Any:
    if share.log != known.shares[0].log:
        return 1 << 32 | 1, (1 << 32) + sum(block.records for block in share.blocks)
    return await right(self, query, known, share, late_at)


def _tells_at_once(self: ProducerChecks, waiting: Waiting, error: OutOfSequence) -> None:
    """The error of a misplaced block, without a check of blocks in flight."""
    self.refused.append((0, waiting, error))


def _tells_of_tail_at_once(
    self: ProducerChecks, waiting: Waiting, error: TailMoved, last: int
) -> None:
    """The same of a tail that moved."""
    self.refused.append((0, waiting, error))


async def _lets_go_first(
    right: Any,
    self: Publisher,
    call: AskPublication | BeginPublish | CommitPublish | FinishPublish,
) -> Any:
    """Staged blocks are deleted before the commit is noted as done."""
    if isinstance(call, FinishPublish):
        known = await right(self, AskPublication(call.query))
        blocks = [block for share in known.shares for block in share.blocks]
        await self._stager.unstage(blocks, call.query, known.committed_by)
    return await right(self, call)


async def _each_group_anew(
    right: Any,
    self: Publisher,
    known: PublicationReply,
    share: LogBlocks,
    blocks: Sequence[BlockPlace],
    sequence: int,
    late_at: float,
) -> Any:
    """Every group of a share has the first group's sequence."""
    return await right(self, known, share, blocks, 0, late_at)


async def _first_group(
    right: Any,
    self: Publisher,
    query: str,
    known: PublicationReply,
    share: LogBlocks,
    late_at: float = 0.0,
) -> Any:
    """The part of a share that does not fit into one group is left out."""
    end = group_end([b.stored_bytes for b in share.blocks], 0, known.group_bytes_max)
    part = msgspec.structs.replace(share, blocks=share.blocks[:end])
    return await right(self, query, known, part, late_at)


BUGS = (
    PlantedBug("publish-as-nobody", "a commit that is finished a second time appends its "
                                    "records again",
               at(QueryProducer, within=publishing).around(_as_nobody()), scenario=scenarios.PUBLISHING),
    PlantedBug("next-batch-first", "a batch is committed before the batch ahead of it is in its "
                                   "logs",
               together(at(begin, within=publications).around(_never_waits),
                        at(commit, within=publications).around(_never_waits),
                        at(Publisher.roll_forward).around(_leaves_the_last),
                        at(Publisher.finish_batch).around(_sees_to_its_own)),
               scenario=scenarios.PUBLISHING, scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("publish-expired", "staged blocks may be published after their time is over",
               at(Staging.pin).around(_pins_what_expired),
               scenario=scenarios.PUBLISHING, scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("one-log-of-a-batch", "only the first log's part of a batch is appended",
               at(Publisher.append_share).around(_one_log), scenario=scenarios.PUBLISHING),
    PlantedBug("unstaged-before-done", "staged blocks of a commit are deleted before it is "
                                       "noted as done: a crash between the two stops the query "
                                       "for ever",
               at(Publisher.call_store).around(_lets_go_first),
               scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("groups-of-one-place", "each group of a large share has the first group's "
                                      "sequence, and counts as its repeat",
               at(Publisher.append_one_group).around(_each_group_anew),
               scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("first-group-alone", "the part of a share that does not fit into one group is lost",
               at(Publisher.append_share).around(_first_group),
               scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("query-forgotten-early", "a log forgets a query whose commit waits for another log",
               at(SettledQueries.is_settled).instead(lambda self, producer, commit: True),
               scenario=appending_scenarios.QUERIES_MANY),
    PlantedBug("late-unsaid", "a client does not mark an append that may be an old repeat",
               at(PendingBlock.is_late).instead(lambda self, producer, now: False),
               scene="tests/client/publish/test_forgotten_queries.py"),
    PlantedBug("unstaged-unsaid", "a node pins a staged block, or takes it for a copy, that is about "
               "to go",
               at(Staging._count_going).instead(lambda self, stages, durable: None),
               scene="tests/storage/staging/test_staging.py"),
    PlantedBug("numbered-is-stored", "a sequencer reports records in flight as stored",
               at(ProducerChecks.misplace).instead(_tells_at_once),
               scene="tests/sequencer/test_misplaced.py"),
    PlantedBug("clock-ages-producers", "a log forgets a producer that just wrote, because wall time "
               "stepped ahead",
               at(ProducerChecks._judged_us).instead(lambda self, replaced, now_us: now_us),
               scene="tests/client/append/test_producers_cluster.py"),
    PlantedBug("own-clock-ages-producers", "a next sequencer takes its own clock for how far the log "
               "went on",
               at(Begins.idle_since).instead(lambda self, now_us: (now_us, self.quiet_us)),
               scene="tests/client/append/test_producers_cluster.py"),
    PlantedBug("tail-moved-early", "a sequencer reports a tail as moved by records in flight",
               at(ProducerChecks.note_moved).instead(_tells_of_tail_at_once),
               scene="tests/sequencer/test_tail_moved.py"),
    PlantedBug("old-sequencer-knows", "a sequencer refuses by what it knows of the log, and another "
               "one has taken over",
               at(SequencerRole.refuse_if_newest).instead(
                   lambda self, log, waiting, error: self.refuse(
                       waiting.connection, waiting.entry, error)),
               scene="tests/sequencer/test_tail_moved.py"),
    PlantedBug("expected-tail-passed", "an append passes one of its client that waits for a recovery",
               at(TableRow.must_wait).instead(lambda self, each: each.entry.needs_recovery),
               scene="tests/sequencer/test_tail_moved.py"),
)  # fmt: skip

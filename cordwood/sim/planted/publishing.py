"""Bugs of staging and publishing.

Source: docs/sources/spark.md §8 (what a replayed batch must not do); docs/design.md §9.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import msgspec

from cordwood.errors import StageExpired
from cordwood.layout.message_staging import AskPublication, FinishPublish
from cordwood.protocol.producers import QUERY_PRODUCERS
from cordwood.protocol.publishing import group_end
from cordwood.sim.planted import appending_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead

_PUBLISHER = "client.publish.publishing:Publisher"


def _as_nobody(right: Any) -> Any:
    numbers = count(1)

    def producer(known: int, epoch: int, *places: Any) -> Any:
        return right(QUERY_PRODUCERS | next(numbers), epoch, *places)

    return producer


def _never_waits(right: Any) -> Any:
    """`begin` and `commit` that do not see that the batch before is open."""

    def decide(known: Any, *rest: Any) -> Any:
        return right(replace(known, is_done=True), *rest)

    return decide


def _leaves_the_last(right: Any) -> Any:
    async def roll_forward(self: Any, query: str, known: Any, *own: Any) -> Any:
        is_own = getattr(self, "_planted_own", False)
        return await right(self, query, known, *own) if is_own else known

    return roll_forward


def _sees_to_its_own(right: Any) -> Any:
    async def finish(self: Any, query: str, batch: int, known: Any, *own: Any, **how: Any) -> Any:
        self._planted_own = True
        try:
            return await right(self, query, batch, known, *own, **how)
        finally:
            self._planted_own = False

    return finish


def _pins_what_expired(right: Any) -> Any:
    async def pin(self: Any, call: Any) -> None:
        try:
            await right(self, call)
        except StageExpired:
            return

    return pin


def _one_log(right: Any) -> Any:
    async def append(self: Any, query: str, known: Any, share: Any, *late_at: Any) -> Any:
        if share.log != known.shares[0].log:
            return 1 << 32 | 1, (1 << 32) + sum(block.records for block in share.blocks)
        return await right(self, query, known, share, *late_at)

    return append


def _tells_at_once(self: Any, waiting: Any, error: Any) -> None:
    """A misplaced block's error, whatever is in flight."""
    self.misplaced.append((0, waiting, error))


def _lets_go_first(right: Any) -> Any:
    """Staged blocks go before the commit is noted as done."""

    async def call(self: Any, asked: Any) -> Any:
        if isinstance(asked, FinishPublish):
            known = await right(self, AskPublication(asked.query))
            blocks = [block for share in known.shares for block in share.blocks]
            await self._stager.unstage(blocks, asked.query, known.committed_by)
        return await right(self, asked)

    return call


def _each_group_anew(right: Any) -> Any:
    """Every group of a share has the first one's sequence."""

    async def append_group(
        self: Any, known: Any, share: Any, blocks: Any, sequence: int, late_at: float
    ) -> Any:
        return await right(self, known, share, blocks, 0, late_at)

    return append_group


def _first_group(right: Any) -> Any:
    """Of a share that is more than a group holds, the rest is left out."""

    async def append(self: Any, query: str, known: Any, share: Any, *late_at: Any) -> Any:
        end = group_end([b.stored_bytes for b in share.blocks], 0, known.group_bytes_max)
        part = msgspec.structs.replace(share, blocks=share.blocks[:end])
        return await right(self, query, known, part, *late_at)

    return append


BUGS = (
    PlantedBug("publish-as-nobody", "a commit that is finished again is appended again",
               changed({"client.publish.publishing:QueryProducer": _as_nobody}), scenario=scenarios.PUBLISHING),
    PlantedBug("next-batch-first", "a batch is committed before the one ahead of it is in its logs",
               changed({"metadata.publications:begin": _never_waits,
                        "metadata.publications:commit": _never_waits,
                        f"{_PUBLISHER}._roll_forward": _leaves_the_last,
                        f"{_PUBLISHER}._finish": _sees_to_its_own}),
               scenario=scenarios.PUBLISHING, scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("publish-expired", "what is staged may be published when its time is over",
               changed({"storage.staging.staging:Staging.pin": _pins_what_expired}),
               scenario=scenarios.PUBLISHING, scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("one-log-of-a-batch", "of a batch only the first log's part is appended",
               changed({f"{_PUBLISHER}._append": _one_log}), scenario=scenarios.PUBLISHING),
    PlantedBug("unstaged-before-done", "staged blocks of a commit go before it is noted as done: "
               "a crash between the two stops the query for good",
               changed({f"{_PUBLISHER}._call": _lets_go_first}),
               scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("groups-of-one-place", "each group of a large share is sent under the first one's "
               "sequence, and taken for a repeat of it",
               changed({f"{_PUBLISHER}._append_group": _each_group_anew}),
               scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("first-group-alone", "of a share that is more than a group holds, the rest is lost",
               changed({f"{_PUBLISHER}._append": _first_group}),
               scene="tests/client/publish/test_published_planted.py"),
    PlantedBug("query-forgotten-early", "a log forgets a query whose commit waits for another log",
               changed({"sequencer.settled_queries:SettledQueries.is_settled":
                        instead(lambda self, producer, commit: True)}),
               scenario=appending_scenarios.QUERIES_MANY),
    PlantedBug("late-unsaid", "a client does not say that an append may be a repeat of long ago",
               changed({"client.append.pending_block:PendingBlock.is_late":
                        instead(lambda self, producer, now: False)}),
               scene="tests/client/publish/test_forgotten_queries.py"),
    PlantedBug("numbered-is-stored", "a sequencer tells of records in flight as of stored ones",
               changed({"sequencer.producer_checks:ProducerChecks.misplace": instead(_tells_at_once)}),
               scene="tests/sequencer/test_misplaced.py"),
)  # fmt: skip

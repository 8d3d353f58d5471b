"""Seals: how a storage node refuses an older sequencer, and who must have sealed.

A node keeps one number a log: the highest epoch that sealed it. A sequencer's
store into a lower epoch is refused. Recovery works under its own epoch's seal,
and every store of it names that seal: it is taken only while no higher seal has
come, so that two recoveries never both mend.

The history that breaks a weaker rule: a recoverer that checks its seal only once
can be overtaken after that check, and plug a hole over a record that the higher
epoch has already kept (BookKeeper issue 2614).

A seal needs an f-majority: the members that have not sealed cannot hold a copyset
between them, so no older store can be acknowledged any more.

LogDevice also has soft seals: a store of a higher epoch that arrives raises one, because its
sequencers number before they seal. Ours seal an f-majority before they number
(`recovery.recover_log`), so there is no such store without a seal behind it, and every seal
is a hard one. Who is asked to finish (`Yield`) does so before the seal, not through it.

Source: docs/sources/logdevice.md 2.7; docs/design.md §3; docs/sources/reliability.md §0 (4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.block import Produced
from cordwood.lsn import format_lsn
from cordwood.nodes import NodeId, Nodeset
from cordwood.protocol.producers import ProducerTable


class SealTable:
    """The seals of one storage node, by log."""

    def __init__(self) -> None:
        self._seals: dict[int, int] = {}

    def of(self, log: int) -> int:
        """The epoch that sealed `log`; 0 if none did."""
        return self._seals.get(log, 0)

    def seal(self, log: int, epoch: int) -> bool:
        """Refuse epochs below `epoch` from now on; False if a higher seal is there."""
        if self.of(log) > epoch:
            return False
        self._seals[log] = epoch
        return True

    def admits(self, log: int, epoch: int, seal_epoch: int) -> bool:
        """Whether a store into `epoch` may be taken.

        Args:
            seal_epoch: 0 for a sequencer's store; a recovery's own epoch otherwise.
        """
        if seal_epoch:
            return self.of(log) == seal_epoch
        return epoch >= self.of(log)


class SealTally:
    """Answers to one seal, on the recovering side."""

    def __init__(self, nodeset: Nodeset) -> None:
        self._nodeset = nodeset
        self._lngs: dict[NodeId, Mapping[int, int]] = {}
        self._append_time_us = 0
        self._unsure: set[NodeId] = set()
        self._produced: list[tuple[int, Produced]] = []

    def on_produced(self, epoch: int, produced: Iterable[Produced]) -> None:
        """One of those that sealed holds these blocks of producers in `epoch`."""
        self._produced += ((epoch, each) for each in produced)

    def note_produced(self, epoch: int, lng: int, table: ProducerTable) -> None:
        """Tell `table` of every producer's blocks of `epoch` up to `lng`, in LSN order.

        All of these are on full copysets, which those that sealed meet.

        Args:
            lng: above which the digest tells the rest. Those that were read may have heard of a
                release since they sealed, so it may be higher than `lng(epoch)`; with that one
                the blocks between the two were forgotten.
        """
        found = {
            (place.first, each.producer, each.epoch): place
            for of, each in self._produced
            if of == epoch
            for place in each.places
            if place.first + place.count - 1 <= lng
        }
        for _, producer, producer_epoch in sorted(found):
            table.note(producer, producer_epoch, found[_, producer, producer_epoch])

    def on_sealed(
        self, node: NodeId, lngs: Mapping[int, int], append_time_us: int, is_sure: bool = True
    ) -> None:
        """`node` sealed, and knows these LNGs by epoch; `is_sure` that it knows what it holds."""
        assert node in self._nodeset, "a seal is asked of members only"
        self._lngs[node] = lngs
        if not is_sure:
            self._unsure.add(node)
        self._append_time_us = max(self._append_time_us, append_time_us)

    @property
    def sealed(self) -> tuple[NodeId, ...]:
        """Members that have sealed, in node order."""
        return tuple(node for node in self._nodeset.nodes if node in self._lngs)

    @property
    def sure(self) -> frozenset[NodeId]:
        """Those of them that know what they hold: none of it is younger than they say."""
        return frozenset(self._lngs) - self._unsure

    def lng(self, epoch: int) -> int:
        """The consensus LNG of `epoch`, once enough have sealed: the highest that any knows.

        A member that was not heard may know a higher one; all up to that is on a full
        copyset, which the members heard meet, so their digest still finds it.
        """
        known = max((lngs.get(epoch, 0) for lngs in self._lngs.values()), default=0)
        lng = max(known, epoch << 32)
        assert lng >> 32 == epoch, f"{format_lsn(lng)} is no LNG of epoch {epoch}"
        return lng

    @property
    def append_time_us(self) -> int:
        """The latest append time that any member holds."""
        return self._append_time_us

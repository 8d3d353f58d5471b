"""Seals: how storage nodes refuse an older sequencer, and how many nodes must seal.

A node keeps one number for each log: the highest epoch that sealed it. It refuses a sequencer's
store into a lower epoch. A recovery works under the seal of its own epoch, and each of its stores
names that seal. So two recoveries never both mend.

A seal needs an f-majority: the members without the seal cannot hold a copyset together, so no older
store can be acknowledged any more.

LogDevice also has soft seals. Its sequencers number before they seal, so a store of a higher epoch
raises a soft seal when it arrives. Cordwood's sequencers seal an f-majority before they number
(`recovery.recover_log`). So every store of a higher epoch follows a seal, and every seal is hard. A
sequencer that is asked to finish (`Yield`) does so before the seal.

Source: docs/sources/logdevice.md 2.7; docs/design.md §3; docs/sources/reliability.md §0 (4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.block import Produced
from cordwood.errors import Fenced
from cordwood.lsn import format_lsn
from cordwood.nodes import NodeId, Nodeset
from cordwood.protocol.producers import ProducerTable


def begun_before(log: int, epoch: int, begun: int) -> Fenced:
    """The refusal to begin an epoch, if nodes know that `begun`, which is not lower, has begun."""
    return Fenced(
        f"log {log}: epoch {epoch} is to begin, and nodes know that epoch {begun} began before: "
        "was an older copy of the metadata store put back?",
        begun,
    )


class SealTable:
    """The seals of one storage node, by log."""

    def __init__(self) -> None:
        self._seals: dict[int, int] = {}

    def of(self, log: int) -> int:
        """The epoch that sealed `log`; 0 if none did."""
        return self._seals.get(log, 0)

    def seal(self, log: int, epoch: int) -> bool:
        """Refuse epochs below `epoch` from now on; False if a higher epoch has sealed."""
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
            # Race: a higher epoch may seal after a recovery has checked its own seal. If the check
            # were made only once, the recovery could plug a hole over a record that the higher
            # epoch has kept (BookKeeper issue 2614).
            return self.of(log) == seal_epoch
        return epoch >= self.of(log)


class SealTally:
    """Answers to one seal, on the recovering side."""

    def __init__(self, nodeset: Nodeset) -> None:
        self._nodeset = nodeset
        self._lngs: dict[NodeId, Mapping[int, int]] = {}
        self._append_time_us = 0
        self._quiet_us: list[int] = []
        self._unsure: set[NodeId] = set()
        self._produced: list[tuple[int, Produced]] = []
        self._begun = 0

    def on_produced(self, epoch: int, produced: Iterable[Produced]) -> None:
        """A node that sealed holds these blocks of producers in `epoch`."""
        self._produced += ((epoch, each) for each in produced)

    def note_produced(self, epoch: int, lng: int, table: ProducerTable) -> None:
        """Note in `table` every producer's blocks of `epoch` up to `lng`, in LSN order.

        All these blocks are on full copysets, and the nodes that sealed meet every copyset.

        Args:
            lng: the LSN above which the digest has the rest. It may be higher than `lng(epoch)`,
                because nodes may have heard of a release after they sealed. With `lng(epoch)` the
                blocks between the two would be forgotten.
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
        self,
        node: NodeId,
        lngs: Mapping[int, int],
        append_time_us: int,
        is_sure: bool = True,
        quiet_us: int = 0,
        begun: int = 0,
    ) -> None:
        """`node` sealed, and knows these LNGs by epoch.

        Args:
            append_time_us: the latest append time that `node` holds.
            is_sure: whether `node` knows all that it holds; False if it lost records.
            quiet_us: for so long it has taken no record, or has run.
            begun: the highest epoch of which `node` knows that it began.
        """
        assert node in self._nodeset, "a seal is asked of members only"
        self._lngs[node] = lngs
        if not is_sure:
            self._unsure.add(node)
        self._append_time_us = max(self._append_time_us, append_time_us)
        self._quiet_us.append(quiet_us)
        self._begun = max(self._begun, begun)

    def check_unbegun(self, log: int, epoch: int) -> None:
        """Check that `epoch`, which seals and has given out no LSN yet, was never begun before.

        Trap: an epoch is handed out again if an older copy of the metadata store was put back. The
        nodes have its seal from the first time, and take the second for a retry. The new epoch
        would give out the LSNs of acknowledged records again.

        Raises:
            Fenced: a member knows that `epoch` or a higher one began.
        """
        if self._begun >= epoch:
            raise begun_before(log, epoch, self._begun)

    @property
    def quiet_us(self) -> int:
        """No acknowledged record was stored for at least this long, in µs. Some node that sealed
        stored the last such record, or has run for a shorter time."""
        return min(self._quiet_us, default=0)

    @property
    def sealed(self) -> tuple[NodeId, ...]:
        """Members that have sealed, in node order."""
        return tuple(node for node in self._nodeset.nodes if node in self._lngs)

    @property
    def sure(self) -> frozenset[NodeId]:
        """The sealed members that know all that they hold, so that their append time is right."""
        return frozenset(self._lngs) - self._unsure

    def lng(self, epoch: int) -> int:
        """The consensus LNG of `epoch`, after enough members sealed: the highest that any knows.

        A silent member may know a higher LNG. All records up to that one are on full copysets, and
        the sealed members meet every copyset, so their digest still finds these records.
        """
        known = max((lngs.get(epoch, 0) for lngs in self._lngs.values()), default=0)
        lng = max(known, epoch << 32)
        assert lng >> 32 == epoch, f"{format_lsn(lng)} is no LNG of epoch {epoch}"
        return lng

    @property
    def append_time_us(self) -> int:
        """The latest append time that any member holds."""
        return self._append_time_us

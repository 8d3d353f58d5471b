"""The producers' blocks in the epochs of one log, as far as this node holds them.

When an epoch is recovered, its sequencer's memory of producers is gone. The sealing members report
their blocks, and together they hold all acknowledged blocks. Kept for each producer are its last
few blocks up to the LNG, which count for sure, and all above it, which may yet become holes. If a
producer's higher epoch lies below the LNG, its lower epochs are dropped: a publishing query begins
an epoch with each batch. A clean epoch's end contains all of it.

Source: docs/design.md §3 ("Producers").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cordwood.block import BlockHeader, Produced, ProducedBlock
from cordwood.protocol.producers import PLACES_MAX, ProducerTable, budget_of, is_query

Places = dict[tuple[int, int], ProducedBlock]
"""The blocks of one producer, by epoch and first LSN."""


class ProducedIndex:
    """See the module."""

    __slots__ = ("_epochs",)

    def __init__(self, known: Mapping[int, Sequence[Produced]] | None = None) -> None:
        # By log epoch: users' producers and queries, in the order of their last blocks.
        self._epochs: dict[int, tuple[dict[int, Places], dict[int, Places]]] = {}
        for epoch, produced in (known or {}).items():
            kinds = self._epochs[epoch] = {}, {}
            for each in sorted(produced, key=lambda each: each.last_first):
                places = kinds[is_query(each.producer)].setdefault(each.producer, {})
                places |= {(each.epoch, place.first): place for place in each.places}

    def note(self, header: BlockHeader, lng: int) -> None:
        """Note that this node holds a block of a producer. All records of its epoch up to `lng` are
        stored."""
        producer = header.producer
        kinds = self._epochs.setdefault(header.first >> 32, ({}, {}))
        kind = kinds[is_query(producer)]
        places = kind.pop(producer, None)
        is_new = places is None
        if places is None:
            places = {}
        kind[producer] = places  # put it behind all others: the first producer is forgotten first
        place = header.place
        places[header.producer_epoch, place.first] = place
        if len(places) > 2 * PLACES_MAX:
            _forget_settled(places, lng)
        if is_new:
            _forget_idle(kind, budget_of(producer).most, lng)

    def take(self, epoch: int, produced: Iterable[Produced]) -> None:
        """Blocks of an epoch that another node knows of; all of them count."""
        kinds = self._epochs.setdefault(epoch, ({}, {}))
        for each in sorted(produced, key=lambda each: each.last_first):
            kind = kinds[is_query(each.producer)]
            known = kind.get(each.producer, {})
            kind[each.producer] = _joined(known, each)
            _forget_idle(kind, budget_of(each.producer).most, each.last_first)

    def has(self, epoch: int, produced: Iterable[Produced]) -> bool:
        """Whether `take` would change nothing."""
        kinds = self._epochs.get(epoch, ({}, {}))
        return all(
            _joined(known, each) == known
            for each in produced
            for known in [kinds[is_query(each.producer)].get(each.producer, {})]
        )

    def of(self, epoch: int) -> tuple[Produced, ...]:
        """The held blocks of an epoch: each producer's places in LSN order."""
        found: list[Produced] = []
        for kind in self._epochs.get(epoch, ()):
            for producer in sorted(kind):
                by_epoch: dict[int, list[ProducedBlock]] = {}
                for producer_epoch, first in sorted(kind[producer]):
                    place = kind[producer][producer_epoch, first]
                    by_epoch.setdefault(producer_epoch, []).append(place)
                found += (Produced(producer, at, tuple(each)) for at, each in by_epoch.items())
        return tuple(found)

    def settled(self, epoch: int, lng: int) -> tuple[Produced, ...]:
        """The held blocks of an epoch up to the LNG that a log remembers."""
        table = ProducerTable()
        blocks = (
            (place.first, each.producer, each.epoch, place)
            for each in self.of(epoch)
            for place in each.places
            if place.first + place.count - 1 <= lng
        )
        for _, producer, producer_epoch, place in sorted(blocks):
            table.note(producer, producer_epoch, place)
        return table.all()

    @property
    def epochs(self) -> Collection[int]:
        """The epochs with held blocks."""
        return self._epochs.keys()

    def all(self) -> list[tuple[int, tuple[Produced, ...]]]:
        """The held blocks of every epoch."""
        return [(epoch, self.of(epoch)) for epoch in sorted(self._epochs)]

    def drop(self, epoch: int) -> None:
        """An epoch is clean: its end has everything about it."""
        self._epochs.pop(epoch, None)


def _joined(known: Places, told: Produced) -> Places:
    """A producer's known blocks, and the told blocks that a repeat may still ask for."""
    found = known | {(told.epoch, place.first): place for place in told.places}
    # Twice as many as are asked for: the youngest may become holes.
    return known | {at: found[at] for at in sorted(found)[-2 * PLACES_MAX :]}


def _forget_idle(kind: dict[int, Places], most: int, lng: int) -> None:
    """Forget producers that wrote longest ago, once there are twice as many as are remembered.

    Trap: only blocks up to the LNG count. When blocks above the LNG counted too, a log forgot all
    its producers for new ones, and the blocks of the new ones became holes. The memory was then not
    full, as if no producer had been forgotten, and the log took a late repeat for the block of a
    new producer.
    """
    # Do this only now and then, because it looks at all producers.
    if len(kind) <= 2 * most or len(kind) % max(1, most // 8):
        return
    lasts = {each: max((at for _, at in kind[each] if at <= lng), default=0) for each in kind}
    by_age = sorted((each for each in kind if lasts[each]), key=lambda each: lasts[each])
    for each in by_age[:-most]:
        if max(first for _, first in kind[each]) <= lng:
            del kind[each]


def _forget_settled(places: Places, lng: int) -> None:
    """Below the LNG, keep only the last few blocks of the highest epoch."""
    settled = sorted((epoch, first) for epoch, first in places if first <= lng)
    if not settled:
        return
    highest = settled[-1][0]
    kept = [key for key in settled if key[0] == highest][-PLACES_MAX:]
    for key in settled:
        if key not in kept:
            del places[key]

"""What producers wrote into the epochs of one log, as far as this node holds it.

When an epoch is recovered, its sequencer's memory of producers is gone; the members that
seal tell what they hold, and together they hold all that was acknowledged. Kept for each
producer are its last few blocks up to the LNG, which count for sure, and all above it,
which may yet become holes. Once an epoch is clean, its end says it all.

Source: design.md §3 ("Producers").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.block import BlockHeader, Place, Produced
from cordwood.protocol.producers import PLACES_MAX, PRODUCERS_MAX, QUERY_PRODUCERS


class ProducedIndex:
    """See the module."""

    __slots__ = ("_epochs",)

    def __init__(self, known: Mapping[int, Sequence[Produced]] | None = None) -> None:
        # By log epoch, then by producer and its epoch: places by first LSN.
        self._epochs: dict[int, dict[tuple[int, int], dict[int, Place]]] = {
            epoch: {
                (each.producer, each.epoch): {place.first: place for place in each.places}
                for each in produced
            }
            for epoch, produced in (known or {}).items()
        }

    def note(self, header: BlockHeader, lng: int) -> None:
        """A block of a producer is held; up to `lng` all of its epoch is stored."""
        producers = self._epochs.setdefault(header.first >> 32, {})
        key = header.producer, header.producer_epoch
        places = producers.setdefault(key, {})
        place = header.place
        places[place.first] = place
        if len(places) > 2 * PLACES_MAX:
            settled = sorted(first for first in places if first <= lng)
            for first in settled[:-PLACES_MAX]:
                del places[first]
        if len(producers) > 2 * PRODUCERS_MAX:
            self._forget_oldest(producers)

    def _forget_oldest(self, producers: dict[tuple[int, int], dict[int, Place]]) -> None:
        by_age = sorted(producers, key=lambda key: (key[0] >= QUERY_PRODUCERS, max(producers[key])))
        for key in by_age[:-PRODUCERS_MAX]:
            del producers[key]

    def of(self, epoch: int) -> tuple[Produced, ...]:
        """What is held of an epoch, each producer's places in LSN order."""
        return tuple(
            Produced(producer, producer_epoch, tuple(places[first] for first in sorted(places)))
            for (producer, producer_epoch), places in sorted(self._epochs.get(epoch, {}).items())
        )

    def all(self) -> list[tuple[int, tuple[Produced, ...]]]:
        """What is held of every epoch."""
        return [(epoch, self.of(epoch)) for epoch in sorted(self._epochs)]

    def drop(self, epoch: int) -> None:
        """An epoch is clean: how it ended says it all."""
        self._epochs.pop(epoch, None)

"""The offset of a stream of ledgers, and its moves. It has rules only.

It says for each ledger the next entry to read. Spark compares offsets as JSON text, so there is
one text for one offset::

    {"cluster":"5f0c…","from":{"23":"0"},"ledgers":{"17":"4096","23":"8"},"v":1}

Keys are sorted, and entries are text, because other tools lose precision above 2^53. A stream
begins where its options say. `from` holds the first entry of each ledger that the offset before did
not carry: all of them in batch 0, later each that the options name anew. It is there because Spark
asks for the initial offset anew after a crash in batch 0, perhaps with other options: a planned
batch must read its planned entries. The initial offset has `"init":true`.

Source: docs/sources/spark.md §2 traps 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cordwood.errors import BadSetting
from cordwood.spark.offsets import DataLoss, check_cluster, share_out

VERSION = 1


@dataclass(frozen=True, slots=True)
class LedgerOffset:
    """See the module.

    Attributes:
        cluster: identity of the cluster that has the ledgers.
        ledgers: the next entry to read, by ledger.
        started: the `from` of the JSON.
        is_initial: whether no batch was read yet.
    """

    cluster: str
    ledgers: Mapping[int, int]
    started: Mapping[int, int] = field(default_factory=dict)
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """The canonical form, keys in order."""
        said: dict[str, Any] = {"cluster": self.cluster}
        if self.started:
            said["from"] = _written(self.started)
        if self.is_initial:
            said["init"] = True
        return {**said, "ledgers": _written(self.ledgers), "v": VERSION}


def _written(places: Mapping[int, int]) -> dict[str, str]:
    return {str(ledger): str(places[ledger]) for ledger in sorted(places)}


def _read(places: Mapping[str, str]) -> dict[int, int]:
    return {int(ledger): int(entry) for ledger, entry in places.items()}


def parse_ledger_offset(value: Mapping[str, Any], cluster: str) -> LedgerOffset:
    """Read an offset that `to_json` wrote, perhaps in an earlier run.

    Raises:
        BadSetting: it is none of ours, of a later version, or of another cluster.
    """
    version = value.get("v")
    if isinstance(version, int) and version > VERSION:
        raise BadSetting(
            f"the checkpoint holds an offset of version {version}, and this Cordwood reads "
            f"version {VERSION}: go on with the Cordwood that wrote it"
        )
    try:
        found = LedgerOffset(
            str(value["cluster"]),
            _read(value["ledgers"]),
            _read(value.get("from", {})),
            value.get("init") is True,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadSetting(
            f"the checkpoint holds an offset that no stream of ledgers wrote ({error!r}): {value}"
        ) from None
    check_cluster(found.cluster, cluster)
    return found


def entries_gone(ledger: int, end: int, stop: int) -> DataLoss:
    """The error for a ledger that ends at `end`, though entries up to `stop` were confirmed; its
    first line is for machines."""
    return DataLoss(
        f"CORDWOOD_DATA_LOSS ledger={ledger} requested={end} stop={stop} type=LEDGER_END\n"
        f"Ledger {ledger} has no entry {end}, and this query planned to read up to entry "
        f"{stop - 1}: entries that were confirmed are gone, or the checkpoint was edited. Start "
        "again with a new checkpoint, and say with startingOffsets where to go on"
    )


def move_ledgers_on(
    offset: LedgerOffset,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    max_records: int | None,
    turn: int,
) -> LedgerOffset:
    """The offset at the end of the next batch; `offset` itself if there is nothing new.

    Args:
        starts: where ledgers begin that the offset does not carry.
        ends: the first entry that is not there yet, or not wanted, by ledger.
        max_records: entries of the batch at most, over all ledgers; None for all.
        turn: counts batches, so that each ledger has its share before it is another's turn.
    """
    places = {ledger: offset.ledgers.get(ledger, starts.get(ledger, 0)) for ledger in ends}
    backlog = {each: ends[each] - place for each, place in places.items() if ends[each] > place}
    if not backlog:
        return offset
    total = sum(backlog.values())
    shares = share_out(min(total, max_records or total), backlog, turn)
    moved = {ledger: places[ledger] + share for ledger, share in shares.items()}
    started = {
        ledger: place
        for ledger, place in {**offset.ledgers, **places}.items()
        if offset.is_initial or ledger not in offset.ledgers
    }
    return LedgerOffset(offset.cluster, {**offset.ledgers, **places, **moved}, started)


def ledger_ranges(
    start: LedgerOffset, end: LedgerOffset, starts: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """The entries that a batch reads: `[first, stop)` by ledger, without empty ranges.

    Args:
        starts: the first entry of ledgers for which neither offset has it, as of an earlier
            version.
    Raises:
        BadSetting: the offsets are no pair.
    """
    if end.is_initial:
        return {}
    carried = {} if start.is_initial else start.ledgers
    begun = {**starts, **start.ledgers, **end.started}
    found = {}
    for ledger, stop in sorted(end.ledgers.items()):
        first = carried.get(ledger, begun.get(ledger, 0))
        if first > stop:
            raise BadSetting(
                f"the checkpoint goes back in ledger {ledger}: from entry {first} to {stop}"
            )
        if first < stop:
            found[ledger] = first, stop
    return found

"""What the offset of a stream of ledgers is, and how it moves: rules only.

It says for each ledger the next entry to read. Spark compares offsets as JSON text, so there is
one text for one offset::

    {"cluster":"5f0c…","ledgers":{"17":"4096","23":"0"},"v":1}

Keys are sorted, and entries are text, because other tools lose precision above 2^53. A stream
begins where its options say, and nowhere else, so its initial offset is the same whenever Spark
asks for it.

Source: docs/sources/spark.md §2 traps 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cordwood.errors import BadSetting
from cordwood.spark.offsets import check_cluster, share_out

VERSION = 1


@dataclass(frozen=True, slots=True)
class LedgerOffset:
    """See the module.

    Attributes:
        cluster: identity of the cluster that has the ledgers.
        ledgers: the next entry to read, by ledger.
    """

    cluster: str
    ledgers: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """The canonical form, keys in order."""
        places = {str(ledger): str(self.ledgers[ledger]) for ledger in sorted(self.ledgers)}
        return {"cluster": self.cluster, "ledgers": places, "v": VERSION}


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
        ledgers = {int(ledger): int(entry) for ledger, entry in value["ledgers"].items()}
        found = LedgerOffset(str(value["cluster"]), ledgers)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadSetting(
            f"the checkpoint holds an offset that no stream of ledgers wrote ({error!r}): {value}"
        ) from None
    check_cluster(found.cluster, cluster)
    return found


def move_ledgers_on(
    offset: LedgerOffset,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    max_records: int | None,
    turn: int,
) -> LedgerOffset:
    """Up to where the next batch reads; `offset` itself if there is nothing new.

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
    return LedgerOffset(offset.cluster, {**offset.ledgers, **places, **moved})


def ledger_ranges(
    start: LedgerOffset, end: LedgerOffset, starts: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """What a batch reads: `[first, stop)` by ledger, empty ones left out.

    Raises:
        BadSetting: the offsets are no pair.
    """
    found = {}
    for ledger, stop in sorted(end.ledgers.items()):
        first = start.ledgers.get(ledger, starts.get(ledger, 0))
        if first > stop:
            raise BadSetting(
                f"the checkpoint goes back in ledger {ledger}: from entry {first} to {stop}"
            )
        if first < stop:
            found[ledger] = first, stop
    return found

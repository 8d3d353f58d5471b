"""Which logs a selection means, and which of its names may lead nowhere: pure rules.

A stream's offset notes for each name of `subscribe` and `assign` which log it last led to. If a
name leads nowhere at a start, that log decides. If it is gone, the name is passed over, as the log
is. If it is there, it was renamed, and nothing of it may be passed over. A name that is not noted
was never read: it is wrong.

Source: docs/spark.md, "Promises of a stream"; docs/sources/spark.md §8.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from cordwood.errors import UnknownLog
from cordwood.spark.offsets import StreamOffset
from cordwood.spark.options import Selection
from cordwood.spark.places import listed

PASS_OVER = (
    ". If this query read it and it was deleted since, one start with failOnDataLoss=false "
    "(--pass-over-losses of `cordwood spark land` and `replay`) passes over it. If it was renamed, "
    "give its name of now"
)
"""What to do about a named log that a stream does not find."""


def select(
    selection: Selection, logs: Mapping[int, str], *, may_miss: bool = False
) -> dict[int, str]:
    """The selected logs of all `logs` (names by number), in the order of their numbers.

    Args:
        may_miss: leave out logs that do not exist.
    Raises:
        UnknownLog: a named log does not exist.
    """
    ordered = dict(sorted(logs.items()))
    if selection.option == "subscribePattern":
        pattern = re.compile(selection.pattern)
        return {log: name for log, name in ordered.items() if pattern.fullmatch(name)}
    wanted = set(selection.logs)
    found = {log: name for log, name in ordered.items() if name in wanted or str(log) in wanted}
    missing = missing_of(selection, found)
    if missing and not may_miss:
        raise unknown(selection, missing, ordered.values())
    return found


def missing_of(selection: Selection, found: Mapping[int, str]) -> set[str]:
    """The names and numbers that a selection gives, and that lead to none of the `found` logs."""
    return set(selection.logs) - {*found.values(), *map(str, found)}


def names_of(selection: Selection, found: Mapping[int, str]) -> dict[str, int]:
    """The log that each name and number of a selection leads to; none for a pattern.

    Args:
        found: the selected logs, with the names that they were found under.
    """
    if not selection.logs:
        return {}
    wanted = set(selection.logs)
    named = {name: log for log, name in found.items() if name in wanted}
    return named | {str(log): log for log in found if str(log) in wanted}


def passed_over(
    selection: Selection, found: Mapping[int, str], there: Mapping[int, str], offset: StreamOffset
) -> dict[str, int]:
    """The names of a selection that lead nowhere, and the deleted log that each led to.

    Whether a log was deleted while it was selected, which is a loss, is not decided here.

    Args:
        found: the selected logs, with the names that they were found under.
        there: every log's name, by number.
        offset: what the checkpoint says; a new stream has read nothing.
    Raises:
        UnknownLog: a name is wrong, or its log was renamed.
    """
    missing = missing_of(selection, found)
    if not missing:
        return {}
    names = offset.names
    if names is None:
        names = _names_by_count(missing, found, there, offset)
    over = {name: names[name] for name in missing if name in names and names[name] not in there}
    if missing - over.keys():
        raise unknown(selection, missing - over.keys(), there.values(), PASS_OVER)
    return over


def _names_by_count(
    missing: Collection[str],
    found: Mapping[int, str],
    there: Mapping[int, str],
    offset: StreamOffset,
) -> dict[str, int]:
    """What names led to, by an offset of an earlier version, which has the numbers of logs alone.

    As many of its logs must be gone as names lead nowhere; which name led to which of them does not
    matter, since all are gone. A log that is there and that no name leads to may be one of those
    that are missing, renamed. So no name is accepted then.
    """
    gone = sorted(offset.logs.keys() - there.keys())
    renamed = offset.to_find().keys() & there.keys() - found.keys()
    if renamed or len(missing) > len(gone):
        return {}
    return dict(zip(sorted(missing), gone, strict=False))


def unknown(
    selection: Selection, missing: Collection[str], names: Iterable[str], way_out: str = ""
) -> UnknownLog:
    """The error for names that lead to no log."""
    return UnknownLog(
        f"{selection.option}: there is no log {', '.join(sorted(missing))}; {listed(names)}"
        f"{way_out}"
    )

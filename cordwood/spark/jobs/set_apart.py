"""The quarantine beside a table: records that batches set apart, a directory for each batch.

It holds each record that a batch in the table set apart, once. A batch that died before it was
published sets its records apart again. After a lost checkpoint the new batch belongs to another
query, which has another directory, and the records would be there twice; so the old directory goes.

If a restore took a batch away, its directory is hidden. A user who restores the table to a later
version brings the batch back, and only this directory would have its records then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cordwood.durable import sync_directory, sync_tree
from cordwood.spark.jobs.table import LakeTable

HIDDEN = "_"
"""The first character of the name of a directory that readers ignore."""


def tidy(quarantine: Path, queries: Sequence[str], table: LakeTable) -> None:
    """Show what the batches in the table set apart, hide or remove the rest.

    Args:
        queries: those that landed in the table; directories of others are left alone.
    """
    was_published = cache(table.was_published)
    names = sorted({each.name.removeprefix(HIDDEN) for each in quarantine.glob("*-*")})
    landed = table.landed(queries) if names else {}
    for name in names:
        short, _, number = name.rpartition("-")
        theirs = [query for query in queries if query[:8] == short]
        if not theirs or not number.isdigit():
            continue
        place, hidden = quarantine / name, quarantine / (HIDDEN + name)
        if int(number) > max(map(was_published, theirs)):
            remove_apart(place)
        elif int(number) <= max(landed[query][0] for query in theirs):
            _move_over(hidden, place)
        elif int(number) > max(landed[query][1] for query in theirs):
            _move_over(place, hidden)


def keep_apart(staging: Path, place: Path) -> None:
    """Move the records that a batch sets apart to its directory; an older directory is replaced."""
    sync_tree(staging)
    place.parent.mkdir(exist_ok=True)
    sync_directory(place.parent.parent)
    remove_apart(place)
    os.replace(staging, place)
    sync_directory(place.parent)


def remove_apart(place: Path) -> None:
    """Remove the records that a batch set apart, hidden or not."""
    for each in (place, place.with_name(HIDDEN + place.name)):
        if each.exists():
            shutil.rmtree(each)
            sync_directory(each.parent)


def _move_over(source: Path, target: Path) -> None:
    """Rename a directory; a directory of the new name is replaced. A missing source is ignored.

    A batch that was landed once more after a restore has both directories, with the same records.
    """
    if not source.exists():
        return
    if target.exists():
        shutil.rmtree(target)
    os.replace(source, target)
    sync_directory(target.parent)

"""What Spark's checkpoint of a query says: whose it is, and what each batch reads.

Spark writes `metadata` with the query's id before its first batch, and `offsets/N` before
batch N runs. The id stays when a query is restarted, so (id, batch) names a batch for good;
the run's own id does not.

Source: research digest on PySpark 4.3, §8 ("key by query id"); Spark's OffsetSeqLog.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordwood.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a directory of this machine, which may not be there yet."""

    directory: Path

    @property
    def is_new(self) -> bool:
        """Whether no query has begun on it."""
        return not (self.directory / "metadata").exists()

    def query(self) -> str:
        """The id of its query.

        Raises:
            BadSetting: it has none, or cannot be read.
        """
        path = self.directory / "metadata"
        try:
            return str(json.loads(path.read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadSetting(f"{path} does not say which query it is of ({error})") from error

    def end_of(self, batch: int) -> dict[str, Any]:
        """The source's offset after a batch; the query has one source.

        Raises:
            BadSetting: the batch is not there, or not of our source.
        """
        path = self.directory / "offsets" / str(batch)
        try:
            # A version, the batch's metadata, then an offset a source.
            lines = path.read_text().splitlines()
            offset = json.loads(lines[-1])
        except (OSError, ValueError, IndexError, RecursionError) as error:
            raise BadSetting(f"{path} does not say what batch {batch} reads ({error})") from error
        if not isinstance(offset, dict) or "logs" not in offset:
            raise BadSetting(f"{path} holds no offset of Cordwood's: {lines[-1][:200]}")
        return offset

    def last(self) -> dict[str, Any] | None:
        """Where the newest batch ends, finished or not; None before the first."""
        try:
            names = [each.name for each in (self.directory / "offsets").iterdir()]
        except FileNotFoundError:
            return None
        batches = [int(name) for name in names if name.isdigit()]
        return self.end_of(max(batches)) if batches else None

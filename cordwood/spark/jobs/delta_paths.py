"""The paths of the files of a Delta table."""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable


def paths_of(table: DeltaTable) -> list[str]:
    """The files that count now, as paths below the table; Delta's log has them as URLs have."""
    return [unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]

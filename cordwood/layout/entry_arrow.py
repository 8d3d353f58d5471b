"""Entries of a ledger as an Arrow batch, with the columns that records of logs have.

`lsn` and `offset` are the number of the entry, `log_id` is the ledger, and `epoch` is 1: a ledger
is a log of one epoch. An entry has a payload and nothing else, so key, times and headers are null.

Source: docs/spark.md ("Ledgers").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.block import Buffer
from cordwood.layout.arrow import batch_schema
from cordwood.layout.batch_columns import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = 1


def ledger_name(ledger: int) -> str:
    """The ledger's value of the column `log`; no log has this name, as names of logs begin with a
    slash."""
    return f"ledger/{ledger}"


def entries_to_batch(
    ledger: int, first: int, payloads: Sequence[Buffer], columns: Sequence[str] = COLUMNS
) -> pa.RecordBatch:
    """A batch of consecutive entries, from `first` on.

    Raises:
        BadSetting: a column is not known.
    """
    import pyarrow as pa

    schema, count = batch_schema(columns), len(payloads)
    constants = {"log": ledger_name(ledger), "log_id": ledger, "epoch": EPOCH}

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name in constants:
            return pa.repeat(pa.scalar(constants[name], kind), count)
        if name == "value":
            return pa.array(payloads, kind)
        if name in ("lsn", "offset"):
            return pa.array(range(first, first + count), kind)
        return pa.nulls(count, kind)

    arrays = [column(field.name, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

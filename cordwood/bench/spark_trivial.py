"""A trivial Python data source and sink, as references for Cordwood's.

The source yields one prebuilt Arrow batch again and again, with Cordwood's columns. The sink counts
rows and forgets them. Both include all costs of Spark and its Python workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cordwood.client.read.arrow_batches import ROWS_MAX
from cordwood.layout.batch_columns import COLUMNS
from cordwood.spark.source import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "cordwood_bench_trivial"
PARTS = 2


class TrivialSource(DataSource):
    """Options: `rows` in all, `size` of a value, `limit` of a micro-batch."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def schema(self) -> StructType:
        """The columns of Cordwood's source."""
        return spark_schema(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        return TrivialReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream."""
        return TrivialStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> TrivialWriter:
        """A sink."""
        return TrivialWriter()


class _Yields:
    def __init__(self, options: Any) -> None:
        self._rows = int(options["rows"])
        self._size = int(options["size"])
        self._limit = int(options.get("limit", 0))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch until there are enough rows."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        left = int(partition.value or 0)
        rows = max(1, min(left, ROWS_MAX))
        schema = to_arrow_schema(spark_schema(COLUMNS), timezone="UTC")
        sample = {
            "key": None, "value": bytes(range(self._size % 256)).ljust(self._size, b"x"),
            "log": "/bench/spark", "log_id": 1, "lsn": 1 << 32, "epoch": 1, "offset": 1,
            "timestamp": 0,
        }  # fmt: skip
        columns = [pa.array([sample[field.name]] * rows, field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        while left > 0:
            yield batch if left >= rows else batch.slice(0, left)
            left -= rows

    def _parts(self, rows: int) -> list[InputPartition]:
        share = -(-rows // PARTS)
        return [InputPartition(min(share, rows - at)) for at in range(0, rows, share)]


class TrivialReader(_Yields, DataSourceReader):
    """A batch of all rows."""

    def partitions(self) -> list[InputPartition]:
        """A partition for each core."""
        return self._parts(self._rows)


class TrivialStreamReader(_Yields, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of all rows, `limit` a micro-batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The first row."""
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `limit`."""
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The offset after the next micro-batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows
        return {"at": min(self._rows, start["at"] + most)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Does nothing: the source gets no more rows."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A partition for each core."""
        return self._parts(end["at"] - start["at"])


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    """Rows of a task."""

    rows: int


class TrivialWriter(DataSourceArrowWriter):
    """Counts and forgets."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count the rows of a task."""
        return Counted(sum(batch.num_rows for batch in iterator))

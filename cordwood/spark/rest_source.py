"""The part of a scan that files do not give: given ranges of logs, read as the source reads them.

`scan_logs` settles on the driver which ranges Spark's own reader gives, and hands the others to
this source. In all other respects it works like the batch reader of `format("cordwood")`: with the
same tasks, gaps and losses.

Source: docs/spark.md, "Spark's own Parquet reader".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cordwood.errors import BadSetting
from cordwood.layout.batch_columns import COLUMNS, COLUMNS_ON_REQUEST
from cordwood.lsn import LSN_MAX
from cordwood.spark.options import GAP_COLUMNS, SourceOptions, parse_options
from cordwood.spark.pushdown import Narrowed, narrow
from cordwood.spark.source import SliceReader, plan_partitions, spark_schema
from cordwood.spark.splitting import Slice

NAME = "cordwood_rest"
RANGES = "cordwood.rest.ranges"
"""The option with the ranges and the columns, as `Rest.to_json` writes it."""

WAY_OUT = 'use cordwood.spark.scan_logs, or format("cordwood")'

_Written = tuple[list[tuple[int, str, int, int]], list[str]]
"""Each range's log, name, start and stop, and the columns."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The ranges and columns to read.

    Attributes:
        slices: of logs, without marks of objects.
        columns: the wanted columns, in order.
    """

    slices: tuple[Slice, ...]
    columns: tuple[str, ...]

    def to_json(self) -> str:
        """As text, for an option; LSNs need 64 bits."""
        slices = [
            (int(each.log_id), each.name, int(each.start), int(each.stop)) for each in self.slices
        ]
        return msgspec.json.encode((slices, self.columns)).decode()

    @classmethod
    def of_json(cls, text: str) -> Rest:
        """Read an option that `to_json` wrote.

        Raises:
            BadSetting: another program wrote the option.
        """
        try:
            slices, columns = msgspec.json.decode(text, type=_Written)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadSetting(f"{RANGES} is not from scan_logs ({error}): {WAY_OUT}") from error
        if unknown := set(columns).difference(COLUMNS, COLUMNS_ON_REQUEST, GAP_COLUMNS):
            raise BadSetting(f"{RANGES} names the columns {sorted(unknown)}: {WAY_OUT}")
        if any(log < 1 or not 0 <= start < stop <= LSN_MAX + 1 for log, _, start, stop in slices):
            raise BadSetting(f"{RANGES} has a range of LSNs that cannot be: {WAY_OUT}")
        return cls(tuple(Slice(*each) for each in slices), tuple(columns))


class RestSource(DataSource):
    """See the module. Options: the source's, and RANGES."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def schema(self) -> StructType:
        """The wanted columns."""
        return spark_schema(self._rest().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        rest = self._rest()
        given: Mapping[str, str] = {
            name: value for name, value in self.options.items() if name.lower() != RANGES
        }
        options = replace(parse_options(given), columns=rest.columns)
        kind = RestFilteringReader if options.pushdown else RestReader
        return kind(options, rest.slices)

    def _rest(self) -> Rest:
        text = self.options.get(RANGES)
        if text is None:
            raise BadSetting(f"{NAME} needs {RANGES}: {WAY_OUT}")
        return Rest.of_json(text)


class RestReader(SliceReader, DataSourceReader):
    """Plans the tasks of the ranges."""

    def __init__(self, options: SourceOptions, slices: Sequence[Slice]) -> None:
        self._options = options
        self._slices = slices
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks.

        Raises:
            DataLoss: records are gone, and failOnDataLoss is true.
            Retryable: the cluster did not answer in time.
        """
        from cordwood.spark.catalog import Catalog

        catalog = Catalog(self._options)
        there = catalog.all_logs()
        slices = [part for each in self._slices for part in self._left(each)]
        catalog.check_there(there, {each.log_id: each.start for each in reversed(slices)})
        # A log that was deleted since is left out, as by the source.
        found = [each for each in slices if each.log_id in there]
        planned: list[Any] = plan_partitions(catalog, found, self._options)
        return planned

    def _left(self, each: Slice) -> list[Slice]:
        """What filters leave of a range: one or none."""
        if not self._narrowed.logs({each.log_id: each.name}):
            return []
        ranges = self._narrowed.ranges({each.log_id: (each.start, each.stop)})
        return [replace(each, start=start, stop=stop) for start, stop in ranges.values()]


class RestFilteringReader(RestReader):
    """Reads less where Spark's filters say so; see `source.CordwoodFilteringReader`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters on log, log_id and lsn; return the filters left to Spark."""
        self._narrowed, left = narrow(filters)
        return left

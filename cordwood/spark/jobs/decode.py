"""From raw records to columns, as functions from DataFrame to DataFrame.

Decoding adds columns after the raw columns, and `_error`: null, or why the record could not be
decoded. Records with an error are set apart, with all their columns, and nothing is lost.

JSON is decoded here. A function of the user decodes Avro, Protobuf and other formats, named as
`module:function`: it takes the frame of raw columns and returns it with more columns, with
`_error` or without.

Source: docs/sources/spark.md §7 ("quarantine bad rows").
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cordwood.errors import BadSetting
from cordwood.spark.jobs.json_columns import Column
from cordwood.spark.jobs.partitions import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ERROR = "_error"


def decode_json(frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The fields of JSON objects as columns; a null value has null fields and no error."""
    from pyspark.sql import functions as f

    corrupt = _unlike("_broken", (column.field for column in columns))
    fields = [f"{quoted(column.field)} {column.type}" for column in columns]
    schema = ", ".join([*fields, f"{corrupt} STRING"])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    # From here on fields are used by position: JSON fields may differ only in case, and columns may
    # not.
    places = [f"c{place}: {column.type}" for place, column in enumerate(columns)]
    by_place = f"struct<{', '.join([*places, 'broken: string'])}>"
    text = f.col("value").cast("string")
    holder = _unlike("_parsed", frame.columns)
    parsed = frame.withColumn(holder, f.from_json(text, schema, options).cast(by_place))
    broken = f.col("value").isNotNull() & (
        f.col(holder).isNull() | f.col(f"{holder}.broken").isNotNull()
    )
    told = f.lit("no JSON object of the table's columns")
    return parsed.select(
        *frame.columns,
        *(f.col(f"{holder}.c{place}").alias(each.name) for place, each in enumerate(columns)),
        f.when(broken, told).alias(ERROR),
    )


def _unlike(name: str, others: Iterable[str]) -> str:
    """The name, lengthened until it differs from the others."""
    taken = {other.lower() for other in others}
    while name in taken:
        name += "_"
    return name


def given_columns(schema: str) -> list[Column]:
    """Columns of a schema that the user gave, as Spark's DDL.

    Raises:
        BadSetting: it is none.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise BadSetting(f"{schema!r} is no schema such as 'id BIGINT, name STRING': {first}") \
            from None  # fmt: skip
    if not isinstance(parsed, StructType):
        raise BadSetting(f"{schema!r} is one type: give names too, 'id BIGINT, name STRING'")
    return [Column(each.name, each.name, each.dataType.simpleString()) for each in parsed.fields]


def named_function(name: str) -> Callable[[DataFrame], DataFrame]:
    """A user's function, named as `module:function`.

    Raises:
        BadSetting: no function has this name.
    """
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise BadSetting(f"decode is {name!r}: {error}") from error
    if not callable(found):
        raise BadSetting(f"decode is {name!r}; it is json, or a function as package.module:name")
    decode: Callable[[DataFrame], DataFrame] = found
    return decode


def with_error(frame: DataFrame) -> DataFrame:
    """The frame with `_error`, if the user's function left it out."""
    from pyspark.sql import functions as f

    if ERROR in frame.columns:
        return frame
    return frame.withColumn(ERROR, f.lit(None).cast("string"))

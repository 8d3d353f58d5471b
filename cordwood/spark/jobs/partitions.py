"""Decide which values can name a partition's directory, and what happens to other records.

A partition's value is a directory's name, `country=fr`, in which Spark escapes some characters.
File systems take 255 bytes and no NUL, and readers take `__HIVE_DEFAULT_PARTITION__` for null.
Values come from producers. If a value would not be read back the same, its record is set apart with
the reason, like a record that cannot be decoded. A shortened or hashed value would falsify the
record, because only the directory holds the value.

An empty text is null in the directory's name, as in Hive, Spark and Delta; the column `value`
tells them apart.

Source: Spark's ExternalCatalogUtils.escapePathName and getPartitionPathString.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from cordwood.errors import BadSetting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name of null, and of the empty text."""

NAME_BYTES_MAX = 255
"""Bytes of a file's name in all common file systems."""

COLUMNS_MAX = 8
"""The most nested directories. With names of 255 bytes they take half of the 4,096 bytes of a path,
and the other half is for the table's own path."""

COLUMN_BYTES_MAX = 100
"""Of a partition column's name, so that the value has room."""

_ESCAPED = r"""[\x01-\x1F\x7F"#%'*/:=?\\{\[\]^]"""
"""Characters that Spark writes as three bytes, such as %2F."""

_NOT_PLAIN = "[^A-Za-z0-9._-]"
"""Characters of which deltalake writes each byte as three bytes, when it joins files."""

_TEXT = ("string",)
_DATES = ("date", "timestamp", "timestamp_ntz")
_PLAIN = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def check_partition_columns(names: Sequence[str]) -> None:
    """Check what can be known before there is a record.

    Raises:
        BadSetting: too many, one twice, or a name that leaves a value no room.
    """
    if len(names) > COLUMNS_MAX:
        raise BadSetting(
            f"a table is partitioned by {COLUMNS_MAX} columns at most, not {len(names)}"
        )
    if len({name.lower() for name in names}) < len(names):
        raise BadSetting(f"partition_by names a column twice: {', '.join(names)}")
    for name in names:
        if not 1 <= len(name.encode()) <= COLUMN_BYTES_MAX:
            raise BadSetting(
                f"cannot partition by {name[:COLUMN_BYTES_MAX]!r}: the name of a partition column "
                f"has 1 to {COLUMN_BYTES_MAX} bytes"
            )


def may_be_unwritable(frame: DataFrame, by: Sequence[str]) -> list[tuple[str, str]]:
    """The columns of `by`, with types, whose values need a check.

    Raises:
        BadSetting: the column does not exist, or its values can name no directory.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    found = []
    for name in by:
        if name not in types:
            raise BadSetting(
                f"cannot partition by {name}: the columns are {', '.join(frame.columns)}. A field "
                "of JSON that the first records lack is a column where --schema says so"
            )
        kind = _kind(types[name])
        if kind not in (*_TEXT, *_DATES, *_PLAIN):
            raise BadSetting(
                f"cannot partition by {name}, which is {types[name].simpleString()}: a directory's "
                "name is text, a number or a day"
            )
        if kind in (*_TEXT, *_DATES):
            found.append((name, kind))
    return found


def unwritable(columns: Sequence[tuple[str, str]], prefix: str, *, plainly: bool) -> Column:
    """Why a record can have no directory; null where it can.

    Args:
        columns: as `may_be_unwritable` gives them; one at least.
        prefix: what stands before a column's name in the directory's.
        plainly: whether the directory will be written with plain letters only (Delta).
    """
    from pyspark.sql import functions as f

    return f.coalesce(*(_reason(name, kind, prefix, plainly) for name, kind in columns))


def _reason(name: str, kind: str, prefix: str, plainly: bool) -> Column:
    from pyspark.sql import functions as f

    column = f.col(quoted(name))
    if kind in _DATES:
        # Many tools know only years of four digits, and only the directory's name has this value.
        odd = column.isNotNull() & ~f.year(column).between(1, 9999)
        return f.when(odd, f.lit(f"a partition's {name} is in the years 1 to 9999"))
    if plainly:
        plain = f.octet_length(f.regexp_replace(column, _NOT_PLAIN, ""))
        written = 3 * f.octet_length(column) - 2 * plain
        own = len(_each_byte(prefix + name))
    else:
        written = f.octet_length(f.regexp_replace(column, _ESCAPED, "%00"))
        own = len(re.sub(_ESCAPED, "%00", prefix + name).encode())
    room = NAME_BYTES_MAX - own - len("=")
    return (
        f.when(written > room, f.lit(f"{name} is too long for the name of a directory"))
        .when(f.contains(column, f.lit("\0")), f.lit(f"{name} has a NUL, and no directory has"))
        .when(column == NULL, f.lit(f"{name} is the text that stands for null in directories"))
    )


def _each_byte(text: str) -> str:
    return re.sub(_NOT_PLAIN, lambda found: "%00" * len(found[0].encode()), text)


def _kind(type_: DataType) -> str:
    return type_.simpleString().partition("(")[0]


def partition_value(directory: str) -> tuple[str, str | None]:
    """The column and its value of a directory's name, null as None."""
    name, _, value = directory.partition("=")
    return unquote(name), None if value == NULL else unquote(value)


def quoted(name: str) -> str:
    """A column's name as Spark's SQL has it, dots and all."""
    return "`" + name.replace("`", "``") + "`"

"""Decides the columns of JSON records: a rule over a sample, which adds columns and never changes
them.

An object's fields are columns; a field that holds an object or an array is text, as JSON. The
sample in which a column first appears decides its type: a truth value, a whole number of 64 bits, a
number, or otherwise text. The type never changes after that, because there are files with it. A
record that does not fit is set apart.

A field that no sample showed has no column yet. Its values are not lost: the column `value` has the
whole record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

INT64 = 1 << 63

FIELDS_MAX = 500
"""Bound on columns from JSON: records with data as keys would add a column for each key."""

_UNFIT = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Column:
    """A field and the column it becomes.

    Attributes:
        field: its name in JSON.
        name: of the column: letters, digits and underscores, different from all others
            even without regard to case.
        type: `BOOLEAN`, `BIGINT`, `DOUBLE` or `STRING`, or the type in a given schema.
    """

    field: str
    name: str
    type: str


def add_columns(
    known: Iterable[Column], sample: Iterable[bytes | str | None], taken: Iterable[str]
) -> list[Column]:
    """`known`, and a column for each field of the sample that has none.

    Args:
        sample: records; those that are not JSON objects are ignored.
        taken: forbidden column names.
    """
    columns = {column.field: column for column in known}
    names = {name.lower() for name in taken} | {column.name.lower() for column in columns.values()}
    for field, type_ in _types(sample).items():
        if field in columns or len(columns) >= FIELDS_MAX:
            continue
        columns[field] = Column(field, _free_name(field, names), type_)
        names.add(columns[field].name.lower())
    return list(columns.values())


def _types(sample: Iterable[bytes | str | None]) -> dict[str, str]:
    types: dict[str, str] = {}
    for record in sample:
        for field, value in _object(record).items():
            if value is not None and _is_text(field):
                found = _type_of(value)
                types[field] = _joined(types.get(field, found), found)
    return types


def _object(record: bytes | str | None) -> Mapping[str, object]:
    if record is None:
        return {}
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_text(field: str) -> bool:
    """Whether a column could have the name: half a surrogate pair is legal in JSON, and no text."""
    try:
        field.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -INT64 <= value < INT64 else "STRING"
    return "DOUBLE" if isinstance(value, float) else "STRING"


def _joined(one: str, other: str) -> str:
    if one == other:
        return one
    return "DOUBLE" if {one, other} == {"BIGINT", "DOUBLE"} else "STRING"


def _free_name(field: str, names: set[str]) -> str:
    """A column's name: that of the field if a column can have it, otherwise a similar name."""
    wanted = _UNFIT.sub("_", field) or "_"
    name, number = wanted, 2
    while name.lower() in names:
        name, number = f"{wanted}_{number}", number + 1
    return name

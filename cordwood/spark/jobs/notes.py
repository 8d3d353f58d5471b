"""Notes that jobs keep beside tables. They are untrusted files: any program may have written them.

A damaged note must not pass for a missing note, or a job would begin again and write twice. So the
job ends with an error that names the fault and the way out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from cordwood.errors import CordwoodError, Malformed
from cordwood.spark.jobs.json_columns import Column


def read_note(path: Path) -> dict[str, Any] | None:
    """The object that a note holds; None if the file does not exist.

    Raises:
        Malformed: it cannot be read, or holds no object.
    """
    if not path.exists():
        return None
    found = _read_json(path)
    if not isinstance(found, dict):
        raise damaged(path, f"it holds a {type(found).__name__}, not an object")
    return found


def read_columns(path: Path) -> list[Column]:
    """The columns that a landing found in JSON; none if there is no such file.

    Raises:
        Malformed: it cannot be read, or holds something else.
    """
    if not path.exists():
        return []
    found = _read_json(path)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise damaged(path, "it is no list of objects")
    columns = [Column(*(text_of(path, each, name) for name in _COLUMN)) for each in found]
    if len({column.name.lower() for column in columns}) < len(columns):
        raise damaged(path, "two columns have one name")
    return columns


_COLUMN = ("field", "name", "type")


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, told: str) -> Malformed:
    """The error for a note that is not as we write it."""
    return Malformed(
        f"{path} is no note as this job writes it ({told[:200]}): restore it from a copy, or begin "
        "anew in another directory"
    )


def text_of(note: Path, found: Mapping[str, Any], name: str) -> str:
    """A field that is text.

    Raises:
        Malformed: it is missing or something else.
    """
    value = found.get(name)
    if not isinstance(value, str):
        raise damaged(note, f"{name} is {value!r}, not a text")
    return value


def count_of(note: Path, found: Mapping[str, Any], name: str) -> int:
    """A field that is a number of 63 bits, from 0 on.

    Raises:
        Malformed: it is missing or something else.
    """
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise damaged(note, f"{name} is {value!r}, not a count")
    return value


def objects_of(note: Path, found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that is a list of objects.

    Raises:
        Malformed: it is missing or something else.
    """
    values = found.get(name)
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise damaged(note, f"{name} is no list of objects")
    return values


def place_of(note: Path, text: object) -> str:
    """A path below the table, checked because jobs move and remove the files that a note names.

    Raises:
        Malformed: it leads elsewhere.
    """
    parts = PurePosixPath(text).parts if isinstance(text, str) else ("/",)
    if "/" in parts or ".." in parts or "\0" in str(text):
        raise damaged(note, f"{text!r} is no place in the table")
    return str(text)


def offset_of(note: Path, offset: object) -> dict[str, Any]:
    """Where in the logs a batch ends, as `offsets` writes it.

    Raises:
        Malformed: it is none.
    """
    from cordwood.spark.offsets import parse_offset

    if not isinstance(offset, dict):
        raise damaged(note, f"offset is {offset!r}")
    try:
        parse_offset(offset)
    except CordwoodError as error:
        raise damaged(note, str(error)) from error
    return offset


def offset_in(note: Path, text: object) -> dict[str, Any]:
    """As `offset_of`, of JSON in a table's own log.

    Raises:
        Malformed: it is none.
    """
    try:
        offset = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise damaged(note, f"the offset: {error}") from error
    return offset_of(note, offset)

"""Reads Cordwood's JSON from a metadata store or a disk. Other programs may have written to it.

Source: docs/sources/reliability.md §7.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cordwood.errors import Malformed

Stored = TypeVar("Stored")


def read_json(data: bytes, kind: type[Stored], what: str) -> Stored:
    """JSON as a value of a type.

    Args:
        what: the name of the text, for the error.
    Raises:
        Malformed: it is no JSON, nested too deep, no UTF-8, or of another shape.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{what} cannot be read: {error}") from error

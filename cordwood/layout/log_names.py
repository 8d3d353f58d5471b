"""Stored names of logs: /orders and orders are the same log."""

from __future__ import annotations

import re

from cordwood.errors import BadSetting

NAME_BYTES_MAX = 255
"""The longest name, with its leading slash: the limit of a file name."""

_PATH = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*"
_NAME = re.compile(rf"/?({_PATH})")
_DIRECTORY = re.compile(rf"/?(?:({_PATH})/)?")


def normalise_name(text: object) -> str:
    """A log's stored name, with its leading slash.

    Raises:
        BadSetting: it is no path of letters, digits, `_`, `.` and `-`, or is too long.
    """
    # A caller without a type checker may hand over None, bytes or a number.
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None or len(match[1]) + 1 > NAME_BYTES_MAX:
        raise BadSetting(
            f"{str(text)[:64]!r} is no log name: write a path such as /orders/eu, of letters, "
            f"digits, _ . and -, no part beginning with . or -, {NAME_BYTES_MAX} bytes at most"
        )
    return f"/{match[1]}"


def normalise_directory(text: object) -> str:
    """A directory's stored path, with a slash at both ends; the root is `/`.

    Raises:
        BadSetting: it does not end with a slash, or is no path.
    """
    match = _DIRECTORY.fullmatch(text) if isinstance(text, str) else None
    if match is None or not match[0].endswith("/") or len(match[1] or "") + 1 > NAME_BYTES_MAX:
        raise BadSetting(f"{str(text)[:64]!r} is no directory: write a path such as /orders/, or /")
    return f"/{match[1]}/" if match[1] else "/"

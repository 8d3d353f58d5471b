"""The interface through which main storage uses an object store.

An object is a name with bytes that are written as a whole and read by ranges. Cordwood writes an
object once and never changes it, except *pointers*: small objects that are replaced on condition
that they are still as the caller read them (`put_if`). No decision of uploads or readers uses a
listing, because it may be stale. Only the collection of orphans and a repair read listings.

There are three implementations, and one contract suite checks that they keep these promises:
`local_store` (a directory), `obstore_store` (S3, Google, Azure) and `sim.object_store`.

`put` and `delete` may be repeated, and a repeat changes nothing; `patient_store` repeats them.

Errors, whichever the store::

    NoObject, ObjectChanged, AccessDenied, BadSetting   as their names say; nothing was stored
    Overloaded       the store asks to be called less (SlowDown, 429, 503); nothing was stored
    Unreachable      no answer to a call that changes nothing
    OutcomeUnknown   no answer to a call that changes something: it may have happened, or may
                     still happen
    Malformed        the object is shorter than the range that was asked for

Source: docs/objects.md, "The store".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from cordwood.block import Buffer
from cordwood.errors import BadSetting

Etag = NewType("Etag", str)
"""A tag of an object's content. Two objects of equal content may have equal tags."""

NAME_BYTES_MAX = 512
"""Half of the length that S3 takes, because a prefix of the user's stands before the name."""

PART_BYTES_MAX = 200
"""The longest part of a name. In a directory it is a file name, and file systems take 255 bytes."""

WHOLE_BYTES_MAX = 16 << 20
"""The most bytes that `read` takes into memory. Pointers and pages have about a thousandth of
it."""

LIST_MAX = 1000
"""Objects in a page of a listing, as S3 has it."""

DELETE_MAX = 1000
"""Objects in one call to delete, as S3 has it."""

_PART = r"[A-Za-z0-9_=][A-Za-z0-9_.=-]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A store's information about an object, without its bytes.

    Attributes:
        name: its name.
        size: its bytes.
        modified_us: when it was written, by the store's clock, µs since 1970 UTC.
    """

    name: str
    size: int
    modified_us: int


class ObjectStore(Protocol):
    """See the module. Every call takes a deadline; a call that passes it ends as the errors say."""

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        """Store an object, durably; one of this name is replaced.

        Args:
            content: its bytes, in pieces; they must not change until this returns.
        """

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        """Store an object if the present object of this name is as the caller expects it.

        Args:
            expected: the tag from `read` or `put_if`; None if no object may exist.
        Raises:
            ObjectChanged: the present object is another, or is gone, or exists against `expected`.
        """

    async def read(self, name: str, *, timeout_s: float) -> tuple[bytes, Etag]:
        """All of a small object, as its last writer left it.

        Raises:
            NoObject: there is none.
            Malformed: it has more than WHOLE_BYTES_MAX.
        """

    async def get(self, name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        """The bytes `[start, stop)` of an object; exactly these.

        Raises:
            NoObject: there is none.
            Malformed: it ends before `stop`.
        """

    async def head(self, name: str, *, timeout_s: float) -> ObjectInfo | None:
        """The store's information about an object; None if the object does not exist."""

    async def list_page(
        self, prefix: str, *, after: str = "", limit: int = LIST_MAX, timeout_s: float
    ) -> list[ObjectInfo]:
        """Objects below a prefix, each once, a page at a time; fewer than `limit` only at the end.

        They come by the bytes of their names. SeaweedFS has another order if the name of a
        directory is the beginning of its sibling's name, such as `a/` and `a-b`. Cordwood has no
        such names.

        Args:
            prefix: "" or a path that ends with a slash.
            after: only names after this name; give the last name of the page before.
            limit: 1 to LIST_MAX.
        """

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> None:
        """Delete up to DELETE_MAX objects; missing objects count as deleted."""

    async def close(self) -> None:
        """Release the store's resources; calls in flight may fail. Safe to call twice."""


def check_name(name: str) -> str:
    """The name itself, if an object may have it.

    No part begins with a dot, so no name leads out of a directory or to a file that is not an
    object.

    Raises:
        BadSetting: it is no path of letters, digits, `_`, `=`, `.` and `-`, or is too long.
    """
    if (
        len(name) > NAME_BYTES_MAX
        or not _NAME.fullmatch(name)
        or max(map(len, name.split("/"))) > PART_BYTES_MAX
    ):
        raise BadSetting(
            f"{name[:64]!r} is not an object's name: write a path such as a/b.parquet, of letters, "
            f"digits, _ = . and -, no part beginning with . or -, {PART_BYTES_MAX} bytes a part "
            f"and {NAME_BYTES_MAX} in all"
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix itself, if names may be listed below it.

    Raises:
        BadSetting: it is neither empty nor a path with a slash at its end.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise BadSetting(
                f"{prefix[:64]!r} is not a prefix: write a path that ends with a slash"
            )
        check_name(prefix[:-1])
    return prefix


def check_page(after: str, limit: int) -> None:
    """Check that the arguments of a page of a listing are valid.

    Raises:
        BadSetting: `after` is no name, or `limit` is out of its range.
    """
    if after:
        check_name(after)
    if not 1 <= limit <= LIST_MAX:
        raise BadSetting(f"a page of {limit} objects: ask for 1 to {LIST_MAX}")


def check_range(name: str, start: int, stop: int) -> None:
    """Check that a range of bytes is valid.

    Raises:
        BadSetting: it is empty, or begins before the object.
    """
    check_name(name)
    if not 0 <= start < stop:
        raise BadSetting(f"[{start}, {stop}) of {name} is not a range of bytes")


def check_deletion(names: Sequence[str]) -> None:
    """Check that names can be deleted in one call.

    Raises:
        BadSetting: a name is not valid, or there are more than DELETE_MAX.
    """
    for name in names:
        check_name(name)
    if len(names) > DELETE_MAX:
        raise BadSetting(f"{len(names)} objects to delete: one call takes {DELETE_MAX} at most")

"""A log's attributes: copies, nodes, retention, and how it is written and read.

Attributes are set on a log or on a directory. An unset attribute comes from the directory above, up
to the root and then from DEFAULTS. Names are LogDevice's where it has one. Each is as it takes
effect: `replicate_across` and `nodeset_size` with a new epoch, the others as nodes and clients hear
of them.

Source: docs/sources/logdevice.md 1 ("LogsConfig"); docs/design.md §4 (a weaker ack is an
attribute).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cordwood.errors import BadSetting
from cordwood.nodes import COPIES_MAX, Replication

NODESET_NODES_MAX = 128
"""LogDevice's nodesets have 20 to 30; an epoch record with 512 of these stays under 1 MB."""

BACKLOG_S_MAX = 100 * 366 * 86_400.0

BYTES_MAX = 1 << 60

TOKEN_DIGEST = re.compile(r"[0-9a-f]{32}")

TOKEN_BYTES_MAX = 256
"""Characters of a token: many times what a random token needs against guessing; a reader sends it
with each request."""

WRITES_MAX = 1 << 20


class LogAttributes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """See the module; None is "as above".

    Attributes:
        replicate_across: copies by scope: `{"node": 3, "rack": 2}` is 3 copies over 2 racks;
            any of `nodes.SCOPES` may be named.
        nodeset_size: nodes that an epoch's records are spread over; 0 is every node.
        backlog_s: retention by time, 0 is for ever.
        backlog_bytes: retention by size, over all nodes and every copy counted once; 0 is no
            bound. At least this many bytes of stored records are kept; `protocol.retention` says
            how many more.
        synced_copies: copies on stable storage before an acknowledgement; 0 for all. Nodes of this
            version sync every copy before they answer, so fewer is not faster.
        max_writes_in_flight: blocks numbered and not acknowledged; more wait.
        sticky_copysets: keep a copyset for some MiB, so that a log's recent blocks lie on
            few nodes; off spreads each run of blocks anew.
        scd_enabled: each block is sent to a reader by one node only (single-copy delivery).
        local_scd_enabled: that node is one near the reader, if there is one.
        write_token: clients must have it to append; "" is none. Kept as `token_digest`
            makes it, because any client may ask for a log's attributes.
        read_token: clients must have it to read; "" is none. Kept likewise. Storage nodes demand it
            from clients, but not from nodes that read: recovery, scrubbing, rebuilding.
        tier: move old records to main storage (docs/objects.md), and read them from there.
        tier_open: upload the log although it has a read token. A program with read access to the
            store then reads its objects without the token. No effect on a log without a read token.
        local_retention: seconds for which nodes keep records that main storage holds, by append
            time.
        tier_after_bytes, tier_after_s: upload once this many bytes of bodies wait, or once the
            oldest record has waited this long.
    """

    replicate_across: dict[str, int] | None = None
    nodeset_size: int | None = None
    backlog_s: float | None = None
    backlog_bytes: int | None = None
    synced_copies: int | None = None
    max_writes_in_flight: int | None = None
    sticky_copysets: bool | None = None
    scd_enabled: bool | None = None
    local_scd_enabled: bool | None = None
    write_token: str | None = None
    read_token: str | None = None
    tier: bool | None = None
    local_retention: float | None = None
    tier_after_bytes: int | None = None
    tier_after_s: float | None = None
    tier_open: bool | None = None

    @property
    def replication(self) -> Replication:
        """Copies, and the domains that they span.

        Raises:
            BadSetting: `replicate_across` is not set, or cannot be kept.
        """
        return Replication.across(self.replicate_across or {})

    @property
    def is_uploaded(self) -> bool:
        """Whether nodes may bring its records to main storage, where no token holds."""
        return bool(self.tier) and not (self.read_token and not self.tier_open)

    def over(self, inherited: LogAttributes) -> LogAttributes:
        """These attributes, and the unset attributes from `inherited`."""
        return msgspec.structs.replace(inherited, **self.as_set())

    def without(self, names: Sequence[str]) -> LogAttributes:
        """These with some not set.

        Raises:
            BadSetting: there is no attribute of this name.
        """
        for name in names:
            _check_name(name)
        return msgspec.structs.replace(self, **dict.fromkeys(names))

    def as_set(self) -> dict[str, Any]:
        """The set attributes, by name."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}


TOKENS = ("write_token", "read_token")
"""Attributes of which people are shown only whether they are set."""

NAMES = tuple(field.name for field in msgspec.structs.fields(LogAttributes))

DEFAULTS = LogAttributes(
    replicate_across={"node": 3, "rack": 1},
    nodeset_size=0,
    backlog_s=0.0,
    backlog_bytes=0,
    synced_copies=0,
    max_writes_in_flight=1000,
    sticky_copysets=True,
    scd_enabled=True,
    local_scd_enabled=False,
    write_token="",
    read_token="",
    tier=False,
    local_retention=3600.0,
    tier_after_bytes=64 << 20,
    tier_after_s=3600.0,
    tier_open=False,
)
"""LogDevice's, but for retention (it has none by itself) and SCD, which it leaves off: a reader
that receives each block once instead of `copies` times is the better default, and LogDevice's own
tools use a window of 1000 blocks."""


def token_digest(token: str) -> str:
    """The stored form of a write or read token; "" stays ""."""
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest() if token else ""


def check_token(token: str) -> None:
    """Refuse a token that no client could send.

    Raises:
        BadSetting: it is longer than TOKEN_BYTES_MAX, or not UTF-8. The text does not show it.
    """
    try:
        size = len(token.encode())
    except UnicodeEncodeError:
        raise BadSetting("a token is text in UTF-8, and this one is not") from None
    if size > TOKEN_BYTES_MAX:
        raise BadSetting(f"a token has at most {TOKEN_BYTES_MAX} bytes, this one {size}")


def replicate_across(replication: Replication) -> dict[str, int]:
    """A replication property by scope."""
    return replication.by_scope


def check_attributes(attributes: LogAttributes) -> None:
    """Refuse values that no log can have. Unset attributes are not checked.

    Raises:
        BadSetting: the text names the attribute.
    """
    if attributes.replicate_across is not None:
        _ = attributes.replication
    for name, low, high in (
        ("nodeset_size", 0, NODESET_NODES_MAX),
        ("backlog_s", 0, BACKLOG_S_MAX),
        ("backlog_bytes", 0, BYTES_MAX),
        ("local_retention", 0, BACKLOG_S_MAX),
        ("tier_after_bytes", 1, BYTES_MAX),
        ("tier_after_s", 0, BACKLOG_S_MAX),
        ("synced_copies", 0, COPIES_MAX),
        ("max_writes_in_flight", 1, WRITES_MAX),
    ):
        value = getattr(attributes, name)
        if value is not None and not low <= value <= high:
            raise BadSetting(f"{name} is {value}; it goes from {low} to {high:g}")
    for name in TOKENS:
        kept = getattr(attributes, name)
        if kept and not TOKEN_DIGEST.fullmatch(kept):
            raise BadSetting(f"{name} is no digest of a token: make it with token_digest")


def check_whole(attributes: LogAttributes, was: LogAttributes | None = None) -> None:
    """Refuse a log's attributes, all of them set, that contradict one another.

    Args:
        was: the present attributes, None for a new log. An older log that has both a read token and
            `tier=on` may be changed otherwise; it is not uploaded.
    Raises:
        BadSetting: the text says which.
    """
    check_attributes(attributes)
    copies = attributes.replication.copies
    if attributes.synced_copies and attributes.synced_copies > copies:
        raise BadSetting(f"synced_copies is {attributes.synced_copies} of {copies} copies")
    if attributes.nodeset_size and attributes.nodeset_size < copies:
        raise BadSetting(f"nodeset_size {attributes.nodeset_size} cannot hold {copies} copies")
    if _is_torn(attributes) and (was is None or not _is_torn(was)):
        raise BadSetting(
            "a log with a read token cannot have tier=on by itself: in main storage the token does "
            "not hold, because each user with access to the store can read all that is in it. Give "
            "the log tier=off, or no read token, or tier_open=on if that is wanted"
        )


def _is_torn(attributes: LogAttributes) -> bool:
    """Whether it asks for main storage, and for a token that does not hold there."""
    return bool(attributes.tier) and not attributes.is_uploaded


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?")
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])i?)?B?", re.IGNORECASE)
_BYTES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_BOOLS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def parse_attributes(words: Sequence[str]) -> LogAttributes:
    """`name=value` as people write it: `backlog_s=7d`, `replicate_across=node:3,rack:2`.

    Raises:
        BadSetting: an unknown name, or a value out of its range.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        _check_name(name)
        if not equals:
            raise BadSetting(f"{word!r}: write {name}=VALUE")
        found[name] = _parse(name, text.strip())
    attributes = LogAttributes(**found)
    check_attributes(attributes)
    return attributes


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise BadSetting(f"there is no attribute {name[:64]!r}; there are {', '.join(NAMES)}")


def _parse(name: str, text: str) -> Any:
    match name:
        case "replicate_across":
            scopes = [part.partition(":") for part in text.split(",")]
            if all(number.isdecimal() for _, _, number in scopes):
                return {scope.strip(): int(number) for scope, _, number in scopes}
        case "backlog_s" | "local_retention" | "tier_after_s":
            duration = _DURATION.fullmatch(text)
            if duration:
                return float(duration[1]) * _SECONDS[duration[2] or ""]
        case "backlog_bytes" | "tier_after_bytes":
            size = _SIZE.fullmatch(text)
            if size:
                return int(float(size[1]) * 1024 ** _BYTES[(size[2] or "").upper()])
        case "write_token" | "read_token":
            check_token(text)
            return token_digest(text)
        case "sticky_copysets" | "scd_enabled" | "local_scd_enabled" | "tier" | "tier_open":
            if text.lower() in _BOOLS:
                return _BOOLS[text.lower()]
        case _:
            if text.isascii() and text.isdecimal():
                return int(text)
    raise BadSetting(f"{name} cannot be {text[:64]!r}: {_HOW[name]}")


_HOW = {
    "replicate_across": "write node:3 or node:4,rack:3,region:2",
    "nodeset_size": "write a number of nodes, 0 for all",
    "backlog_s": "write 3600, 90min, 12h, 7d or 0",
    "backlog_bytes": "write 1000000, 10MiB, 2GiB or 0",
    "synced_copies": "write a number of copies, 0 for all",
    "max_writes_in_flight": "write a number of blocks",
    "sticky_copysets": "write on or off",
    "scd_enabled": "write on or off",
    "local_scd_enabled": "write on or off",
    "tier": "write on or off",
    "local_retention": "write 3600, 90min, 12h or 7d; 0 for as short as possible",
    "tier_after_bytes": "write 1000000, 10MiB or 2GiB",
    "tier_after_s": "write 3600, 90min, 12h or 7d; 0 for at once",
    "tier_open": "write on or off",
}

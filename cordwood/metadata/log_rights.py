"""The right to change a log: a caller needs the token that guards the access or the records that
the change removes.

- If a log has a write token, a caller needs that token to delete, rename or fence the log, and to
  change its tokens or retention. If a log has no write token, every caller may do this.
- A change of a read token requires the read token, and the write token if there is one. So does a
  change that lets a log with a read token into main storage (`tier=on` with `tier_open=on`),
  because the token does not hold there.
- A change of a directory counts as a change of each log below it whose attributes change by it.

Changes that neither add nor remove access or records (replication, nodeset, spreading and sending
of blocks) need no token: they are an operator's work, and operators have no tokens of logs.

Nodes check this. A client sends those of its tokens that a log demands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.errors import AccessDenied
from cordwood.log_attributes import LogAttributes, token_digest

GUARDED = ("write_token", "read_token", "backlog_s", "backlog_bytes")
"""Attributes that take away a right or records."""

Check = Callable[[str, LogAttributes, LogAttributes | None], None]
"""Checks a change: a log's name, its attributes, and its new attributes, None if it is deleted or
renamed."""


def anybody(name: str, was: LogAttributes, becomes: LogAttributes | None) -> None:
    """Allows every change. It is for a caller that acts for the log's owner."""


def check_rename(name: str, was: LogAttributes, becomes: LogAttributes, check: Check) -> None:
    """Check a rename: it removes the name, and inherited attributes change with it.

    Raises:
        AccessDenied: `check` says so.
    """
    check(name, was, None)
    check(name, was, becomes)


def who_has(tokens: Iterable[str]) -> Check:
    """The check for a caller with these tokens.

    Returns:
        A check that raises AccessDenied.
    """
    has = set(map(token_digest, tokens))

    def check(name: str, was: LogAttributes, becomes: LogAttributes | None) -> None:
        taken = GUARDED if becomes is None else changed_rights(was, becomes)
        if becomes is not None and was.read_token and opens(was, becomes):
            taken = (*taken, "read_token")
        if taken and was.write_token and was.write_token not in has:
            raise AccessDenied(
                f"{name} wants its write token from a client that changes its tokens, its "
                "retention or its name, opens it in main storage, deletes it or fences it: give it "
                "as ClientSettings(write_tokens=…), on the command line as CORDWOOD_WRITE_TOKENS"
            )
        shows = becomes is not None and "read_token" in taken
        if shows and was.read_token and was.read_token not in has:
            raise AccessDenied(
                f"{name} wants its read token from a client that changes the token or opens the "
                "log in main storage: give it as ClientSettings(read_tokens=…), on the command "
                "line as CORDWOOD_READ_TOKENS"
            )

    return check


def opens(was: LogAttributes, becomes: LogAttributes) -> bool:
    """Whether a change lets a log into main storage that was kept out of it."""
    return becomes.is_uploaded and not was.is_uploaded


def changed_rights(was: LogAttributes, becomes: LogAttributes) -> tuple[str, ...]:
    return tuple(
        name for name in GUARDED if (getattr(was, name) or 0) != (getattr(becomes, name) or 0)
    )

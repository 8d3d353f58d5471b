"""Who may change a log: whoever has the token that guards what the change takes away.

- A log with a write token is deleted, renamed, fenced, given other tokens or another retention by
  who has that token. Without it everybody may.
- A read token is changed by who has it, and has the write token where there is one too.
- A directory's change is a change of every log below it that comes to have other attributes by it.

What adds nothing and takes nothing away (replication, nodeset, how blocks are spread and sent) is
everybody's, as it is an operator's work, who has no token of a log.

Nodes ask; a client sends those of its tokens that a log asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.errors import AccessDenied
from cordwood.log_attributes import LogAttributes, token_digest

GUARDED = ("write_token", "read_token", "backlog_s", "backlog_bytes")
"""Attributes that take away a right or records."""

Check = Callable[[str, LogAttributes, LogAttributes | None], None]
"""Looks at a change: a log's name, its attributes, and what they become, None if it is deleted or
goes to another name."""


def anybody(name: str, was: LogAttributes, becomes: LogAttributes | None) -> None:
    """Lets everything pass: for a caller that stands for the log's owner."""


def who_has(tokens: Iterable[str]) -> Check:
    """What a caller with these tokens may change.

    Returns:
        A check that raises AccessDenied.
    """
    has = set(map(token_digest, tokens))

    def check(name: str, was: LogAttributes, becomes: LogAttributes | None) -> None:
        taken = GUARDED if becomes is None else changed_rights(was, becomes)
        if taken and was.write_token and was.write_token not in has:
            raise AccessDenied(
                f"{name} wants its write token of whoever changes its tokens, its retention or its "
                "name, deletes it or fences it: give it as ClientSettings(write_tokens=…), on the "
                "command line as CORDWOOD_WRITE_TOKENS"
            )
        shows = becomes is not None and "read_token" in taken
        if shows and was.read_token and was.read_token not in has:
            raise AccessDenied(
                f"{name} wants its read token of whoever changes it: give it as "
                "ClientSettings(read_tokens=…), on the command line as CORDWOOD_READ_TOKENS"
            )

    return check


def changed_rights(was: LogAttributes, becomes: LogAttributes) -> tuple[str, ...]:
    return tuple(
        name for name in GUARDED if (getattr(was, name) or 0) != (getattr(becomes, name) or 0)
    )

"""Control messages that change a log. The log may demand a token for them; see
`metadata.log_rights`.

Each message names its log by path and by number. A node that paused may carry a call out late,
after another node carried it out and the path got another log. The number protects that other log.
The number 0 asks the node to finish a change that stopped half-way, and changes no log that has the
path. None means the log that has the path when the node carries the call out.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import AnyLog, AnyLsn, Name, Token
from cordwood.log_attributes import LogAttributes

TOKENS_MAX = 64
"""The most tokens in one call. A change of a directory may concern logs with different tokens."""


class ForOwners(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change for which a log may demand a token.

    Attributes:
        tokens: never shown, so the text of a change leaves them out.
    """

    tokens: Annotated[list[Token], Meta(max_length=TOKENS_MAX)] = []

    def __repr__(self) -> str:
        told = [f"{name}={getattr(self, name)}" for name in self.__struct_fields__[:-1]]
        return f"{type(self).__name__}({', '.join(told)})"


class SetAttributes(ForOwners, frozen=True, tag="set_attributes"):
    """Set attributes of a log, or of a directory (`path` ends with a slash).

    Attributes:
        unset: names of attributes to inherit again.
        version: the version that the caller saw, see `AskVersion`: a late call does not undo a
            newer change. None sets them over any version.
    """

    path: Name
    attributes: LogAttributes
    unset: Annotated[list[Name], Meta(max_length=64)] = []
    log: AnyLog | None = None
    version: AnyLsn | None = None


class AskVersion(Struct, frozen=True, tag="ask_version"):
    """The version of the entry that a rename, or setting attributes of a path, would change.

    Attributes:
        log: the log's number; None for a directory.
    """

    path: Name
    log: AnyLog | None = None


class VersionReply(Struct, frozen=True, tag="version"):
    """The version of an entry, which grows with each change; 0 if there is no entry."""

    version: AnyLsn


class DeleteLog(ForOwners, frozen=True, tag="delete_log"):
    """Delete a log."""

    name: Name
    log: AnyLog | None = None


class RenameLog(ForOwners, frozen=True, tag="rename_log"):
    """Give a log another name.

    Attributes:
        version: the version that the caller saw, see `AskVersion`: a late call does not undo a
            newer rename. None renames a log of any version.
    """

    name: Name
    new_name: Name
    log: AnyLog | None = None
    version: AnyLsn | None = None


class RaiseToken(ForOwners, frozen=True, tag="raise_token"):
    """Give a log a higher fencing token; see `metadata.epoch_store.EpochStore.raise_token`."""

    name: Name
    token: AnyLsn
    holder: Name
    log: AnyLog | None = None

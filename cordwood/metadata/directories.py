"""The attributes set on directories, and what the logs below inherit of them.

The entry `directories` has the attributes of all directories, by path. So one reading of it tells
what any log inherits.

Source: docs/design.md §6; docs/sources/logdevice.md 1 ("LogsConfig").
"""

from __future__ import annotations

from cordwood.errors import BadSetting
from cordwood.log_attributes import LogAttributes, check_whole
from cordwood.metadata.log_entries import decode
from cordwood.metadata.store import Versioned

DIRECTORIES_KEY = "directories"

Directories = dict[str, LogAttributes]


def directories_of(found: Versioned | None) -> Directories:
    """The directories in the entry as it was read."""
    return decode(found.value, Directories, "directories") if found else {}


def whole_of(
    path: str, own: LogAttributes, directories: Directories, defaults: LogAttributes
) -> LogAttributes:
    """All attributes of a log or a directory at `path`, set or inherited.

    Args:
        own: set on it.
        defaults: the value of each attribute that is set nowhere.
    """
    whole = defaults
    # By length, so that directories nearer to the log come later.
    for directory in sorted(directories, key=len):
        if path.startswith(directory):
            whole = directories[directory].over(whole)
    return own.over(whole)


def is_below(name: str, path: str) -> bool:
    """Whether attributes set on `path`, a log or a directory, may concern the log `name`."""
    return name.startswith(path) if path.endswith("/") else name == path


def is_at_or_below(name: str, path: str) -> bool:
    """Whether a listing of `path`, which is empty for all, shows the log `name`."""
    return name == path or name.startswith(f"{path}/")


def check_below(name: str, whole: LogAttributes, was: LogAttributes) -> None:
    """Check that the log `name` can have the attributes that a change of a directory gives it.

    Raises:
        BadSetting: it cannot; the text names the log.
    """
    try:
        check_whole(whole, was)
    except BadSetting as error:
        raise BadSetting(f"{name} could not be so: {error}") from None

"""Reads the address of a cluster from text.

Importing the client takes half a second. Code that only checks an address imports this module
alone.

Source: docs/design.md §7.
"""

from __future__ import annotations

import re

from cordwood.errors import BadSetting

SCHEME = "cordwood://"

_FOREIGN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def is_cluster(url: str) -> bool:
    """Whether `url` is a cluster's address; otherwise it is the path of a directory.

    Raises:
        BadSetting: it has another scheme than `cordwood://`. If a mistyped scheme counted as a
            path, it would make an empty store in a directory of that name, and appends to it would
            succeed.
    """
    if url.startswith(SCHEME):
        return True
    if match := _FOREIGN.match(url):
        raise BadSetting(
            f"{url!r}: {match[1]}:// is not a scheme of Cordwood. Write cordwood://host:port for a "
            "cluster, or the path of a directory for an embedded store"
        )
    return False


def parse_url(url: str) -> tuple[str, ...]:
    """The addresses in `cordwood://host:port,host:port` or `host:port,host:port`.

    Raises:
        BadSetting: no address, or an address without a port.
    """
    addresses = tuple(part.strip() for part in url.removeprefix(SCHEME).rstrip("/").split(","))
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and _is_port(port)):
            raise BadSetting(
                f"{url!r} names no cluster: write cordwood://host:port, several with commas"
            )
    return addresses


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536

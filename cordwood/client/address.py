"""Where a cluster is, as text. Apart from the client, which takes half a second to import: who only
checks what a user gave needs no more than this.

Source: design.md §7.
"""

from __future__ import annotations

from cordwood.errors import BadSetting

SCHEME = "cordwood://"


def parse_url(url: str) -> tuple[str, ...]:
    """The addresses in `cordwood://host:port,host:port` or `host:port,host:port`.

    Raises:
        BadSetting: no address, or one without a port.
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

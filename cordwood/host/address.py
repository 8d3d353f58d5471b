"""Addresses: `host:port`, and `[host]:port` for IPv6.

One parser for the real and the simulated network, so that both refuse the same
texts.
"""

from __future__ import annotations

from cordwood.errors import BadSetting

PORT_MAX = 65535


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` into its halves; brackets around an IPv6 host are taken off.

    Raises:
        BadSetting: it is not `host:port` with a port of 0 to PORT_MAX.
    """
    host, colon, port_text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadSetting(f"address {address!r}: put an IPv6 host in brackets, as in [::1]:4440")
    # isdecimal alone would let other scripts' digits through.
    if not (colon and host and port_text.isascii() and port_text.isdecimal()):
        raise BadSetting(f"address {address!r} is not host:port")
    try:
        host.encode("idna")
    except UnicodeError:
        # No network could look it up, and its error would be none of the network's.
        raise BadSetting(
            f"address {address[:128]!r}: a host has no empty part between dots, and none of more "
            "than 63 characters"
        ) from None
    if len(port_text) > 5 or int(port_text) > PORT_MAX:
        raise BadSetting(f"address {address!r}: a port is at most {PORT_MAX}")
    return host, int(port_text)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

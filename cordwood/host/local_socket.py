"""Unix sockets between processes of one machine, beside their TCP ports on loopback.

A listener on loopback takes connections at a Unix socket as well, and a caller tries that socket
first. A frame costs less on the way: see docs/performance.md. Everything above the transport is
the same, the greeting with the cluster's identity and the member's number included.

The name stands in the kernel's abstract namespace and follows from the address. So it needs no
directory and no cleaning up, is never too long, and ends with its process. It is visible where the
loopback address is: each network namespace has its own. Any user of the machine may take a free
name, unlike the port of a running node. So a caller asks the kernel for the socket's owner, and
uses TCP unless the owner is its own user or root.

TCP's buffers grow with the bytes sent. Those of Unix sockets do not: `widen` makes them large
enough.

Source: unix(7), "Abstract sockets" and SO_PEERCRED; socket(7), SO_SNDBUF; ip(7).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys

from cordwood.host.address import split_address

PREFIX = "\0cordwood/"

SEND_BUFFER_BYTES = 1 << 20
"""Room for what a node sends to a reader at a time. With the 208 KiB that Linux gives, sender and
receiver woke each other five times for it: reads of 256 B records took a third longer. 4 MiB
gained nothing more. Where net.core.wmem_max is less than this, the kernel gives that."""

_CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid of the process that listens."""


def socket_name(address: str) -> str | None:
    """The name of the socket beside a TCP address; None without one.

    Only loopback has one: packet filters decide about the other addresses.
    """
    if sys.platform != "linux":
        return None
    host, _ = split_address(address)
    try:
        is_near = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_near = False
    return PREFIX + address if is_near else None


def bind_beside(address: str) -> socket.socket | None:
    """A socket to listen at, beside a TCP address as bound; None if there can be none."""
    name = socket_name(address)
    if name is None:
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.bind(name)
    except OSError:  # someone has the name: callers come by TCP
        made.close()
        return None
    return made


def reach_beside(address: str, *, uid: int | None = None) -> socket.socket | None:
    """A connection to the Unix socket beside a TCP address; None if the caller must use TCP.

    Args:
        uid: sockets of this user are trusted, as root's are; None for the user of this process.
    """
    name = socket_name(address)
    if name is None or sys.platform != "linux":
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.connect(name)  # at once, or EAGAIN where too many wait
        packed = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        made.close()
        return None
    _, theirs, _ = _CREDENTIALS.unpack(packed)
    if theirs not in (0, os.geteuid() if uid is None else uid):
        made.close()
        return None
    return made


def widen(made: socket.socket) -> None:
    """Let the kernel keep SEND_BUFFER_BYTES on their way, if this is a Unix socket."""
    if made.family != socket.AF_UNIX:
        return
    # Doubled by the kernel, half of it for its own records: so it is given back.
    if made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 2 * SEND_BUFFER_BYTES:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

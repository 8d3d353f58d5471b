"""Reads the address of a cluster's metadata store: a file, or a ZooKeeper ensemble.

`PATH` is SQLite, for the processes of one machine;
`zookeeper://host:port,host:port/chroot` is ZooKeeper, for any number of machines.

Source: docs/design.md §6, §11.
"""

from __future__ import annotations

import re

from cordwood.errors import BadSetting
from cordwood.host.address import join_address, split_address
from cordwood.host.seams import Host
from cordwood.metadata.store import MetadataStore

ZOOKEEPER = "zookeeper://"

ZOOKEEPER_PORT = 2181

CHROOT = "/cordwood"
"""The path that is used if the address has none. It is not the root, because an ensemble often
serves other programs too."""

_CHROOT = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}){1,16}")


def parse_zookeeper(url: str) -> tuple[str, str]:
    """The hosts (`host:port,host:port`) and the path in a zookeeper:// address.

    Raises:
        BadSetting: it is none.
    """
    hosts, slash, path = url.removeprefix(ZOOKEEPER).partition("/")
    chroot = f"/{path}".rstrip("/") if slash else ""
    if not hosts or (chroot and not _CHROOT.fullmatch(chroot)):
        raise BadSetting(f"{url[:256]!r} is no ensemble: write zookeeper://host:port,…/path")
    addresses = [_with_port(part.strip()) for part in hosts.split(",")]
    return ",".join(join_address(*split_address(each)) for each in addresses), chroot or CHROOT


def _with_port(host: str) -> str:
    bare = host.endswith("]") or ":" not in host
    return f"{host}:{ZOOKEEPER_PORT}" if bare else host


def open_metadata(where: str, host: Host) -> MetadataStore:
    """The store that `where` names; it is reached at its first use.

    Raises:
        BadSetting: an unknown store, or its library is not installed.
    """
    if not where.startswith(ZOOKEEPER):
        from cordwood.metadata.sqlite import SqliteMetadata

        return SqliteMetadata(where, host)
    hosts, root = parse_zookeeper(where)
    try:
        from cordwood.metadata.zookeeper import ZooKeeperMetadata
    except ImportError as error:
        raise BadSetting(
            "a metadata store on ZooKeeper needs kazoo: pip install 'cordwood[zookeeper]'"
        ) from error
    return ZooKeeperMetadata(hosts, root, host)

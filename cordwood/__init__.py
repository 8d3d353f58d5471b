"""Cordwood: a distributed, replicated, append-only log store.

`connect(url)` blocks; `aio.connect(url)` is asyncio. The names below are the public ones; `errors`
has the tree of exceptions, and `settings` all settings. Each name loads on first use, so that
`import cordwood` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cordwood import aio, errors, settings
    from cordwood.block import Gap, GapKind, Record
    from cordwood.blocking import BlockingStore, connect
    from cordwood.client.admin.positions import KeyPosition, TimePosition
    from cordwood.client.append.buffered_writer import WriteMode, WriterOptions
    from cordwood.client.append.producer import Producer
    from cordwood.client.store import Store
    from cordwood.errors import CordwoodError
    from cordwood.log_attributes import LogAttributes
    from cordwood.lsn import Epoch, Esn, LogId, Lsn, parse_lsn
    from cordwood.nodes import Replication
    from cordwood.settings import ClientSettings

__all__ = [
    "BlockingStore",
    "ClientSettings",
    "CordwoodError",
    "Epoch",
    "Esn",
    "Gap",
    "GapKind",
    "KeyPosition",
    "LogAttributes",
    "LogId",
    "Lsn",
    "Producer",
    "Record",
    "Replication",
    "Store",
    "TimePosition",
    "WriteMode",
    "WriterOptions",
    "__version__",
    "aio",
    "connect",
    "errors",
    "parse_lsn",
    "settings",
]

_HOMES = {
    "BlockingStore": "cordwood.blocking",
    "ClientSettings": "cordwood.settings",
    "CordwoodError": "cordwood.errors",
    "Epoch": "cordwood.lsn",
    "Esn": "cordwood.lsn",
    "Gap": "cordwood.block",
    "GapKind": "cordwood.block",
    "KeyPosition": "cordwood.client.admin.positions",
    "LogAttributes": "cordwood.log_attributes",
    "LogId": "cordwood.lsn",
    "Lsn": "cordwood.lsn",
    "Producer": "cordwood.client.append.producer",
    "Record": "cordwood.block",
    "Replication": "cordwood.nodes",
    "Store": "cordwood.client.store",
    "TimePosition": "cordwood.client.admin.positions",
    "WriteMode": "cordwood.client.append.buffered_writer",
    "WriterOptions": "cordwood.client.append.buffered_writer",
    "connect": "cordwood.blocking",
    "parse_lsn": "cordwood.lsn",
}

_MODULES = ("aio", "errors", "settings")
"""Public modules: `cordwood.errors.Fenced` works after `import cordwood` alone."""


def __dir__() -> list[str]:
    """The public names, also those that load on first use, so that Tab in a shell shows them."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"cordwood.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cordwood' has no attribute {name!r}")

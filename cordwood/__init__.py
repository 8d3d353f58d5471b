"""Cordwood: a distributed, replicated, append-only log store.

`connect(url)` blocks; `await cordwood.aio.connect(url)` is asyncio. Everything
here loads on first use, so that `import cordwood` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cordwood import aio
    from cordwood.block import Gap, GapKind, Record
    from cordwood.blocking import connect
    from cordwood.client.buffered_writer import WriteMode, WriterOptions
    from cordwood.client.producer import Producer
    from cordwood.lsn import Lsn, parse_lsn

__all__ = [
    "Gap",
    "GapKind",
    "Lsn",
    "Producer",
    "Record",
    "WriteMode",
    "WriterOptions",
    "__version__",
    "aio",
    "connect",
    "parse_lsn",
]

_HOMES = {
    "Gap": "cordwood.block",
    "GapKind": "cordwood.block",
    "Record": "cordwood.block",
    "WriteMode": "cordwood.client.buffered_writer",
    "WriterOptions": "cordwood.client.buffered_writer",
    "Lsn": "cordwood.lsn",
    "Producer": "cordwood.client.producer",
    "parse_lsn": "cordwood.lsn",
    "connect": "cordwood.blocking",
}


def __dir__() -> list[str]:
    """The public names, those that load on first use too, so that Tab in a shell shows them."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("cordwood.aio")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cordwood' has no attribute {name!r}")

"""The values that calls of a client take or return, for callers that name these types in their own
signatures."""

from __future__ import annotations

from cordwood.client.admin.positions import Tiered
from cordwood.client.append.producer import PRODUCER_MAX, Producer
from cordwood.client.publish.publishing import Published
from cordwood.client.publish.staging import StagedRef
from cordwood.client.read.arrow_batches import BatchGatherer
from cordwood.client.read.replica_scan import Copy, NodeCopies
from cordwood.layout.object_rows import LogRows
from cordwood.protocol.producers import PLACES_MAX, USERS
from cordwood.protocol.publishing import APPENDED, NAMED

__all__ = [
    "APPENDED",
    "NAMED",
    "PLACES_MAX",
    "PRODUCER_MAX",
    "USERS",
    "BatchGatherer",
    "Copy",
    "LogRows",
    "NodeCopies",
    "Producer",
    "Published",
    "StagedRef",
    "Tiered",
]

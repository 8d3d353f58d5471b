"""The end of a run in which nodes do not reach main storage: the others upload in their place.

Nodes cannot see that another node is cut off from main storage. So each of them stands in now and
then (`protocol.upload_turns`), and in the end main storage has each acknowledged record, and each
closed ledger that asks for it.

Source: docs/protocol/main-storage.md, rule 6; docs/protocol/ledgers.md, rule 35.
"""

from __future__ import annotations

import asyncio

from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.store import MetadataStore
from cordwood.protocol.ledger_tiering import wants_upload
from cordwood.sim.cluster import SimCluster
from cordwood.sim.end_events import UploadsLeft
from cordwood.sim.events import AppendInvoked, AppendOk
from cordwood.sim.history import HistoryRecorder

UPLOADED_S = 120.0
"""A turn of a stand-in comes each ten seconds or so. The nodes try an upload that failed again
after pauses of up to a minute."""

LOOK_S = 2.0

PAGE = 1000
"""Ledgers of a run: far fewer."""


async def wait_uploaded(
    cluster: SimCluster, recorder: HistoryRecorder, metadata: MetadataStore
) -> None:
    """Wait until main storage has everything, and record what it still lacks after UPLOADED_S.

    Args:
        metadata: the metadata store without its faults.
    """
    # Only runs in which all logs ask for main storage, or none, come here.
    acked = _acked(recorder) if cluster.options.attributes.tier else {}
    logs: tuple[int, ...] = ()
    ledgers: tuple[int, ...] = ()
    for _ in range(round(UPLOADED_S / LOOK_S)):
        ends = await cluster.ends_in_main_storage(acked)
        logs = tuple(log for log, last in sorted(acked.items()) if ends[log] <= last)
        ledgers = await _waiting_ledgers(LedgerMetadataStore(metadata))
        if not logs and not ledgers:
            return
        await asyncio.sleep(LOOK_S)
    recorder.add(UploadsLeft(recorder.now_us, logs, ledgers))


def _acked(recorder: HistoryRecorder) -> dict[int, int]:
    """The last acknowledged record of each log."""
    logs = {each.op: each.log for each in recorder if isinstance(each, AppendInvoked)}
    last: dict[int, int] = {}
    for event in recorder:
        if isinstance(event, AppendOk) and event.lsns:
            log = logs[event.op]
            last[log] = max(last.get(log, 0), *event.lsns)
    return last


async def _waiting_ledgers(ledgers: LedgerMetadataStore) -> tuple[int, ...]:
    found = [await ledgers.get_if_readable(each) for each in await ledgers.page(-1, PAGE)]
    return tuple(
        each.metadata.ledger for each in found if each is not None and wants_upload(each.metadata)
    )

"""Bugs of sequencers that begin while their log changes, or is deleted.

Source: docs/protocol/seal-and-recovery.md; docs/protocol/metadata-and-epochs.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cordwood.errors import CordwoodError
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import LogId
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import NodeId
from cordwood.protocol.seal import SealTally
from cordwood.sequencer import sequencer_table
from cordwood.sequencer.activation import Activation, Beginning
from cordwood.sequencer.log_watch import LogWatch
from cordwood.sequencer.role import SequencerRole
from cordwood.sequencer.sequencer_table import SequencerTable, TableRow
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.storage.engine import StorageEngine


async def _described_as_there(right: Any, self: LogTree, log_id: LogId) -> LogInfo | None:
    info: LogInfo | None = await right(self, log_id)
    return None if info is None else dataclasses.replace(info, is_deleted=False)


def _begun_as_read(self: Beginning, attributes: LogAttributes) -> None:
    self.attributes = attributes


def _next_write_waited_for(self: LogWatch, error: CordwoodError) -> None:
    self._count = None


def _failure_kept(
    right: Any,
    self: SequencerTable,
    log: LogId,
    row: TableRow,
    error: CordwoodError,
    again_s: float = sequencer_table.ACTIVATE_AGAIN_S,
) -> None:
    before = self.failures.get(log)
    right(self, log, row, error, again_s)
    if before is not None:
        self.failures.setdefault(log, before)


BUGS = (
    PlantedBug("deleted-in-part", "a log that the epoch store does not know to be deleted is "
                                  "sequenced again after each end of its sequencer",
               at(LogTree.described).around(_described_as_there),
               scene="tests/sequencer/test_changes_while_beginning.py"),
    PlantedBug("deletion-unheard", "an epoch that waits at its beginning does not hear that its log "
                                   "was deleted",
               at(Activation.note_deleted).instead(lambda self, log: None),
               scene="tests/sequencer/test_changes_while_beginning.py"),
    PlantedBug("failure-outlives-log", "a node tells clients for ever why it could not sequence a "
                                       "log, and never that the log was deleted",
               at(SequencerTable.abandon).around(_failure_kept),
               scene="tests/sequencer/test_changes_while_beginning.py"),
    PlantedBug("begins-unheard", "an epoch begins with the attributes that were read, even if newer "
                                 "ones were told meanwhile",
               at(Beginning.on_read).instead(_begun_as_read),
               scene="tests/sequencer/test_changes_while_beginning.py"),
    PlantedBug("owner-cut-off", "a node that alone is cut off from the metadata store names no other "
                                "node to the clients of a log that it cannot sequence",
               at(SequencerRole.next_node).instead(lambda self, log: NodeId(0)),
               scene="tests/sequencer/test_cut_off_owner.py"),
    PlantedBug("epoch-begun-again", "an epoch that the metadata store has forgotten is begun again, "
                                    "and gives out the LSNs of acknowledged records",
               at(SealTally.check_unbegun).instead(lambda self, log, epoch: None),
               scene="tests/sequencer/test_older_metadata.py"),
    PlantedBug("shown-epoch-taken", "an epoch is taken although the log's record shows that it has "
                                    "begun: a sequencer that outlived a restore noted its recovery",
               at(EpochRecord.shown).instead(lambda self: 0),
               scene="tests/sequencer/test_older_metadata.py"),
    PlantedBug("first-epoch-begun-again", "a log's first epoch is begun again, although nodes have "
                                          "records of the log",
               at(StorageEngine.check_unrecorded).instead(lambda self, log, epoch: None),
               scene="tests/sequencer/test_older_metadata.py"),
    PlantedBug("look-put-off", "a node that could not read a change waits for the next write of "
                               "anybody, and then looks again",
               at(LogWatch._look_again).instead(_next_write_waited_for),
               scene="tests/sequencer/test_log_watch.py"),
)  # fmt: skip

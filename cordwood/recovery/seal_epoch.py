"""Stops every older sequencer: seals an f-majority, and learns the LNGs that its nodes know.

Source: docs/sources/logdevice.md 2.7 (2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from cordwood.errors import CordwoodError
from cordwood.layout.message import Reply, Seal, SealReply
from cordwood.layout.produced import read_produced
from cordwood.lsn import LogId
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.seal import SealTally
from cordwood.recovery.absent import refuse_absent, refuse_fenced
from cordwood.recovery.ask import ask_until
from cordwood.recovery.heard import Statuses, is_enough
from cordwood.wire.peers import Peers

SEAL_TIMEOUT_S = 3.0
"""A seal is one durable write; a member that takes longer counts as absent."""


async def seal_epoch(
    log: LogId,
    epoch: int,
    clean: int,
    nodeset: Nodeset,
    replication: Replication,
    peers: Peers,
    *,
    statuses: Statuses,
    silent: Collection[NodeId] = (),
    empty: Set[NodeId] = frozenset(),
    everyone: bool = False,
) -> SealTally:
    """Seal all epochs of `log` below `epoch`; return when no older store can be acknowledged.

    Enough members have sealed when they are an f-majority and can also hold a copyset, because only
    members that sealed are read, and only members that were read get the mended tail. With racks,
    an f-majority may be too small for a copyset. Then two quick nodes that always answered first
    prevented a log from ever being recovered.

    The seal does not wait for a node if its data is reported as gone. So the members that sealed
    may not meet every copyset. If a node without a seal comes back, it seals itself before it takes
    a store (`node.Node`).

    Args:
        clean: last clean epoch; the tally knows the LNGs of the epochs between.
        statuses: the reported status of members' data; see `recovery.heard`.
        silent: members that are not waited for after enough members have sealed.
        empty: members that store no tail, even if they answer.
        everyone: wait for every member's answer, or SEAL_TIMEOUT_S.
    Raises:
        Fenced: a higher epoch sealed.
        NoSequencer: too few members answered; the text names the absent ones.
    """

    def enough(answers: Mapping[NodeId, Reply | CordwoodError]) -> bool:
        sealed = {node for node, answer in answers.items() if isinstance(answer, SealReply)}
        return is_enough(sealed, nodeset, replication, statuses, empty)

    answers = await ask_until(
        nodeset.nodes,
        lambda node: peers.call(node, Seal(log, epoch, clean), timeout_s=SEAL_TIMEOUT_S),
        (lambda _: False) if everyone else enough,
        silent=silent,
    )
    tally = SealTally(nodeset)
    failures: dict[NodeId, CordwoodError] = {}
    for node, answer in answers.items():
        if isinstance(answer, CordwoodError):
            failures[node] = answer
        else:
            assert isinstance(answer, SealReply), "Seal is answered with SealReply"
            # Every answer counts, those after enough members sealed too: each may know a higher
            # LNG.
            tally.on_sealed(
                node, answer.lngs, answer.append_time_us, answer.is_sure, answer.quiet_us,
                answer.begun,
            )  # fmt: skip
            for each, produced in answer.produced.items():
                tally.on_produced(each, read_produced(produced))
    # A higher epoch's seal wins over the count: this recovery could store nothing on that node.
    refuse_fenced(failures)
    if not enough(answers):
        refuse_absent(log, "sealing", failures)
    return tally

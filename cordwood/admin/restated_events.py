"""Asks all nodes how far they have followed the event log, when records of it are lost.

Source: docs/protocol/event-log.md (A loss beyond the copies); `protocol.event_log_restating`.
"""

from __future__ import annotations

import asyncio
import logging

from cordwood.errors import CordwoodError
from cordwood.layout.message_rebuilding import AskEvents, EventsReply
from cordwood.layout.rebuild_events import read_set
from cordwood.metadata.membership import Membership
from cordwood.nodes import Member
from cordwood.protocol.event_log_restating import Adopt, Heard, Restate, Restating, WaitFor
from cordwood.rebuilding import RebuildingSet
from cordwood.settings import NodeSettings
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASK_S = 2.0
"""The deadline of a question, which nodes answer from memory."""


class EventLogRestating:
    """See the module; a node that serves has one."""

    def __init__(self, settings: NodeSettings, membership: Membership, peers: Peers) -> None:
        self._me = settings.node
        self._membership = membership
        self._peers = peers
        self._rule = Restating(settings.rebuild_after_s)

    async def ask(
        self, mine: Heard, base: RebuildingSet
    ) -> tuple[tuple[Member, ...], Adopt | WaitFor | Restate]:
        """Ask all other members once. Returns all members, and what to do.

        Raises:
            CordwoodError: the metadata store does not answer.
        """
        members = tuple(await self._membership.members())
        others = [each for each in members if each.node != self._me]
        answers = await asyncio.gather(*map(self._ask_one, others))
        heard = {
            int(member.node): said
            for member, said in zip(others, answers, strict=True)
            if said is not None
        }
        now_s = asyncio.get_running_loop().time()
        step = self._rule.decide(now_s, mine, base, others, heard)
        if isinstance(step, WaitFor):
            logger.warning(
                "records of the event log are missing, and nodes %s may know their outcome: this "
                "node waits for them, or for an operator to say that their data is gone",
                ", ".join(map(str, step.nodes)),
            )
        return members, step

    async def _ask_one(self, member: Member) -> Heard | None:
        try:
            reply = await self._peers.call(member.node, AskEvents(), timeout_s=ASK_S)
            assert isinstance(reply, EventsReply), "AskEvents has one kind of answer"
            return Heard(read_set(reply.set), reply.reached, reply.is_whole)
        except CordwoodError as error:
            logger.info("node %d does not say what it knows of the event log: %s",
                        member.node, error)  # fmt: skip
            return None

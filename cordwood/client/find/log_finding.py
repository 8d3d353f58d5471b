"""How a client finds logs: by name or number, from memory or by asking; and their epochs.

A name is an address. A remembered name is trusted for a bounded time (`known_logs`), and its next
use looks it up again and waits for the answer. If no node answers within CHECK_NAME_S, the client
uses remembered names for UNANSWERED_S, and keeps asking in the background. So a client that is cut
off from the metadata store continues to read and append, and waits once however many logs it uses.
One node that does not answer is not all nodes: a
look-up asks further nodes meanwhile.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from cordwood.client.append.line import Line
from cordwood.client.find.known_logs import ASK_EARLY_S, UNHEARD_S, KnownLogs
from cordwood.client.find.log_info import AnyLog, LogInfo, OnLearnt, log_info
from cordwood.client.find.running_time import RunningTime
from cordwood.client.own_loop import check_loop
from cordwood.errors import (
    AccessDenied,
    Closed,
    CordwoodError,
    Overloaded,
    Retryable,
    TooFewNodes,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.log_names import normalise_directory, normalise_name
from cordwood.layout.message import AskNodesets, Call, NodesetsReply, Reply
from cordwood.layout.message_logs import FindLog, LogReply
from cordwood.layout.message_nodes import MemberInfo
from cordwood.lsn import Epoch
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

CHECK_S = 0.5
"""A node has this long to report its view of another node; then the next node is asked."""

LEARN_EVERY_S = 0.5
"""How often a log's epochs are asked for while readers meet one they do not know."""

ASK_ONE_S = 5.0
"""A node has this long to answer before another node is asked."""

CHECK_NAME_S = 1.0
"""A caller waits this long for a name that may lead to another log by now; then the remembered log
is used. It is longer than a node takes while the metadata store answers."""

NODES_ASKED = 3
"""How many nodes a look-up asks at most at the same time."""

NEXT_NODE_S = CHECK_NAME_S / NODES_ASKED
"""A node has this long to answer a look-up before another node is asked as well. The first node may
still answer: with a slow metadata store, each of them takes longer."""

UNANSWERED_S = 15.0
"""After a look-up without an answer, callers do not wait for look-ups of any log so long. It is
longer than the pause between two look-ups in the background, and the time that one takes. A client
that was stopped waits again."""


STOOD_S = 0.1
"""If this client stood for so long during a look-up without an answer, it asks again, until it ran
for the time that the nodes have."""

NO_ANSWER: tuple[type[Retryable], ...] = (Unreachable, Overloaded)
"""How a look-up ends if no node answers it. Nodes that do not reach the metadata store say
`Unreachable` too. Any other error is an answer, also one that may be retried: a name that cannot be
made, because too few nodes are up, leads to no log."""


class LogFinding(ABC):
    """See the module; `cluster.Cluster` has these calls."""

    peers: Peers
    _tasks: asyncio.TaskGroup

    def __init__(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._closed = False
        self._known = KnownLogs(loop.time)
        # Entries that need no check, by the name as callers give it. They are dropped when the
        # client learns anything new.
        self._sure: dict[AnyLog, LogInfo] = {}
        # When a look-up was last not answered in time, if none was answered since. One mark for all
        # logs: it tells of the metadata store, and not of a log.
        self._unanswered_s = -math.inf
        # Questions under way, and when they were sent.
        self._asking: dict[
            tuple[AnyLog, bool], tuple[asyncio.Task[LogInfo | CordwoodError], float]
        ] = {}
        # How often something was forgotten: an answer to an earlier question may be older.
        self._forgotten = 0
        # Calls that wait for a log.
        self._lines: dict[AnyLog, Line] = {}
        self._learning: dict[int, asyncio.Task[None]] = {}
        self._learners: dict[int, dict[OnLearnt, LogInfo]] = {}

    @abstractmethod
    async def ask_any(self, message: Call, *, timeout_s: float, asked: list[Connection]) -> Reply:
        """See `cluster.Cluster`."""

    def check_loop(self) -> None:
        """See `own_loop.check_loop`."""
        check_loop(self._loop)

    @abstractmethod
    def _want(self, members: Sequence[MemberInfo], asked_at: float) -> None:
        """See `cluster.Cluster`."""

    async def find_log(
        self, log: AnyLog, *, create: bool, timeout_s: float, fresh: bool = False
    ) -> LogInfo:
        """Look a log up, from memory unless `fresh` is set.

        Raises:
            Rejected: this is another event loop.
            BadSetting: the name is none.
            UnknownLog: it does not exist, and a look-up may not create it.
            Unreachable: no node answered.
        """
        self.check_loop()
        # Trap: nothing told a client that was stopped to drop what it was sure of.
        if (
            not fresh
            and not self._lines
            and (sure := self._sure.get(log)) is not None
            and self._loop.time() < self._known.heard_until_s
        ):
            return sure
        key = log if isinstance(log, int) else normalise_name(log)
        if fresh:
            return await self.ask_log(key, create, timeout_s)
        known, line = self._known.get(key), self._lines.get(key)
        asks = known is None or self._must_wait(key, create)
        if known is not None and not asks and line is None:
            self._sure[log] = known
            return known
        # A call that finds the answer in memory must not overtake calls that wait to be woken with
        # it: appends to a log keep the order of their calls.
        if line is None:
            line = self._lines[key] = Line(asyncio.get_running_loop())
        place = line.join(is_ready=not asks)
        try:
            if asks:
                # Ready by a callback: were each call ready only once its task is woken, calls
                # with the same answer would be let go one by one.
                if known is not None:
                    timeout_s = min(timeout_s, CHECK_NAME_S)
                asking = self._share_question(key, create, timeout_s)
                asking.add_done_callback(lambda _: line.ready(place))
            await line.turn(place)
            if not asks:
                assert known is not None, "a client without a number asks"
                return known
            answer = Closed("this client was closed") if asking.cancelled() else asking.result()
            if isinstance(answer, CordwoodError):
                raise answer
            return answer
        finally:
            line.leave(place)
            if line.is_empty and self._lines.get(key) is line:
                del self._lines[key]

    def remembered(self, logs: Sequence[AnyLog]) -> dict[AnyLog, LogInfo] | None:
        """The logs of one call from memory; see `KnownLogs.together`.

        Raises:
            BadSetting: a name is none.
        """
        keys = {log: normalise_name(log) if isinstance(log, str) else log for log in logs}
        found = self._known.together(keys.values())
        return None if found is None else {log: found[key] for log, key in keys.items()}

    def _must_wait(self, key: AnyLog, create: bool) -> bool:
        """Whether the remembered entry must be looked up again before its use."""
        must_ask = self._known.must_ask(key)
        if must_ask and self._loop.time() - self._unanswered_s >= UNANSWERED_S:
            return True
        if must_ask or self._known.is_unheard or self._known.is_old(key, ASK_EARLY_S):
            self._share_question(key, create, ASK_ONE_S)
        return False

    def _share_question(
        self, key: AnyLog, create: bool, timeout_s: float
    ) -> asyncio.Task[LogInfo | CordwoodError]:
        """One question for all callers that want the same."""
        now_s = self._loop.time()
        shared = self._asking.get((key, create))
        # Trap: the answer to a question from before this client was stopped is as old.
        if shared is not None and now_s - shared[1] < UNHEARD_S:
            return shared[0]
        asking = self._tasks.create_task(self._ask_log_once(key, create, timeout_s))
        self._asking[key, create] = asking, now_s
        asking.add_done_callback(lambda done: self._on_asked(key, create, done))
        return asking

    def _on_asked(
        self, key: AnyLog, create: bool, done: asyncio.Task[LogInfo | CordwoodError]
    ) -> None:
        shared = self._asking.get((key, create))
        if shared is not None and shared[0] is done:
            del self._asking[key, create]

    async def _ask_log_once(
        self, key: AnyLog, create: bool, timeout_s: float
    ) -> LogInfo | CordwoodError:
        """Return errors and do not raise them: several callers wait for this task, and each of them
        raises the error."""
        try:
            return await self.ask_log(key, create, timeout_s)
        except CordwoodError as error:
            known = self._known.get(key)
            if known is None or not isinstance(error, NO_ANSWER):
                return error
            logger.debug("no node tells whether %s is log %d still: %s", key, known.log_id, error)
            self._unanswered_s = self._loop.time()
            return known

    async def ask_log(self, key: AnyLog, create: bool, timeout_s: float) -> LogInfo:
        mark, forgotten, asked_at = self._known.mark(), self._forgotten, self._loop.time()
        call = FindLog("", False, int(key)) if isinstance(key, int) else FindLog(key, create)
        try:
            reply = await self._ask_while_running(call, timeout_s)
        except CordwoodError as error:
            if isinstance(error, (UnknownLog, Retryable)) and not isinstance(error, NO_ANSWER):
                self._unanswered_s = -math.inf
            # No log has a name that would have to be made first.
            if isinstance(error, (UnknownLog, TooFewNodes)):
                self._forget(key)
            raise
        assert isinstance(reply, LogReply), "FindLog is answered with a log"
        self._want(reply.members, asked_at)
        self._sure.clear()
        self._unanswered_s = -math.inf
        if forgotten != self._forgotten:
            return log_info(reply)
        return self._known.put(key, log_info(reply), mark)

    async def _ask_while_running(self, call: FindLog, timeout_s: float) -> Reply:
        """As `_ask_nodes`, but if no node answers, this client ran for `timeout_s`."""
        ran_s = 0.0
        while True:
            time = RunningTime()
            try:
                # Trap: with all of `timeout_s` once more, a stand of 0.1 s doubled the time.
                return await self._ask_nodes(call, timeout_s - ran_s)
            except NO_ANSWER:
                # Trap: the loop had no turn. The answer may have come as the time was over.
                ran_s += time.ran_s
                if time.stood_s < STOOD_S or ran_s > timeout_s - STOOD_S:
                    raise
            finally:
                time.end()

    async def _ask_nodes(self, call: FindLog, timeout_s: float) -> Reply:
        """The first answer to a look-up. A node that is stopped, cut off, or has no way to the
        metadata store must not stand for all of them.

        Raises:
            CordwoodError: as `Cluster.call_any`.
        """
        deadline = self._loop.time() + timeout_s
        asking: list[asyncio.Task[Reply]] = []
        # Trap: the node that owes an answer to this may have the fewest calls of ours all the same.
        asked: list[Connection] = []
        try:
            for left in reversed(range(max(1, min(NODES_ASKED, len(self.peers.up))))):
                left_s = deadline - self._loop.time()
                calling = self.ask_any(call, timeout_s=left_s, asked=asked)
                asking.append(asyncio.ensure_future(calling))
                answered, _ = await asyncio.wait(
                    asking,
                    timeout=NEXT_NODE_S if left else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if answered:
                    break
            return await next(task for task in asking if task in answered)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def note_changes(self, count: int, asked_s: float) -> None:
        """Take a node's count of changes to the log tree; it was asked at `asked_s`."""
        # On every report, so that the age of confirmed entries is checked too.
        self._sure.clear()
        if self._known.note_changes(count, asked_s):
            self._unanswered_s = -math.inf

    def forget_log(self, log: AnyLog) -> None:
        """Ask anew when next this log is looked up: it changed, or is gone. A path that ends with
        a slash is all that lies below it."""
        if isinstance(log, str):
            log = normalise_directory(log) if log.endswith("/") else normalise_name(log)
        self._forget(log)

    def note_refusal(self, log: int, error: CordwoodError) -> None:
        """Forget a log that was refused because it does not exist any more, or demands another
        token."""
        if isinstance(error, (UnknownLog, AccessDenied)):
            self._forget(log)

    def _forget(self, key: AnyLog) -> None:
        self._forgotten += 1
        # Callers from now on share no question that was sent before this.
        self._asking.clear()
        self._sure.clear()
        self._known.forget(key)

    # Epochs.

    def learn_log(self, info: LogInfo, learnt: OnLearnt) -> None:
        """Ask for the epochs of a log after `info.epoch`; `learnt` receives the new entry.

        Storage nodes are asked, and the metadata store only if no node knows.

        One question at a time for each log, and not more than one each LEARN_EVERY_S. The next
        question answers the callers that ask meanwhile.
        """
        known = self._known.get(info.log_id)
        if known is not None and known.epoch > info.epoch:
            learnt(known)
            return
        log = info.log_id
        self._learners.setdefault(log, {})[learnt] = info
        if log not in self._learning:
            self._learning[log] = self._tasks.create_task(self._learn_log(log))

    async def _learn_log(self, log: int) -> None:
        while not self._closed and (asking := self._learners.pop(log, None)):
            known = max(asking.values(), key=lambda info: info.epoch)
            try:
                info = await self._ask_nodesets(known)
                if info is None:
                    info = await self.ask_log(known.log_id, create=False, timeout_s=ASK_ONE_S)
            except CordwoodError as error:
                logger.debug("the epochs of %s could not be asked for: %s", known.name, error)
            else:
                if not self._closed:
                    for learnt in asking:
                        learnt(info)
            await asyncio.sleep(LEARN_EVERY_S)
        self._learning.pop(log, None)  # here and not when the task ends: none may ask between

    def look_up_again(self, info: LogInfo, learnt: Callable[[LogInfo | None], None]) -> None:
        """Ask the metadata store for a log that has changed; `learnt` receives the new entry, None
        if the log was deleted. It is asked until it answers."""
        self._tasks.create_task(self._look_up_again(info, learnt))

    async def _look_up_again(
        self, known: LogInfo, learnt: Callable[[LogInfo | None], None]
    ) -> None:
        while not self._closed:
            try:
                learnt(await self.ask_log(known.log_id, create=False, timeout_s=ASK_ONE_S))
                return
            except UnknownLog:
                learnt(None)
                return
            except CordwoodError as error:
                logger.debug("%s could not be looked up again: %s", known.name, error)
                await asyncio.sleep(LEARN_EVERY_S)

    async def _ask_nodesets(self, known: LogInfo) -> LogInfo | None:
        """Epochs after `known.epoch`, as one of the log's nodes knows them; None if none was."""
        for node in known.all_nodes:
            connection = self.peers.get(node)
            if connection is None:
                continue
            asked_at = self._loop.time()
            try:
                reply = await connection.call(AskNodesets(known.log_id), timeout_s=CHECK_S)
            except CordwoodError as error:
                logger.debug("node %d was asked for nodesets of %s: %s", node, known.name, error)
                continue
            if isinstance(reply, NodesetsReply) and reply.history and reply.epoch > known.epoch:
                self._want(reply.members, asked_at)
                newer = replace(known, history=tuple(reply.history), epoch=Epoch(reply.epoch))
                self._known.put_epochs(newer)
                return newer
        return None

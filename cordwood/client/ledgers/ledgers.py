"""Ledgers: short logs that one client writes and closes, as Apache BookKeeper has them.

`store.ledgers` of a connected client. A *ledger* has entries 0, 1, 2 and so on. The client that
makes it numbers them and sends each to the nodes itself. A ledger ends once: its writer closes it,
or a client that opens it *with recovery* shuts the writer out, finds the last entry, and closes it.

Source: docs/ledgers.md; docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakSet

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_check import check_limits
from cordwood.client.ledgers.ledger_check import LedgerChecking
from cordwood.client.ledgers.ledger_following import Paged
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_nodes import ask_node, ask_together
from cordwood.client.ledgers.ledger_recovering import recover
from cordwood.client.ledgers.ledger_repair import LedgerRepair, OnProgress, OnUnreadable
from cordwood.client.ledgers.ledger_tiering import LedgerTiering, TieredLedger
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.unclaimed_ledgers import UnclaimedLedgers
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.ledgers.writer_ticks import WriterTicks
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    CordwoodError,
    LedgerExists,
    LedgerFenced,
    Malformed,
    Overloaded,
    TooFewNodes,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.ledger_entry import ledger_key_of
from cordwood.layout.ledger_metadata import CREATED_BYTES_MAX, pack_ledger, read_ledger
from cordwood.layout.message_ledgers import LEDGERS_MAX, AskLac, LacReply
from cordwood.ledger import (
    LEDGER_MAX,
    DigestKind,
    Fragment,
    LedgerMetadata,
    LedgerState,
    Striping,
    Versioned,
)
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_check import LedgerCheck
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.quorum.authority import REBUILT
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement
from cordwood.settings import ClientSettings
from cordwood.tier.patient_store import PatientStore

CREATE_AGAIN_S = 0.1
"""Pause before the creation of a ledger is repeated."""


class Autorecovery(NamedTuple):
    """The state of automatic repairs of ledgers.

    Attributes:
        on: whether nodes repair ledgers by themselves.
        auditor: the node that looks for ledgers that lack copies; "" while there is none.
        is_lacking: whether a ledger lacks copies now.
    """

    on: bool
    auditor: str
    is_lacking: bool


class UnderReplicated(NamedTuple):
    """A ledger that lacks copies.

    Attributes:
        nodes: lost nodes that the ledger named when it was checked. If it lacks only entries
            without a readable copy: lost nodes that may have one, if they come back.
        since_us: time of that check, in microseconds of the Unix epoch.
    """

    ledger: int
    nodes: tuple[int, ...]
    since_us: int


class Ledgers:
    """See the module."""

    def __init__(
        self,
        cluster: Cluster,
        host: Host,
        settings: ClientSettings,
        tasks: asyncio.TaskGroup,
        objects: Callable[[], Awaitable[PatientStore]],
    ) -> None:
        """
        Args:
            objects: opens main storage.
        """
        self._objects = objects
        self._cluster = cluster
        self._host = host
        self._settings = settings
        self._tasks = tasks
        self._calls = LedgerMetadataCalls(cluster, host, settings.timeout_s)
        self._unclaimed = UnclaimedLedgers(self._calls, tasks)
        self._ticks = WriterTicks(tasks)
        # A writer that its caller drops is not kept.
        self._writers: WeakSet[WritableLedger] = WeakSet()

    async def create(
        self,
        *,
        ensemble: int = 3,
        write: int = 2,
        ack: int = 2,
        digest: DigestKind | str = DigestKind.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger: int | None = None,
        shrinks: bool = False,
        limits: WriterLimits | None = None,
        placement: Placement = ANYWHERE,
        tier: bool = False,
    ) -> WritableLedger:
        """Make a ledger and write it.

        Args:
            ensemble, write, ack: E nodes keep the ledger, each entry goes to Qw of them, and is
                acknowledged when Qa have it on their disks. With `limits.defers_sync` it is
                acknowledged when Qa have it, and confirmed with the next `force`.
            digest: the checksum of entries: `crc32c`, `crc32`, `hmac_sha1` (with the password) or
                `dummy`.
            password: a client must know it to open the ledger.
            custom: names and values that stay with the ledger; they never change.
            ledger: an id of the caller's choice; None allots one.
            shrinks: whether fewer than E nodes are enough, but at least Qw.
            limits: of the writer; see `protocol.ledger_writer`.
            placement: of its nodes; see `quorum.ensemble_choice`. Repairs keep to it. Recoveries
                keep to its scope if they can; for them, ending the ledger is more important.
            tier: whether nodes move it to main storage by themselves after it is closed.

                Raises:
                    BadSetting: an impossible striping, digest, id or bound; or password and custom
                        values have more than 500,000 bytes together.
                    LedgerExists: another ledger has the id, or had it and was deleted.
                    TooFewNodes: fewer than E nodes take entries, or none that satisfy the
                        placement.
                    Unreachable, Overloaded: no node answered within the client's timeout. The
                        error names the id of a ledger that may be made all the same.
        """
        chosen = WriterLimits() if limits is None else limits
        check_limits(chosen)
        deadline = asyncio.get_running_loop().time() + self._settings.timeout_s
        if ledger is not None and not 0 <= ledger <= LEDGER_MAX:
            raise BadSetting(f"ledger {ledger}: ids go from 0 to {LEDGER_MAX}")
        kind = _digest(digest)
        _check_striping(ensemble, write, ack)
        nodes = await self._choose(ensemble, write if shrinks else ensemble, write, placement)
        creator = self._host.random.getrandbits(62) + 1
        try:
            metadata = LedgerMetadata(
                ledger or 0, Striping(len(nodes), write, ack), (Fragment(0, nodes),),
                digest=kind, password=password, created_us=self._host.clock.now_us(),
                custom=dict(custom or {}), creator=creator, scope=placement.scope,
                is_enforced=placement.is_enforced, wants_tier=tier,
            )  # fmt: skip
            # The bounds of fields are checked when a value is read.
            read_ledger(pack_ledger(metadata, CREATED_BYTES_MAX))
        except (ValueError, TypeError, Malformed) as error:
            raise BadSetting(f"no ledger is made so: {error}") from None
        held = await self._make(ledger, metadata, deadline)
        made = WritableLedger(
            held, self._calls, self._cluster, self._tasks, self._ticks, chosen,
            self._settings.timeout_s, placement,
        )  # fmt: skip
        self._writers.add(made)
        return made

    async def _make(
        self, ledger: int | None, metadata: LedgerMetadata, deadline: float
    ) -> Versioned:
        """Make a ledger with this id, or with an id that no client has chosen.

        After a lost answer the same id is asked for again. An id that the answer allots together
        with the creation would be lost with it, and the ledger would stay open for ever.

        Args:
            deadline: of all tries together, by the loop's clock. Trap: a caller without a loop
                waits little longer, and would not hear of the id.
        """
        loop = asyncio.get_running_loop()

        def left_s() -> float:
            return max(CREATE_AGAIN_S, deadline - loop.time())

        number = ledger
        while True:
            try:
                if number is None:
                    number = await self._calls.allot(timeout_s=left_s())
                return await self._calls.create(number, metadata, timeout_s=left_s())
            except asyncio.CancelledError:
                if ledger is None and number is not None:
                    self._unclaimed.delete_soon(number, metadata.creator)
                raise
            except LedgerExists:
                if ledger is not None:
                    raise
                number = None  # another client chose it
                if loop.time() >= deadline:
                    raise Overloaded(
                        "all ids that were allotted in time are taken; ask again"
                    ) from None
            except (Unreachable, Overloaded) as error:
                if loop.time() + CREATE_AGAIN_S >= deadline:
                    if number is None:
                        raise
                    raise type(error)(
                        f"{error}; ledger {number} may be made all the same: delete it, or open it "
                        "with recovery"
                    ) from error
                await asyncio.sleep(CREATE_AGAIN_S)

    async def _choose(
        self, count: int, least: int, write: int, placement: Placement
    ) -> tuple[int, ...]:
        """Nodes for a new ledger: `count` of them, or fewer, but at least `least`."""
        try:
            return await self._calls.choose_soon([None] * count, write, placement=placement)
        except TooFewNodes:
            if count <= least:
                raise
        while True:
            count -= 1
            try:
                return await self._calls.choose([None] * count, write, placement=placement)
            except TooFewNodes:
                if count <= least:
                    raise

    async def open(
        self, ledger: int, password: bytes = b"", *, recovery: bool = False
    ) -> ReadableLedger:
        """Open a ledger to read it.

        Args:
            recovery: whether to close it first, if it is not closed: its writer is shut out, and
                the ledger ends after the last acknowledged entry, or later. Without recovery, an
                open ledger is read as it grows.
        Raises:
            UnknownLedger: there is none of this id.
            AccessDenied: it has another password.
            Undecided: it cannot be recovered, because too many of its nodes are down. A recovery
                that comes further is not given up.
            Unreachable, Overloaded: the metadata store did not answer.
        """
        if recovery:
            held = await self._recovered(ledger, password)
        else:
            held = await self._calls.get(ledger)
            if held.metadata.password != password:
                raise AccessDenied(f"ledger {ledger} has another password")
        timeout_s = self._settings.timeout_s
        return ReadableLedger(
            held, self._calls, self._cluster, self._host, timeout_s, self._objects
        )

    async def recover(
        self, ledger: int, password: bytes = b"", *, on_progress: OnProgress | None = None
    ) -> LedgerMetadata:
        """Close a ledger after its writer is gone, or to shut its writer out. Returns its metadata.

        Args:
            on_progress: called with the last entry that is certain, as that rises.

        Raises:
            CordwoodError: see `open`.
        """
        return (await self._recovered(ledger, password, on_progress)).metadata

    async def _recovered(
        self, ledger: int, password: bytes, on_progress: OnProgress | None = None
    ) -> Versioned:
        return await recover(
            ledger, password, self._calls, self._cluster,
            timeout_s=self._settings.timeout_s, on_progress=on_progress,
        )  # fmt: skip

    async def fence(self, ledger: int, password: bytes = b"") -> dict[int, bool]:
        """Shut the writer of a ledger out at once, and leave the end to a recovery.

        Returns:
            By node of the newest ensemble: whether it is fenced, durably.
        Raises:
            UnknownLedger, AccessDenied: see `open`.
            LedgerFenced: the ledger is closed, so it has no writer.
            Unreachable, Overloaded: the metadata store did not answer, or took no change in time.
                No node is fenced; the writer may be shut out later all the same. Call again.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.timeout_s
        held = await self._calls.get(ledger)
        metadata = held.metadata
        if metadata.password != password:
            raise AccessDenied(f"ledger {ledger} has another password")
        while metadata.state is not LedgerState.IN_RECOVERY:
            if metadata.state is LedgerState.CLOSED:
                raise LedgerFenced(f"ledger {ledger} is closed already: it takes no more entries")
            # Before the nodes; otherwise the writer would replace the fenced nodes.
            held, is_written = await self._calls.set(held.version, metadata.recovering())
            metadata = held.metadata
            # Race: the metadata store answers, and takes no change, as on a full disk.
            if not is_written and asyncio.get_running_loop().time() >= deadline:
                raise Overloaded(
                    f"the metadata of ledger {ledger} could not be changed in time: no node is "
                    "fenced; ask again"
                )
        nodes = metadata.newest.nodes
        told = await ask_together(self._is_fenced(metadata, node, fence=True) for node in nodes)
        return dict(zip(nodes, told, strict=True))

    async def fenced(
        self, ledger: int, password: bytes = b"", *, nodes: Collection[int]
    ) -> frozenset[int]:
        """Those of some nodes that refuse the ledger's writer; no node is fenced by this call.

        A node that does not answer counts as one that is not fenced.

        Raises:
            UnknownLedger, AccessDenied: see `open`.
        """
        metadata = (await self.open(ledger, password)).metadata
        some = sorted(nodes)
        told = await ask_together(self._is_fenced(metadata, node, fence=False) for node in some)
        return frozenset(node for node, yes in zip(some, told, strict=True) if yes)

    async def _is_fenced(self, metadata: LedgerMetadata, node: int, *, fence: bool) -> bool:
        call = AskLac(metadata.ledger, ledger_key_of(metadata.password), fence=fence)
        try:
            reply = await ask_node(
                self._cluster, node, call, timeout_s=min(5.0, self._settings.timeout_s)
            )
        except AccessDenied:
            raise
        except CordwoodError:
            return False
        return isinstance(reply, LacReply) and reply.is_fenced

    async def repair(
        self,
        ledger: int,
        password: bytes = b"",
        *,
        nodes: Collection[int] = (),
        refills: Collection[int] = (),
        avoids: Collection[int] = (),
        older: bool = False,
        on_progress: OnProgress | None = None,
        on_unreadable: OnUnreadable | None = None,
    ) -> dict[int, int]:
        """Make new copies of lost nodes' entries of a closed ledger, on other nodes.

        For a ledger in main storage no copies are made.

        Args:
            nodes: lost nodes, in addition to nodes that are no members of the cluster and nodes
                whose data is reported gone or elsewhere (`cordwood nodes status`).
            refills: nodes of these that are back with empty disks. If no other node takes their
                entries, the entries are written to these nodes again.
            avoids: other nodes that take no copies, because they are drained. Nodes of `nodes` take
                none either: such a node may be up.
            older: whether a ledger that is not closed is repaired, too: all its fragments before
                the last one. Its writer goes on, and the last fragment is left to it.
            on_progress: called with the number of copies made so far.
            on_unreadable: awaited before another node is named in place of the lost one, with the
                first 257 entries that are passed over because no node has a readable copy, and with
                lost nodes that may still have them.

        Returns:
            By lost node of this ledger, the node that keeps its entries now.
        Raises:
            UnknownLedger, AccessDenied: see `open`.
            Rejected: the ledger is not closed, or another client changed it meanwhile; the call may
                be repeated.
            TooFewNodes: no other node takes the entries of some lost node.
            Unreachable: a node that may have the last copy of an entry does not answer. Or, without
                `on_unreadable`, entries have no readable copy: no other node is named for these.
        """
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        members = self._cluster.members

        def is_lost(node: int) -> bool:
            member = members.get(NodeId(node))
            return node in nodes or member is None or member.authority in REBUILT

        opened = await self.open(ledger, password)
        repair = LedgerRepair(
            opened, self._calls, self._cluster, is_lost, refills, on_progress, older=older,
            avoids={*avoids, *nodes}, on_unreadable=on_unreadable,
        )  # fmt: skip
        await repair.run()
        return repair.moved

    async def tier(self, ledger: int, password: bytes = b"") -> TieredLedger:
        """Move a closed ledger to main storage. A ledger that is there already stays as it is.

        Its entries are uploaded and read back, and then its metadata names the objects.

        Raises:
            UnknownLedger, AccessDenied: see `open`.
            Rejected: the ledger is not closed.
            Fenced: another client began to move it meanwhile.
            BadSetting: the cluster has no main storage, or the store belongs to another cluster.
            Corrupt: the store does not give back the bytes that were put. OutcomeUnknown,
            Retryable: nodes or the store do not answer; the call may be repeated.
        """
        opened = await self.open(ledger, password)
        store, identity = await self._objects(), self._cluster.cluster_id.hex()
        return await LedgerTiering(opened, self._calls, store, self._host, identity).run()

    async def check(
        self,
        ledger: int,
        password: bytes = b"",
        *,
        share: float = 1.0,
        fills: bool = False,
        settled: bool = False,
        entries: Collection[int] | None = None,
        turn: tuple[int, int] | None = None,
        on_progress: OnProgress | None = None,
    ) -> LedgerCheck:
        """Ask the nodes of a ledger for their copies, and report missing and damaged copies.

        Args:
            share: share of the entries between the ends of each fragment, 0 to 1. The first and the
                last E entries of a fragment are always checked.
            fills: whether to store missing copies on their nodes; not for a ledger in main storage,
                which nodes let go of, nor for the last fragment of a ledger that is not closed.
            settled: whether to leave out the last fragment of a ledger that is not closed. Its
                nodes are then not asked for the LAC.
            entries: the only entries to check; None for those that `share` and `turn` give.
            turn: k and n, to check also the k-th of n runs of the entries between the ends, with k
                from 0 on: n turns check all entries. Not for a ledger in main storage.
            on_progress: called with the number of entries checked so far.
        Raises:
            BadSetting: a share below 0 or above 1.
            UnknownLedger, AccessDenied: see `open`.
            Unreachable: too few nodes report the LAC of an open ledger.
        """
        if not 0 <= share <= 1:
            raise BadSetting(f"a share of {share:g} of the entries; it goes from 0 to 1")
        await self._cluster.refresh_members(timeout_s=self._settings.timeout_s)
        opened = await self.open(ledger, password)
        return await LedgerChecking(
            opened, self._cluster, self._host.random, share=share, fills=fills, settled=settled,
            entries=entries, turn=turn, on_progress=on_progress or _nothing,
        ).run()  # fmt: skip

    async def metadata(self, ledger: int) -> LedgerMetadata:
        """The metadata of a ledger: striping, fragments, state, end, custom values.

        Raises:
            UnknownLedger: there is none of this id.
            Unreachable, Overloaded: the metadata store did not answer.
        """
        return (await self._calls.get(ledger)).metadata

    async def delete(self, ledger: int) -> None:
        """Delete a ledger in any state. A missing ledger counts as deleted, and its id is used up.

        Nodes find the deletion within about ten minutes, and free the space. Until then readers and
        a writer that have it open may go on: entries that are acknowledged meanwhile go with the
        ledger. Shut the writer out before, with `fence`.

        Raises:
            Unreachable, Overloaded: it may be deleted; call again.
        """
        await self._calls.delete(ledger)

    async def page(self, after: int = -1, limit: int = LEDGERS_MAX) -> list[int]:
        """Ids above `after`, rising, at most `limit`.

        Raises:
            BadSetting: a limit that is not 1 to 1000.
            Unreachable, Overloaded: the metadata store did not answer.
        """
        _check_page(limit)
        return await self._calls.page(after, limit)

    def list(self, after: int = -1) -> Paged[int]:
        """Ids of all ledgers above `after`, rising, read page by page.

        A step may fail or be cancelled: the next one goes on there.

        Raises:
            Unreachable, Overloaded: the metadata store did not answer.
        """
        return Paged(self.page, _itself, after)

    async def autorecovery(self) -> Autorecovery:
        """Whether nodes repair ledgers that lack copies by themselves.

        Raises:
            Unreachable, Overloaded: the metadata store did not answer.
        """
        told = await self._calls.autorecovery(-1, 1)
        return Autorecovery(told.on, told.auditor, bool(told.ledgers))

    async def switch_autorecovery(self, *, on: bool) -> None:
        """Switch repairs of ledgers that lack copies on or off. Present repairs are finished.

        Raises:
            Unreachable, Overloaded: it may be switched; call again.
            Fenced: another order switched it to the contrary meanwhile: look again.
        """
        await self._calls.switch_autorecovery(on=on)

    async def under_replicated_page(
        self, after: int = -1, limit: int = LEDGERS_MAX
    ) -> Sequence[UnderReplicated]:
        """Ledgers above `after` that lack copies, by id, as far as the auditor has found them.

        Raises:
            BadSetting: a limit that is not 1 to 1000.
            Unreachable, Overloaded: the metadata store did not answer.
        """
        _check_page(limit)
        found = (await self._calls.autorecovery(after, limit)).ledgers
        return [UnderReplicated(each.ledger, each.nodes, each.since_us) for each in found]

    def under_replicated(self) -> Paged[UnderReplicated]:
        """All ledgers that lack copies, read page by page; see `list`."""
        return Paged(self.under_replicated_page, _ledger_of, -1)

    async def end(self) -> None:
        """The client closes: ledgers with an open writer are left to a recovery."""
        for writer in sorted(self._writers, key=lambda each: each.ledger_id):
            writer.abandon()
        await self._unclaimed.end()


def _itself(ledger: int) -> int:
    return ledger


def _ledger_of(lacking: UnderReplicated) -> int:
    return lacking.ledger


def _nothing(_: int) -> None:
    """The progress is ignored."""


def _check_page(limit: int) -> None:
    if not 1 <= limit <= LEDGERS_MAX:
        raise BadSetting(f"a page of {limit} ledgers; it has 1 to {LEDGERS_MAX}")


def _check_striping(ensemble: int, write: int, ack: int) -> None:
    try:
        Striping(ensemble, write, ack)
    except ValueError as error:
        raise BadSetting(f"no ledger is made so: {error}") from None


def _digest(digest: DigestKind | str) -> DigestKind:
    if isinstance(digest, DigestKind):
        return digest
    found = DigestKind.__members__.get(digest.upper().replace("-", "_"))
    if found is None:
        known = ", ".join(each.name.lower() for each in DigestKind)
        raise BadSetting(f"no digest {digest!r}; there are {known}")
    return found

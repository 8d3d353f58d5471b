"""A node's work for main storage: it uploads, drops uploaded records, merges and tends the objects.

Without an address of a store it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Set

from cordwood.client.main_storage import let_go
from cordwood.client.store import connected
from cordwood.errors import BadSetting, Retryable
from cordwood.host.seams import Host
from cordwood.layout.hello import Hello
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.main_storage import MainStorageNotes
from cordwood.metadata.membership import Membership
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Member, NodeId
from cordwood.settings import ClientSettings, NodeSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.owner import OwnerMark
from cordwood.uploading.ledger_drops import LedgerDrops
from cordwood.uploading.ledger_tend import LedgerTend
from cordwood.uploading.ledger_uploads import LedgerUploads
from cordwood.uploading.local_drops import LocalDrops
from cordwood.uploading.merge_role import MergeRole
from cordwood.uploading.objects_at_hand import ObjectsAtHand, OpenObjects
from cordwood.uploading.tend import Tend
from cordwood.uploading.tend_role import TendRole
from cordwood.uploading.tiered_logs import TieredLogs
from cordwood.uploading.upload_role import UploadRole

CLIENT = ClientSettings(timeout_s=10.0)
"""Of the client that asks other nodes for a trim point."""


class Tiering:
    """See the module.

    Args:
        members, dead, address, greeting: see `UploadRole`.
        sequencing: the logs that this node sequences.
    Attributes:
        drops, uploads, tending, merges, ledger_uploads, ledger_tend, ledger_drops: the roles.
    """

    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        metadata: MetadataStore,
        tree: LogTree,
        engine: StorageEngine,
        ledgers: LedgerStore,
        open_objects: OpenObjects,
        *,
        members: Callable[[], Mapping[NodeId, Member]],
        dead: Callable[[], Set[NodeId]],
        address: Callable[[], str],
        greeting: Callable[[], Hello],
        sequencing: Callable[[], Set[int]],
    ) -> None:
        tier, name = settings.tier, f"node {settings.node}"
        self._logs = TieredLogs(tree, lambda: engine.cache.logs.keys() | sequencing())
        self._membership = Membership(metadata)
        self._cluster = ""  # its identity, which never changes; "" before it was read
        notes = MainStorageNotes(metadata, settings.node, tier.store)
        self._mark = OwnerMark(notes, settings.node, self._read_cluster, self._read_made)
        self._members, self._dead = members, dead
        self._address, self._greeting = address, greeting
        self._host, self._open_objects = host, open_objects
        self._objects = ObjectsAtHand(host, tier.store, open_objects, name, self._keep_owner)
        self.drops = LocalDrops(
            engine, self._logs, self._objects, host, settings.directory,
            settings.storage.retention_every_s, self._ask_trim,
        )  # fmt: skip
        tend = Tend(
            tree, self._logs, self._objects,
            grace_s=tier.grace_s, deleted_keep_s=settings.storage.deleted_keep_s,
        )  # fmt: skip
        self.uploads = UploadRole(
            settings.node, host, tier, metadata, self._logs, self._objects, open_objects,
            members=members, dead=dead, address=address, greeting=greeting,
            presses=lambda: self.drops.pressure,
        )  # fmt: skip
        self.tending = TendRole(
            settings.node, host, tier, self._logs, tend,
            mine=self.uploads.mine, connect=self.uploads.connect, living=self._living,
            has_let_go=lambda: self._has_let_go(engine),
            was_marked=lambda: self._was_marked(notes),
        )  # fmt: skip
        self.merges = MergeRole(
            settings.node, host, tier, metadata, self._objects,
            mine=self.uploads.mine, end_of=self.uploads.end_of,
            presses=lambda: self.drops.pressure,
        )  # fmt: skip
        self.ledger_uploads = LedgerUploads(
            settings.node, host, tier, metadata, open_objects, address, self._living
        )
        self.ledger_tend = LedgerTend(settings.node, tier, metadata, self._objects, self._living)
        self.ledger_drops = LedgerDrops(
            ledgers, LedgerMetadataStore(metadata), self._objects,
            keep_s=tier.ledger_keep_s, every_s=settings.storage.retention_every_s,
        )  # fmt: skip

    def _living(self) -> list[NodeId]:
        """The living nodes, by number."""
        members = self._members().keys()
        # A node that is cut off sees all others dead, and itself too: then all of them count.
        return sorted(members - self._dead() or members)

    @staticmethod
    def _has_let_go(engine: StorageEngine) -> bool:
        return any(held.tier for held in engine.cache.logs.values())

    @staticmethod
    async def _was_marked(notes: MainStorageNotes) -> bool:
        note = await notes.read()
        return note is not None and note.is_marked

    def works(self) -> tuple[Coroutine[None, None, None], ...]:
        """What runs for as long as the node does."""
        if not self._objects.address:
            return ()
        return (
            self.drops.run(), self.uploads.run(), self.tending.run_logs(), self.tending.run_rest(),
            self.merges.run(), self.ledger_tend.run(), self.ledger_drops.run(),
            self.ledger_uploads.run(),
        )  # fmt: skip

    async def learn(self) -> None:
        """See `LocalDrops.learn`. Call it before a node with a new disk listens."""
        if self._objects.address:
            await self.drops.learn()

    async def open(self) -> None:
        """Open main storage, and have it say that it is this cluster's.

        Raises:
            BadSetting: there is none, or it is another cluster's, or may be.
            CordwoodError: it does not answer, or the metadata store does not.
        """
        if not self._objects.address:
            raise BadSetting("this node has no main storage: start it with `--tier-store`")
        if not await self._objects.is_ours():
            raise BadSetting(
                "main storage does not name its cluster, and holds records of logs that may be "
                "another cluster's"
            )

    async def _keep_owner(self, store: ObjectStore, has_named_us: bool) -> bool:
        """See `OwnerMark.keep`. An ordinary look is one small read of the store: it comes before
        each upload, and before a node lets go of a log's records."""
        return await self._mark.keep(store, has_named_us)

    async def _read_cluster(self) -> str:
        if not self._cluster:
            found = await self._membership.cluster()
            if found is None:
                raise Retryable("the cluster has no identity yet")
            self._cluster = found.hex()
        return self._cluster

    async def _ask_trim(self, log: int) -> int:
        """A log's trim point, by the nodes that answer."""
        async with connected(
            (self._address(),), self._host, CLIENT, self._open_objects, member=self._greeting()
        ) as client:
            trim, _ = await let_go(client, log)
            return trim

    async def _read_made(self) -> dict[int, int]:
        await self._logs.refresh()
        return {log: info.created_us for log, info in self._logs.all.items() if info.created_us}

    async def close(self) -> None:
        """Let the store go."""
        await self._objects.close()

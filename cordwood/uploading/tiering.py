"""A node's work for main storage: it uploads, drops uploaded records, merges and tends the objects.

Without an address of a store it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Set

from cordwood.errors import BadSetting, Retryable
from cordwood.host.seams import Host
from cordwood.layout.hello import Hello
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.membership import Membership
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Member, NodeId
from cordwood.settings import NodeSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.owner import keep_owner
from cordwood.uploading.ledger_drops import LedgerDrops
from cordwood.uploading.ledger_tend import LedgerTend
from cordwood.uploading.ledger_uploads import LedgerUploads
from cordwood.uploading.local_drops import LocalDrops
from cordwood.uploading.merge_role import MergeRole
from cordwood.uploading.objects_at_hand import ObjectsAtHand, OpenObjects
from cordwood.uploading.tend import Tend
from cordwood.uploading.tiered_logs import TieredLogs
from cordwood.uploading.upload_role import UploadRole


class Tiering:
    """See the module.

    Args:
        members, dead, address, greeting: see `UploadRole`.
        sequencing: the logs that this node sequences.
    Attributes:
        drops, uploads, merges, ledger_uploads, ledger_tend, ledger_drops: the roles.
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
        self._objects = ObjectsAtHand(host, tier.store, open_objects, name, self._keep_owner)
        self.drops = LocalDrops(
            engine, self._logs, self._objects, host, settings.directory,
            settings.storage.retention_every_s,
        )  # fmt: skip
        tend = Tend(
            tree, self._logs, self._objects,
            grace_s=tier.grace_s, deleted_keep_s=settings.storage.deleted_keep_s,
        )  # fmt: skip
        self.uploads = UploadRole(
            settings.node, host, tier, metadata, self._logs, self._objects, tend, open_objects,
            members=members, dead=dead, address=address, greeting=greeting,
            presses=lambda: self.drops.pressure, has_let_go=lambda: self._has_let_go(engine),
        )  # fmt: skip
        self.merges = MergeRole(
            settings.node, host, tier, metadata, self._objects,
            mine=self.uploads.mine, end_of=self.uploads.end_of,
            presses=lambda: self.drops.pressure,
        )  # fmt: skip
        self.ledger_uploads = LedgerUploads(
            settings.node, host, tier, metadata, open_objects, address
        )
        self.ledger_tend = LedgerTend(settings.node, tier, metadata, self._objects)
        self.ledger_drops = LedgerDrops(
            ledgers, LedgerMetadataStore(metadata), self._objects,
            keep_s=tier.ledger_keep_s, every_s=settings.storage.retention_every_s,
        )  # fmt: skip

    @staticmethod
    def _has_let_go(engine: StorageEngine) -> bool:
        return any(held.tier for held in engine.cache.logs.values())

    def works(self) -> tuple[Coroutine[None, None, None], ...]:
        """What runs for as long as the node does."""
        if not self._objects.address:
            return ()
        return (
            self.drops.run(), self.uploads.run(), self.merges.run(), self.ledger_tend.run(),
            self.ledger_drops.run(), self.ledger_uploads.run(),
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

    async def _keep_owner(self, store: ObjectStore) -> bool:
        """See `tier.owner.keep_owner`."""
        cluster = await self._membership.cluster()
        if cluster is None:
            raise Retryable("the cluster has no identity yet")
        await self._logs.refresh()
        made = {log: info.created_us for log, info in self._logs.all.items() if info.created_us}
        return await keep_owner(store, cluster.hex(), made)

    async def close(self) -> None:
        """Let the store go."""
        await self._objects.close()

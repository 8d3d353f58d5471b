"""A node's data directory: its owner, whether it is the newest copy, and its WAL.

Files beside the WAL and LogsDB. `identity` says which node of which cluster owns the
directory. `incarnation` says which start of the node was the last to run from it.
`accept-loss` holds an operator's word for the next start.

An older copy of a directory (a restored snapshot, an old disk) is consistent in itself, but lacks
the node's later promises: stores and seals. Only an outside witness can tell, and that is the
metadata store. So each start claims the node, by a name drawn for it::

    read the last claim: a name that `incarnation` knows, or this is an older copy
    ► write it and the new name into `incarnation`, durably
    ► compare-and-set the claim to the new name ► listen

A crash on either side of the compare-and-set leaves a directory that knows the claim that
stands: the last claim before it, the new claim after it. While it is unknown which name holds, the
directory keeps both. An earlier copy knows neither of the later names. `reached` reveals a loss
within the last start. It is a WAL offset that the node periodically records in the metadata store.
A WAL that ends below it has lost records, for any reason, and counts as a WAL with unreadable
records (`LogsStore.lost`).

Two cases stay unnoticed: a copy of the running directory that is newer than the last record in the
metadata store (10 s by default); and copies of a directory and its metadata store taken together
(an embedded store restored as a whole), because no witness contradicts that older state.

Source: docs/design.md §5; docs/sources/reliability.md §3 (S17); docs/sources/logdevice.md 2.13;
BookKeeper's cookies, which do not move, and so do not notice a restored snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated

import msgspec

from cordwood.errors import CordwoodError, Malformed, NotOurCluster
from cordwood.host.seams import Host
from cordwood.layout.json_text import read_json
from cordwood.metadata.membership import CLAIM_CHARS_MAX, Claim, Membership
from cordwood.nodes import Member
from cordwood.settings import NodeSettings
from cordwood.storage.identity import ACCEPT_LOSS, ACCEPTED, GO_ON_OLDER, Identity, check_identity
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_file import WalBlank, open_wal
from cordwood.storage.wal.wal_limits import WalLimits as WalLimits
from cordwood.write_budget import parse_budget

INCARNATION = "incarnation"
"""The file's name."""

CLAIM_BITS = 64
"""Two starts of one node draw the same name once in 2**64 times."""

CLAIMS_MAX = 16
"""The most names that are kept. A start adds a name only if it ended during its claim."""

logger = logging.getLogger(__name__)


class Incarnations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file `incarnation`, as JSON.

    Attributes:
        incarnation: the incarnation of the start that wrote it. Only people read it; the names in
            `claims` decide.
        claims: names by which this directory may have claimed the node, oldest first; "" stands for
            no claim yet.
    """

    incarnation: Annotated[int, msgspec.Meta(ge=0)] = 0
    claims: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=CLAIM_CHARS_MAX)], ...],
        msgspec.Meta(min_length=1, max_length=CLAIMS_MAX),
    ] = ("",)


class DataDirectory:
    """See the module. In this order: `open_wal`, `claim`, then `run` for as long as it lasts.

    Attributes:
        is_older: the metadata store knows a later start, from elsewhere.
        reached: WAL offset of a record that was durable here, as the metadata store has it;
            -1 for none.
        word: the operator's word in `accept-loss`; b"" for none.
    """

    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        membership: Membership,
        cluster: bytes,
        is_anew: bool = False,
    ) -> None:
        """
        Args:
            is_anew: the directory is begun anew, see `storage.rebuild.admission`: no start of the
                node is looked for in it.
        """
        self.is_older = False
        self.reached = -1
        self.word = b""
        self._settings = settings
        self._host = host
        self._membership = membership
        self._cluster = cluster
        self._is_anew = is_anew
        self._known = Incarnations()
        self._found = Claim()
        self._name = ""

    def _path(self, name: str) -> str:
        return f"{self._settings.directory}/{name}"

    # ---- opening ----

    async def open_wal(self) -> Wal:
        """Open this node's WAL, or format one in a directory that has none.

        Raises:
            NotOurCluster: the directory belongs to another node, or is an empty or older directory
                of this node.
            CordwoodError: the WAL or the metadata store cannot be used.
        """
        settings, disk = self._settings, self._host.disk
        identity_path, wal_path = self._path("identity"), self._path("wal")
        ours = Identity(self._cluster.hex(), settings.node, settings.storage.wal_bytes)
        stored = await disk.read_file(identity_path)
        if stored is None:
            await self.refuse_empty()
            wal_bytes = await self.make_wal(wal_path, identity_path)
            # Before the WAL is recovered: after that it may hold records.
            ours = msgspec.structs.replace(ours, wal_bytes=wal_bytes)
            await disk.write_file(identity_path, msgspec.json.encode(ours))
        else:
            ours = check_identity(stored, ours, identity_path)
        await self._check_newest()
        limits = WalLimits(budget=parse_budget(settings.storage.wal_budget))
        return await Wal.open(
            disk, wal_path, owner=settings.node, capacity_bytes=ours.wal_bytes, limits=limits
        )

    async def make_wal(self, path: str, identity_path: str) -> int:
        """Format the WAL of a directory without an identity; its capacity in bytes.

        A first start that a crash cut short may have come as far as that. Its WAL was never
        recovered, so it never held records, and is accepted unchanged.

        Raises:
            NotOurCluster: the WAL was in use, so an identity was lost.
        """
        settings, disk = self._settings, self._host.disk
        try:
            file, header = await open_wal(disk, path, owner=settings.node, capacity=None)
        except (FileNotFoundError, WalBlank):
            wal_bytes = settings.storage.wal_bytes
            salt = self._host.random.getrandbits(32)
            await Wal.format(disk, path, wal_bytes, owner=settings.node, epoch=1, salt=salt)
            return wal_bytes
        await file.close()
        if header.incarnation:
            raise NotOurCluster(
                f"{path} was in use, and {identity_path} is gone: bring it back, or, if this "
                "directory holds nothing you need, remove it and start again"
            )
        return header.capacity

    async def refuse_empty(self) -> None:
        """A node that the cluster knows, but with an empty disk, lost its records. Its silence must
        not count as their absence.

        Raises:
            NotOurCluster: this node was in the cluster before.
        """
        node = self._settings.node
        if not self._is_anew and (await self._membership.claim(node)).incarnation:
            raise NotOurCluster(
                f"node {node} is in the cluster, but {self._settings.directory} is "
                "empty: bring its disk back, or start it under a new number"
            )

    async def _check_newest(self) -> None:
        """Check that no later start of this node ran from another directory.

        Raises:
            NotOurCluster: a later start did, and no operator has accepted that.
        """
        disk, path = self._host.disk, self._path(INCARNATION)
        stored = await disk.read_file(path)
        if stored is not None:
            try:
                self._known = read_json(stored, Incarnations, path)
            except Malformed as error:
                # The directory then knows no claim, like a copy that is older than the first claim.
                logger.error("%s", error)
        self.word = await disk.read_file(self._path(ACCEPT_LOSS)) or b""
        self._found = found = await self._membership.claim(self._settings.node)
        if self._is_anew:
            return
        self.reached = found.reached
        self.is_older = self.is_behind(found)
        if not self.is_older:
            return
        node, directory = self._settings.node, self._settings.directory
        text = (
            f"{directory} is an older copy of node {node}'s directory, or the metadata store is an "
            f"older copy: it last ran as incarnation {self._known.incarnation}, and the last start "
            f"of node {node} was incarnation {found.incarnation}, from elsewhere"
        )
        if self.word not in (ACCEPTED, GO_ON_OLDER):
            raise NotOurCluster(
                f"{text}. Bring back the one that ran last. If that is gone: `cordwood nodes "
                f"accept-loss --older {directory}` lets it start without a vote, where other nodes "
                "have its records; without `--older` what only it had counts as lost"
            )
        logger.error("%s; it starts all the same, as its operator said", text)

    def is_behind(self, found: Claim) -> bool:
        return found.name not in self._known.claims

    # ---- claiming ----

    async def claim(self, reached: int, room: int = 0) -> Member:
        """Register this start; from then on every older copy of the directory is noticed.

        Call it when the records that `reached` promises, and that this start lacks, are durably
        noted as lost.

        Args:
            reached: WAL offset of the last record there is here, -1 for none.
            room: as `Member.room`.
        Raises:
            NotOurCluster: another start, from another directory, made its claim in between.
            CordwoodError: the metadata store cannot be used.
        """
        settings = self._settings
        self._name = f"{self._host.random.getrandbits(CLAIM_BITS):016x}"
        claims = self._claims_before()
        await self.write_claims((*claims, self._name))
        member = await self._membership.register(
            settings.node,
            settings.listen,
            settings.location,
            settings.weight,
            claim=self._name,
            reached=reached,
            over=claims,
            room=room,
        )
        self.reached = reached
        if self.word:
            await self._host.disk.write_file(self._path(ACCEPT_LOSS), b"")
        return member

    def _claims_before(self) -> tuple[str, ...]:
        """The claim found, and later claims that a start of this node may have made."""
        known, last = self._known.claims, self._found.name
        behind = known[known.index(last) + 1 :] if last in known else ()
        return (last, *behind[-(CLAIMS_MAX - 2) :])

    async def write_claims(self, claims: tuple[str, ...]) -> None:
        kept = Incarnations(self._found.incarnation + 1, claims)
        await self._host.disk.write_file(self._path(INCARNATION), msgspec.json.encode(kept))

    # ---- while it runs ----

    async def run(self, reached: Callable[[], int]) -> None:
        """Note periodically how far the WAL has come, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.storage.reached_every_s)
            await self.note(reached())

    async def note(self, reached: int) -> None:
        """Note how far the WAL has come. If this fails, the next note makes up for it."""
        if reached <= self.reached or not self._name:
            return
        try:
            await self._membership.note_reached(self._settings.node, self._name, reached)
        except NotOurCluster as error:
            logger.error("%s", error)
        except CordwoodError as error:
            logger.warning("how far the WAL has come could not be noted: %s", error)
        else:
            self.reached = reached

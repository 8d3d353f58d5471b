"""A ledger's metadata: its striping, its state, and which nodes hold which entries.

A *ledger* is a log of one epoch that the writing client numbers: entries 0, 1, 2 and so on. It is
closed once, at a last entry, and is never opened for writing again. A *fragment* is a run of
entries that were written to one *ensemble*, E nodes in an order that counts. Each entry goes to Qw
of them and is acknowledged once Qa have it (`quorum.ensemble`).

The metadata store keeps one value for each ledger, which changes by compare-and-set only.
`layout.ledger_metadata` says how it looks as bytes.

Source: docs/sources/bookkeeper.md (a), (b).
"""

from __future__ import annotations

import enum
from itertools import pairwise
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from cordwood.nodes import SCOPES

LEDGER_MAX = 2**63 - 1
"""Ids are 63 bits, as BookKeeper's are."""

ENTRY_MAX = 2**63 - 1

NO_ENTRY = -1
"""The last entry of an empty ledger, and the LAC of a ledger in which nothing is confirmed."""

NOT_TIERED = -1
"""Stands for the checksum of a manifest while main storage does not have a ledger."""

ENSEMBLE_MAX = 255
"""Nodes in one ensemble: many times the width at which striping stops to pay."""

FRAGMENTS_MAX = 10_000
"""A ledger with more ensemble changes has another problem, and its metadata would not fit."""

FRAGMENTS_BYTES_MAX = 400_000
"""Bytes for a writer's fragments in the ledger's metadata. A creator has 500,000 bytes
(`layout.ledger_metadata`), and the rest is for the end and for a recovery's fragments."""

_FRAGMENT_BYTES = 24
"""A fragment without its nodes, at most; each node has five bytes more."""

_NODE_BYTES = 5

FRAGMENTS_LEFT = 100
"""Fragments that a writer leaves to the recovery that ends its ledger."""

JOINING_MAX = 1024
"""Nodes of unfinished repairs and recoveries."""

PASSWORD_BYTES_MAX = 1024
CUSTOM_MAX = 256
"""Pairs of custom metadata."""

CUSTOM_BYTES_MAX = 65_536
"""One value of custom metadata."""

_Count = Annotated[int, Meta(ge=1, le=ENSEMBLE_MAX)]
_Node = Annotated[int, Meta(ge=1, le=2**32 - 1)]
_Nodes = Annotated[tuple[_Node, ...], Meta(max_length=ENSEMBLE_MAX)]
_Entry = Annotated[int, Meta(ge=0, le=ENTRY_MAX)]
_Last = Annotated[int, Meta(ge=NO_ENTRY, le=ENTRY_MAX)]
_Name = Annotated[str, Meta(max_length=255)]
_Value = Annotated[bytes, Meta(max_length=CUSTOM_BYTES_MAX)]


class LedgerState(enum.StrEnum):
    """It only goes on: open, in recovery, closed; a writer's close goes from open to closed."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


class DigestKind(enum.IntEnum):
    """What an entry is checked by; the numbers are BookKeeper's."""

    CRC32 = 1
    HMAC_SHA1 = 2
    CRC32C = 3
    DUMMY = 4


class Striping(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How entries lie on an ensemble.

    Attributes:
        ensemble: E, nodes of an ensemble.
        write: Qw, nodes that an entry is sent to.
        ack: Qa, nodes that have it when it is acknowledged.
    """

    ensemble: _Count
    write: _Count
    ack: _Count

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.ensemble <= ENSEMBLE_MAX:
            raise ValueError(
                f"E {self.ensemble}, Qw {self.write}, Qa {self.ack}: wanted is "
                f"{ENSEMBLE_MAX} >= E >= Qw >= Qa >= 1"
            )


def fragments_max(striping: Striping) -> int:
    """The most fragments of a writer: this number fits into the metadata, with its end."""
    size = _FRAGMENT_BYTES + _NODE_BYTES * striping.ensemble
    return min(FRAGMENTS_MAX - FRAGMENTS_LEFT, FRAGMENTS_BYTES_MAX // size)


class Fragment(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Entries from `first` on, up to the next fragment, lie on these nodes, in this order."""

    first: _Entry
    nodes: _Nodes


class LedgerTier(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An attempt at moving a closed ledger to main storage.

    Attributes:
        attempt: a random number. Each later attempt takes its place until an attempt is committed,
            and only the attempt in force may be committed.
        manifest_crc: CRC32C of the manifest, once it is committed: main storage has every entry
            then, and nodes may let go of theirs. -1 before.
        since_us: when it was committed, in microseconds of the Unix epoch; 0 before.
    """

    attempt: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    manifest_crc: Annotated[int, Meta(ge=NOT_TIERED, le=2**32 - 1)] = NOT_TIERED
    since_us: Annotated[int, Meta(ge=0, le=2**62)] = 0

    @property
    def is_committed(self) -> bool:
        """Whether main storage has all of the ledger."""
        return self.manifest_crc != NOT_TIERED


class LedgerMetadata(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A ledger's value in the metadata store.

    Attributes:
        fragments: in the order of their first entries, which begin at 0 and rise. A fragment
            may be empty: the last fragment of a ledger that was closed right below it.
        last, length: of a closed ledger, its last entry and the bytes of all payloads; -1 and 0
            before, and of a ledger that was closed empty.
        custom: values that the creator set; they never change.
        scope, is_enforced: how its nodes are chosen, see `quorum.ensemble_choice.Placement`; for
            recoveries and repairs as for its writer.
        creator: a random number of the creator: after a lost answer, the creator tells its own
            ledger by it from another ledger of the same id.
        wants_tier: whether nodes move it to main storage by themselves once it is closed.
        tier: the attempt at moving it there that is in force, None before the first.
        joining: nodes that a repair or a recovery writes copies to, before a fragment names them. A
            node that loses its disk meanwhile is looked for here as well: a fragment names it
            afterwards, and it lacks the copied entries.
    """

    ledger: Annotated[int, Meta(ge=0, le=LEDGER_MAX)]
    striping: Striping
    fragments: Annotated[tuple[Fragment, ...], Meta(max_length=FRAGMENTS_MAX)]
    state: LedgerState = LedgerState.OPEN
    last: _Last = NO_ENTRY
    length: Annotated[int, Meta(ge=0, le=ENTRY_MAX)] = 0
    digest: DigestKind = DigestKind.CRC32C
    password: Annotated[bytes, Meta(max_length=PASSWORD_BYTES_MAX)] = b""
    created_us: Annotated[int, Meta(ge=0, le=2**62)] = 0
    custom: Annotated[dict[_Name, _Value], Meta(max_length=CUSTOM_MAX)] = {}
    creator: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    scope: _Name = "rack"
    is_enforced: bool = False
    wants_tier: bool = False
    tier: LedgerTier | None = None
    joining: Annotated[tuple[_Node, ...], Meta(max_length=JOINING_MAX)] = ()

    def __post_init__(self) -> None:
        if self.scope not in SCOPES[1:]:
            raise ValueError(f"no scope {self.scope!r}")
        firsts = [each.first for each in self.fragments]
        if not firsts or firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
            raise ValueError("the fragments of a ledger begin at entry 0 and rise")
        for each in self.fragments:
            count = len(each.nodes)
            if count != self.striping.ensemble or len({*each.nodes}) != count:
                raise ValueError("a fragment does not have E distinct nodes")
        if self.state is LedgerState.CLOSED:
            if firsts[-1] > self.last + 1:
                raise ValueError("a fragment lies behind the end of its ledger")
            if self.last == NO_ENTRY and self.length:
                raise ValueError("an empty ledger has a length")
        elif (self.last, self.length) != (NO_ENTRY, 0):
            raise ValueError("a ledger that is not closed has an end")
        elif self.tier is not None:
            raise ValueError("a ledger that is not closed is moved to main storage")

    @property
    def is_tiered(self) -> bool:
        """Whether main storage has all of it."""
        return self.tier is not None and self.tier.is_committed

    @property
    def newest(self) -> Fragment:
        """The fragment that the writer writes to, or wrote to last."""
        return self.fragments[-1]

    @property
    def settled(self) -> tuple[Fragment, ...]:
        """Fragments that get no more entries: all of a closed ledger, and otherwise all before the
        newest one. All entries of these fragments were acknowledged: each fragment begins right
        above the LAC."""
        return self.fragments if self.state is LedgerState.CLOSED else self.fragments[:-1]

    @property
    def settled_last(self) -> int:
        """The last entry of the settled fragments, -1 for none."""
        return self.last if self.state is LedgerState.CLOSED else self.newest.first - 1

    def nodes_at(self, entry: int) -> tuple[int, ...]:
        """The ensemble that an entry is written to."""
        for each in reversed(self.fragments):
            if each.first <= entry:
                return each.nodes
        raise ValueError(f"entry {entry} is below 0")

    def with_ensemble(self, first: int, nodes: tuple[int, ...]) -> LedgerMetadata:
        """Entries from `first` on go to other nodes. A fragment that begins there already is
        replaced: nothing of it was acknowledged."""
        kept = tuple(each for each in self.fragments if each.first < first)
        assert len(kept) >= len(self.fragments) - 1, "only the newest fragment is replaced"
        return replace(self, fragments=(*kept, Fragment(first, nodes)))

    def with_node(self, first: int, place: int, node: int) -> LedgerMetadata:
        """The fragment that begins at `first` names another node in this place: it has all copies
        that belong there."""
        fragments = [*self.fragments]
        (number,) = (at for at, each in enumerate(fragments) if each.first == first)
        nodes = [*fragments[number].nodes]
        nodes[place] = node
        fragments[number] = Fragment(first, tuple(nodes))
        return replace(self, fragments=tuple(fragments))

    def recovering(self) -> LedgerMetadata:
        """The writer is shut out, until a recovery closes the ledger."""
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last: int, length: int) -> LedgerMetadata:
        """The ledger ends at this entry. No node joins any more: what others copied for another
        end counts for nothing."""
        return replace(self, state=LedgerState.CLOSED, last=last, length=length, joining=())

    def with_joining(self, node: int) -> LedgerMetadata:
        """A node that no fragment names yet gets copies. If there are too many joining nodes, the
        oldest are left out: their repairs and recoveries were cut short."""
        return replace(self, joining=(*self.joining, node)[-JOINING_MAX:])

    def joined(self) -> LedgerMetadata:
        """No node gets copies any more that no fragment names."""
        return replace(self, joining=())

    def tiering(self, attempt: int) -> LedgerMetadata:
        """An attempt at moving it to main storage begins, which ends every earlier one."""
        return replace(self, tier=LedgerTier(attempt))

    def tiered(self, manifest_crc: int, now_us: int) -> LedgerMetadata:
        """The attempt in force has uploaded all of it."""
        assert self.tier is not None, "an attempt is in force"
        return replace(self, tier=LedgerTier(self.tier.attempt, manifest_crc, now_us))


_STEPS = {
    LedgerState.OPEN: {*LedgerState},
    LedgerState.IN_RECOVERY: {LedgerState.IN_RECOVERY, LedgerState.CLOSED},
    LedgerState.CLOSED: {LedgerState.CLOSED},
}


def may_follow(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether a ledger's value `before` may be replaced by `after`.

    The creator's choices stay, the state only advances, and an end never changes. A fragment's
    first entry stays as well, except for the newest fragment of an unclosed ledger. Other fragments
    only get other nodes, when their entries are copied, also in an unclosed ledger. No fragment is
    left out: its entries would be looked for on the nodes of the fragment before. Main storage
    holds a ledger for good, and by the attempt that was in force before.
    """
    if after.state not in _STEPS[before.state]:
        return False
    chosen = (
        "ledger", "striping", "digest", "password", "created_us", "custom", "creator", "scope",
        "is_enforced", "wants_tier",
    )  # fmt: skip
    if any(getattr(before, name) != getattr(after, name) for name in chosen):
        return False
    if not _may_tier(before, after):
        return False
    old, new = ([each.first for each in value.fragments] for value in (before, after))
    if before.state is LedgerState.CLOSED:
        return (before.last, before.length, old) == (after.last, after.length, new)
    return len(new) >= len(old) and new[: len(old) - 1] == old[:-1]


def is_only_repaired(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether other clients changed nothing but nodes of settled fragments, and the nodes that
    join: copies were made, and the newest fragment is as its writer left it."""
    if after.newest != before.newest or after.state is not before.state:
        return False
    firsts = [[each.first for each in value.fragments] for value in (before, after)]
    same = replace(after, fragments=before.fragments, joining=before.joining)
    return firsts[0] == firsts[1] and same == before


def has_last_nodes(before: LedgerMetadata, after: LedgerMetadata, lac: int) -> bool:
    """Whether the newest entries of a writer are where it wrote them, so that it may close.

    Args:
        before: as its writer knows it.
        lac: the writer's.
    """
    mine, found = before.newest, after.newest
    if found == mine:
        return True
    # A recovery that cannot end wrote down that entries up to a LAC are settled. It named no other
    # nodes for entries above.
    is_settled = after.state is LedgerState.IN_RECOVERY and found.nodes == mine.nodes
    return is_settled and mine.first <= found.first <= lac + 1


def _may_tier(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether the field about main storage may change in this way."""
    was, now = before.tier, after.tier
    if was == now:
        return True
    if before.is_tiered or before.state is not LedgerState.CLOSED or now is None:
        return False
    # A new attempt begins, or the attempt in force is committed.
    return not now.is_committed or (was is not None and was.attempt == now.attempt)


class Versioned(NamedTuple):
    """A ledger's value as it was read, with the version that a compare-and-set names."""

    metadata: LedgerMetadata
    version: int

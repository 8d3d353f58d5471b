"""All settings: a class for each part, units in the names, and the reason beside each default.

`node.py` reads them once. Each part of the code gets only its own settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cordwood.errors import BadSetting
from cordwood.log_attributes import check_token
from cordwood.lsn import ESN_ISSUED_MAX
from cordwood.nodes import NodeId, Replication
from cordwood.write_budget import parse_budget

MIB = 1 << 20

REORDERINGS = ("none", "hash-shuffle", "hash-shuffle-client-seed")
"""The rules that choose the sender from a copyset, with LogDevice's names."""


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadSetting(f"{name} is {value}; it goes from {low} to {high}")


def block_bytes_max(record_bytes_max: int) -> int:
    """The largest block where WAL records have this size, or groups are no larger than that."""
    return max(1024, record_bytes_max * 5 // 8)


@dataclass(frozen=True, slots=True)
class SequencerSettings:
    """The write path.

    Attributes:
        window_bytes: bodies in flight over all logs of a node. 64 MiB is 30 ms of the
            fastest disk measured, and no client has more in flight by default.
        run_bytes: bytes stored as one run: LogDevice's and Kafka's megabyte. A small WAL
            lowers this setting and the next one, see `fitted_to`.
        block_bytes_max: the largest body that a node takes: the 4 MiB of records that a client
            may put into one block, and up to 21 bytes of offsets and times for each of 65,536
            records.
        group_bytes_max: the bodies of one atomic group, at most as large as the window. A group
            is taken whole or not at all, so a node holds up to twice as much for a moment.
        store_timeout_s: first wait for a wave; it doubles with each wave. LogDevice starts at
            10 ms on its own disks. Shared disks stall for tens of ms, and a needless wave costs
            three stores.
        store_timeout_max_s: the longest wait for a wave. After a network partition heals, an
            append that was stuck may still wait this long.
        esns: esns that a sequencer issues in one epoch; only tests lower it.
    """

    window_bytes: int = 64 * MIB
    run_bytes: int = MIB
    block_bytes_max: int = 6 * MIB
    group_bytes_max: int = 64 * MIB
    store_timeout_s: float = 0.5
    store_timeout_max_s: float = 2.0
    esns: int = ESN_ISSUED_MAX

    def __post_init__(self) -> None:
        _check("sequencer.window_bytes", self.window_bytes, MIB, 4096 * MIB)
        _check("sequencer.block_bytes_max", self.block_bytes_max, 1024, 6 * MIB)
        _check("sequencer.group_bytes_max", self.group_bytes_max, 1024, 64 * MIB)
        _check("sequencer.run_bytes", self.run_bytes, 1024, 2 * MIB)
        _check("sequencer.store_timeout_s", self.store_timeout_s, 0.001, 60)
        _check("sequencer.store_timeout_max_s", self.store_timeout_max_s, 0.001, 600)
        _check("sequencer.esns", self.esns, 1, ESN_ISSUED_MAX)
        if self.store_timeout_max_s < self.store_timeout_s:
            raise BadSetting("sequencer.store_timeout_max_s is below store_timeout_s")

    def fitted_to(self, record_bytes_max: int) -> SequencerSettings:
        """These settings, with runs, blocks and groups that fit into WAL records of this size.

        A run has up to `run_bytes`, or is one block; recovery stores a run and one more block. A
        record has up to half of the ring, so a run has up to a sixteenth, half of the space that
        nodes reserve for later waves. A group takes many records; nodes have free space for a
        group of this size as soon as they have flushed.
        """
        return replace(
            self,
            run_bytes=min(self.run_bytes, max(1024, record_bytes_max // 8)),
            block_bytes_max=min(self.block_bytes_max, block_bytes_max(record_bytes_max)),
            group_bytes_max=min(self.group_bytes_max, max(1024, record_bytes_max)),
        )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The storage node.

    Attributes:
        wal_bytes: the size of the ring. 2 GiB on a server, as in the Delta WAL; `cordwood up` and
            the embedded store take 128 MiB, so that they start in a second. The value counts when a
            node's directory is made; a later start with another value warns.
        wal_budget: the WAL's share of its disk: `gp3` for a gp3 cloud volume (3,000 writes and 125
            MiB a second), or `IOPS,MIB_PER_S`; "" for no limit, for a local disk. Over its budget a
            volume queues writes and cannot join them; the WAL joins waiting records into fewer,
            larger writes. LogsDB's writes are not counted: leave a share for them if they go to the
            same volume.
        cache_bytes: blocks that are in the WAL and not yet in LogsDB; when it is full, appends
            wait. Stores of numbered blocks may exceed it by an eighth, stores of recoveries by a
            quarter, and no store by more. Half of it is a burst that no flush disturbs: a second of
            the fastest disk measured. It takes memory only for what it holds.
        flush_bytes: a flush begins when this much is unflushed and appends pause, or when half of
            the cache or of the WAL is full. Large files are read with few seeks; 32 MiB are written
            in a fifth of a second.
        flush_quiet_s: this time without an append is a pause. Between the waves of a burst it is
            milliseconds.
        flush_age_s: a flush also begins when the oldest unflushed block is this old. It bounds the
            replay at the start of a quiet node. S3Stream uploads after the same minute.
        partition_age_s, partition_bytes, partition_files: a partition that has reached one of these
            is closed and the next begins. LogDevice's 15 minutes, 6 GB (here 4 GiB), and the 20
            files of its documents: a cold read looks into each file.
        retention_every_s: the time between two passes that trim records past their retention and
            free disk space: LogDevice's 30 s, a thirtieth of a partition's time.
        deleted_keep_s: how long the records of a deleted log stay on the disk: a day in which a
            person may notice a mistake. LogDevice keeps them for 2 to 4.
        disk_low_bytes, disk_back_bytes: with less free disk space than the first, a node takes no
            new records; with more than the second, it takes them again. On a small disk they are 5
            and 10 % of it. 1 GiB is four full caches, so a flush always fits. 0 for no limit.
        disk_look_s: the time between two measurements of the disk: a disk does not write 1 GiB in
            less.
        reached_every_s: how often a storing node records in the metadata store how far its WAL has
            come. A start from an older copy of its directory is noticed if the copy is older than
            this. A tenth of a write a second for each node is nothing to any metadata store.
        recent_bytes: blocks and ledger entries that stay in memory for readers after their flush,
            with 1 KiB more counted for each block or run of entries; 0 for none. Four flushes: most
            readers are seconds behind. It takes memory only for what it holds.
        block_cache_bytes: RocksDB's cache of index entries and blocks that it has read.
        scrub_bytes_s: the rate at which a scrub reads LogsDB in the background to find rotten data;
            0 for no scrubbing. 1 MiB/s, as HDFS's scanner: a per cent of a disk and of a core, and
            a terabyte in 12 days.
        rebuild_bytes_s: the most that a node sends of new copies of blocks that other nodes lost; 0
            for as fast as they are taken. 32 MiB/s: a quarter of what a cheap cloud volume writes;
            five nodes restore a lost terabyte in two hours. Beside appends it is less, as
            docs/protocol/rebuilding.md says (rule 18).
        scrub_every_s: the least time between the begins of two passes over LogsDB. A day: rotten
            data is found before a second copy is likely to rot.
    """

    wal_bytes: int = 2048 * MIB
    cache_bytes: int = 256 * MIB
    flush_bytes: int = 32 * MIB
    flush_quiet_s: float = 0.1
    flush_age_s: float = 60.0
    partition_age_s: float = 900.0
    partition_bytes: int = 4096 * MIB
    partition_files: int = 20
    retention_every_s: float = 30.0
    deleted_keep_s: float = 86_400.0
    disk_low_bytes: int = 1024 * MIB
    disk_back_bytes: int = 2048 * MIB
    disk_look_s: float = 2.0
    reached_every_s: float = 10.0
    recent_bytes: int = 128 * MIB
    block_cache_bytes: int = 32 * MIB
    scrub_bytes_s: int = MIB
    scrub_every_s: float = 86_400.0
    wal_budget: str = ""
    rebuild_bytes_s: int = 32 * MIB

    def __post_init__(self) -> None:
        _check("storage.wal_bytes", self.wal_bytes, MIB, 1 << 44)
        _check("storage.cache_bytes", self.cache_bytes, 4096, 1 << 40)
        _check("storage.flush_bytes", self.flush_bytes, 4096, 1 << 36)
        _check("storage.flush_quiet_s", self.flush_quiet_s, 0, 60)
        _check("storage.flush_age_s", self.flush_age_s, 0.01, 86_400)
        _check("storage.partition_age_s", self.partition_age_s, 1, 365 * 86_400)
        _check("storage.partition_bytes", self.partition_bytes, 4096, 1 << 44)
        _check("storage.partition_files", self.partition_files, 1, 10_000)
        _check("storage.retention_every_s", self.retention_every_s, 0.01, 86_400)
        _check("storage.deleted_keep_s", self.deleted_keep_s, 0, 365 * 86_400)
        _check("storage.disk_low_bytes", self.disk_low_bytes, 0, 1 << 50)
        _check("storage.disk_back_bytes", self.disk_back_bytes, self.disk_low_bytes, 1 << 50)
        _check("storage.disk_look_s", self.disk_look_s, 0.01, 3600)
        _check("storage.reached_every_s", self.reached_every_s, 0.001, 86_400)
        _check("storage.recent_bytes", self.recent_bytes, 0, 1 << 40)
        _check("storage.block_cache_bytes", self.block_cache_bytes, 0, 1 << 40)
        _check("storage.scrub_bytes_s", self.scrub_bytes_s, 0, 1 << 40)
        _check("storage.rebuild_bytes_s", self.rebuild_bytes_s, 0, 1 << 40)
        _check("storage.scrub_every_s", self.scrub_every_s, 0.01, 365 * 86_400)
        try:
            parse_budget(self.wal_budget)
        except BadSetting as error:
            raise BadSetting(f"storage.wal_budget: {error}") from None
        if self.cache_bytes < 2 * self.flush_bytes:
            raise BadSetting("storage.cache_bytes is below twice storage.flush_bytes")


ADDRESS_CHARS_MAX = 1024
"""Of main storage."""


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Main storage.

    Attributes:
        store: its address: a directory, or `s3://…`, `gs://…`, `az://…`; "" for none. Clients are
            told of it. Credentials come from the environment of each process.
        look_s: the time between two looks for logs that have something to upload. Logs wait for
            minutes before they are due, and a look costs a call a node.
        tend_s: the time between two looks at what main storage may delete: trims, and deleted logs.
        grace_s: how long objects stay that no manifest names any more, for readers that hold an
            older manifest.
        ledger_keep_s: how long nodes keep a ledger that main storage has: an hour, as they keep
            records of logs. A ledger that was just closed is read again, if any is.
        ledger_bytes_s: bytes of objects that a node uploads of ledgers in a second, on average: as
            slow as an upload of logs that nothing presses.
        merge_objects: a node merges once this many small objects of a log stand side by side, 0
            for never. The 64th of a log's youngest objects moves them all into a page, and half of
            that leaves time for it.
        merge_s: the time between two looks for them. A log uploads one each 10 s at most, so 32
            pile up in five minutes.
        merge_bytes_s: bodies that a node merges in a second, on average: as slow as an upload that
            nothing presses.
        merge_object_bytes: of bodies in a merged object, at most: as much as uploads put into one.
        merge_shared_bytes: once a log's shares in objects of several logs have this many bytes of
            bodies, they get an object of their own: as much as a request costs.
        merge_turn_s: the time after which another process may end a holder's turn, because the
            holder may have died. After half of it the holder takes the next turn, and the rest is
            enough for an object of 64 MiB at 40 KB/s.
    """

    store: str = ""
    look_s: float = 10.0
    tend_s: float = 60.0
    grace_s: float = 3600.0
    ledger_keep_s: float = 3600.0
    ledger_bytes_s: int = 8 * MIB
    merge_objects: int = 32
    merge_s: float = 300.0
    merge_bytes_s: int = 8 * MIB
    merge_object_bytes: int = 64 * MIB
    merge_shared_bytes: int = MIB
    merge_turn_s: float = 3600.0

    def __post_init__(self) -> None:
        if len(self.store) > ADDRESS_CHARS_MAX:
            raise BadSetting(f"tier.store has more than {ADDRESS_CHARS_MAX} characters")
        _check("tier.look_s", self.look_s, 0.01, 86_400)
        _check("tier.tend_s", self.tend_s, 0.01, 86_400)
        _check("tier.grace_s", self.grace_s, 0, 365 * 86_400)
        _check("tier.ledger_keep_s", self.ledger_keep_s, 0, 10 * 365 * 86_400)
        _check("tier.ledger_bytes_s", self.ledger_bytes_s, 1, 1 << 40)
        _check("tier.merge_objects", self.merge_objects, 0, 10_000)
        _check("tier.merge_s", self.merge_s, 0.01, 86_400)
        _check("tier.merge_bytes_s", self.merge_bytes_s, 1, 1 << 40)
        _check("tier.merge_object_bytes", self.merge_object_bytes, 1, 512 * MIB)
        _check("tier.merge_turn_s", self.merge_turn_s, 0.1, 30 * 86_400)
        _check("tier.merge_shared_bytes", self.merge_shared_bytes, 0, 1 << 40)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node.

    Attributes:
        node: its number.
        directory: holds `identity`, `wal` and `logsdb`.
        metadata: the cluster's metadata store: the path of an SQLite file, which the nodes
            of one machine share, or `zookeeper://host:port,…/path`. Not read where the
            store is handed over opened.
        listen: `host:port`; loopback by default, port 0 takes a free one.
        location: its failure domains, see `nodes.Member`.
        weight: its share of new records.
        default_replication: for logs created without a replication of their own.
        create_logs: whether an append to a log that does not exist, or a follow, makes the log.
        refresh_s: the time between two reads of the member list; a new node is used after this
            time. One small read of a local file.
        gossip_s: a tick of the failure detector; a node is dead after 30 ticks. LogDevice's
            100 ms: a silent node is found in three seconds, at the cost of ten small frames a
            second.
        rebuild_after_s: a node that is dead for this long counts as lost, and the others make its
            data anew; 0 for never: then only an operator declares nodes lost. LogDevice's 20
            minutes: a machine that restarts is back before that, and no copies move for it.
        replicated_events: move what is said of lost nodes from the metadata store into the event
            log, so that it can be said while the metadata store is away; once moved, it stays
            there, and holds for every node. The move waits until the cluster has nodes enough
            (docs/protocol/event-log.md), and all of them run a version that follows the log.
            Off: there is no way back, so a cluster moves only by order. Clusters that `cordwood up`
            makes newly have it on (`local_cluster.ClusterShape`).
    """

    node: NodeId
    directory: str
    metadata: str
    listen: str = "127.0.0.1:4440"
    location: str = ""
    weight: float = 1.0
    default_replication: Replication = field(default_factory=Replication)
    create_logs: bool = False
    refresh_s: float = 1.0
    gossip_s: float = 0.1
    rebuild_after_s: float = 1200.0
    replicated_events: bool = False
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    tier: TierSettings = field(default_factory=TierSettings)

    def __post_init__(self) -> None:
        _check("node", self.node, 1, 2**32 - 1)
        _check("refresh_s", self.refresh_s, 0.05, 3600)
        _check("gossip_s", self.gossip_s, 0.01, 10)
        _check("rebuild_after_s", self.rebuild_after_s, 0, 365 * 86_400)
        _check("weight", self.weight, 0, 1000)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """A client.

    Attributes:
        timeout_s: how long an append or a call may take, retries included. Kafka waits 120 s and
            LogDevice 10 s; 30 s covers a restart of a node, and a person still notices it.
        window_bytes: bodies in flight from one client.
        window_records: records in flight from one client.
        block_bytes: a block is cut when its records reach this.
        block_records: a block is also cut when it has this many records.
        codec: `none`, `lz4` or `zstd`: the compression of bodies.
        read_bytes: the bytes that each node may send ahead of the reader, for each stream, as far
            as `read_memory_bytes` allows.
        read_memory_bytes: the bytes that nodes may send ahead of all readers of the client
            together, plus 64 KiB for each node and stream. With 256 MiB, six streams of five
            nodes get all that they want; with a hundred streams each gets less. It includes the
            items that wait for readers of a shared tail.
        tier_cache_bytes: blocks from main storage that are kept for the client's next reader of the
            same history; 0 keeps none.
        location: the client's location, as in `NodeSettings.location`; "" for none.
        scd_enabled: one of the nodes that hold a block sends it. If off, all of them send it: R
            times the traffic, and no wait when a node fails.
        local_scd_enabled: a node in the client's region sends a block if it holds it: less
            traffic between regions, more load on the nodes of a region with many readers.
        scd_copyset_reordering_max: the member of a copyset that sends. `none`: the first member.
            `hash-shuffle`, LogDevice's default: the same member for every reader, so that its
            caches serve all readers of that part of the log. `hash-shuffle-client-seed`: another
            member for each client, which spreads many readers over all copies.
        client_read_flow_control_threshold: a reader's window moves when this part of it is used
            up. A higher value sends fewer messages, but nodes wait if the move comes too late.
        reader_slow_nodes_detection: a reader stops counting on a node that is far slower than its
            peers for a while. LogDevice has it off; here a reader waits for its slowest node, and
            a wrong verdict costs only some blocks sent twice.
        read_stream_guaranteed_delivery_efficiency: never ask for all copies before a loss is
            reported. It saves a second send of a window. But records that only one node has lost
            may be reported as lost: for readers that prefer to skip rather than wait.
        rare_collections: while the client is connected, the garbage collector of the whole process
            ignores the objects that existed before, and looks for cycles each 50,000 objects
            instead of each 700: a third less time for a client with thousands of records in
            flight. Cycles of the program stay in memory longer. The command line, benchmarks and
            Spark's workers turn it on.
        write_tokens: for logs that ask for a token to append; never shown.
        read_tokens: for logs that ask for a token to read; never shown. A node gets only the
            token that its log asks for.
    """

    timeout_s: float = 30.0
    window_bytes: int = 32 * MIB
    window_records: int = 262_144
    block_bytes: int = MIB
    block_records: int = 16_384
    codec: str = "none"
    read_bytes: int = 8 * MIB
    read_memory_bytes: int = 256 * MIB
    tier_cache_bytes: int = 64 * MIB
    location: str = ""
    scd_enabled: bool = True
    local_scd_enabled: bool = False
    scd_copyset_reordering_max: str = "hash-shuffle"
    client_read_flow_control_threshold: float = 0.7
    reader_slow_nodes_detection: bool = True
    read_stream_guaranteed_delivery_efficiency: bool = False
    rare_collections: bool = False
    write_tokens: tuple[str, ...] = field(default=(), repr=False)
    read_tokens: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        _check("client.timeout_s", self.timeout_s, 0.001, 3600)
        _check("client.window_bytes", self.window_bytes, 1024, 1024 * MIB)
        _check("client.window_records", self.window_records, 1, 1 << 24)
        _check("client.block_bytes", self.block_bytes, 1, 4 * MIB)
        _check("client.block_records", self.block_records, 1, 65_536)
        _check("client.read_memory_bytes", self.read_memory_bytes, 4096, 1 << 40)
        _check("client.tier_cache_bytes", self.tier_cache_bytes, 0, 1 << 40)
        _check("client.read_bytes", self.read_bytes, 4096, 1024 * MIB)
        _check(
            "client.client_read_flow_control_threshold",
            self.client_read_flow_control_threshold, 0.05, 0.95,
        )  # fmt: skip
        if self.scd_copyset_reordering_max not in REORDERINGS:
            raise BadSetting(
                f"client.scd_copyset_reordering_max is {self.scd_copyset_reordering_max!r}; "
                f"it is one of {', '.join(REORDERINGS)}"
            )
        for token in (*self.write_tokens, *self.read_tokens):
            check_token(token)
        if self.codec not in ("none", "lz4", "zstd"):
            raise BadSetting(f"client.codec is {self.codec!r}: give none, lz4 or zstd")

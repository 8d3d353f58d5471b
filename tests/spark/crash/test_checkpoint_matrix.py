"""Checkpoints, tables and logs that are not as the last run left them.

Each record is there once, or one refusal says what to do; done so, each record is there once.

What a power cut, a restored backup, an operator and another job may leave is made by hand between
two runs of one query.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from py4j.protocol import Py4JJavaError
from pyarrow.dataset import dataset
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from test_crash_matrix import landed
from test_sink_crashes import values

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, CordwoodError
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.spark.jobs.land import Lander, land
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.jobs.table import FORMATS, OURS
from cordwood.spark.options import READ_TOKENS, SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]

Damage = Callable[[Path], None]


def newest(checkpoint: Path, log: str) -> Path:
    """The newest of a checkpoint's `offsets` or `commits`."""
    numbers = [int(each.name) for each in (checkpoint / log).iterdir() if each.name.isdigit()]
    return checkpoint / log / str(max(numbers))


def gone(*logs: str) -> Damage:
    """A power cut: the newest files had no name yet."""

    def damage(checkpoint: Path) -> None:
        for log in logs:
            path = newest(checkpoint, log)
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def cut(*logs: str, keep: float = 0.0) -> Damage:
    """A power cut: the newest files have a name and a part of their bytes."""

    def damage(checkpoint: Path) -> None:
        for log in logs:
            path = newest(checkpoint, log)
            whole = path.read_bytes()
            path.write_bytes(whole[: int(len(whole) * keep)])
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def no_metadata(checkpoint: Path) -> None:
    (checkpoint / "metadata").write_bytes(b"")
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)


DAMAGES: dict[str, Damage] = {
    "lost": shutil.rmtree,
    "went back a batch": gone("offsets", "commits"),
    "offset gone": gone("offsets"),
    "offset empty": cut("offsets"),
    "offset torn": cut("offsets", keep=0.6),
    "commit gone": gone("commits"),
    "commit empty": cut("commits"),
    "both empty": cut("offsets", "commits"),
    "metadata empty": no_metadata,
}


OUR_WORD = "Put the newest checkpoint back; or start the query with a new checkpoint"


REFUSALS = (OUR_WORD, "State: INITIALIZING", "StreamMetadata", "Incomplete log file")
"""What we say, and how Spark refuses before it plans anything."""

RIGHTS_S = 3.0
"""Nodes look once a second at what a log asks for."""


class Query:
    """A log that grows by 40 records before each run, and the query over it."""

    def __init__(
        self, spark: SparkSession, cluster: LiveCluster, store: BlockingStore, directory: Path
    ) -> None:
        self.spark = spark
        self.store = store
        self.log = f"/m-{uuid.uuid4().hex[:8]}"
        self.directory = directory
        self.source = {SERVERS: cluster.url, "subscribe": self.log}
        self.wanted: list[bytes] = []

    def append(self) -> None:
        more = [b"%d" % number for number in range(len(self.wanted), len(self.wanted) + 40)]
        self.store.append_many(self.log, more)
        self.wanted += more

    @property
    def checkpoint(self) -> Path:
        raise NotImplementedError

    def run(self) -> None:
        raise NotImplementedError

    def found(self) -> list[bytes]:
        raise NotImplementedError

    def refused(self) -> str:
        """Append and run; what a refusal says, and "" where there is none."""
        self.append()
        try:
            self.run()
        except (CordwoodError, StreamingQueryException, Py4JJavaError) as error:
            return str(error)
        return ""

    def check(self) -> None:
        assert Counter(self.found()) == Counter(self.wanted)


class Table(Query):
    """A landing."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        directory: Path,
        format_: str,
    ) -> None:
        super().__init__(spark, cluster, store, directory)
        self.format = format_
        self.path = directory / "table"

    @property
    def checkpoint(self) -> Path:
        return self.path / OURS / "checkpoint"

    def run(self) -> None:
        by = () if self.format == "parquet" else ("event_date",)
        land(self.spark, Landing(self.source, str(self.path), self.format, by))

    def found(self) -> list[bytes]:
        return [value for _, value in landed(self.path, self.format)]


class Copy(Query):
    """A stream into a log, with a name that outlives its checkpoint."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        directory: Path,
        **sink: str,
    ) -> None:
        super().__init__(spark, cluster, store, directory)
        self.to = f"{self.log}-copy"
        self.sink = {SERVERS: cluster.url, "log": self.to, **sink}

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def run(self) -> None:
        source = {"startingOffsets": "earliest", "minPartitions": "3", **self.source}
        frame = self.spark.readStream.format("cordwood").options(**source).load().select("value")
        query = (
            frame.writeStream.format("cordwood")
            .options(**self.sink)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    def found(self) -> list[bytes]:
        return values(self.store, self.to)


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_landing_with_a_damaged_checkpoint(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path, format_, damage
):
    table = Table(spark, cluster, store, tmp_path, format_)
    for _ in range(2):
        assert not table.refused()
    DAMAGES[damage](table.checkpoint)
    told = table.refused()
    if told:
        assert "Remove that directory and start again" in told
        shutil.rmtree(table.checkpoint)
        assert not table.refused()
    table.check()
    assert not table.refused()
    table.check()


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
def test_a_landing_with_the_checkpoint_of_another(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path, format_
):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = Table(spark, cluster, store, tmp_path / "one", format_)
    two = Table(spark, cluster, store, tmp_path / "two", format_)
    for table in (one, two, two):
        assert not table.refused()
    shutil.rmtree(one.checkpoint)
    shutil.copytree(two.checkpoint, one.checkpoint)
    assert "Remove that directory and start again" in one.refused()
    shutil.rmtree(one.checkpoint)
    assert not one.refused()
    one.check()


@pytest.mark.slow
@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_landing_with_its_first_checkpoint_put_back(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_,
    is_begun: bool,
):
    """Another query landed meanwhile: the first one's next batch is in the table already.

    The checkpoint that is set aside has batches in the table, or a first batch that died.
    """
    table, aside = Table(spark, cluster, store, tmp_path, format_), tmp_path / "aside"
    assert not table.refused()
    if is_begun:
        shutil.rmtree(table.checkpoint)
        with monkeypatch.context() as patched:
            patched.setattr(Lander, "_write", dying)
            assert "planted" in table.refused()
        shutil.copytree(table.checkpoint, aside)
    else:
        shutil.copytree(table.checkpoint, aside)
    shutil.rmtree(table.checkpoint)
    assert not table.refused()
    table.check()
    theirs = tmp_path / "theirs"
    shutil.move(table.checkpoint, theirs)
    shutil.copytree(aside, table.checkpoint)
    assert "another query landed records since" in table.refused()
    shutil.rmtree(table.checkpoint)
    if is_begun:
        shutil.move(theirs, table.checkpoint)  # that of the last landing goes on
    assert not table.refused()
    table.check()


def dying(*_) -> None:
    raise RuntimeError("planted crash")


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.0, 0.5, None])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_delta_log_whose_newest_commit_is_torn(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    tmp_path: Path,
    keep: float | None,
    is_committed: bool,
):
    """A power cut took the bytes, or the name, of what nobody synced."""
    table = Table(spark, cluster, store, tmp_path, "delta")
    for _ in range(2):
        assert not table.refused()
    commit = max((table.path / "_delta_log").glob("*.json"))
    whole = commit.read_bytes()
    commit.unlink()
    if keep is not None:
        commit.write_bytes(whole[: int(len(whole) * keep)])
    if not is_committed:
        gone("commits")(table.checkpoint)
    told = table.refused()
    if told:
        assert is_committed
        assert "Remove that directory and start again" in told
        shutil.rmtree(table.checkpoint)
        assert not table.refused()
    table.check()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactlyOnce", "idempotent"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stream_into_a_log_with_a_damaged_checkpoint(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    tmp_path: Path,
    damage,
    mode: str,
):
    """Without rows lost or doubled, or refused by the sink or by Spark itself."""
    copy = Copy(spark, cluster, store, tmp_path, txnAppId=uuid.uuid4().hex, deliveryMode=mode)
    for _ in range(2):
        assert not copy.refused()
    before = list(copy.wanted)
    DAMAGES[damage](copy.checkpoint)
    told = copy.refused()
    if told:
        assert Counter(copy.found()) == Counter(before)
        # By us, or by Spark, which did not come so far as to plan anything.
        assert any(each in told for each in REFUSALS), told[:2000]
    else:
        copy.check()


@pytest.mark.slow
def test_a_sink_log_that_is_renamed_and_made_again(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    """A stream writes to a name: what is there at each batch gets it, whole."""
    copy = Copy(spark, cluster, store, tmp_path)
    assert not copy.refused()
    store.log_tree.rename(copy.to, f"{copy.to}-old")
    assert not copy.refused()
    store.log_tree.delete(copy.to)
    store.create_log(copy.to)
    assert not copy.refused()
    assert values(store, f"{copy.to}-old") == copy.wanted[:40]
    assert values(store, copy.to) == copy.wanted[80:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "copy"])
def test_the_right_to_read_is_taken_away_and_given_back(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path, kind: str
):
    make = Copy if kind == "copy" else lambda *them: Table(*them, "parquet")
    query = make(spark, cluster, store, tmp_path)
    query.source["failOnDataLoss"] = "false"
    assert not query.refused()
    store.log_tree.set_attributes(query.log, LogAttributes(read_token=token_digest("secret")))
    time.sleep(RIGHTS_S)
    told = query.refused()
    assert "asks for a read token" in told
    assert query.found() == query.wanted[:40]
    query.source[READ_TOKENS] = "secret"
    assert not query.refused()
    query.check()


@pytest.mark.slow
def test_a_delta_table_that_was_restored_is_landed_on_from_there(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    table = Table(spark, cluster, store, tmp_path, "delta")
    versions = []
    for _ in range(2):
        assert not table.refused()
        versions.append(DeltaTable(str(table.path)).version())
    DeltaTable(str(table.path)).restore(versions[0])
    assert "restored to an older version" in table.refused()
    shutil.rmtree(table.checkpoint)
    assert not table.refused()
    table.check()


@pytest.mark.slow
def test_a_restore_that_is_undone_brings_back_what_was_set_apart(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
) -> None:
    """The landing that was refused in between removed it: it was in the table or nowhere."""
    from deltalake import DeltaTable

    source, path = {SERVERS: cluster.url, "subscribe": f"/m-{uuid.uuid4().hex[:8]}"}, tmp_path / "t"
    wanted: list[bytes] = []
    versions: list[int] = []

    def lands() -> None:
        land(spark, Landing(source, str(path), "delta", (), decode="json"))
        versions.append(DeltaTable(str(path)).version())

    def apart() -> list[bytes]:
        found = dataset(f"{path}.quarantine", format="parquet").to_table()
        return sorted(found["value"].to_pylist())

    for turn in range(3):
        wanted.append(b"broken %d" % turn)
        store.append_many(source["subscribe"], [b'{"n": %d}' % turn, wanted[-1]])
        lands()
    assert apart() == wanted
    DeltaTable(str(path)).restore(versions[0])
    with pytest.raises(BadSetting, match="restored to an older version"):
        lands()
    DeltaTable(str(path)).restore(versions[2])
    lands()
    assert apart() == wanted
    DeltaTable(str(path)).restore(versions[0])
    shutil.rmtree(path / OURS / "checkpoint")
    lands()
    assert apart() == wanted
    assert len(landed(path, "delta")) == 3

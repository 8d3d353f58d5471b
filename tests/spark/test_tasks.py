"""What tasks share and what they wait for, on a real cluster, without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from swaps import swap_value

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import Unreachable
from cordwood.lsn import Lsn
from cordwood.spark import slice_reader
from cordwood.spark.offsets import DataLoss
from cordwood.spark.shared_store import shared_store
from cordwood.spark.slice_reader import read_slices
from cordwood.spark.splitting import Slice

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]

FORK = """
import os, sys
from cordwood.spark.shared_store import shared_store

def tail():
    return int(shared_store(sys.argv[1], 10.0).tail(sys.argv[2]))

print(tail(), flush=True)
child = os.fork()
if not child:
    print(tail(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(tail(), flush=True)
"""


@pytest.fixture
def log() -> str:
    """A name that no other test uses."""
    return f"/k-{uuid.uuid4().hex[:8]}"


class TestSharedStore:
    def test_is_one_for_each_cluster(self, cluster: LiveCluster):
        assert shared_store(cluster.url, 10.0) is shared_store(cluster.url, 10.0)

    def test_is_made_anew_once_it_was_closed(
        self, cluster: LiveCluster, store: BlockingStore, log: str
    ):
        last = store.append(log, b"1")
        first = shared_store(cluster.url, 10.0)
        first.close()
        again = shared_store(cluster.url, 10.0)
        assert again is not first
        assert again.tail(log) == last

    def test_is_not_carried_over_a_fork(self, cluster: LiveCluster, store: BlockingStore, log: str):
        """Spark forks its workers; the child connects by itself, the parent's still works."""
        last = store.append(log, b"1")
        done = subprocess.run(
            # From 3.12 on Python warns of any fork beside threads, as every store has them.
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, cluster.url, log],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == [str(int(last))] * 3


class TestReadSlices:
    def read(self, store: BlockingStore, *slices: Slice, fail: bool = True) -> list[int]:
        batches = read_slices(lambda: store, slices, ("lsn",), fail_on_data_loss=fail)
        return [lsn for batch in batches for lsn in batch["lsn"].to_pylist()]

    def test_reads_one_after_another(self, store: BlockingStore, log: str):
        lsns = [store.append_many(f"{log}/{name}", [b"x"] * 10) for name in "ab"]
        ids = [store.log(f"{log}/{name}").log_id for name in "ab"]
        slices = [
            Slice(ids[0], f"{log}/a", lsns[0][2], lsns[0][5]),
            Slice(ids[1], f"{log}/b", lsns[1][0], lsns[1][9] + 1),
            Slice(ids[0], f"{log}/a", lsns[0][9], lsns[0][9] + 1),
        ]
        assert self.read(store, *slices) == [*lsns[0][2:5], *lsns[1], lsns[0][9]]

    def test_a_task_that_is_given_nothing_says_what_it_waited_for(
        self, store: BlockingStore, log: str, monkeypatch: pytest.MonkeyPatch
    ):
        swap_value(monkeypatch, lambda: slice_reader.STALL_TIMEOUT_S, 0.1)
        last = store.append(log, b"x")
        asked = Slice(store.log(log).log_id, log, last, last + 2)
        with pytest.raises(Unreachable, match=f"no node sent {log} from {Lsn(last + 1)} on"):
            self.read(store, asked)

    def test_another_log_of_the_same_name_is_not_read(self, store: BlockingStore, log: str):
        last = store.append(log, b"x")
        asked = Slice(987654, log, last, last + 1)
        with pytest.raises(DataLoss, match=r"log=987654 .* type=LOG_GONE"):
            self.read(store, asked)
        assert self.read(store, asked, fail=False) == []

    def test_a_reader_that_is_left_early_is_closed(self, store: BlockingStore, log: str):
        last = store.append_many(log, [b"x" * 100] * 50_000)[-1]
        first = last - 49_999
        asked = Slice(store.log(log).log_id, log, first, last + 1)
        batches = read_slices(lambda: store, [asked], ("lsn",), fail_on_data_loss=True)
        assert next(batches)["lsn"][0].as_py() == first
        batches.close()
        assert list(batches) == []

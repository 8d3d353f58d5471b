"""Two attempts of one task at once: a zombie that Spark gave up, or a speculative one."""

from __future__ import annotations

import random
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import ProducerFenced
from cordwood.spark.delivery import publish, stage_all
from cordwood.spark.idempotent import OnceAppender
from cordwood.spark.sink_rows import RowBlock, row_blocks

pytestmark = pytest.mark.real

ROWS = 200


def cut(seed: int, log: str, batch: int = 0) -> list[RowBlock]:
    """A batch's rows in row blocks of this attempt's own."""
    chance, at, batches = random.Random(seed), 0, []
    while at < ROWS:
        stop = min(ROWS, at + chance.randint(1, 9))
        values = [b"%d %d" % (batch, number) for number in range(at, stop)]
        batches.append(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"]))
        at = stop
    return list(row_blocks(iter(batches), log))


def values(store: BlockingStore, log: str) -> list[bytes]:
    with store.read(log) as reader:
        return [item.value for item in reader if isinstance(item, Record)]


@pytest.mark.parametrize("seed", range(6))
def test_idempotent_attempts_that_run_beside_each_other_write_each_row_once(
    store: BlockingStore, seed
):
    log = f"/z-{uuid.uuid4().hex[:8]}"
    with ThreadPoolExecutor(3) as pool:
        attempts = [
            pool.submit(OnceAppender(store, log, 0, 0).append, cut(seed * 10 + number, log))
            for number in range(3)
        ]
        for each in attempts:
            each.result()
    assert values(store, log) == [b"0 %d" % number for number in range(ROWS)]


def test_a_zombie_of_an_earlier_batch_is_shut_out(store: BlockingStore):
    log = f"/z-{uuid.uuid4().hex[:8]}"
    first = cut(1, log)
    zombie = OnceAppender(store, log, 0, 0)
    zombie.append(first[:3])
    OnceAppender(store, log, 0, 0).append(first)
    OnceAppender(store, log, 1, 0).append(cut(2, log, batch=1))
    with pytest.raises(ProducerFenced):
        zombie.append(first[3:])
    rows = [b"%d %d" % (batch, number) for batch in range(2) for number in range(ROWS)]
    assert values(store, log) == rows


def test_what_a_zombie_stages_after_the_publish_is_in_no_log(store: BlockingStore):
    log = f"/z-{uuid.uuid4().hex[:8]}"
    refs, *_ = stage_all(store, cut(1, log), 60.0)
    publish(store, log, 0, refs)
    late, *_ = stage_all(store, cut(2, log), 60.0)
    assert publish(store, log, 0, late).is_repeat
    assert values(store, log) == [b"0 %d" % number for number in range(ROWS)]

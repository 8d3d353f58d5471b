"""A process that forks: its child has a copy of each producer, and may not append under it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.client.append.producer import Producer
from cordwood.errors import BadSetting
from cordwood.sim.planted import find_bug, planted

FORKS = """
import os
from cordwood import Producer
from cordwood.errors import BadSetting

producer = Producer(7)
with producer.call(1):
    producer.take(1, 3)
if os.fork():
    os.wait()
    with producer.call(1):
        print("parent", producer.take(1, 1), flush=True)
else:
    for name, call in (("call", lambda: producer.call(1).__enter__()),
                       ("again", lambda: producer.again(1, 3))):
        try:
            call()
        except BadSetting as error:
            print(name, str(error)[:26], flush=True)
    with Producer(7, epoch=1).call(1):
        print("child of its own", flush=True)
    os._exit(0)
"""


def test_a_forked_child_is_told_to_make_its_own() -> None:
    told = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.splitlines() == [
        "call Producer(7, 0) is of proce",
        "again Producer(7, 0) is of proce",
        "child of its own",
        "parent 3",
    ]


async def both_sides_of_a_fork_append(cluster: ClusterAtHand) -> None:
    """What the parent appended after its child was acknowledged with the child's LSNs, and lost."""
    async with cluster.client() as store, cluster.client() as of_child:
        producer = Producer(7)
        for number in range(3):
            await store.append("log", b"%d" % number, producer=producer)
        child = copy.deepcopy(producer)
        child._is_copy = False
        child._process += 1  # what the child's copy sees: it is of another process
        refused = 0
        for number in range(3, 6):
            try:
                await of_child.append("log", b"child", producer=child)
            except BadSetting:
                refused += 1
            await store.append("log", b"%d" % number, producer=producer)
        assert await values(store, "log") == [b"%d" % number for number in range(6)]
        assert refused == 3


def test_no_record_of_either_side_is_lost() -> None:
    simulate(both_sides_of_a_fork_append)


def test_the_scene_catches_producers_that_are_shared() -> None:
    with planted(find_bug("producer-of-any-process")), pytest.raises(AssertionError):
        simulate(both_sides_of_a_fork_append)


async def a_copy_appends(cluster: ClusterAtHand, make: Callable[[Producer], Producer]) -> None:
    """The second record was acknowledged with the place of the first, and lost: whoever made the
    copy had a process of the same number, as in two containers, or was the same process."""
    async with cluster.client() as store:
        producer = Producer(7)
        given = make(producer)
        await store.append("log", b"0", producer=producer)
        refused = False
        try:
            await store.append("log", b"other", producer=given)
        except BadSetting as error:
            refused = "a copy of" in str(error)
        assert refused
        await store.append("log", b"1", producer=producer)
        assert await values(store, "log") == [b"0", b"1"]


def by_pickle(producer: Producer) -> Producer:
    """As Spark hands a task what its closure holds."""
    return pickle.loads(pickle.dumps(producer))


@pytest.mark.parametrize("make", [by_pickle, copy.deepcopy, copy.copy])
def test_a_copy_appends_nothing(make: Callable[[Producer], Producer]) -> None:
    simulate(partial(a_copy_appends, make=make))
    with planted(find_bug("producer-of-any-process")), pytest.raises(AssertionError):
        simulate(partial(a_copy_appends, make=make))
    with planted(find_bug("producer-copies-append")), pytest.raises(AssertionError):
        simulate(partial(a_copy_appends, make=make))
